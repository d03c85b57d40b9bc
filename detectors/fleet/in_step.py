"""Which nodes work in step, by the correlation of their activity."""

from statistics import NormalDist
from typing import Any, Final

import numpy as np

from detectors.contract import FloatArray, IntArray
from detectors.core.residuals import MAD_TO_SIGMA

FEWEST: Final = 12
"""So many windows that two nodes share are the least to correlate."""
_CHANCE: Final = 1e-3
"""How probable it may be that any two nodes of the cluster are linked by chance in a day."""
_BLOCK: Final = 256
_DOUBT: Final = 1e-4
"""What is nearer to the bar is decided in float64: so far correlations in float32, ten times as fast, may be wrong."""
_MOST: Final = 0.999999
"""Two series that are all but the same count as so highly correlated."""
_AROUND: Final = 9
"""Windows: jobs that have nothing to do with each other change their levels within the same hour (other phases, faults,
loads of a hall), and such levels correlate by chance; what they do within minutes does not."""
_REPEATED: Final = 1.22
"""What is left without the mean of the windows around repeats in part, with the sign turned: chance correlates it as it
does so many times fewer that are independent (Bartlett; for nine windows)."""
_LEAST: Final = 1e-12
"""Of the product of two sums of squares."""


def linked(series: FloatArray, looks_a_day: float) -> IntArray:
    """Return the number of the lot (n,) that each of the series (windows, n; NaN unknown) is linked into.

    Two are linked where they are correlated, whether positively or negatively, too highly for chance (Fisher's z
    transform): chance links any two of the cluster once in a thousand days, at so many looks a day.
    """
    series = _swings(series[np.isfinite(series).any(axis=1)])
    windows, count = series.shape
    lots = np.arange(count)
    if windows < FEWEST:
        return lots
    known = np.isfinite(series)
    centred = np.where(known, series - np.nanmedian(series, axis=0), 0.0)
    # An exit from idling, or a checkpoint, is a big step: ranks keep it from standing for all.
    limit = 4 * MAD_TO_SIGMA * np.nanmedian(np.where(known, np.abs(centred), np.nan), axis=0)
    centred = np.clip(centred, -limit, limit)
    pairs = max(count * (count - 1) / 2, 1.0)
    bar = -NormalDist().inv_cdf(_CHANCE / (looks_a_day * pairs) / 2)
    bars = np.full(windows + 1, np.inf, np.float32)
    """The correlation that links, by the windows that two share."""
    bars[FEWEST:] = np.tanh(bar / np.sqrt((np.arange(FEWEST, windows + 1) - 3) / _REPEATED))
    squares = (centred**2).sum(axis=0)
    unit = (centred / np.sqrt(np.maximum(squares, _LEAST))).astype(np.float32)
    weight, parts = known.astype(np.float32), unit**2
    last_gap = int(np.flatnonzero(~known.all(axis=0)).max(initial=-1))
    for begin in range(0, count, _BLOCK):
        rows, rest = slice(begin, begin + _BLOCK), slice(begin, count)
        r = np.abs(unit[:, rows].T @ unit[:, rest])
        own: Any = np.float32(1)  # the share of both series' squares that lies in windows that they share
        least: Any = bars[windows]
        if last_gap >= begin:
            own = (parts[:, rows].T @ weight[:, rest]) * (weight[:, rows].T @ parts[:, rest])
            r /= np.sqrt(np.maximum(own, np.float32(1e-30)))
            least = bars[(weight[:, rows].T @ weight[:, rest]).astype(np.int64)]
        one, two = np.nonzero(r >= least - _DOUBT)
        sure, own, least = r[one, two], *(np.broadcast_to(each, r.shape)[one, two] for each in (own, least))
        one, two = one + begin, two + begin
        doubted = (sure < least + _DOUBT) | (own * squares[one] * squares[two] < 1000 * _LEAST) | (least >= _MOST)
        lots = merged(lots, one[~doubted], two[~doubted])
        one, two = one[doubted], two[doubted]
        left = np.flatnonzero(lots[one] != lots[two])
        one, two = one[left], two[left]
        yes = _correlated(centred, known, one, two, bar)
        lots = merged(lots, one[yes], two[yes])
    return lots


def merged(lots: IntArray, one: IntArray, two: IntArray) -> IntArray:
    """Return the lots, each numbered by its least member, with the links (one, two) added to what made them."""
    while True:
        least = lots.copy()
        # At the members that give the lots their numbers: so the rest of a lot comes along.
        np.minimum.at(least, lots[one], lots[two])
        np.minimum.at(least, lots[two], lots[one])
        joined = least[least[lots]]
        if np.array_equal(joined, lots):
            return lots
        lots = joined


def _swings(series: FloatArray) -> FloatArray:
    """Return by how much each of the series (windows, n) lies above its mean of the windows around."""
    known, half = np.isfinite(series), _AROUND // 2
    place = np.arange(len(series))
    begin, end = np.maximum(place - half, 0), np.minimum(place + half + 1, len(series))
    total, count = (
        np.vstack([np.zeros((1, series.shape[1])), of.cumsum(axis=0)]) for of in (np.where(known, series, 0.0), known)
    )
    return np.asarray(series - (total[end] - total[begin]) / np.maximum(count[end] - count[begin], 1))


def _correlated(centred: FloatArray, known: Any, one: IntArray, two: IntArray, bar: float) -> Any:
    """Return of which pairs (p,) of series the correlation is too high for chance."""
    both = known[:, one] & known[:, two]
    mine, other = np.where(both, centred[:, one], 0.0), np.where(both, centred[:, two], 0.0)
    squares = (mine**2).sum(axis=0) * (other**2).sum(axis=0)
    r = np.abs((mine * other).sum(axis=0)) / np.sqrt(np.maximum(squares, _LEAST))
    shared = both.sum(axis=0)
    z = np.arctanh(np.minimum(r, _MOST)) * np.sqrt(np.maximum(shared - 3.0, 0.0) / _REPEATED)
    return (shared >= FEWEST) & (z >= bar)
