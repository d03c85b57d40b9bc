"""Statistics that detectors share: medians of what was reported, and the growth of counters."""

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.contract import BoolArray, FloatArray, IntArray


def clamp(values: NDArray[Any], least: Any, most: Any) -> Any:
    """Return `values` within bounds, as np.clip does; on some hundred values it takes a fifth of the time."""
    return np.minimum(np.maximum(values, least), most)


def stable_order(values: IntArray) -> IntArray:
    """Return `values.argsort(kind="stable")` of some integers (n,): NumPy sorts those of 16 bits by counting them.

    So numbers that lie within 32 bits are sorted twice, by their halves, in a tenth of the time.
    """
    if not len(values):
        return np.empty(0, np.int64)
    least = int(values.min())
    width = int(values.max()) - least
    if width >= 2**32:
        return values.argsort(kind="stable")
    offset = values - least
    order: IntArray = offset.astype(np.uint16).argsort(kind="stable")
    if width >= 2**16:
        order = order[(offset[order] >> 16).astype(np.uint16).argsort(kind="stable")]
    return order


def known_or(values: FloatArray, blank: float) -> FloatArray:
    """Return `values` with `blank` in the place of NaN."""
    filled = values.copy()
    filled[np.isnan(values)] = blank
    return filled


def masked_median(values: FloatArray, valid: BoolArray) -> FloatArray:
    """Return the median along the last axis of what is valid; NaN where nothing is.

    `values` and `valid` have shape (..., n); the result has shape (...,). What is not valid may be anything.
    """
    most = values.shape[-1]
    if most == 0:
        return np.full(values.shape[:-1], np.nan)
    ranked = np.where(valid, values, np.inf).reshape(-1, most)
    ranked.sort(axis=1)
    count = np.count_nonzero(valid.reshape(-1, most), axis=1)
    rows = np.arange(len(ranked))
    low, high = ranked[rows, np.maximum(count - 1, 0) // 2], ranked[rows, np.minimum(count // 2, most - 1)]
    middle = np.where((count % 2 == 1) | (low == high), low, low / 2 + high / 2)
    return np.where(count > 0, middle, np.nan).reshape(values.shape[:-1])


def median_of(values: FloatArray) -> float:
    """Return the median of the finite ones of some values, (n,); NaN where there are none."""
    ranked = values[np.isfinite(values)]
    count = len(ranked)
    if not count:
        return float("nan")
    if float(ranked[0]) == float(ranked[-1]) and np.count_nonzero(ranked == ranked[0]) == count:
        return float(ranked[0])
    ranked.sort()
    low, high = float(ranked[(count - 1) // 2]), float(ranked[count // 2])
    return low if low == high else low / 2 + high / 2


@dataclass(slots=True)
class CounterRate:
    """The rate of a cumulative counter of every entity, through resets, wraps and readings that repeat.

    A counter that fell was reset (or wrapped): that interval has no rate. A reading that repeats the one before may
    be a collector's cached copy: its growth is counted from the last reading that differed, and only when the
    counter has not moved for `hold_ms` is the rate taken to be 0.
    """

    at: IntArray
    """Time of the last reading that differed, (..., entities); -1: none yet."""
    value: FloatArray
    hold_ms: int

    def update(self, entities: IntArray, at: IntArray, value: FloatArray, valid: BoolArray) -> FloatArray:
        """Take one reading of each of `entities`; return their rates per millisecond, NaN where there is none.

        `entities` and `at` have shape (n,), every entity at most once; `value`, `valid` and the rates (..., n).
        """
        since, before = self.at.take(entities, axis=-1), self.value.take(entities, axis=-1)
        elapsed = at - since
        growth = value - before
        valid = valid & np.isfinite(growth)  # what is known before always is
        fresh = since < 0
        stood = growth == 0
        settled = (growth > 0) | (stood & (elapsed >= self.hold_ms))
        settled &= valid & ~fresh & (elapsed > 0)
        rate = np.empty(growth.shape)
        rate.fill(np.nan)
        np.divide(growth, elapsed, out=rate, where=settled)
        moved = valid & (fresh | ~stood)
        self.at[..., entities] = np.where(moved, at, since)
        self.value[..., entities] = np.where(moved, value, before)
        return rate
