"""How readings get lost here, and so how long a silence must last to be no chance."""

import math
from typing import Final

import numpy as np

from detectors.contract import FloatArray
from detectors.core.kept import Kept
from detectors.core.statistics import median_of
from detectors.core.tails import Tail

_100_NODE_DAYS_MS: Final = 100 * 86_400_000
BEYOND: Final = 2.0
"""A silence must be so many times as long as the longest that chance explains: the next of n silences is longer than
twice the longest of them with a probability of 1 / (16 n), if the tail beyond is that of `core.tails` (index 4)."""
_INDEX: Final = 4
"""Of the Pareto tail that is assumed of silences before the first has been seen, as in `core.tails`."""


class Lapses(Kept):
    """How readings get lost here: how often a silence begins, and how many readings in a row are missing in it.

    What is counted is silences that ended by themselves; one silence of many owners at once, a collector's, is one.
    """

    KEPT = ("readings",)

    def __init__(self, tail: Tail) -> None:
        self._tail = tail
        self.readings = 0

    def learn(self, readings: int, late: FloatArray) -> None:
        """Take note of some readings, of which those with `late` intervals (n,) before them ended a silence."""
        self.readings += readings
        if len(late):  # a power of two, so that sums are the same in any order
            self._tail.learn(late - 1, 2.0 ** -math.ceil(math.log2(len(late))))

    @property
    def _rate(self) -> float:
        return min((self._tail.total + 1) / (self.readings + 1), 1.0)

    def odds(self, missed: float) -> float:
        """Return the probability that a reading is followed by a silence of `missed` intervals."""
        known = self._tail.total > 0
        longer = float(self._tail.odds(np.array([missed - 1]))[0]) if known else max(missed, 1.0) ** -_INDEX
        return believed(self._rate * longer, self.readings)

    def longest(self, chance: float) -> float:
        """Return how many intervals the longest silence lasts that begins after a reading with this `chance`."""
        longest = self._tail.quantile(min(chance / self._rate, 1.0))
        return 0.0 if math.isnan(longest) else longest + 1


def believed(odds: float, seen: float) -> float:
    """Return odds no smaller than a hundredth of what so many readings can show: a tail is not followed further."""
    return max(odds, 0.01 / (seen + 1))


def chance_allowed(budget: float, interval_ms: float) -> float:
    """Return the chance a reading may have to be followed by a false alarm: `budget` of them in 100 node-days."""
    return budget * interval_ms / _100_NODE_DAYS_MS


def at_least(usual: FloatArray, least_s: float, least_readings: float) -> FloatArray:
    """Return how long (n,), in ms, silences last at least that are no chance, however seldom there are any here:
    `least_s` beyond the reading that was due by the `usual` interval (n,; ms, NaN), and `least_readings` intervals.
    """
    due = np.where(np.isfinite(usual), usual, 0.0)
    return np.maximum(least_s * 1000 + due, least_readings * due)


def too_long(
    usual: FloatArray, lapses: Lapses, budget: float, least_s: float, least_readings: float, beyond: float = BEYOND
) -> FloatArray:
    """Return from when on (n,), in ms, silences are no chance: for owners with `usual` intervals (n,; ms, NaN).

    They last `least_s` beyond the reading that was due, `least_readings` intervals, and `beyond` times as long as those
    that end by themselves here.
    """
    typical = median_of(usual)
    typical = 0.0 if math.isnan(typical) else typical
    longest = lapses.longest(chance_allowed(budget, typical))
    return np.fmax(at_least(usual, least_s, least_readings), beyond * longest * usual)
