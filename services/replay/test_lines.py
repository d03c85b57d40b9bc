"""Jobs never show the future."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from services.kit.times import parse_time
from services.recording.model import Job
from services.replay.lines import Line, job_lines

FROM, TO = 1_000_000, 2_000_000


def decoded(lines: list[Line]) -> list[dict[str, Any]]:
    return [json.loads(line) for _, line in lines]


@st.composite
def jobs(draw: st.DrawFn) -> Job:
    start = draw(st.integers(FROM - 500_000, TO + 500_000))
    length = draw(st.none() | st.integers(0, 1_000_000))
    return Job(
        job_id=str(draw(st.integers(0, 99))),
        nodes=["v001"],
        start=start,
        end=None if length is None else start + length,
        state=draw(st.sampled_from(["RUNNING", "COMPLETED", "NODE_FAIL"])),
        exit_code=137,
    )


@given(st.lists(jobs(), max_size=20))
def test_a_line_shows_nothing_that_is_later_than_itself(found: list[Job]) -> None:
    lines = job_lines(found, FROM, TO)
    assert [at for at, _ in lines] == sorted(at for at, _ in lines)
    for (at_ms, _), row in zip(lines, decoded(lines), strict=True):
        assert parse_time(row["timestamp"]) == at_ms
        assert FROM <= at_ms <= TO
        if row["event"] == "start":
            assert row["job"]["end"] is None
            assert row["job"]["state"] == "RUNNING"
            assert "exit_code" not in row["job"]
        else:
            assert parse_time(row["job"]["end"]) == at_ms
            assert row["job"]["exit_code"] == 137


@given(st.lists(jobs(), max_size=20, unique_by=lambda job: job.job_id))
def test_every_job_of_the_window_starts_once_and_ends_after_it_if_it_ends_in_it(found: list[Job]) -> None:
    rows = decoded(job_lines(found, FROM, TO))
    for job in found:
        mine = [row["event"] for row in rows if row["job"]["job_id"] == job.job_id]
        in_window = job.start <= TO and (job.end is None or job.end >= FROM)
        ends = in_window and job.end is not None and job.end <= TO
        assert mine == ["start"] * in_window + ["end"] * ends


def test_a_job_that_runs_already_starts_with_the_window_and_keeps_its_own_start() -> None:
    lines = job_lines([Job(job_id="1", nodes=["a"], start=FROM - 5000, state="COMPLETED", end=TO + 1)], FROM, TO)
    assert lines[0][0] == FROM
    (row,) = decoded(lines)
    assert parse_time(row["job"]["start"]) == FROM - 5000


def test_an_end_comes_before_the_start_that_takes_its_nodes() -> None:
    first = Job(job_id="1", nodes=["a"], start=FROM, end=FROM + 10, state="COMPLETED")
    second = Job(job_id="2", nodes=["a"], start=FROM + 10, end=FROM + 10, state="FAILED")
    rows = decoded(job_lines([second, first], FROM, TO))
    assert [(row["job"]["job_id"], row["event"]) for row in rows] == [
        ("1", "start"),
        ("1", "end"),
        ("2", "start"),
        ("2", "end"),
    ]
