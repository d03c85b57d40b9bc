import numpy as np
import pyarrow.parquet as pq
import pytest

from detectors.faults import faults
from services.postmortem.case import Case
from services.postmortem.catalogue import CLOCK, SENT, signals_of
from services.postmortem.evidence import _silent, show
from services.postmortem.readings import Grid, Readings, _rates, columns_of, read


def test_every_fault_has_signals() -> None:
    assert all(signals_of(fault) for fault in faults())


def test_readings_are_the_files_in_bins(brake: Case) -> None:
    recording = brake.recording
    grid = Grid(recording.manifest.start, recording.manifest.end + 1, 60_000)
    (clock,) = read(recording, columns_of(recording, [CLOCK]), grid)
    table = pq.read_table(recording.path / "dcgm.parquet", columns=["timestamp", "node", "gpu", CLOCK.column])
    rows = [row for row in table.to_pylist() if (row["node"], row["gpu"]) == ("v002", 3)]
    at = np.array([round(row["timestamp"].timestamp() * 1000) for row in rows])
    values = np.array([row[CLOCK.column] for row in rows], dtype=np.float64)
    place = clock.keys.index(("v002", "3"))
    for number in range(grid.size):
        inside = (at >= grid.start + 60_000 * number) & (at < grid.start + 60_000 * (number + 1))
        if inside.any():
            assert clock.values[number, place] == pytest.approx(values[inside].mean())
            assert clock.at[number, place] == at[inside].max()
        else:
            assert np.isnan(clock.values[number, place])
    assert len(clock.keys) == 24


def test_counters_grow_by_the_second_and_begin_anew_without_a_rate() -> None:
    counts = np.array([[10.0], [np.nan], [30.0], [5.0], [6.0]])
    at = np.array([[0.0], [np.nan], [10_000.0], [15_000.0], [20_000.0]])
    assert _rates(counts, at)[:, 0] == pytest.approx([np.nan, np.nan, 2.0, np.nan, 0.2], nan_ok=True)


def test_a_signal_that_the_recording_lacks_is_left_out(brake: Case) -> None:
    from dataclasses import replace

    assert columns_of(brake.recording, [SENT, replace(SENT, column="no_such_counter")]) == {SENT: SENT.column}


def test_the_brake_shows_in_clock_and_power_at_the_first_reading_after_the_onset(brake: Case) -> None:
    shown = {one.signal.title: one for one in show(brake.recording, brake.incident, brake.jobs, [])}
    (label,) = brake.labels
    interval = (brake.recording.manifest.streams["dcgm"].interval_s or 0) * 1000
    for title in ("SM clock", "GPU power"):
        left = shown[title].left_at
        assert left is not None
        assert label.onset <= left <= label.onset + 1.2 * interval
    clock, waiting, step = shown["SM clock"], shown["waiting for others in a step"], shown["step time"]
    assert clock.during < 0.45 * clock.before
    assert clock.peers_during > 0.95 * clock.peers_before
    assert waiting.peers_during > 4 * waiting.during  # the others wait for the culprit
    assert step.during / step.before == pytest.approx(label.impact["step_time_factor"], rel=0.1)  # type: ignore[index]
    assert shown["GPU temperature"].left_at is None or shown["GPU temperature"].left_at > label.onset


def test_a_job_is_held_against_its_own_past_alone(hang: Case) -> None:
    shown = {one.signal.title: one for one in show(hang.recording, hang.incident, hang.jobs, [])}
    power = shown["GPU power"]
    assert not power.against_peers
    assert power.chart.culprit == "job 20117, median of 8"
    assert power.left_at is not None
    assert hang.labels[0].onset <= power.left_at <= hang.root.detected_at


def test_what_stops_before_the_finding_is_silent_from_when_it_was_due() -> None:
    at = np.full((20, 2), np.nan)
    at[:10, 0] = 5000.0 * np.arange(10) + 700
    at[:8, 1] = 5000.0 * np.arange(8) + 900
    readings = Readings(
        CLOCK, Grid(0, 100_000, 5000), [("a", "0"), ("a", "1")], np.where(np.isnan(at), np.nan, 1.0), at
    )
    assert _silent(readings, [0, 1], 70_000) == 45_700 + 5000
    assert _silent(readings, [1], 70_000) == 35_900 + 5000
    assert _silent(readings, [0, 1], 48_000) is None  # the next one is not due yet
