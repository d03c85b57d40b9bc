import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from services.kit.errors import UserError
from services.kit.wait import until
from services.recording.reader import Recording
from services.recording.validate import validate_recording
from services.synth import make
from services.synth.conftest import NODES, Telemetry, Write
from services.synth.library import LIBRARY, ensure_recording, find_scenario, scenario_paths
from services.synth.make import Variant, fingerprint, make_recording, scenario_and_world
from services.synth.portable import make_portably
from services.synth.story.labels import labels_of
from services.synth.story.scenario import load_scenario

_COMMAND = """
from pathlib import Path
from services.kit.processes import end_in_order
from services.synth.portable import make_portably
end_in_order()
make_portably(Path({scenario!r}), Path({out!r}))
"""


def contents(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(write: Write, tmp_path: Path) -> None:
    scenario = write({"duration": "+00:07:00", "happenings": []})
    first = contents(make_recording(scenario, tmp_path / "a" / "tiny-brake"))
    again = contents(make_recording(scenario, tmp_path / "b" / "tiny-brake"))
    other = contents(make_recording(scenario, tmp_path / "c" / "tiny-brake", Variant(seed=8)))
    assert first == again
    assert first["topology.json"] == other["topology.json"]
    for name in ("dcgm.parquet", "bmc.parquet", "steps.parquet", "events.jsonl"):
        assert first[name] != other[name]


def test_a_process_of_its_own_makes_it_whatever_instructions_there_are(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    scenario = write({"duration": "+00:07:00", "happenings": []})
    shares: list[float] = []
    first = contents(make_portably(scenario, tmp_path / "a" / "tiny-brake", progress=shares.append))
    monkeypatch.setenv("NPY_DISABLE_CPU_FEATURES", "X86_V3")
    again = contents(make_portably(scenario, tmp_path / "b" / "tiny-brake"))
    assert first == again
    assert shares[-1] == 1
    with pytest.raises(UserError, match="exists already") as caught:
        make_portably(scenario, tmp_path / "a" / "tiny-brake")
    assert "--out" in caught.value.remedy


@pytest.mark.parametrize("how", [signal.SIGTERM, signal.SIGKILL])
def test_a_recording_whose_command_ends_while_it_is_made_is_deleted(
    write: Write, tmp_path: Path, how: signal.Signals
) -> None:
    out, script, errors = tmp_path / "made" / "tiny-brake", tmp_path / "command.py", tmp_path / "errors"
    a_minute_of_work = write({"duration": "+480:00:00"})  # an hour is made in a second, whole before a signal comes
    script.write_text(_COMMAND.format(scenario=str(a_minute_of_work), out=str(out)))
    environment = os.environ | {"PYTHONPATH": str(Path.cwd())}
    with (
        errors.open("w") as complaints,
        subprocess.Popen([sys.executable, script], stderr=complaints, env=environment) as command,
    ):
        until(lambda: out.parent.exists() and list(out.parent.iterdir()), what="the first file")
        command.send_signal(how)
        assert command.wait(30) in (143, -how)
    until(lambda: not list(out.parent.iterdir()), what="the generator to end")
    assert "services.synth" not in errors.read_text()


def test_how_much_is_made_at_a_time_changes_no_schedule(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Steps, times and counts come from the story, not from the stretches it is made in."""
    scenario = write()
    whole = Telemetry(make_recording(scenario, tmp_path / "a" / "tiny-brake"))
    monkeypatch.setattr(make, "_STRETCH_S", 120.0)
    parts = Telemetry(make_recording(scenario, tmp_path / "b" / "tiny-brake"))
    for stream in ("dcgm", "bmc"):
        assert np.array_equal(whole.seconds(stream), parts.seconds(stream))
    job = whole.column("steps", "rank") == -1
    job_in_parts = parts.column("steps", "rank") == -1
    assert np.array_equal(whole.column("steps", "step_time_s")[job], parts.column("steps", "step_time_s")[job_in_parts])


def test_what_is_made_is_valid(brake: Telemetry) -> None:
    assert validate_recording(brake.recording.path) == []
    manifest = brake.recording.manifest
    assert (manifest.origin, manifest.seed) == ("synthetic", 7)
    assert manifest.streams["dcgm"].interval_s == 5
    assert manifest.streams["bmc"].interval_s == 60


def test_a_duration_that_is_no_multiple_of_the_stretch_is_made_whole(write: Write, tmp_path: Path) -> None:
    out = make_recording(write({"duration": "+00:05:30", "happenings": []}), tmp_path / "r" / "tiny-brake")
    made = Telemetry(out)
    assert validate_recording(out) == []
    assert 325 < made.seconds("dcgm").max() < 330
    assert 240 < made.seconds("bmc").max() < 300


def test_an_interval_that_divides_nothing_gives_every_tick_once(write: Write, tmp_path: Path) -> None:
    path = write({"duration": "+00:15:00", "happenings": []}, {"missing_scrapes": 0})
    made = Telemetry(make_recording(path, tmp_path / "r" / "tiny-brake", Variant(interval_s=7)))
    seconds = made.seconds("dcgm")[np.array(made.column("dcgm", "node")) == "t01"]
    assert (np.unique(seconds // 7) == np.arange(900 // 7)).all()


@pytest.mark.parametrize(("interval_s", "due_s"), [(1.0, 30.0), (5.0, 30.0), (60.0, 360.0)])
def test_no_alert_is_due_before_a_slow_cadence_can_show_it(interval_s: float, due_s: float) -> None:
    scenario, world = scenario_and_world(LIBRARY / "vela-power-brake" / "scenario.yaml", Variant(interval_s=interval_s))
    (brake,) = (label for label in labels_of(scenario, world, []) if not label.distractor)
    assert brake.within_s == due_s


def test_a_gpu_that_a_smaller_node_has_not_is_another_one_in_the_truth_too() -> None:
    summit = LIBRARY / "profiles" / "summit.yaml"
    scenario, world = scenario_and_world(
        LIBRARY / "sakuraone-fault-year" / "scenario.yaml", Variant(profile=summit, scale=2.0)
    )
    labels = [label for label in labels_of(scenario, world, []) if "gpu" in label.entity]
    assert labels
    assert all(int(label.entity["gpu"]) < world.profile.node.gpus for label in labels)


def test_a_fan_that_fails_where_nothing_gets_hot_is_no_fault() -> None:
    scenario, world = scenario_and_world(LIBRARY / "vela-fan-failure" / "scenario.yaml")
    nodes = [placed.nodes for happening in scenario.happenings for placed in happening.truths(world)]
    assert len(nodes) == 2
    found = [label for label in labels_of(scenario, world, [], hot=nodes[0]) if not label.distractor]
    assert [label.entity["node"] for label in found] == [world.names[nodes[0][0]]]


def test_progress_rises_to_one(write: Write, tmp_path: Path) -> None:
    shares: list[float] = []
    make_recording(write({"happenings": []}), tmp_path / "out", progress=shares.append)
    assert shares == sorted(shares)
    assert shares[-1] == 1


def test_a_second_make_is_a_cache_hit_until_something_changes(
    write: Write, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    scenario = write({"duration": "+00:05:00", "happenings": []})
    first = ensure_recording(str(scenario))
    assert not first.cached
    assert first.path == tmp_path / "cache" / "hindcast" / "recordings" / "tiny-brake"
    before = contents(first.path)
    assert ensure_recording(str(scenario)).cached
    write({"duration": "+00:05:00", "happenings": [], "title": "Another"})
    changed = ensure_recording(str(scenario))
    assert not changed.cached
    assert Recording.open(changed.path).manifest.title == "Another"
    assert contents(changed.path)["dcgm.parquet"] == before["dcgm.parquet"]
    assert not ensure_recording(str(scenario), variant=Variant(seed=99)).cached
    assert sorted(path.name for path in changed.path.parent.iterdir()) == ["tiny-brake", "tiny-brake-seed-99"]


def test_an_existing_directory_that_was_named_is_never_replaced(write: Write, tmp_path: Path) -> None:
    scenario = write({"duration": "+00:05:00", "happenings": []})
    out = tmp_path / "mine"
    out.mkdir()
    (out / "precious").write_text("x")
    with pytest.raises(UserError, match="exists already"):
        ensure_recording(str(scenario), out=out)
    assert (out / "precious").exists()


def test_the_fingerprint_depends_on_seed_scenario_and_profile(write: Write) -> None:
    prints = {fingerprint(write()), fingerprint(write(), Variant(seed=8))}
    prints |= {fingerprint(write({"title": "T"})), fingerprint(write(profile={"nodes": NODES + 2}))}
    assert len(prints) == 4
    assert fingerprint(write()) in prints


@pytest.mark.parametrize("name", scenario_paths())
def test_every_scenario_of_the_library_loads(name: str) -> None:
    scenario, profile, profile_path = load_scenario(LIBRARY / name / "scenario.yaml")
    assert scenario.name == name
    assert profile_path.exists()
    assert scenario.source["document"]
    assert profile.gpu_count > 0


@pytest.mark.parametrize(
    ("change", "complaint"),
    [
        ({"colour": "red"}, "colour: Extra inputs are not permitted"),
        ({"start": "noon"}, "start: 'noon' is not an RFC 3339 time"),
        ({"duration": "3 hours"}, "is not an offset such as"),
        ({"duration": "+00:05:00"}, "must lie in the recording"),
        ({"happenings": [{"kind": "gremlin"}]}, "happenings.0"),
    ],
)
def test_a_wrong_scenario_is_refused_by_field(write: Write, change: dict[str, object], complaint: str) -> None:
    path = write(change)
    with pytest.raises(UserError) as caught:
        load_scenario(path)
    assert complaint in caught.value.message
    assert str(path) in caught.value.message
    assert caught.value.exit_code == 2


def test_unknown_names_are_refused(write: Write, tmp_path: Path) -> None:
    with pytest.raises(UserError, match="no scenario 'nothing'") as caught:
        find_scenario("nothing")
    assert "vela-power-brake" in caught.value.remedy
    path = write({"jobs": []})
    wrong = yaml_with(path, "t02", "t99")
    with pytest.raises(UserError, match="has no node 't99'"):
        make_recording(wrong, tmp_path / "out")
    (path.parent.parent / "profiles" / "tiny.yaml").unlink()
    with pytest.raises(UserError, match=r"tiny\.yaml: no such profile"):
        load_scenario(path)


def yaml_with(path: Path, old: str, new: str) -> Path:
    path.write_text(path.read_text().replace(old, new))
    return path


@pytest.mark.parametrize(
    "wrong", [{"seed": -1}, {"seed": 2**32}, {"scale": 0.01}, {"scale": float("nan")}, {"world": 0}]
)
def test_a_variant_that_is_out_of_range_is_refused_before_anything_is_made(wrong: dict[str, Any]) -> None:
    with pytest.raises(UserError, match="is out of range") as refused:
        Variant(**wrong)
    assert refused.value.remedy.startswith("give ")
