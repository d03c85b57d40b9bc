"""How telemetry is gathered: each node on its own beat, now and then a scrape missing or an old value again."""

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.synth.effects import Floats
from services.synth.power import Bools

_JITTER_S = 0.004  # standard deviation of a scrape around its beat
_MARGIN_S = 0.05  # beats keep this far from the interval's edges, so that ticks of different nodes never cross


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
    nodes: int, duration_s: float, interval_s: float, rng: np.random.Generator, *, missing: float, stale: float
) -> Beats:
    """Return the sampling times of a whole recording: one tick per interval and node, at the node's own offset."""
    ticks = int(duration_s // interval_s)
    margin = min(_MARGIN_S, interval_s / 10)
    offset = rng.uniform(margin, interval_s - margin, nodes)
    jitter = np.clip(_JITTER_S * rng.standard_normal((ticks, nodes)), -margin, margin)
    times = np.arange(ticks)[:, None] * interval_s + offset + jitter
    repeated = rng.random((ticks, nodes)) < stale
    if ticks:
        repeated[0] = False
    return Beats(times, rng.random((ticks, nodes)) >= missing, repeated)


def to_ms(seconds: Floats, start_ms: int) -> NDArray[np.int64]:
    """Return milliseconds since the epoch of times in seconds since the recording's start."""
    return start_ms + np.floor(np.asarray(seconds) * 1000).astype(np.int64)
