"""The parts of detect that need no server: state on disk, watermarks of live feeds, the warm-up, what records carry."""

import json
import os
from collections.abc import Callable
from pathlib import Path

import pyarrow as pa
import pytest

from detectors.contract import Finding, Instant
from detectors.engine.engine import Engine
from detectors.engine.state import StateError
from detectors.registry import choose, discover
from services.detect.calibration import FORMAT
from services.detect.choices import load_choices, load_incident_config
from services.detect.configured import Configured
from services.detect.idle import ArrivalWatermarks
from services.detect.intake import feed, job_of
from services.detect.store import SnapshotStore, Stored
from services.detect.warmup import Line, Warmup, finding_line
from services.kit import topics
from services.kit.errors import UserError
from services.kit.replays import DetectorSettings, ReplayState
from services.kit.wire import WireError
from services.recording.embedded import fleet_job
from services.recording.model import Job

TOPICS = {"logs": "id-1", "jobs": "id-2"}
STORED = Stored("vela/a b", 3, {"logs": 7}, "[]", True, b"engine")


def test_a_snapshot_comes_back_and_is_replaced_whole(tmp_path: Path) -> None:
    store = SnapshotStore(tmp_path / "state", TOPICS)
    assert store.load("vela/a b") is None
    store.save(STORED)
    store.save(Stored("vela/a b", 4, {"logs": 9}, "[]", False, b"later"))
    assert store.load("vela/a b") == Stored("vela/a b", 4, {"logs": 9}, "[]", False, b"later")
    assert store.units() == ["vela/a b"]
    store.forget("vela/a b")
    store.forget("vela/a b")
    assert store.units() == []


def test_a_crash_while_writing_leaves_the_old_snapshot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    store = SnapshotStore(tmp_path, TOPICS)
    store.save(STORED)

    def fails(_descriptor: int) -> None:
        raise OSError("no space")

    monkeypatch.setattr(os, "fsync", fails)
    with pytest.raises(OSError, match="no space"):
        store.save(Stored("vela/a b", 4, {"logs": 9}, "[]", True, b"half"))
    assert store.load("vela/a b") == STORED


def test_offsets_of_topics_that_were_made_anew_count_for_nothing(tmp_path: Path) -> None:
    SnapshotStore(tmp_path, TOPICS).save(STORED)
    with pytest.raises(StateError, match="made anew"):
        SnapshotStore(tmp_path, TOPICS | {"logs": "id-3"}).load("vela/a b")


@pytest.mark.parametrize("damage", [lambda b: b[:5], lambda b: b"\xff" * len(b), lambda b: b[:30] + b"!" + b[31:]])
def test_a_damaged_snapshot_is_noticed(tmp_path: Path, damage: Callable[[bytes], bytes]) -> None:
    store = SnapshotStore(tmp_path, TOPICS)
    store.save(STORED)
    (path,) = tmp_path.glob("*.state")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(StateError):
        store.load("vela/a b")


def test_a_state_directory_that_cannot_be_is_reported(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(UserError, match="file") as raised:
        SnapshotStore(tmp_path / "file", TOPICS)
    assert raised.value.exit_code == 2


def arrivals() -> ArrivalWatermarks:
    return ArrivalWatermarks(idle_timeout_s=10, lateness_ms=2000)


def test_a_live_feed_is_marked_behind_what_came() -> None:
    live = arrivals()
    assert live.watermarks(["dcgm", "logs"], monotonic_s=0) == {}
    live.arrived("dcgm", 100_000, monotonic_s=1, wall_ms=100_000)
    assert live.watermarks(["dcgm", "logs"], monotonic_s=2) == {"dcgm": 98_000}, "logs may still begin"
    live.arrived("logs", 99_000, monotonic_s=3, wall_ms=103_000)
    live.arrived("dcgm", 95_000, monotonic_s=3, wall_ms=103_000)
    assert live.watermarks(["dcgm", "logs"], monotonic_s=3) == {"dcgm": 98_000, "logs": 97_000}


def test_a_silent_stream_does_not_hold_the_others_back_for_ever() -> None:
    live = arrivals()
    live.arrived("dcgm", 100_000, monotonic_s=0, wall_ms=100_000)
    live.arrived("logs", 100_000, monotonic_s=0, wall_ms=100_000)
    live.arrived("dcgm", 111_000, monotonic_s=11, wall_ms=111_000)
    assert live.watermarks(["dcgm", "logs", "jobs"], monotonic_s=11) == {
        "dcgm": 109_000,
        "logs": 109_000,
        "jobs": 109_000,
    }
    assert live.watermarks(["dcgm", "logs"], monotonic_s=30) == {}, "all silent: time stands"


def test_one_that_is_ahead_takes_the_silent_ones_to_the_present_and_no_further() -> None:
    live = arrivals()
    live.arrived("jobs", 100_000, monotonic_s=0, wall_ms=100_000)
    live.arrived("logs", 400_000, monotonic_s=0.5, wall_ms=100_500)
    marks = live.watermarks(["dcgm", "jobs", "logs"], monotonic_s=10)
    assert marks == {"logs": 158_500, "dcgm": 108_000, "jobs": 108_000}


def test_a_stream_that_is_held_back_is_not_taken_to_be_silent() -> None:
    live, streams = arrivals(), ["dcgm", "nic"]
    live.arrived("dcgm", 100_000, monotonic_s=0, wall_ms=150_000)
    live.arrived("nic", 150_000, monotonic_s=0, wall_ms=150_000)
    assert live.watermarks(streams, monotonic_s=9, held=["nic"]) == {"dcgm": 98_000, "nic": 148_000}
    live.arrived("dcgm", 160_000, monotonic_s=9, wall_ms=160_000)
    assert live.watermarks(streams, monotonic_s=18, held=["nic"]) == {"dcgm": 158_000, "nic": 148_000}
    live.arrived("dcgm", 170_000, monotonic_s=18, wall_ms=170_000)
    assert live.watermarks(streams, monotonic_s=27) == {"dcgm": 168_000, "nic": 148_000}, "read for nine seconds"
    live.arrived("dcgm", 180_000, monotonic_s=27, wall_ms=180_000)
    assert live.watermarks(streams, monotonic_s=28) == {"dcgm": 178_000, "nic": 178_000}, "and for ten"


def test_a_stray_reading_from_the_future_does_not_make_all_others_late() -> None:
    live = arrivals()
    live.arrived("dcgm", 10**15, monotonic_s=0, wall_ms=100_000)
    assert live.watermarks(["dcgm"], monotonic_s=0) == {"dcgm": 158_000}


def finding(name: str, state: str, at: Instant) -> Finding:
    return Finding(name, "d", "straggler", {"node": name}, state, 0, at, "info", 0.5, "", "")  # type: ignore[arg-type]  # a State


def line(name: str, state: str, at: Instant) -> Line:
    return finding_line(finding(name, state, at), incident="i", shadow=name == "a")


def revision(name: str, state: str, at: Instant) -> Line:
    return Line(topics.INCIDENTS, name, state, at, f"{name} {at}".encode())


def test_of_the_warm_up_only_what_is_still_open_is_reported_and_at_its_end() -> None:
    warmup = Warmup(1000)
    assert warmup.release([line("a", "firing", 100), line("b", "firing", 200)], 500) == []
    warmup = Warmup.restore(1000, warmup.snapshot())
    assert warmup.release([line("b", "resolved", 600)], 900) == []
    released = warmup.release([line("c", "firing", 1000), line("a", "resolved", 1100)], 1200)
    assert [(one.id, one.state) for one in released] == [("a", "firing"), ("c", "firing"), ("a", "resolved")]
    assert released[0] == line("a", "firing", 100)
    assert released[0].headers == (("incident", "i"), ("shadow", "1"))


def test_of_an_incident_of_the_warm_up_the_last_revision_is_reported_if_it_is_still_open() -> None:
    warmup = Warmup(1000)
    early = [revision("x", "open", 100), revision("y", "open", 200), revision("x", "open", 300)]
    assert warmup.release(early, 500) == []
    warmup = Warmup.restore(1000, warmup.snapshot())
    assert warmup.release([revision("y", "closed", 600)], 1000) == [revision("x", "open", 300)]


def test_without_a_warm_up_everything_is_reported_at_once() -> None:
    assert Warmup(None).release([line("a", "firing", 100)], 100) == [line("a", "firing", 100)]


def engine() -> Engine:
    return Engine(None, choose(), ("dcgm", "logs", "jobs"))


def test_what_is_no_good_is_refused_whole() -> None:
    of = engine()
    good = {"timestamp": "2024-04-01T08:00:00Z", "source": "sel", "message": "m"}
    with pytest.raises(WireError, match=r"line 2: 'message' is missing"):
        feed(of, "logs", [good, {"timestamp": "2024-04-01T08:00:00Z", "source": "sel"}])
    assert of.pending("logs") == 0
    with pytest.raises(WireError, match="line 1: event 'pause'"):
        feed(of, "jobs", [{"timestamp": "2024-04-01T08:00:00Z", "event": "pause", "job": {}}])
    with pytest.raises(WireError, match="JSON lines are expected"):
        feed(of, "logs", pa.record_batch({"timestamp": [1]}))
    with pytest.raises(WireError, match="key column node does not hold text"):
        feed(of, "dcgm", [{"timestamp": "2024-04-01T08:00:00Z", "node": 3, "gpu": 0}])


def test_rows_written_by_hand_are_taken() -> None:
    of = engine()
    row = {"timestamp": "2024-04-01T08:00:05Z", "node": "v001", "gpu": 0, "DCGM_FI_DEV_POWER_USAGE": 390.5}
    assert feed(of, "dcgm", [row]) == 1_711_958_405_000
    job = {"job_id": 7, "nodes": ["v001"], "start": "2024-04-01T08:00:00Z", "gpus": {"v001": [0, 1]}}
    assert feed(of, "jobs", [{"timestamp": "2024-04-01T08:00:00Z", "event": "start", "job": job}]) == 1_711_958_400_000
    assert (of.pending("dcgm"), of.pending("jobs")) == (1, 1)


def test_a_job_that_only_keeps_its_nodes_is_maintenance() -> None:
    start = {"job_id": "7", "nodes": ["v001"], "start": "2024-04-01T08:00:00Z"}
    kept = {**start, "name": "MAINT firmware", "user": "root", "state": "RUNNING"}
    assert job_of(kept).maintenance
    assert fleet_job(Job.model_validate(kept)) == job_of(kept), "embedded as through Kafka"
    assert job_of({**start, "maintenance": True}).maintenance
    assert not job_of({**start, "name": "train", "user": "root"}).maintenance


def test_a_configuration_that_leaves_nothing_to_do_is_refused(tmp_path: Path) -> None:
    config = tmp_path / "detectors.yaml"
    config.write_text("".join(f"{name}: {{enabled: false}}\n" for name in discover()))
    with pytest.raises(UserError, match="no detector enabled"):
        load_choices(config)
    with pytest.raises(UserError, match="cannot be read"):
        load_choices(tmp_path / "absent.yaml")


def test_settings_of_incidents_are_in_the_same_file_and_a_detector_can_be_in_shadow(tmp_path: Path) -> None:
    config = tmp_path / "detectors.yaml"
    config.write_text("incidents: {hold_s: 60}\nstraggler: {shadow: true}\n")
    shadow = [kind.spec.name for kind, settings in load_choices(config) if settings.shadow]
    assert shadow == ["straggler"]
    assert load_incident_config(config).hold_s == 60
    assert load_incident_config(None).hold_s > 60
    config.write_text("incidents: {hold_s: long, colour: red}\nstraggler: {shadow: perhaps}\n")
    with pytest.raises(UserError, match=r"(?s)hold_s.*colour"):
        load_incident_config(config)
    with pytest.raises(UserError, match="shadow"):
        load_choices(config)


def _replay(detectors: DetectorSettings) -> ReplayState:
    return ReplayState(
        cluster="vela", replay="r", generation=0, shift_ms=0, target="none", recording="", from_ms=0, to_ms=1,
        warm_from_ms=0, speed=1, state="running", streams=(), detectors=detectors,
    )  # fmt: skip


def test_a_replays_own_settings_lie_over_those_of_the_service() -> None:
    configured = Configured({"straggler": {"shadow": True, "effect_share": 0.2}}, None)

    def straggler(replay: ReplayState | None) -> tuple[object, object] | None:
        choices, _ = configured.of(replay)
        found = [config for kind, config in choices if kind.spec.name == "straggler"]
        return (found[0].shadow, found[0].model_dump()["effect_share"]) if found else None

    assert straggler(None) == straggler(_replay({})) == (True, 0.2)
    assert straggler(_replay({"straggler": {"effect_share": 0.3}})) == (True, 0.3)
    assert straggler(_replay({"straggler": {"enabled": False}})) is None
    with pytest.raises(WireError, match=r"replay r are no good: .*\n.*no_such"):
        configured.of(_replay({"straggler": {"no_such": 1}}))


def test_a_replays_own_calibration_is_taken_in_place_of_that_of_the_service(tmp_path: Path) -> None:
    version = discover()["straggler"].spec.version
    own, of_replay = ({"clock": {"bins": [number], "counts": [5.0]}} for number in (1, 2))
    whole = {
        "format": FORMAT, "cluster": "vela", "fitted_node_days": 1, "sources": [], "measured": None,
        "detectors": {"straggler": {"version": version, "tails": own}},
    }  # fmt: skip
    (tmp_path / "c.json").write_text(json.dumps(whole))
    configured = Configured({"calibration": "c.json"}, tmp_path / "detectors.yaml")

    def usual(replay: ReplayState | None) -> object:
        return next(
            dict(config.calibration) for kind, config in configured.of(replay)[0] if kind.spec.name == "straggler"
        )

    assert usual(None) == usual(_replay({})) == usual(_replay({"storage": {"shadow": True}})) == own
    carried = ReplayState.model_validate(_replay({}).model_dump() | {"calibration": {"straggler": of_replay}})
    assert usual(ReplayState.model_validate_json(carried.model_dump_json())) == of_replay
