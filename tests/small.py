"""Small recordings made by the real generator from the real incident: fewer nodes, less time, brakes where wanted."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from detectors import yaml_text
from services.synth.library import LIBRARY
from services.synth.make import Variant, make_recording


@dataclass(frozen=True)
class Brake:
    """A power brake on a node, in seconds from the recording's start."""

    node: str
    at_s: float
    until_s: float


def braked_vela() -> tuple[dict[str, Any], dict[str, Any]]:
    """Return the incident vela-power-brake and its cluster's profile as their files have them, to be changed."""
    scenario = yaml_text.load((LIBRARY / "vela-power-brake" / "scenario.yaml").read_text())
    return scenario, yaml_text.load((LIBRARY / "profiles" / "vela.yaml").read_text())


def written(folder: Path, scenario: dict[str, Any], profile: dict[str, Any]) -> Path:
    """Write a scenario and the profile that it names as the library has them; return the scenario's file."""
    path = folder / str(scenario["name"]) / "scenario.yaml"
    for file, content in ((path, scenario), (folder / "profiles" / f"{scenario['profile']}.yaml", profile)):
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(yaml.safe_dump(content))
    return path


def small_recording(
    folder: Path,
    name: str,
    *,
    nodes: int,
    minutes: float,
    brakes: Sequence[Brake],
    seed: int = 7,
    interval_s: float | None = None,
    start: str | None = None,
) -> Path:
    """Make the recording `name` in `folder`: the job of vela-power-brake on `nodes` nodes, running from the start.

    `interval_s` is that of DCGM's readings, if not the profile's; `start` (RFC 3339) if not the scenario's.
    """
    scenario, profile = braked_vela()
    template = next(h for h in scenario["happenings"] if h["kind"] == "power_brake")
    job = scenario["jobs"][0]
    scenario |= {
        "name": name,
        "duration": minutes * 60.0,
        "interval_s": interval_s,
        "start": scenario["start"] if start is None else start,
        "distractors": [],
        "jobs": [job | {"submit": 0.0, "start": 1.0, "training": job["training"] | {"launch_s": 5, "load_s": 5}}],
        "happenings": [
            template
            | {"node": brake.node, "at": brake.at_s, "until": brake.until_s}
            | {"truth": template["truth"] | {"id": f"f{number}", "root": number == 1}}
            for number, brake in enumerate(brakes, start=1)
        ],
    }
    path = written(folder / f"{name}-scenario", scenario, profile | {"nodes": nodes})
    return make_recording(path, folder / name, Variant(seed=seed))
