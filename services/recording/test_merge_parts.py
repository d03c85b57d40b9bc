"""What a merge keeps of recordings of different lengths, and clocks that disagree."""

from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.kit.errors import UserError
from services.recording.clocks import clock_skews
from services.recording.conftest import START
from services.recording.merge import merge_recordings
from services.recording.merge_parts import MARGIN_MS
from services.recording.model import Event, Gpu, Job, Label, Node, Topology
from services.recording.reader import Recording
from services.recording.schema import TIMESTAMP, name_column
from services.recording.test_merge import merged, recording

HOUR = 3_600_000
MACHINES = Topology(nodes=[Node(name=name, gpus=[Gpu(gpu=gpu) for gpu in range(4)]) for name in ("n1", "n2")])


def series(codes: dict[int, dict[int, int]] | None = None, *, every_s: int = 15, lost: dict[int, int] | None = None,
           gap: tuple[int, int] = (0, 0), seconds: int = 3600, gpus: int = 4) -> pa.RecordBatch:  # fmt: skip
    """Return an hour of DCGM of n1: `codes` by GPU from which second on which XID, `lost` from when on no rows."""
    rows = [
        (second, gpu)
        for second in range(0, seconds, every_s)
        for gpu in range(gpus)
        if second < (lost or {}).get(gpu, seconds) and not gap[0] <= second < gap[1]
    ]
    xid = [
        max((code for at, code in (codes or {}).get(gpu, {}).items() if at <= second), default=0)
        for second, gpu in rows
    ]
    return pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array([START + second * 1000 for second, _ in rows]).cast(TIMESTAMP),
            "node": name_column(np.zeros(len(rows), np.int64), ["n1"]),
            "gpu": pa.array([gpu for _, gpu in rows], pa.uint8()),
            "DCGM_FI_DEV_XID_ERRORS": pa.array(xid, pa.float32()),
        }
    )


def kernel(at_s: float, message: str, node: str = "n1") -> Event:
    return Event(timestamp=START + round(at_s * 1000), source="kernel", node=node, severity="info", message=message)


def xid(at_s: float, code: int = 79) -> Event:
    return kernel(at_s, f"NVRM: Xid (PCI:0000:9b:00): {code}, pid=1, name=python, GPU has fallen off the bus.")


def sel(at_s: float, message: str) -> Event:
    return Event(timestamp=START + round(at_s * 1000), source="sel", node="n1", severity="info", message=message)


def logs(folder: Path, name: str, *events: Event) -> Recording:
    times = [event.timestamp for event in events]
    ordered = sorted(events, key=lambda one: one.timestamp)
    return recording(folder, name, events=ordered, topology=MACHINES, start=min(times), end=max(times))


def telemetry(folder: Path, batch: pa.RecordBatch | None = None) -> Recording:
    rows = series() if batch is None else batch
    last = START + 3600_000
    return recording(folder, "gpus", {"dcgm": rows}, topology=MACHINES, start=START, end=last)


def test_an_old_log_record_does_not_stretch_a_merge(tmp_path: Path) -> None:
    bmc = logs(
        tmp_path, "bmc", sel(-14 * 86_400, "old"), sel(-600, "before"), sel(1800, "inside"), sel(90_000, "later")
    )
    result, report = merged(tmp_path, telemetry(tmp_path), bmc)
    assert [event.message for event in result.events()] == ["before", "inside"]
    assert (result.manifest.start, result.manifest.end) == (START - 600_000, START + 3585_000)
    assert report.skipped == {"log records outside of the stretch that is kept": 2}
    assert "bmc, which is of 2024-03-18" in next(iter(report.first.values()))
    assert "--keep-all" in report.notes[-1]
    assert merge_recordings([telemetry(tmp_path / "b"), bmc], tmp_path / "all", keep_all=True).made["events"] == 4
    whole = Recording.open(tmp_path / "all").manifest
    assert whole.end - whole.start == (14 * 86_400 + 90_000) * 1000


def test_jobs_labels_and_other_telemetry_are_kept_where_they_overlap(tmp_path: Path) -> None:
    long = {"start": START - 10 * HOUR, "end": START + 10 * HOUR}
    jobs = [
        Job(job_id=name, nodes=["n1"], start=START + first * HOUR, end=START + last * HOUR, state="COMPLETED")
        for name, first, last in (("before", -9, -8), ("across", -7, 1), ("after", 5, 6))
    ]
    labels = [
        Label(
            id=name,
            fault="node_down",
            entity={"node": "n1"},
            onset=START + first * HOUR,
            end=START + last * HOUR,
            within_s=60,
        )
        for name, first, last in (("f1", -9, -8), ("f2", 0, 5))
    ]
    sensors = pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array([START + hour * HOUR for hour in range(-10, 11)]).cast(TIMESTAMP),
            "node": name_column(np.zeros(21, np.int64), ["n1"]),
            "sensor": name_column(np.zeros(21, np.int64), ["PSU1"]),
            "reading": pa.array([1.0] * 21),
            "unit": pa.array(["W"] * 21),
            "state": pa.array([0] * 21, pa.uint8()),
        }
    )
    other = recording(tmp_path, "other", {"bmc": sensors}, jobs=jobs, labels=labels, topology=MACHINES, **long)
    result, report = merged(tmp_path, telemetry(tmp_path), other)
    assert [job.job_id for job in result.jobs()] == ["across"]
    assert [label.id for label in result.labels()] == ["f2"]
    assert result.manifest.streams["bmc"].rows == 2
    assert {reason.split(" outside")[0]: count for reason, count in report.skipped.items()} == {
        "rows of bmc": 19, "jobs": 2, "labels": 1,
    }  # fmt: skip


def test_logs_alone_are_of_the_time_of_the_most_talkative(tmp_path: Path) -> None:
    busy = logs(tmp_path, "busy", *(kernel(60 * number, "x") for number in range(30)))
    result, _ = merged(tmp_path, logs(tmp_path, "old", sel(-86_400, "old"), sel(600, "new")), busy)
    assert (result.manifest.start, result.manifest.end) == (START, START + 29 * 60_000)


def test_recordings_of_other_times_are_refused_with_what_their_clocks_are_off(tmp_path: Path) -> None:
    gpus = telemetry(tmp_path, series({0: {1200: 79}, 1: {1800: 31}}))
    with pytest.raises(UserError, match="after the others have ended") as refused:
        merge_recordings([gpus, logs(tmp_path, "zone", xid(8390), xid(8990, 31))], tmp_path / "whole")
    assert "a time zone? (--timezone" in (refused.value.remedy or "")


@settings(max_examples=25, deadline=None)
@given(
    offset_s=st.integers(-5000, 5000),
    seconds=st.dictionaries(st.sampled_from([31, 48, 63, 94]), st.integers(60, 3400), min_size=2),
    every_s=st.sampled_from([5, 15, 30]),
)
def test_the_offset_of_a_clock_is_bounded_by_what_both_saw(
    tmp_path_factory: pytest.TempPathFactory, offset_s: int, seconds: dict[int, int], every_s: int
) -> None:
    folder = tmp_path_factory.mktemp("clocks")
    codes = {gpu: {second: code} for gpu, (code, second) in enumerate(seconds.items())}
    gpus = telemetry(folder, series(codes, every_s=every_s))
    skews = clock_skews([gpus, logs(folder, "lines", *(xid(at + offset_s, code) for code, at in seconds.items()))])
    assert len(skews) == 1 if abs(offset_s) > 120 else len(skews) <= 1
    for skew in skews:
        assert skew.low <= offset_s * 1000 <= skew.high
        assert skew.high - skew.low <= (61 + every_s) * 1000
        assert skew.events == len(seconds)
    if offset_s == 0:
        assert skews == []


def test_clocks_are_moved_only_when_that_is_asked_for(tmp_path: Path) -> None:
    gpus = telemetry(tmp_path, series({2: {600: 63}}, lost={3: 1800}))
    lines = logs(tmp_path, "lines", kernel(7200, "eth0: up"), xid(7802, 63), xid(9002))
    left, report = merged(tmp_path, gpus, logs(tmp_path, "near", xid(905, 63), xid(2105), kernel(300, "eth0: up")))
    assert "clock of kernel of n1 in near is 343 s (+-38 s) ahead of the telemetry's, by 2 event(s)" in report.notes[0]
    assert [event.timestamp - START for event in left.events()] == [300_000, 905_000, 2_105_000]
    report = merge_recordings([gpus, lines], tmp_path / "moved", align_clocks=True)
    assert "its records were moved" in report.notes[0]
    first, _, last = Recording.open(tmp_path / "moved").events()
    assert abs(first.timestamp - START) <= 60_000
    assert last.timestamp - first.timestamp == 1802_000


def test_a_clock_that_may_be_of_another_zone_is_moved_by_whole_hours(tmp_path: Path) -> None:
    gpus = telemetry(tmp_path, series({2: {600: 63}}))
    lines = logs(tmp_path, "lines", kernel(4190, "eth0: up"), xid(4200, 63))
    report = merge_recordings([gpus, lines], tmp_path / "moved", align_clocks=True)
    assert "is 3,600 s (+-38 s) ahead of the telemetry's" in report.notes[0]
    times = [event.timestamp - START for event in Recording.open(tmp_path / "moved").events()]
    assert times == [590_000, 600_000]


def test_a_bmcs_clock_is_known_by_a_reboot_and_written_down(tmp_path: Path) -> None:
    gpus = telemetry(tmp_path, series(gap=(1200, 1500)))
    boot = "1 | 04/01/2024 | 09:00:00 | System Boot Initiated #0x14 | Initiated by warm reset | Asserted"
    result, _ = merged(
        tmp_path, gpus, logs(tmp_path, "bmc", sel(3000, boot), sel(3100, "x"), kernel(1260, "Linux version 6.1"))
    )
    skews = (result.manifest.model_extra or {})["clock_skew_s"]
    assert skews["n1"] == pytest.approx(1950, abs=451)
    agreeing = logs(tmp_path, "right", sel(1210, boot), kernel(1380, "Linux version 6.1"))
    assert clock_skews([gpus, agreeing]) == []


def test_one_event_far_away_is_not_taken_for_the_same(tmp_path: Path) -> None:
    gpus = telemetry(tmp_path, series({0: {1200: 31}}))
    assert clock_skews([gpus, logs(tmp_path, "lines", xid(1200 - 8 * 3600 - 400, 31))]) == []
    assert MARGIN_MS == 900_000
