"""Which GPUs answer: for how many scrapes of its node each has been missing, and how often that happens by accident.

A scrape of a node is known by its other GPUs: while none of them reports, nothing is missing. So a collector that
stops altogether is no GPU's silence; and when it comes back, GPUs may come back one after the other.
"""

from typing import Any, Final

import numpy as np

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import GPU_NODES, Columns, column
from detectors.fleet.gpus import GpuLayout, reported
from detectors.fleet.lapses import BEYOND, Lapses, chance_allowed
from detectors.fleet.presence import NEVER, Attendance
from detectors.gpu_lost.config import GpuLostConfig

VITAL: Final = ("DCGM_FI_DEV_GPU_TEMP", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_SM_CLOCK")
"""What is never 0 of a GPU that is there."""
UTIL: Final = "DCGM_FI_DEV_GPU_UTIL"
OTHER: Final = (UTIL, "DCGM_FI_DEV_FB_USED")
UNSURE_MS: Final = 295_000
"""Policy: five minutes, as in telemetry_gap, less a step of the grid, for what may be a reset, a split or a restart."""
_LEAST_READINGS: Final = 3
"""Policy: scrapes of the node in a row, two more than one that failed. Where readings of single GPUs get lost in longer
runs it takes more."""
_STRADDLE: Final = 0.3
"""GPUs of one scrape may come on either side of a point of the grid: what comes so soon after, in intervals, is no
second scrape."""
_ABSENT_INTERVALS, _ABSENT_MS = 5.0, 60_000
"""An absence of so many intervals, and so long, may have been a restart."""
_FEW: Final = 0.5
"""If more of a node's GPUs are silent at once it is the collector or the whole board, and no GPU's own loss."""
_KNOWN: Final = 5
"""A GPU that was hardly there cannot be lost: so many readings make it known."""


class _Nodes(Columns):
    """By node: when its GPUs were last heard again after none was for longer than a collection (ms; -1 never)."""

    axis = GPU_NODES
    back_at: IntArray = column(NEVER)


class RollCall(Columns):
    """By GPU; times in ms, -1: never.

    `heard` readings in all, `came` since the last look; `missed` scrapes of its node in a row; `answered` readings in a
    row, the first at `answers_at`; `returned_at` the first reading after a long absence; `vital`: whether it ever gave
    a reading that is never 0; `worked`: whether it did at the last.
    """

    axis = "dcgm"
    heard: IntArray = column(0)
    came: IntArray = column(0)
    missed: IntArray = column(0)
    answered: IntArray = column(0)
    answers_at: IntArray = column(NEVER)
    returned_at: IntArray = column(NEVER)
    vital: BoolArray = column(False)
    worked: BoolArray = column(False)

    KEPT = ("lapses", "_nodes", "_back")

    def __init__(self, config: GpuLostConfig, layout: GpuLayout, lapses: Lapses) -> None:
        super().__init__()
        self._config, self._layout, self.lapses = config, layout, lapses
        self._nodes = Attendance("dcgm", GPU_NODES)
        self._back = _Nodes()

    @property
    def last(self) -> IntArray:
        """When each GPU last answered."""
        return self._nodes.readings.last

    def grow(self, count: int) -> None:
        """Make room for GPUs that were not known before."""
        super().grow(count)
        self._nodes.readings.grow(count)

    def take(self, batch: Batch, tick: int, here: Any) -> None:
        """Take note of which GPUs answer in one tick: rows without a reading, or full of zeros, are silence."""
        gpus = batch.entities[here]
        at, worked = batch.at[tick, here], reported(batch, UTIL, tick, here) > 0
        vitals = [reported(batch, name, tick, here) for name in VITAL]
        alive = np.logical_or.reduce([values > 0 for values in vitals])
        where = batch.index(here, len(self))
        if np.count_nonzero(alive) == len(alive):
            self.vital[where] = True
        else:
            self.vital[gpus[alive]] = True
            other = np.array([reported(batch, name, tick, here) for name in OTHER])
            zero = np.logical_or.reduce([values == 0 for values in vitals])
            alive |= ~self.vital[gpus] & (np.isfinite(other).any(axis=0) | zero)
            where, at, worked = gpus[alive], at[alive], worked[alive]
        self._nodes.readings.heard(where, at)
        self.came[where] += 1
        self.worked[where] = worked

    def settle(self, now: Instant, lost: IntArray) -> None:
        """At a point of the grid: count who has missed what; of GPUs that are `lost` already nothing is learnt."""
        nodes, node = self._nodes, self._layout.node
        gaps = nodes.readings.gap  # the look begins another
        nodes.look(now, node, len(self._layout.names))
        self._back.grow(len(nodes))
        away = nodes.late[nodes.gap[nodes.late] > self._config.least_s * 1000]
        here = self.came > 0
        if len(away):
            self._back.back_at[away] = nodes.last[away]
            self.missed[np.isin(node, away) & ~here] = 0
        absent = np.flatnonzero(~here & (self.last >= 0))
        if len(absent):
            scrapes = np.zeros(len(nodes), np.int64)
            np.maximum.at(scrapes, node, self.came)
            scrapes[nodes.gap < _STRADDLE * nodes.usual] = 0
        missing = here & (self.missed > 0)
        by_chance = missing & (gaps < UNSURE_MS)
        by_chance[lost] = False
        self.lapses.learn(int(np.count_nonzero(here)), (self.missed[by_chance] + 1).astype(np.float64))
        again = missing | (here & (self.answered == 0))
        self.answered[again], self.answers_at[again] = 0, self.last[again]
        self.answered += self.came
        returned = np.flatnonzero(gaps > _ABSENT_MS)
        returned = returned[gaps[returned] > _ABSENT_INTERVALS * nodes.usual[node[returned]]]
        self.returned_at[returned] = self.last[returned]
        if len(absent):
            self.missed[absent] += scrapes[node[absent]]
        self.missed[here] = 0
        self.heard += self.came
        self.came[:] = 0

    def silent(self, budget: float) -> IntArray:
        """Return the GPUs that miss too many scrapes, while enough of their node's others answer.

        Those whose node has just been away are among them only after five minutes.
        """
        node = self._layout.node
        known = self.heard >= _KNOWN
        suspects = np.flatnonzero((self.missed >= _LEAST_READINGS) & known)
        if not len(suspects):
            return suspects
        count = len(self._layout.names)
        gone = np.bincount(node[(self.missed > 0) & known], minlength=count)
        few = gone <= _FEW * np.bincount(node[known], minlength=count)
        of = node[suspects]
        by_chance = BEYOND * self.lapses.longest(self._chance(budget))
        least = np.maximum(np.floor(self._config.least_s * 1000 / self._nodes.usual[of]), by_chance)
        settled = (self._back.back_at[of] <= self.last[suspects]) | (self.missing_ms(suspects) >= UNSURE_MS)
        return suspects[(self.missed[suspects] >= least) & settled & few[of]]

    def _chance(self, budget: float) -> float:
        usual = self._nodes.usual[np.isfinite(self._nodes.usual)]
        per_node = max(len(self._layout) / max(len(self._layout.names), 1), 1.0)
        return chance_allowed(budget, float(np.median(usual)) if len(usual) else 0.0) / per_node

    def missing_ms(self, gpus: Any) -> FloatArray:
        """Return for how long each of `gpus` has been missing while its node was read."""
        of = self._layout.node[gpus]
        since = self._nodes.last[of] - np.maximum(self.last[gpus], self._back.back_at[of])
        return np.asarray(since, np.float64)

    def began(self, gpu: int) -> Instant:
        """Return the best estimate of when a silent GPU stopped answering."""
        node = self._layout.node[gpu]
        stopped = max(int(self.last[gpu]), int(self._back.back_at[node]))
        return stopped + int(np.nan_to_num(self._nodes.usual[node])) // 2

    def mates(self, node: str, now: Instant) -> tuple[int, int]:
        """Return how many GPUs of a node answer now, and how many have at all."""
        members = self._layout.members(node)
        members = members[members < self.count]
        known = self.heard[members] > 0
        usual = np.nan_to_num(self._nodes.usual[self._layout.node[members]])
        fresh = known & (self.missed[members] == 0) & (now - self.last[members] <= 3 * np.maximum(usual, 10_000.0))
        return int(fresh.sum()), int(known.sum())
