"""Statistics that detectors share: medians of what was reported, values within bounds or filled in."""

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
    if not np.count_nonzero(values[1:] < values[:-1]):  # they are in order, or none
        return np.arange(len(values))
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
    if np.count_nonzero(valid) == valid.size:
        ranked = np.sort(values, axis=-1)
        low, high = ranked[..., (most - 1) // 2], ranked[..., most // 2]
        return np.where(low == high, low, low / 2 + high / 2)
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
    ranked.partition(((count - 1) // 2, count // 2))
    low, high = float(ranked[(count - 1) // 2]), float(ranked[count // 2])
    return low if low == high else low / 2 + high / 2


def poisson_odds(counts: FloatArray, mean: FloatArray) -> FloatArray:
    """Return what the odds of `counts` events or more (n,) are at most, where `mean` (n,) > 0 are due; 1 up to it.

    The odds of as many, by Stirling's bound of the factorial, times a geometric series over what is more.
    """
    more = np.maximum(counts, mean)
    as_many = np.exp(more - mean - more * np.log(more / mean)) / np.sqrt(2 * np.pi * np.maximum(more, 1.0))
    return np.asarray(np.where(counts > mean, np.minimum(as_many / (1 - mean / (more + 1)), 1.0), 1.0))
