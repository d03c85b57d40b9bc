"""The engine by itself: order, watermark, grid, fleet, lateness and what is reported twice."""

from collections.abc import Sequence
from dataclasses import replace
from typing import ClassVar, Self

import numpy as np
import pytest

from detectors.contract import (
    Batch,
    Default,
    Detector,
    DetectorConfig,
    DetectorSpec,
    Finding,
    Instant,
    LogRecord,
    finding_id,
)
from detectors.engine.engine import Engine
from detectors.engine.pulse import SILENCE_MS
from detectors.engine.rows import KeyColumn, Rows
from detectors.engine.state import pack, unpack
from detectors.fleet.fleet import Fleet, Job, JobEvent

T0 = 1_700_000_000_000 // 5000 * 5000


class Diary:
    """Writes down what it is given, for a test to read."""

    spec: ClassVar[DetectorSpec] = DetectorSpec(
        name="diary", version=1, faults=("straggler",), reads=("logs", "bmc", "dcgm"), latency_s=5,
        fields={"dcgm": ("X",), "bmc": ("state",)}, defaults={"n": Default(value=1, unit="1", source="none")},
    )  # fmt: skip
    config_type: ClassVar[type[DetectorConfig]] = DetectorConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        self.fleet = fleet
        self.entries: list[str] = []

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        self.entries += [f"log {record.at - T0} {record.message}" for record in records]
        return ()

    def observe(self, batch: Batch) -> Sequence[Finding]:
        jobs = ",".join(sorted(self.fleet.jobs))
        for tick in range(len(batch.at)):
            for column in np.flatnonzero(batch.present[tick]):
                key = self.fleet.entities(batch.kind)[batch.entities[column]]
                self.entries.append(f"{batch.kind} {batch.at[tick, column] - T0} {key[0]}/{key[1]} [{jobs}]")
        return ()

    def advance(self, now: Instant) -> Sequence[Finding]:
        self.entries.append(f"advance {now - T0}")
        finding = Finding(
            finding_id("diary", {"node": "a"}, 0), "diary", "straggler", {"node": "a"}, "firing", T0, now, "info", 0.5,
            "", "",
        )  # fmt: skip
        return [finding, replace(finding, state="resolved"), replace(finding, state="resolved")]

    def snapshot(self) -> bytes:
        return pack(self.entries)

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        diary = cls(config, fleet)
        diary.entries = unpack(state)[0]
        return diary


CHOICES: list[tuple[type[Detector], DetectorConfig]] = [(Diary, DetectorConfig())]


def engine(streams: Sequence[str] = ("dcgm", "bmc", "logs", "jobs", "steps")) -> Engine:
    return Engine(None, CHOICES, streams)


def diary(of: Engine) -> list[str]:
    (found,) = of._detectors
    assert isinstance(found, Diary)
    return found.entries


class Alert(Diary):
    """A diary that is called at once when it sees bit 2 of X."""

    spec: ClassVar[DetectorSpec] = Diary.spec.model_copy(update={"name": "alert", "urgent": {"dcgm": {"X": 2}}})


def dcgm(*readings: tuple[int, str, int]) -> Rows:
    times = np.array([T0 + at for at, _, _ in readings], np.int64)
    nodes = tuple(dict.fromkeys(node for _, node, _ in readings))
    codes = np.array([nodes.index(node) for _, node, _ in readings], np.int64)
    gpus = np.array([gpu for _, _, gpu in readings], np.int64)
    keys = {"node": KeyColumn(codes, nodes), "gpu": KeyColumn(gpus, tuple(range(8)))}
    return Rows("dcgm", times, keys, {"X": np.ones(len(times))}, {"X": np.ones(len(times), bool)})


def bmc(at: int) -> Rows:
    one = np.zeros(1, np.int64)
    keys = {"node": KeyColumn(one, ("a",)), "sensor": KeyColumn(one, ("psu",))}
    return Rows("bmc", np.array([T0 + at], np.int64), keys, {}, {})


def nic(*times: int) -> Rows:
    codes = np.zeros(len(times), np.int64)
    keys = {"node": KeyColumn(codes, ("a",)), "nic": KeyColumn(codes, ("mlx5_0",))}
    return Rows("nic", np.array(times, np.int64) + T0, keys, {}, {})


def mark_all(of: Engine, at: int, *, end: bool = False) -> list[Finding]:
    for stream in of.streams:
        of.mark(stream, T0 + at, end=end)
    return of.process()


def test_only_streams_that_somebody_reads_hold_the_watermark_back() -> None:
    assert engine().streams == {"dcgm", "bmc", "logs", "jobs"}
    assert engine(("dcgm", "nic")).streams == {"dcgm"}


def test_nothing_is_handed_over_before_every_stream_has_passed_it() -> None:
    of = engine(("dcgm", "logs"))
    of.feed(dcgm((1000, "a", 0), (6000, "a", 0)))
    of.mark("dcgm", T0 + 60_000)
    assert of.process() == []
    assert diary(of) == []
    of.mark("logs", T0 + 5500)
    of.process()
    assert diary(of) == ["dcgm 1000 a/0 []", "advance 5000"]
    assert of.pending("dcgm") == 1


def test_a_stretch_goes_logs_first_then_kinds_in_order_and_grid_points_come_last() -> None:
    of = engine()
    of.feed(dcgm((5000, "b", 1), (4000, "a", 0), (5001, "a", 0)))
    of.feed(bmc(4500))
    of.feed_logs([LogRecord(T0 + 4900, "sel", "late"), LogRecord(T0 + 4100, "sel", "early")])
    mark_all(of, 10_000)
    assert diary(of) == [
        "log 4100 early",
        "log 4900 late",
        "bmc 4500 a/psu []",
        "dcgm 4000 a/0 []",
        "dcgm 5000 b/1 []",
        "advance 5000",
        "dcgm 5001 a/0 []",
        "advance 10000",
    ]


def test_an_urgent_reading_is_decided_on_at_once_by_who_asked_for_it_and_wherever_the_stream_is_cut() -> None:
    rows = dcgm((1000, "a", 0), (2000, "a", 0), (2000, "b", 0), (3000, "b", 0))
    rows = replace(rows, values={"X": np.array([1.0, 6.0, np.inf, 5.0])})
    whole, cut = (Engine(None, [*CHOICES, (Alert, DetectorConfig())], ("dcgm",)) for _ in range(2))
    for of in (whole, cut):
        of.feed(rows)
    for at in (1500, 2000, 2500):
        cut.mark("dcgm", T0 + at)
        cut.process()
    for of in (whole, cut):
        mark_all(of, 5000)
        calm, alert = (d.entries for d in of._detectors if isinstance(d, Diary))
        assert [entry for entry in alert if entry.startswith("advance")] == ["advance 2000", "advance 5000"]
        assert alert.index("advance 2000") == 3
        assert alert[4] == "dcgm 3000 b/0 []"
        assert [entry for entry in calm if entry.startswith("advance")] == ["advance 5000"]


def test_a_job_is_known_from_its_start_and_until_its_end_exactly() -> None:
    of = engine()
    job = Job("7", ("a",), T0 + 2000)
    of.feed_jobs([JobEvent(T0 + 4000, "end", job), JobEvent(T0 + 2000, "start", job)])
    of.feed(dcgm(*((at, "a", 0) for at in (1999, 2000, 3999, 4000))))
    mark_all(of, 5000)
    assert [entry for entry in diary(of) if entry.startswith("dcgm")] == [
        "dcgm 1999 a/0 []",
        "dcgm 2000 a/0 [7]",
        "dcgm 3999 a/0 [7]",
        "dcgm 4000 a/0 []",
    ]


def test_entities_are_numbered_by_first_sight_and_name_not_by_arrival() -> None:
    one, other = engine(), engine()
    one.feed(dcgm((1000, "z", 0), (1000, "b", 3), (500, "m", 0)))
    other.feed(dcgm((500, "m", 0)))
    other.feed(dcgm((1000, "b", 3)))
    other.feed(dcgm((1000, "z", 0)))
    for of in (one, other):
        mark_all(of, 5000)
        assert of._fleet.entities("dcgm") == [("m", 0), ("b", 3), ("z", 0)]


def test_late_rows_are_dropped_and_counted_and_repeats_are_not_seen() -> None:
    of = engine()
    of.feed(dcgm((1000, "a", 0), (1000, "a", 0), (2000, "a", 0)))
    mark_all(of, 3000)
    of.feed(dcgm((1000, "a", 0), (3000, "b", 0), (3001, "a", 0)))
    of.feed_logs([LogRecord(T0 + 10, "sel", "late")])
    mark_all(of, 5000)
    assert of.late_rows == 3
    assert [entry for entry in diary(of) if entry.startswith("dcgm")] == [
        "dcgm 1000 a/0 []",
        "dcgm 2000 a/0 []",
        "dcgm 3001 a/0 []",
    ]


def test_the_grid_rests_after_an_hour_of_silence_and_goes_on_with_the_next_row() -> None:
    of = engine()
    of.feed(dcgm((1000, "a", 0)))
    mark_all(of, 10 * SILENCE_MS)
    calls = sum(entry.startswith("advance") for entry in diary(of))
    assert calls == (1000 + SILENCE_MS) // 5000
    of.feed(dcgm((10 * SILENCE_MS + 1, "a", 0)))
    mark_all(of, 10 * SILENCE_MS + 7000)
    assert diary(of)[-2:] == [f"dcgm {10 * SILENCE_MS + 1} a/0 []", f"advance {10 * SILENCE_MS + 5000}"]


def test_of_what_nobody_reads_only_the_times_count_and_they_keep_the_grid_from_resting() -> None:
    of = Engine(None, CHOICES, ("dcgm", "nic", "jobs"), every=True, spare={"nic"})
    of.feed(dcgm((1000, "a", 0)))
    of.feed(nic(SILENCE_MS, 2000, 2000))
    mark_all(of, 10 * SILENCE_MS)
    assert sum(entry.startswith("advance") for entry in diary(of)) == 2 * SILENCE_MS // 5000
    of.feed(nic(10 * SILENCE_MS + 1, 3000))
    mark_all(of, 10 * SILENCE_MS + 7000)
    assert diary(of)[-1] == f"advance {10 * SILENCE_MS + 5000}"
    assert not of._fleet.entities("nic")


def test_what_comes_after_the_last_point_of_the_grid_is_decided_on_at_the_end_wherever_the_stream_is_cut() -> None:
    def ended(*steps: tuple[int, bool]) -> tuple[list[str], bool]:
        of = engine(("dcgm", "logs"))
        of.feed(dcgm((4000, "a", 0)))
        of.feed_logs([LogRecord(T0 + 6900, "kernel", "the last line")])
        for at, end in steps:
            mark_all(of, at, end=end)
            of = Engine.restore(None, CHOICES, ("dcgm", "logs"), of.snapshot())
        return diary(of), of.ended

    whole, over = ended((7000, True))
    assert over
    assert whole[-2:] == ["log 6900 the last line", "advance 7000"]
    assert ended((7000, False), (7000, True), (7000, True)) == (whole, True)
    assert ended((5500, False), (6900, False), (7000, True)) == (whole, True)
    assert ended((7000, False))[0][-1] == "log 6900 the last line"
    assert ended((10_000, True))[0][-2:] == ["log 6900 the last line", "advance 10000"]


def test_who_decided_on_an_urgent_reading_at_the_very_end_does_so_once() -> None:
    of = Engine(None, [*CHOICES, (Alert, DetectorConfig())], ("dcgm",))
    rows = dcgm((1000, "a", 0), (7000, "a", 0))
    of.feed(replace(rows, values={"X": np.array([1.0, 2.0])}))
    mark_all(of, 7000, end=True)
    calm, alert = (d.entries for d in of._detectors if isinstance(d, Diary))
    assert calm.count("advance 7000") == alert.count("advance 7000") == 1


def test_a_finding_fires_once_and_is_resolved_once() -> None:
    of = engine()
    of.feed(dcgm((1000, "a", 0)))
    assert [finding.state for finding in mark_all(of, 60_000)] == ["firing", "resolved"]


def test_a_stream_that_has_ended_holds_nothing_back() -> None:
    of = engine(("dcgm", "logs"))
    of.feed(dcgm((9000, "a", 0)))
    of.mark("logs", T0 + 1000, end=True)
    of.mark("dcgm", T0 + 10_000)
    of.process()
    assert of.event_time == T0 + 10_000
    assert not of.ended
    of.mark("dcgm", T0 + 12_000, end=True)
    of.process()
    assert of.ended


def test_what_waits_survives_a_restart() -> None:
    def fed() -> Engine:
        of = engine()
        of.feed(dcgm((1000, "a", 0), (7000, "b", 0)))
        of.feed(bmc(6000))
        of.feed_logs([LogRecord(T0 + 6500, "sel", "waits")])
        of.feed_jobs([JobEvent(T0 + 6000, "start", Job("7", ("a",), T0 + 6000, 8, {"a": (0, 1)}))])
        mark_all(of, 3000)
        return of

    whole, carried = fed(), Engine.restore(None, CHOICES, tuple(engine().streams), fed().snapshot())
    mark_all(whole, 20_000)
    mark_all(carried, 20_000)
    assert diary(carried) == diary(whole)
    assert "dcgm 7000 b/0 [7]" in diary(whole)
    assert carried.snapshot() == whole.snapshot()


def test_batches_are_read_only() -> None:
    class Meddler(Diary):
        def observe(self, batch: Batch) -> Sequence[Finding]:
            batch.values["X"][:] = 0
            return ()

    of = Engine(None, [(Meddler, DetectorConfig())], ("dcgm",))
    of.feed(dcgm((1000, "a", 0)))
    of.mark("dcgm", T0 + 5000)
    with pytest.raises(ValueError, match="read-only"):
        of.process()
