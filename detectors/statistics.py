"""Statistics that detectors share: medians of what was reported, the distance to peers, the growth of counters."""

from dataclasses import dataclass

import numpy as np

from detectors.contract import BoolArray, FloatArray, IntArray

_MAD_TO_SIGMA = 1.4826
"""A normal distribution's standard deviation over its median absolute deviation."""


def masked_median(values: FloatArray, valid: BoolArray) -> FloatArray:
    """Return the median along the last axis of what is valid; NaN where nothing is.

    `values` and `valid` have shape (..., n); the result has shape (...,). What is not valid may be anything.
    """
    count = valid.sum(axis=-1, keepdims=True)
    if values.shape[-1] == 0:
        return np.full(values.shape[:-1], np.nan)
    ranked = np.sort(np.where(valid, values, np.inf), axis=-1)
    low = np.take_along_axis(ranked, np.maximum((count - 1) // 2, 0), axis=-1)
    high = np.take_along_axis(ranked, np.minimum(count // 2, values.shape[-1] - 1), axis=-1)
    middle = np.where(count % 2 == 1, low, np.where(low == high, low, low / 2 + high / 2))
    return np.where(count > 0, middle, np.nan)[..., 0]


def peer_distance(value: FloatArray, peers: FloatArray, floor: float) -> FloatArray:
    """Return how many robust deviations each of `value` lies above the median of `peers`; NaN without peers.

    r = (x - median) / max(1.4826 MAD, floor). `floor`, in the unit of the values, is what keeps peers that all say
    the same (clocks do) from making every trifle infinitely far.
    """
    known = np.isfinite(peers)
    middle = masked_median(peers, known)
    spread = _MAD_TO_SIGMA * masked_median(np.abs(np.where(known, peers, 0.0) - middle), known)
    return (value - middle) / np.maximum(spread, floor)


@dataclass(slots=True)
class CounterRate:
    """The rate of a cumulative counter of every entity, through resets, wraps and readings that repeat.

    A counter that fell was reset (or wrapped): that interval has no rate. A reading that repeats the one before may
    be a collector's cached copy: its growth is counted from the last reading that differed, and only when the
    counter has not moved for `hold_ms` is the rate taken to be 0.
    """

    at: IntArray
    """Time of the last reading that differed, (entities,); -1: none yet."""
    value: FloatArray
    hold_ms: int

    @classmethod
    def empty(cls, entities: int, hold_ms: int) -> "CounterRate":
        """Return the state before any reading."""
        return cls(np.full(entities, -1, np.int64), np.zeros(entities), hold_ms)

    def grow(self, entities: int) -> None:
        """Make room for entities that were not known before."""
        more = entities - len(self.at)
        if more > 0:
            self.at = np.concatenate([self.at, np.full(more, -1, np.int64)])
            self.value = np.concatenate([self.value, np.zeros(more)])

    def update(self, entities: IntArray, at: IntArray, value: FloatArray, valid: BoolArray) -> FloatArray:
        """Take one reading of each of `entities`; return their rates per millisecond, NaN where there is none.

        All of shape (n,), every entity at most once.
        """
        valid = valid & np.isfinite(value)
        since, before = self.at[entities], self.value[entities]
        elapsed = at - since
        growth = np.where(valid, value, before) - before
        comparable = valid & (since >= 0) & (elapsed > 0)
        settled = comparable & ((growth > 0) | ((growth == 0) & (elapsed >= self.hold_ms)))
        rate = np.full(len(entities), np.nan)
        rate[settled] = growth[settled] / elapsed[settled]
        moved = valid & ((since < 0) | (growth != 0))
        self.at[entities[moved]] = at[moved]
        self.value[entities[moved]] = value[moved]
        return rate
