"""When telemetry is away though nothing is wrong: scrapes lost in runs, collectors that pause, exporters that restart.

Each is over within five minutes, or within four minutes where a scrape is long apart: what is away for longer is a
fault that a label names.
"""

from dataclasses import dataclass, field

import numpy as np

from services.synth.cluster.world import World
from services.synth.physics.caps import Bools
from services.synth.physics.effects import Floats

_RUN, _MOST_S = (3, 8), 200.0  # scrapes lost in a row, and no longer than this
_PAUSE_S, _SWITCH_PAUSE_S, _FABRIC_S, _RESTART_S = (20.0, 90.0), (5.0, 90.0), (60.0, 250.0), (15.0, 60.0)
_BETWEEN = 3  # scrapes at least between two of them: one may be lost by itself
_DAY_S = 86_400.0
IN_BAND = ("dcgm", "nic", "storage")


@dataclass(frozen=True)
class Span:
    """From when to when (seconds), which entity (index); None: all that the collector asks."""

    begin: float
    end: float
    entity: int | None = None


@dataclass
class Outages:
    """Every outage of a recording, by stream: of nodes, and of switches."""

    by_stream: dict[str, list[Span]] = field(default_factory=dict)
    restarts: list[Span] = field(default_factory=list)
    """Of nodes' GPU exporters; they are among the outages of dcgm too."""

    def kept(self, stream: str, times: Floats) -> Bools:
        """Return which of the scrapes at ``times`` (ticks, entities) no outage swallows."""
        kept = np.ones(times.shape, dtype=bool)
        for span in self.by_stream.get(stream, ()):
            columns = slice(None) if span.entity is None else slice(span.entity, span.entity + 1)
            at = times[:, columns]
            kept[:, columns] &= (at < span.begin) | (at >= span.end)
        return kept

    def away_s(self, stream: str, entities: set[int], begin: float, end: float) -> float:
        """Return for how many seconds between two times any of the entities was not heard."""
        return sum(
            span.end - span.begin
            for span in self.by_stream.get(stream, ())
            if span.begin < end and span.end > begin and (span.entity is None or span.entity in entities)
        )


def outages_of(world: World, seed: int) -> Outages:
    """Draw the outages of a recording on a cluster. There are none in no world."""
    profile, duration_s, days = world.profile, world.duration_s, world.duration_s / _DAY_S
    conditions, fabric = profile.conditions, profile.fabric
    if conditions.seed is None:
        return Outages()
    every_s = {
        "dcgm": profile.collector_interval_s,
        "bmc": profile.bmc_interval_s,
        "storage": profile.storage_interval_s,
    }
    machines = dict.fromkeys(every_s, profile.nodes)
    if fabric is not None:
        every_s |= {"nic": fabric.network.nic_interval_s, "switch": fabric.network.switch_interval_s}
        machines |= {"nic": len(fabric.machines), "switch": len(fabric.switches)}
    rate = conditions.number("collector.pauses_per_day") * days
    pauses = _some(conditions.generator("pauses", seed), rate, duration_s, _PAUSE_S, None)
    found: dict[str, list[Span]] = {}
    for stream, count in machines.items():
        chance = conditions.generator(f"outages {stream}", seed)
        found[stream] = list(pauses) if stream in IN_BAND else []
        if stream == "switch":
            rate, length = conditions.number("collector.switch_pauses_per_day") * days * count, _SWITCH_PAUSE_S
        else:
            rate = conditions.number("collector.lost_runs_per_node_day") * days * count
            length = (min(_RUN[0] * every_s[stream], _MOST_S), min(_RUN[1] * every_s[stream], _MOST_S))
        runs = _some(chance, rate, duration_s, length, count)
        if stream == "switch" and conditions.yes("collector.fabric_away"):
            found[stream] += _times(chance, 1, duration_s, _FABRIC_S, None)
        found[stream] += _alone(runs, found[stream], _BETWEEN * every_s[stream])
    rate = conditions.number("collector.restarts_per_node_day") * days * profile.nodes
    restarts = _some(conditions.generator("restarts", seed), rate, duration_s, _RESTART_S, profile.nodes)
    restarts = _alone(restarts, found["dcgm"], _BETWEEN * every_s["dcgm"])
    found["dcgm"] += restarts
    return Outages(found, restarts)


def _some(
    chance: np.random.Generator, mean: float, duration_s: float, length: tuple[float, float], entities: int | None
) -> list[Span]:
    return _times(chance, int(chance.poisson(mean)), duration_s, length, entities)


def _alone(spans: list[Span], others: list[Span], apart_s: float) -> list[Span]:
    """Return the spans with scrapes of the same entity before and after them, for so long: else two of them, or one of
    the `others` with it, would together be longer than what is no fault.
    """
    kept = list(others)
    for span in spans:
        same = (one for one in kept if None in (one.entity, span.entity) or one.entity == span.entity)
        if all(one.end + apart_s <= span.begin or span.end + apart_s <= one.begin for one in same):
            kept.append(span)
    return kept[len(others) :]


def _times(
    chance: np.random.Generator, count: int, duration_s: float, length: tuple[float, float], entities: int | None
) -> list[Span]:
    found = []
    for _ in range(count):
        begin, long = float(chance.uniform(0, duration_s)), float(chance.uniform(*length))
        whom = None if entities is None else int(chance.integers(entities))
        found.append(Span(begin, begin + long, whom))
    return sorted(found, key=lambda span: (span.begin, span.end))
