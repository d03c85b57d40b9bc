from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from detectors.registry import choose
from services.kit.errors import UserError
from services.recording.conftest import END, START, edit_lines, edit_manifest, rewrite
from services.recording.embedded import findings_of
from services.recording.reader import Recording, times_of
from services.recording.repair import rewrite_recording
from services.recording.schema import STREAMS, TIMESTAMP
from services.recording.tidy import TidyRecording, open_tidy
from services.recording.validate import validate_recording

Change = Callable[[pa.Table], pa.Table]


def rows_of(recording: Recording, stream: str, **more: Any) -> list[dict[str, Any]]:
    return [row for batch in recording.batches(stream, **more) for row in batch.to_pylist()]


def with_rows(*rows: dict[str, Any], at: int = 0) -> Change:
    """Put rows of a table in again before row `at`, changed."""

    def change(table: pa.Table) -> pa.Table:
        wanted = [table.slice(row.pop("of"), 1) for row in (dict(row) for row in rows)]
        for place, row in enumerate(rows):
            for name, value in row.items():
                if name != "of":
                    column = pa.array([value]).cast(table.schema.field(name).type)
                    wanted[place] = wanted[place].set_column(table.schema.names.index(name), name, column)
        tables = [table.slice(0, at), *wanted, table.slice(at)]
        return pa.concat_tables(tables).unify_dictionaries()

    return change


def messed(far: Any, order: Any) -> Change:
    """Move some rows behind the end, and take rows in another order, some twice."""

    def change(table: pa.Table) -> pa.Table:
        times = np.asarray(table["timestamp"].cast(pa.int64())).copy()
        times[far] += END
        return table.set_column(0, "timestamp", pa.array(times).cast(TIMESTAMP)).take(order)

    return change


def at_ms(ms: int) -> Any:
    return pa.scalar(ms, pa.int64()).cast(pa.timestamp("ms", "UTC")).as_py()


def test_a_recording_without_flaws_is_opened_as_it_is(made: Path) -> None:
    recording = open_tidy(made)
    assert type(recording) is Recording
    assert recording.left_out == ""


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (with_rows({"of": 0, "timestamp": at_ms(START - 300)}), "1 of 121 rows of dcgm.parquet left out (1 outside"),
        (with_rows({"of": 0, "timestamp": None}, at=7), "1 of 121 rows of dcgm.parquet left out (1 without a time)"),
        (with_rows({"of": 0, "node": None}, at=7), "1 of 121 rows of dcgm.parquet left out (1 that name no entity)"),
        (with_rows({"of": 9}, at=10), "1 of 121 rows of dcgm.parquet left out (1 that repeat an earlier one)"),
        (with_rows({"of": 9}, at=99), "(1 that repeat an earlier one); 1 row of dcgm.parquet put in order"),
        (lambda table: table.take(np.arange(119, -1, -1)), "118 rows of dcgm.parquet put in order"),
    ],
)
def test_rows_that_cannot_be_right_are_left_out_and_counted(small: Path, change: Change, words: str) -> None:
    whole = rows_of(Recording.open(small), "dcgm")
    rewrite(small, "dcgm", change)
    recording = open_tidy(small)
    assert words in recording.left_out
    key = [(row["timestamp"], row["node"], row["gpu"]) for row in rows_of(recording, "dcgm")]
    assert sorted(key) == [(row["timestamp"], row["node"], row["gpu"]) for row in whole]
    assert [at for at, _, _ in key] == sorted(at for at, _, _ in key)
    part = rows_of(recording, "dcgm", start=START + 10_000, end=START + 20_000, max_rows=3)
    assert [row["timestamp"] for row in part] == [row["timestamp"] for row in whole[4:8]]


def test_strict_reads_it_as_it_is_and_refuses_it(small: Path) -> None:
    rewrite(small, "dcgm", with_rows({"of": 0, "timestamp": at_ms(START - 300)}))
    with pytest.raises(UserError, match="row 0") as caught:
        rows_of(open_tidy(small, strict=True), "dcgm")
    assert "hindcast repair" in caught.value.remedy


def test_lines_that_cannot_be_right_are_left_out_and_counted(small: Path) -> None:
    edit_lines(small, "events.jsonl", lambda lines: ["{half\n", *lines[::-1], lines[0].replace("T08", "T18")])
    edit_lines(small, "jobs.jsonl", lambda lines: [*lines, *lines, lines[0].replace('"812"', '"813"')])
    ended = '"end":"2024-04-01T07:00:00Z","state":"FAILED"'
    edit_lines(small, "jobs.jsonl", lambda lines: [*lines[:2], lines[2].replace('"end":null,"state":"RUNNING"', ended)])
    recording = open_tidy(small)
    assert recording.left_out == (
        "2 of 4 lines of events.jsonl left out (1 outside of start and end, 1 that cannot be read); "
        "2 of 3 lines of jobs.jsonl left out (1 of a job that is there already, 1 that end before they start); "
        "1 line of events.jsonl put in order"
    )
    assert [event.timestamp for event in recording.events()] == [START + 4000, START + 9000]
    assert [job.job_id for job in recording.jobs()] == ["812"]


def test_a_label_that_cannot_be_read_is_refused(small: Path) -> None:
    edit_lines(small, "labels.jsonl", lambda lines: [*lines, "{\n"])
    with pytest.raises(UserError, match=r"labels.jsonl: line 3"):
        open_tidy(small)


def test_types_of_other_writers_are_read_and_named(small: Path) -> None:
    def change(table: pa.Table) -> pa.Table:
        nanos = table["timestamp"].cast(pa.timestamp("ns", "UTC")).cast(pa.int64())
        shifted = pa.array(np.asarray(nanos) + 499_000).cast(pa.timestamp("ns", "UTC"))
        texts = pa.array([*(f"{value:g}" for value in table["DCGM_FI_DEV_GPU_TEMP"].to_pylist()[:-1]), "hot"])
        return table.set_column(0, "timestamp", shifted).set_column(3, "DCGM_FI_DEV_GPU_TEMP", texts)

    whole = rows_of(Recording.open(small), "dcgm")
    rewrite(small, "dcgm", change)
    recording = open_tidy(small)
    assert "times of dcgm.parquet are timestamp[ns, tz=UTC], read as milliseconds in UTC" in recording.left_out
    assert "DCGM_FI_DEV_GPU_TEMP of dcgm.parquet is text" in recording.left_out
    rows = rows_of(recording, "dcgm")
    assert rows.pop()["DCGM_FI_DEV_GPU_TEMP"] is None
    assert rows == whole[:-1]


def test_a_recording_of_which_nothing_can_be_used_is_refused(small: Path) -> None:
    edit_manifest(small, lambda content: content.update(start="2030-01-01T00:00:00Z", end="2030-01-02T00:00:00Z"))
    edit_lines(small, "labels.jsonl", lambda lines: [])
    edit_lines(small, "jobs.jsonl", lambda lines: [])
    with pytest.raises(UserError, match="nothing in it can be used"):
        open_tidy(small)


@settings(max_examples=25, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.data())
def test_whatever_happens_to_the_rows_repair_gives_a_valid_recording(
    made: Path, tmp_path_factory: pytest.TempPathFactory, data: st.DataObject
) -> None:
    """Rows shuffled, doubled, moved out of the recording: what comes back are the good rows, in their order."""
    folder = tmp_path_factory.mktemp("messy")
    messy = folder / "small"
    messy.mkdir()
    for path in made.iterdir():
        (messy / path.name).write_bytes(path.read_bytes())
    lost: dict[str, set[Any]] = {}
    for stream in STREAMS:
        table = pq.read_table(made / f"{stream}.parquet")
        rows = data.draw(st.lists(st.integers(0, table.num_rows - 1), max_size=30), label=stream)
        far = np.asarray(data.draw(st.lists(st.sampled_from(range(table.num_rows)), max_size=5)), np.int64)
        order = np.r_[np.arange(table.num_rows), rows].astype(np.int64)
        if data.draw(st.booleans()):
            order = np.random.default_rng(len(rows)).permutation(order)
        rewrite(messy, stream, messed(far, order))
        lost[stream] = set(far.tolist())
    recording = open_tidy(messy)
    out = rewrite_recording(recording, folder / "clean", "clean")
    assert validate_recording(out) == []
    clean = Recording.open(out)
    for stream in STREAMS:
        whole = rows_of(Recording.open(made), stream)
        kept = [row for place, row in enumerate(whole) if place not in lost[stream]]
        assert sorted(map(repr, rows_of(clean, stream))) == sorted(map(repr, kept))
        assert repr(rows_of(clean, stream)) == repr(rows_of(recording, stream))
    assert isinstance(recording, TidyRecording) == bool(recording.left_out)
    assert open_tidy(out).left_out == ""


def test_a_stretch_of_a_recording_with_flaws_reads_no_other_rows(small: Path) -> None:
    """Of a file in groups of ten rows, with one row twice and one without a time, the first group gets damaged."""
    again, timeless = with_rows({"of": 39}, at=40), with_rows({"of": 70, "timestamp": None}, at=71)
    rewrite(small, "dcgm", lambda table: again(timeless(table)), row_group_size=10)
    recording, stretches = open_tidy(small), ((5, 6), (6, 40), (19, 21), (30, 60))
    assert "(1 without a time, 1 that repeat an earlier one)" in recording.left_out
    whole = rows_of(recording, "dcgm")
    path = small / "dcgm.parquet"
    damaged, column = bytearray(path.read_bytes()), pq.ParquetFile(path).metadata.row_group(0).column(0)
    begin = column.dictionary_page_offset or column.data_page_offset
    damaged[begin : begin + column.total_compressed_size] = b"\xff" * column.total_compressed_size
    path.write_bytes(bytes(damaged))
    for first, last in stretches:
        start, end = START + first * 5000, START + last * 5000
        wanted = [row for row in whole if at_ms(start) <= row["timestamp"] < at_ms(end)]
        assert len(wanted) == 2 * (last - first)
        assert rows_of(recording, "dcgm", start=start, end=end) == wanted
    with pytest.raises(UserError, match="damaged data"):
        rows_of(recording, "dcgm")


def test_findings_of_a_messy_recording_are_those_of_the_clean_one(small: Path, made: Path) -> None:
    before = [finding.to_json() for finding in findings_of(Recording.open(made), choose())]
    rewrite(small, "dcgm", lambda table: table.take(np.r_[np.arange(119, -1, -1), 5, 6, 7]))
    rewrite(small, "nic", with_rows({"of": 3}, {"of": 0, "timestamp": at_ms(END + 1)}, at=4))
    after = [finding.to_json() for finding in findings_of(open_tidy(small), choose())]
    assert after == before


def test_repair_keeps_what_is_not_known(small: Path, tmp_path: Path) -> None:
    """Without labels.jsonl nobody has labelled it, and without jobs.jsonl no job is unknown: neither is made up."""
    for path in (small / "labels.jsonl", small / "jobs.jsonl"):
        path.unlink()
    edit_manifest(small, lambda content: [content["files"].pop(name) for name in ("labels.jsonl", "jobs.jsonl")])
    rewrite(small, "dcgm", with_rows({"of": 0, "timestamp": at_ms(START - 300)}))
    out = rewrite_recording(open_tidy(small), tmp_path / "clean", "clean")
    assert validate_recording(out) == []
    assert not Recording.open(out).labelled
    assert (Recording.open(out).manifest.model_extra or {})["repair_of"]["left_out"].startswith("1 of 121 rows")
    assert len(times_of(next(Recording.open(out).batches("dcgm")))) == 120
