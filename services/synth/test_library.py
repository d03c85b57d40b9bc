"""What must hold for every scenario of the library, and for the library as a whole."""

from collections import Counter
from functools import cache
from pathlib import Path

import pytest

from services.recording.faults import FAULTS
from services.recording.model import Node
from services.recording.reader import Recording
from services.recording.validate import validate_recording
from services.synth import faults
from services.synth.faults.registry import kinds
from services.synth.library import LIBRARY, scenario_paths
from services.synth.make import Variant, make_recording, scenario_and_world
from services.synth.story.happening import Lasting, Truth
from services.synth.story.scenario import Scenario, load_scenario

NAMES = sorted(scenario_paths())
HEALTHY = {name for name in NAMES if "healthy" in name} | {"vela-rack-reboot"}
SOURCE = ("document", "section", "licence", "told", "assumed")


@cache
def scenario(name: str) -> Scenario:
    return load_scenario(LIBRARY / name / "scenario.yaml")[0]


def truths(name: str) -> list[Truth]:
    return [happening.truth for happening in scenario(name).happenings if happening.truth is not None]


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_says_where_it_comes_from_and_what_is_ours(name: str) -> None:
    loaded = scenario(name)
    assert loaded.name == name, "a scenario is called as its folder"
    for key in SOURCE:
        assert str(loaded.source.get(key, "")).strip(), f"source: {key} is missing"
    assert len(loaded.title) <= 110, "a title is one line of `hindcast list`"
    assert loaded.summary.count(". ") >= 1, "a summary is two sentences or more"
    longest_h = 12 if loaded.interval_s is None else 48  # a long one needs a long cadence
    assert 3600 <= loaded.duration <= longest_h * 3600, f"a scenario lasts an hour to {longest_h} hours"


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_has_incidents_with_one_root_each_and_distractors(name: str) -> None:
    found = truths(name)
    assert bool(found) != (name in HEALTHY), "a scenario has a fault (a `truth`), or is named healthy"
    roots = Counter(truth.incident for truth in found if truth.root)
    assert set(roots.values()) <= {1}
    assert {truth.incident for truth in found if not truth.optional} <= set(roots), "an incident needs a `root: true`"
    assert len({truth.id for truth in found}) == len(found)
    assert len(scenario(name).distractors) >= 2, "a detector is tested by what looks wrong and is not, too: add some"
    for distractor in scenario(name).distractors:
        assert 0 <= distractor.at < distractor.until <= scenario(name).duration
        assert distractor.note
    for truth in found:
        assert 5 <= truth.within_s <= scenario(name).duration


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("scale", [0.1, 4.0])
def test_a_scenario_has_its_labels_at_any_scale_and_seed(name: str, scale: float) -> None:
    """Every label names an entity that is there, and no two names of the scenario fall on one machine."""
    profile, nodes = None, dict[str, Node]()
    for seed in (None, 11, 12):
        loaded, world = scenario_and_world(LIBRARY / name / "scenario.yaml", Variant(seed, scale))
        if world.profile != profile:  # a seed seldom has one of its own, and four times a cluster is thousands of GPUs
            profile, nodes = world.profile, {node.name: node for node in world.profile.topology().nodes}
        for happening in loaded.happenings:
            list(happening.effects(world))
            for placed in happening.truths(world):
                assert 0 <= placed.span[0] < placed.span[1]
                assert placed.span[0] < loaded.duration
                assert set(placed.entity) in [set(shape) for shape in FAULTS[placed.truth.fault]]
                if "gpu" in placed.entity:
                    assert placed.entity["gpu"] in range(len(nodes[str(placed.entity["node"])].gpus))
                elif "nic" in placed.entity:
                    assert placed.entity["nic"] in [nic.nic for nic in nodes[str(placed.entity["node"])].nics]


@pytest.mark.parametrize("name", NAMES)
def test_a_culprit_is_in_the_jobs_that_it_is_written_in_on_a_small_cluster_too(name: str) -> None:
    for seed in (None, 11, 12):
        loaded, world = scenario_and_world(LIBRARY / name / "scenario.yaml", Variant(seed, 0.1))
        _, full = scenario_and_world(LIBRARY / name / "scenario.yaml", Variant(seed))
        jobs = [spec.nodes for spec in loaded.jobs]
        for happening in loaded.happenings:
            for made, written in zip(happening.truths(world), happening.truths(full), strict=True):
                if len(made.nodes) == len(written.nodes) == 1:
                    here = [set(made.nodes) <= set(world.nodes(nodes)) for nodes in jobs]
                    assert here == [set(written.nodes) <= set(full.nodes(nodes)) for nodes in jobs], made.truth.id


def test_every_fault_occurs_in_at_least_two_scenarios() -> None:
    found = Counter(fault for name in NAMES for fault in {truth.fault for truth in truths(name)})
    rare = {fault: found[fault] for fault in FAULTS if found[fault] < 2}
    assert rare == {}, "add scenarios with them (replay-data/README.md): what occurs nowhere is never scored"


def test_faults_come_suddenly_gradually_and_now_and_then() -> None:
    faults = [
        happening
        for name in NAMES
        for happening in scenario(name).happenings
        if isinstance(happening, Lasting) and happening.truth is not None
    ]
    assert sum(fault.ramp_s > 0 for fault in faults) >= 5
    assert sum(fault.period_s is not None for fault in faults) >= 5
    assert sum(fault.ramp_s == 0 and fault.period_s is None for fault in faults) >= 15


def test_every_kind_of_happening_is_in_use_and_most_scenarios_leave_something_to_the_seed() -> None:
    used = {happening.kind for name in NAMES for happening in scenario(name).happenings}
    assert set(kinds()) - used == {"user_crash"}, "which worlds have (story/background.py)"
    settled = [name for name in NAMES if name not in HEALTHY and not _is_open(LIBRARY / name / "scenario.yaml")]
    assert len(settled) <= 0.15 * len(NAMES), settled


def _is_open(path: Path) -> bool:
    text = path.read_text(encoding="utf-8")
    return "between:" in text or "one_of:" in text


def short(name: str) -> Variant:
    """Small, and no longer than needed to see each fault begin."""
    loaded, world = scenario_and_world(LIBRARY / name / "scenario.yaml", Variant(scale=0.1))
    onsets = [placed.span[0] for happening in loaded.happenings for placed in happening.truths(world)]
    return Variant(scale=0.1, interval_s=30, duration_s=min(scenario(name).duration, max(onsets, default=3600) + 600))


@pytest.mark.parametrize("name", NAMES)
def test_a_scenario_made_small_is_valid_and_labelled(name: str, tmp_path: Path) -> None:
    out = make_recording(LIBRARY / name / "scenario.yaml", tmp_path / name, short(name))
    assert validate_recording(out) == []
    recording = Recording.open(out)
    labels = list(recording.labels())
    assert {label.id for label in labels if not label.distractor} >= {truth.id for truth in truths(name)}
    assert sum(label.distractor is True for label in labels) >= 2
    for label in labels:
        if label.root and not label.distractor and list(recording.jobs()):
            assert label.impact is None or label.impact["step_time_factor"] >= 1.0
        if label.cause == "ecn_misconfigured" and not label.optional:
            assert any(len(job.nodes) > 1 and job.start < label.end for job in recording.jobs())
    assert {"dcgm", "bmc", "storage"} <= set(recording.streams())


@pytest.mark.parametrize(
    ("name", "cluster"),
    [("vela-nfs-steps", "blue-vela"), ("summit-burst-buffer", "vela"), ("sakuraone-job-states", "lustre-ai400")],
)
def test_an_incident_can_be_put_on_another_cluster(name: str, cluster: str, tmp_path: Path) -> None:
    """Its mounts become the other's first one, its jobs fit the other's GPUs."""
    variant = Variant(scale=0.15, interval_s=30, duration_s=5400, profile=LIBRARY / "profiles" / f"{cluster}.yaml")
    out = make_recording(LIBRARY / name / "scenario.yaml", tmp_path / name, variant)
    assert validate_recording(out) == []
    recording = Recording.open(out)
    assert recording.manifest.cluster.name == cluster
    free = [batch["DCGM_FI_DEV_FB_FREE"].to_numpy().min() for batch in recording.batches("dcgm")]
    assert min(free) >= 0


@pytest.mark.parametrize("name", ["sakuraone-job-states", "summit-burst-buffer"])
def test_the_same_seed_gives_the_same_bytes(name: str, tmp_path: Path) -> None:
    variant = Variant(scale=0.1, interval_s=30, duration_s=3000)
    first, again = (make_recording(LIBRARY / name / "scenario.yaml", tmp_path / run / name, variant) for run in "ab")
    for path in sorted(first.iterdir()):
        assert path.read_bytes() == (again / path.name).read_bytes()


def test_a_power_limit_binds_on_another_card_too() -> None:
    """Written as 440 to 500 W of an H100's 700; a V100 has 300."""
    variant = Variant(profile=LIBRARY / "profiles" / "summit.yaml")
    scenario, world = scenario_and_world(LIBRARY / "blue-vela-throttled-gpu" / "scenario.yaml", variant)
    limits = [
        effect.size
        for happening in scenario.happenings
        for effect in happening.effects(world)
        if effect.quantity == "gpu.power_limit_w"
    ]
    assert limits
    assert all(440 / 700 <= limit / world.profile.gpu.power_limit_w <= 500 / 700 for limit in limits)


def test_a_module_of_another_form_is_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "odd_one.py").write_text('"""It has no class."""\n', encoding="utf-8")
    monkeypatch.setattr(faults, "__path__", [str(tmp_path)])
    with pytest.raises(TypeError, match=r'faults\.odd_one: .*kind: Literal\["odd_one"\]'):
        kinds.__wrapped__()
