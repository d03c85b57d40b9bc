"""Worlds: what one cluster has and another has not, drawn by seed before anything else of a recording.

`worlds.yaml` says which quantities there are, from what ranges they are drawn, and where the ranges are from. What a
world changes is done where the thing itself is made: collector, outages, arrival, habits, and the physics. In no world
every quantity has its `plain` value, and nothing more is drawn than without: the library's recordings are as written.
"""

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from detectors import yaml_text
from detectors.exporters import exporters
from services.synth.randomness import generator

if TYPE_CHECKING:
    from services.synth.cluster.profile import ClusterProfile

TABLE = Path(__file__).with_name("worlds.yaml")
Floats = NDArray[np.float64]
Value = float | int | str | bool | None


@dataclass(frozen=True)
class Conditions:
    """One draw of every quantity of `worlds.yaml`; `seed` is the world's number, None for no world."""

    seed: int | None
    values: Mapping[str, Value]

    def number(self, quantity: str) -> float:
        """Return a quantity that is a number; 0 where it is left as it is."""
        value = self.values[quantity]
        return 0.0 if value is None else float(value)

    def yes(self, quantity: str) -> bool:
        """Return a quantity that is there or is not."""
        return bool(self.values[quantity])

    def generator(self, what: str, seed: int = 0) -> np.random.Generator:
        """Return the generator of one part of the world; what differs between its recordings takes their `seed`."""
        return generator(self.seed or 0, f"world {what} {seed}")

    def factors(self, quantity: str, shape: int | tuple[int, ...]) -> Floats:
        """Return lognormal factors of the sigma that a quantity says, for good; all 1 where it is 0."""
        normal = self.generator(f"factors {quantity}").standard_normal(shape)
        return np.asarray(np.exp(self.number(quantity) * np.clip(normal, -3, 3)))

    def offsets(self, quantity: str, shape: int | tuple[int, ...]) -> Floats:
        """Return offsets that lie at most as far apart as a quantity says, for good; all 0 where it is 0."""
        return self.number(quantity) * self.generator(f"offsets {quantity}").uniform(-0.5, 0.5, shape)

    def document(self) -> dict[str, Any]:
        """Return it as recording.yaml has it."""
        return {"seed": self.seed, **self.values}

    @property
    def streams_apart_s(self) -> dict[str, float]:
        """Return the interval of each stream that the world says: dcgm, nic, switch, bmc, storage."""
        named = {"dcgm": "dcgm", "nic": "network", "switch": "network", "bmc": "bmc", "storage": "storage"}
        return {stream: self.number(f"cadence.{name}_s") for stream, name in named.items()}


@cache
def table() -> dict[str, Any]:
    """Return worlds.yaml."""
    content: dict[str, Any] = yaml_text.load(TABLE.read_text(encoding="utf-8"))
    return content


def quantities() -> dict[str, dict[str, Any]]:
    """Return the table: by quantity, how it is drawn, its `plain` value, `unit` and `source`."""
    found: dict[str, dict[str, Any]] = table()["quantities"]
    return found


@cache
def draw(world: int | None) -> Conditions:
    """Return the world of a number; None: no world."""
    if world is None:
        return Conditions(None, {name: how["plain"] for name, how in quantities().items()})
    return Conditions(
        world, {name: _drawn(how, generator(world, f"draw {name}")) for name, how in quantities().items()}
    )


PLAIN = draw(None)


def _drawn(how: Mapping[str, Any], chance: np.random.Generator) -> Value:
    if "chance" in how:
        return bool(chance.random() < how["chance"])
    if "one_of" in how:
        weights = np.array(how.get("weights", [1] * len(how["one_of"])), dtype=np.float64)
        place = int(np.searchsorted(np.cumsum(weights) / weights.sum(), chance.random(), side="right"))
        value: Value = how["one_of"][place]
        return value
    low, high = (float(end) for end in how["between"])
    part = float(chance.random())
    value = math.exp(math.log(low) + part * math.log(high / low)) if how.get("log") else low + part * (high - low)
    return float(f"{value:.4g}")


def words(conditions: Conditions) -> str:
    """Return in words what of a world matters most to detection: cadences, fields, what is not gathered."""
    missing = [
        name for name, value in conditions.values.items() if value is False and name.startswith(("logs", "bmc", "jobs"))
    ]
    every = ", ".join(
        f"{name} {value:g} s" for name, value in conditions.streams_apart_s.items() if name in {"dcgm", "nic"}
    )
    parts = [every, f"{conditions.values['fields']} fields", f"steps: {conditions.values['steps']}"]
    return "; ".join([*parts, *([f"no {', '.join(missing)}"] if missing else [])])


def fields_of(conditions: Conditions) -> frozenset[str] | None:
    """Return the DCGM fields that are gathered; None: all that there are."""
    groups: dict[str, list[str]] = table()["fields"]
    kind = conditions.values["fields"]
    if kind == "all":
        return None
    kept = set(exporters().dcgm_default)
    if kind == "common":
        chance = generator(conditions.seed or 0, "draw groups of fields")
        for fields in groups.values():
            if chance.random() < conditions.number("fields.added"):
                kept |= set(fields)
    return frozenset(kept)


def changes_to(profile: "ClusterProfile", conditions: Conditions, interval_s: float | None) -> dict[str, Any]:
    """Return what a world changes of a profile, as its file would say it; `interval_s`: DCGM's, if that is fixed."""
    if conditions.seed is None:
        return {}
    every = conditions.streams_apart_s
    network = profile.network
    return {
        "world": conditions.seed,
        "collector_interval_s": interval_s or every["dcgm"],
        "bmc_interval_s": every["bmc"],
        "storage_interval_s": every["storage"],
        "missing_scrapes": conditions.number("collector.lost_share"),
        "repeated_scrapes": conditions.number("collector.stale_share"),
        "noise": profile.noise * conditions.number("noise.level"),
        "gpu": profile.gpu.model_dump() | {"power_spread": conditions.number("gpus.power_spread")},
        "network": network
        and network.model_dump() | {"nic_interval_s": every["nic"], "switch_interval_s": every["switch"]},
    }
