"""How telemetry is gathered: each node at times of its own, now and then a scrape missing or an old value again.

A machine that does not run gives nothing in band; where only its collector fails, its log lines still come through.
"""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.physics.caps import Bools
from services.synth.physics.effects import Effects, Floats

_MARGIN_S = 0.05  # beats keep this far from the interval's edges, so that ticks of different nodes never cross
_MARGIN_JITTERS = 3.0  # and as far as jitter takes them


@dataclass(frozen=True)
class Beats:
    """When each node was sampled: ``times`` (ticks, nodes) in seconds; ``kept``: the scrape arrived;
    ``stale``: the exporter gave its previous values once more.
    """

    times: Floats
    kept: Bools
    stale: Bools

    def between(self, first: int, last: int) -> "Beats":
        """Return the ticks ``first`` to ``last``, the last not included."""
        return Beats(self.times[first:last], self.kept[first:last], self.stale[first:last])


def beats(
    nodes: int,
    duration_s: float,
    interval_s: float,
    rng: np.random.Generator,
    *,
    missing: float,
    stale: float,
    jitter_s: float,
) -> Beats:
    """Return the sampling times of a whole recording: one tick per interval and node, at the node's own offset.

    `jitter_s` is the standard deviation of a scrape around its own times.
    """
    ticks = int(duration_s // interval_s)
    margin = min(max(_MARGIN_S, _MARGIN_JITTERS * jitter_s), interval_s / 10)
    offset = rng.uniform(margin, interval_s - margin, nodes)
    jitter = np.clip(jitter_s * rng.standard_normal((ticks, nodes)), -margin, margin)
    times = np.arange(ticks)[:, None] * interval_s + offset + jitter
    repeated = rng.random((ticks, nodes)) < stale
    if ticks:
        repeated[0] = False
    return Beats(times, rng.random((ticks, nodes)) >= missing, repeated)


def to_ms(seconds: Floats, start_ms: int) -> NDArray[np.int64]:
    """Return milliseconds since the epoch of times in seconds since the recording's start."""
    return start_ms + np.floor(np.asarray(seconds) * 1000).astype(np.int64)


def heard_in_band(asked: Beats, effects: Effects) -> Beats:
    """Return the beats of an in-band stream as they arrive: nothing from nodes that are down or not heard."""
    quiet = effects.acting("node.down", asked.times) | effects.acting("node.unheard", asked.times)
    return Beats(asked.times, asked.kept & ~quiet, asked.stale | effects.acting("node.frozen", asked.times))


def from_the_living(events: Iterable[Event], world: World, effects: Effects) -> Iterator[Event]:
    """Yield the log lines that can have been written: a machine that does not run writes none, its controller does."""
    dead: dict[str, list[tuple[float, float]]] = {}
    for effect in effects.of("node.down"):
        for node in effect.columns:
            dead.setdefault(world.names[node], []).append((effect.course.start, effect.course.end))
    for event in events:
        spans = dead.get(event.node or "", ())
        at = (event.timestamp - world.start_ms) / 1000
        if event.source in {"sel", "scheduler"} or not any(begin < at < end for begin, end in spans):
            yield event
