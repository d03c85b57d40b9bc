"""How long a mount's requests usually take, at each load: what to expect of it now.

The load is the throughput of all clients, in powers of two. Latency rises with load and never falls: what is expected
is the highest level known at this load or below. At a load that was never seen nothing is expected.
"""

from typing import Final

import numpy as np

from detectors.contract import BoolArray, FloatArray, IntArray
from detectors.core.columns import REUSED, Columns, column

IDLE: Final = 1e4
"""Bytes a second of all clients; less is nothing."""
_STEPS = 40
"""Powers of two above `IDLE`: up to 10^16 bytes a second. The last row is of loads that are not known."""
_GAIN, _WARY = 0.02, 0.2
"""A look moves a level by its part of all looks so far, at last by this: half an hour at a look every 30 s. A part of
that where the mount is not quite as it should be, or a slow ramp would be taken for the habit."""
_KNOWN = 3
"""Looks at a load after which it counts as known."""


class LoadHabit(Columns):
    """By mount and direction: the level of log(latency) by load, and how far a look usually lies from it."""

    axis = REUSED
    levels: FloatArray = column(np.nan, _STEPS + 1)
    seen: IntArray = column(0, _STEPS + 1)
    spread: FloatArray = column(0.1)
    looks: IntArray = column(0)

    def expected(self, entities: IntArray, load: FloatArray) -> FloatArray:
        """Return log(latency) to expect (n,) of each of `entities`; NaN where its load was never seen."""
        step, known = _step(load), self.seen[:, entities] >= _KNOWN
        levels, rows = self.levels[:, entities], np.arange(_STEPS + 1)[:, None]
        loads = known & (rows < _STEPS)
        below = np.where(loads & (rows <= step), levels, -np.inf).max(axis=0)
        # Less load than was ever seen can't take longer than the least that was.
        first = levels[np.argmax(loads, axis=0), np.arange(len(entities))]
        found = np.where(np.isfinite(below), below, first)
        found = np.where((loads & (rows >= step)).any(axis=0), found, np.nan)
        blind = (step == _STEPS) | known[-1]
        return np.where(
            blind, np.where(known[step, np.arange(len(step))], levels[step, np.arange(len(step))], np.nan), found
        )

    def familiar(self, entities: IntArray, load: FloatArray) -> IntArray:
        """Return how often loads like these were looked at."""
        seen: IntArray = self.seen[_step(load), entities]
        return seen

    def least(self) -> FloatArray:
        """Return the lowest log(latency) that is known of each at any load; NaN if none is."""
        least = np.where(self.seen >= _KNOWN, self.levels, np.inf).min(axis=0)
        return np.where(np.isfinite(least), least, np.nan)

    def learn(self, entities: IntArray, load: FloatArray, value: FloatArray, wary: BoolArray) -> None:
        """Take one look at each of `entities` (n,): log(latency); `wary` where it is not quite as it should be."""
        known = np.isfinite(value)
        those, step, value, wary = entities[known], _step(load)[known], value[known], wary[known]
        self.looks[those] += 1
        self.seen[step, those] = np.minimum(self.seen[step, those] + 1, 1_000_000)
        level = self.levels[step, those]
        fresh = np.isnan(level)
        gain = np.maximum(1 / self.seen[step, those], _GAIN) * np.where(wary, _WARY, 1.0)
        off = np.where(fresh, 0.0, value - level)
        self.levels[step, those] = np.where(fresh, value, level + gain * off)
        usual = self.spread[those]
        self.spread[those] = np.where(wary | fresh, usual, usual + 0.05 * (np.minimum(np.abs(off), 0.5) - usual))


def _step(load: FloatArray) -> IntArray:
    steps = np.log2(np.maximum(np.where(np.isfinite(load), load, IDLE), IDLE) / IDLE).astype(np.int64)
    return np.where(np.isfinite(load), np.minimum(steps, _STEPS - 1), _STEPS)
