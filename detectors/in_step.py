"""Which nodes work in step, by the correlation of their activity."""

from statistics import NormalDist
from typing import Final

import numpy as np

from detectors.contract import FloatArray, IntArray

FEWEST: Final = 12
"""So many windows that two nodes share are the least to correlate."""
_CHANCE: Final = 1e-3
"""How probable it may be that any two nodes of the cluster are linked by chance in a day."""
_BLOCK: Final = 1024


def linked(series: FloatArray, looks_a_day: float) -> IntArray:
    """Return the number of the lot (n,) that each of the series (windows, n; NaN unknown) is linked into.

    Two are linked where they are correlated, whether positively or negatively, too highly for chance (Fisher's z
    transform): chance links any two of the cluster once in a thousand days, at so many looks a day.
    """
    count = series.shape[1]
    known = np.isfinite(series)
    centred = np.where(known, series - np.nanmedian(series, axis=0), 0.0)
    # An exit from idling, or a checkpoint, is a big step: ranks keep it from standing for all.
    limit = 4 * 1.4826 * np.nanmedian(np.where(known, np.abs(centred), np.nan), axis=0)
    centred = np.clip(centred, -limit, limit)
    weight = known.astype(np.float64)
    pairs = max(count * (count - 1) / 2, 1.0)
    bar = -NormalDist().inv_cdf(_CHANCE / (looks_a_day * pairs) / 2)
    lots = np.arange(count)
    for begin in range(0, count, _BLOCK):
        rows = slice(begin, begin + _BLOCK)
        shared = weight[:, rows].T @ weight
        products = centred[:, rows].T @ centred
        own = (centred[:, rows] ** 2).T @ weight
        other = weight[:, rows].T @ centred**2
        r = np.abs(products) / np.sqrt(np.maximum(own * other, 1e-12))
        z = np.arctanh(np.minimum(r, 0.999999)) * np.sqrt(np.maximum(shared - 3, 0.0))
        one, two = np.nonzero((shared >= FEWEST) & (z >= bar))
        lots = _merged(lots, one + begin, two)
    return lots


def _merged(lots: IntArray, one: IntArray, two: IntArray) -> IntArray:
    """Return the lots, each numbered by its least member, with the links (one, two) added."""
    while True:
        least = lots.copy()
        np.minimum.at(least, one, lots[two])
        np.minimum.at(least, two, lots[one])
        least = least[least]
        if np.array_equal(least, lots):
            return lots
        lots = least
