"""One recording to make and score: a scenario, and what is made otherwise than it says."""

import hashlib
from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

import yaml

from services.kit.errors import UserError
from services.synth.cluster.world import World
from services.synth.library import LIBRARY, scenario_paths
from services.synth.make import Variant, scenario_and_world
from services.synth.story.happening import Lasting
from services.synth.story.labels import labels_of
from services.synth.story.scenario import Scenario
from services.synth.story.world_labels import labels_in_world
from services.synth.telemetry.arrival import Arrival
from services.synth.telemetry.outages import outages_of

Part = Literal["faults", "healthy", "grid"]
Class = Literal["event", "sudden", "gradual"]

_EVENTS = {
    "cuda_error", "double_bit_error", "feed_lost", "gpu_lost", "link_down", "nvswitch_fatal", "power_brake",
    "row_remap", "spine_loss",
}  # fmt: skip
"""Happenings that one reading or line shows: a bit, a counter, an XID, a port that is down. A machine that stops, or a
collector, shows by silence instead: that is sudden, and no event."""
_GRADUAL = {"fan_failure", "heat_sink", "hbm_corruption", "hot_air", "job_hang", "link_flap"}
"""What shows only after a while though it began at once: heat builds up, a hang is many usual steps without one,
flapping is several flaps. So is whatever has a ramp. Their alert is due within the label's own time."""
_NOT_HEALTHY = {"dimm_failure", "link_errors"}
"""Happenings that are no fault of the list by themselves, and no healthy machine's either."""


@dataclass(frozen=True)
class Case:
    """One recording. `cell` names its row of the grid; `healthy`: made without what breaks in the scenario.

    `world`: the number of the world it is made in; `budget`: of false alarms per 100 node-days, if not the usual one.
    """

    part: Part
    scenario: str
    seed: int
    scale: float = 1.0
    profile: str | None = None
    interval_s: float | None = None
    duration_s: float | None = None
    noise: float = 1.0
    healthy: bool = False
    cell: str = ""
    world: int | None = None
    budget: float | None = None

    @property
    def variant(self) -> Variant:
        """What the generator is asked for."""
        profile = None if self.profile is None else LIBRARY / "profiles" / f"{self.profile}.yaml"
        return Variant(self.seed, self.scale, profile, self.duration_s, self.interval_s, self.noise, self.world)

    @property
    def name(self) -> str:
        """Its name, as a recording's."""
        return self.scenario + ("-no-faults" if self.healthy else "") + self.variant.suffix

    def as_json(self) -> dict[str, Any]:
        """Return it as JSON can say it: the key of a results file."""
        return asdict(self)

    def written(self, folder: Path) -> Path:
        """Return its scenario's file; where the faults are left out, that is written into `folder`."""
        path = scenario_paths()[self.scenario]
        return _without_faults(path, folder) if self.healthy else path


def _without_faults(path: Path, folder: Path) -> Path:
    """Write a scenario without what breaks: its jobs, and all that only looks wrong, stay."""
    content = yaml.safe_load(path.read_text(encoding="utf-8"))
    happenings = content.get("happenings", [])
    content["happenings"] = [one for one in happenings if "truth" not in one and one["kind"] not in _NOT_HEALTHY]
    profiles = folder / "profiles"
    if not profiles.exists():
        profiles.symlink_to(LIBRARY / "profiles")
    out = folder / path.parent.name / "scenario.yaml"
    out.parent.mkdir(exist_ok=True)
    out.write_text(yaml.safe_dump(content, sort_keys=False, allow_unicode=True), encoding="utf-8")
    return out


@dataclass(frozen=True)
class Outline:
    """What is known of a recording before it is made: labels required by fault, how each fault comes, its size."""

    required: Mapping[str, int]
    classes: Mapping[str, Class]
    nodes: int
    hours: float


@cache
def outline(case: Case) -> Outline | None:
    """Return what a case would have, without making it; None if it can't be made so (too few nodes, no network)."""
    try:
        scenario, world = scenario_and_world(scenario_paths()[case.scenario], case.variant)
        for spec in scenario.jobs:
            world.nodes(spec.nodes)
        for happening in scenario.happenings:
            list(happening.effects(world))
        there = [] if case.healthy else list(labels_of(scenario, world, []))
        arrival = Arrival(world.profile.conditions, world.names)
        labels = list(labels_in_world(there, scenario, world, outages_of(world, scenario.seed), arrival))
        classes = dict(_classes(scenario, world))
    except UserError:
        return None
    required = Counter(label.fault for label in labels if not label.distractor and not label.optional)
    return Outline(required, classes, world.profile.nodes, world.duration_s / 3600)


def _classes(scenario: Scenario, world: World) -> Iterator[tuple[str, Class]]:
    """Yield how each label's fault comes, by the label's id."""
    for happening in scenario.happenings:
        ramp = isinstance(happening, Lasting) and happening.ramp_s > 0
        kind: Class = "sudden"
        if happening.kind in _GRADUAL or ramp:
            kind = "gradual"
        elif happening.kind in _EVENTS:
            kind = "event"
        for fact in happening.truths(world):
            yield fact.truth.id, kind


def code_version() -> str:
    """Return a hash of all code and data that decide a score: results of different code are never mixed."""
    root = LIBRARY.parent
    digest = hashlib.sha256()
    for folder in ("detectors", "services/synth", "services/recording", "services/score", "replay-data"):
        for path in sorted((root / folder).rglob("*")):
            decides = path.suffix in {".py", ".yaml"} and not path.name.startswith(("test_", "conftest"))
            if decides and "__pycache__" not in path.parts:
                digest.update(str(path.relative_to(root)).encode() + path.read_bytes())
    return digest.hexdigest()[:16]
