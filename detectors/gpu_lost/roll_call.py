"""Which GPUs answer: how many scrapes of its node each has missed in a row, and how often that happens by accident.

A scrape of a node is known by its other GPUs: while none of them reports, nothing is missed. So neither the interval
nor its regularity has to be known, and a collector that stops altogether is no GPU's silence.
"""

import math
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from detectors.contract import BoolArray, FloatArray, Instant, IntArray
from detectors.gpu_lost.config import GpuLostConfig
from detectors.gpus import GpuColumns, GpuLayout
from detectors.statistics import clamp

_MEMORY = 2000.0
"""Readings after which older ones count half."""
_PRIOR_READINGS, _PRIOR_LOST = 500.0, 2.5
"""Before the fleet is known one reading of two hundred is taken to get lost."""
_OWN_WEIGHT = 50.0
_MOST_PATIENCE = 40
_STEP = 0.1
_ABSENT_INTERVALS, _ABSENT_MS = 5.0, 60_000
"""An absence of so many intervals, and so long, may have been a restart."""


class RollCall(GpuColumns):
    """Columns over all GPUs; times in ms, -1: never.

    `last` reading; `usual` interval (NaN: unknown); `came` readings since the last `settle`; `heard` readings in all;
    `missed` scrapes in a row, the first at `missing_at`; `answered` readings in a row, the first at `answers_at`;
    `returned_at` the first reading after a long absence; `lost` and `seen` readings, by which accidents are known.
    """

    BLANK: ClassVar[dict[str, tuple[Any, float]]] = {
        "last": (np.int64, -1),
        "usual": (np.float64, np.nan),
        "came": (np.int32, 0),
        "heard": (np.int64, 0),
        "missed": (np.int32, 0),
        "missing_at": (np.int64, -1),
        "answered": (np.int32, 0),
        "answers_at": (np.int64, -1),
        "returned_at": (np.int64, -1),
        "lost": (np.float64, 0),
        "seen": (np.float64, 0),
    }
    last: IntArray
    usual: FloatArray
    came: NDArray[np.int32]
    heard: IntArray
    missed: NDArray[np.int32]
    missing_at: IntArray
    answered: NDArray[np.int32]
    answers_at: IntArray
    returned_at: IntArray
    lost: FloatArray
    seen: FloatArray

    def __init__(self, config: GpuLostConfig) -> None:
        super().__init__()
        self._config = config

    def take(self, gpus: IntArray, at: IntArray) -> None:
        """Take note of one reading of each of `gpus`."""
        before, usual = self.last[gpus], self.usual[gpus]
        gap = np.where(before >= 0, at - before, np.nan)
        back = (gap > _ABSENT_MS) & (gap > _ABSENT_INTERVALS * usual)
        if np.count_nonzero(back):
            self.returned_at[gpus[back]] = at[back]
        step = clamp(gap - usual, -_STEP * usual, _STEP * usual)
        learnt = np.where(np.isnan(usual), gap, usual + step)
        self.usual[gpus] = np.where(np.isnan(gap), usual, learnt)
        self.last[gpus] = at
        self.came[gpus] += 1

    def settle(self, layout: GpuLayout) -> None:
        """At a point of the grid: count who has missed what."""
        here = self.came > 0
        if not np.count_nonzero(here):
            return
        node = layout.node[: self.count]
        scrapes = np.zeros(len(layout.names), np.int32)
        np.maximum.at(scrapes, node[here], self.came[here])
        latest = np.full(len(layout.names), -1, np.int64)
        absent = ~here & (self.heard > 0) & (scrapes[node] > 0)
        if np.count_nonzero(absent):
            np.maximum.at(latest, node[here], self.last[here])
            begins = absent & (self.missed == 0)
            self.missing_at[begins] = latest[node[begins]]
            self.missed[absent] = np.minimum(self.missed[absent] + scrapes[node[absent]], 2**30)
            self.answered[absent] = 0
        # A long absence is no accident of a scrape, and must not teach patience.
        accident = here & (self.missed > 0) & (self.missed < _MOST_PATIENCE)
        self.lost[accident] += self.missed[accident]
        self.seen[here] += self.came[here]
        old = self.seen > _MEMORY
        if np.count_nonzero(old):
            self.lost[old] /= 2
            self.seen[old] /= 2
        starts = here & (self.answered == 0)
        self.answers_at[starts] = self.last[starts]
        self.answered[here] = np.minimum(self.answered[here] + self.came[here], 2**30)
        self.heard[here] += self.came[here]
        self.missed[here] = 0
        self.came[:] = 0

    def patience(self, gpus: IntArray) -> IntArray:
        """Return how many scrapes in a row each GPU must miss before that is no accident."""
        fleet = (self.lost.sum() + _PRIOR_LOST) / (self.lost.sum() + self.seen.sum() + _PRIOR_READINGS)
        own = (self.lost[gpus] + _OWN_WEIGHT * fleet) / (self.lost[gpus] + self.seen[gpus] + _OWN_WEIGHT)
        needed = np.ceil(math.log(self._config.missed_chance) / np.log(clamp(own, 1e-6, 0.6)))
        least = self._config.missed_readings
        bounded: IntArray = clamp(needed, least, max(_MOST_PATIENCE, least)).astype(np.int64)
        return bounded

    def silent(self, layout: GpuLayout) -> IntArray:
        """Return the GPUs that have missed too many scrapes, while enough of their node's others answer."""
        suspects = np.flatnonzero(
            (self.missed >= self._config.missed_readings) & (self.heard >= self._config.minimum_readings)
        )
        if not len(suspects):
            return suspects
        suspects = suspects[self.missed[suspects] >= self.patience(suspects)]
        if not len(suspects):
            return suspects
        node = layout.node[: self.count]
        nodes = len(layout.names)
        known = np.bincount(node[self.heard >= self._config.minimum_readings], minlength=nodes)
        gone = np.bincount(node[(self.missed > 0) & (self.heard >= self._config.minimum_readings)], minlength=nodes)
        few = gone <= self._config.node_share * known
        return suspects[few[node[suspects]]]

    def began(self, gpu: int) -> Instant:
        """Return the best estimate of when a silent GPU stopped answering."""
        last, first = int(self.last[gpu]), int(self.missing_at[gpu])
        return (last + first) // 2 if first - last <= 2 * _ABSENT_MS else first

    def mates(self, layout: GpuLayout, node: str, now: Instant) -> tuple[int, int]:
        """Return how many GPUs of a node answer now, and how many have at all."""
        members = layout.members(node)
        members = members[members < self.count]
        known = self.heard[members] > 0
        fresh = known & (self.missed[members] == 0) & (now - self.last[members] <= 3 * _fallback(self.usual[members]))
        return int(fresh.sum()), int(known.sum())


def _fallback(usual: FloatArray) -> Any:
    return np.where(np.isnan(usual), float(_ABSENT_MS), np.maximum(usual, 10_000.0))


def telling(*fields: FloatArray) -> BoolArray:
    """Return which readings say anything at all."""
    some = np.zeros(len(fields[0]), bool)
    for column in fields:
        some |= np.isfinite(column)
    return some
