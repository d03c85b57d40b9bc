"""Evidence over time: improbable residuals of one entity add up until chance no longer explains them.

Each look at an entity gives a probability p (`detectors.core.tails`). It is turned into a bet against chance, worth
(1 - p + p ln p) / (p ln(p)^2), whose expectation is at most 1 where p is what chance gives (the mixture of all
power calibrators; Vovk and Wang, E-values, Annals of Statistics 49, 2021). The wealth of an entity is the product of
its bets, begun anew whenever it falls below 1: an e-detector of CUSUM type (Shin, Ramdas, Rinaldo, 2022), which reaches
a wealth of A by chance once in A looks or more seldom. So the threshold follows from the false alarms that are allowed,
and from nothing else.
"""

import math
from typing import Any, Final

import numpy as np

from detectors.contract import BoolArray, FloatArray, IntArray
from detectors.core.columns import Columns, column
from detectors.core.kept import Kept
from detectors.core.statistics import clamp

_DAY_S: Final = 86_400.0
_LEAST_ODDS: Final = 1e-6
"""No single look is believed to be less probable: one broken reading is not a fault."""
_LOSES: Final = 0.2
"""A bet that wins by such odds, or better ones, costs wealth (the worth of the bet is 1 at odds of 0.166)."""
_YEAR_DAYS: Final = 365.25
_FIRST_PAIRS: Final = 30.0
"""Pairs of looks that repeat by a third, with which a population begins: two looks are one until it has its own."""
_MOST_REPEATED: Final = 0.8
"""Nine looks for one at most: what repeats more is no noise, but something that is so."""
_PAIRS_KEPT: Final = 100_000.0
_RISEN, _HIGH, _NO_CHANCE = 2.0, 5.0, 12.0
"""Wealth (logarithm) from which rises are counted, which one of e^3 of them reaches if looks are what they claim to be,
and from which something is so, by chance or not."""
_LEAST_SHARE: Final = 0.1
"""Evidence is worth a tenth at least: what lasts for an hour is believed where every rise by chance was high."""
_FIRST_RISES: Final = 20.0
_RISES_KEPT: Final = 2_000.0


class Evidence(Columns):
    """By entity: the `wealth` (natural logarithm) of the bet against chance, above 0 `since` (ms), for `looks`."""

    wealth: FloatArray = column(0.0)
    since: IntArray = column(-1)
    looks: IntArray = column(0)

    def look(
        self, entities: IntArray, odds: FloatArray, at: Any, *, most: float = 60.0, weight: float | FloatArray = 1.0
    ) -> None:
        """Take one look at each of `entities` (n,) at `at` (ms): `odds` (n,) by chance, NaN where nothing was seen.

        Wealth grows to `most` only, so that what lasted for hours is over soon after it ends. A `weight` below 1 is for
        looks that are no independent ones: of n within one burst each counts 1/n (a power below 1 of a bet whose
        expectation is at most 1 has such an expectation too, by Jensen's inequality).
        """
        before = self.wealth.take(entities)
        # Mostly few: a bet that loses where there is no wealth needs no note.
        seen = ((odds < _LOSES) | ((before > 0) & np.isfinite(odds))).nonzero()[0]
        if not len(seen):
            return
        those, before = entities[seen], before[seen]
        gain = bet(odds[seen]) * (weight if isinstance(weight, float) else weight[seen])
        after = np.minimum(np.maximum(before + gain, 0.0), most)
        self.wealth[those] = after
        begins, over = (before <= 0) & (after > 0), those[after <= 0]
        self.since[those[begins]] = at[seen[begins]] if isinstance(at, np.ndarray) else at
        self.looks[those] += 1
        self.looks[those[begins]] = 1
        self.since[over], self.looks[over] = -1, 0


class Echo(Columns):
    """How much of a look the next one repeats, in a population: the autocorrelation, look to look, of what they add.

    Of n looks that repeat the one before by rho, n (1 - rho) / (1 + rho) are independent (Bartlett, Journal of the
    Royal Statistical Society 98, 1935): so much each counts. `last` is what an entity's last look was worth (`bet`).
    """

    last: FloatArray = column(np.nan)
    KEPT = ("sums",)

    def __init__(self) -> None:
        super().__init__()
        self.sums = _FIRST_PAIRS * np.array([1.0, 0.0, 1 / 3, 1.0])
        """Pairs, and over them the sums of a bet, of the product of two that follow one another, and of the square."""

    @property
    def weight(self) -> float:
        """What one look counts, in (0, 1]."""
        pairs, total, product, square = self.sums.tolist()
        mean = total / pairs
        repeated = min(max((product / pairs - mean**2) / (square / pairs - mean**2), 0.0), _MOST_REPEATED)
        weight: float = (1 - repeated) / (1 + repeated)
        return weight

    def take(self, entities: IntArray, odds: FloatArray, calm: BoolArray) -> None:
        """Take the odds (n,) of a look; only those of `calm` entities teach how looks repeat."""
        worth = bet(odds)
        before = self.last[entities]
        self.last[entities] = worth
        pairs = np.array([before, worth])[:, calm & np.isfinite(before + worth)]
        self.sums += pairs.shape[1], pairs.sum() / 2, (pairs[0] * pairs[1]).sum(), (pairs**2).sum() / 2
        if self.sums[0] > _PAIRS_KEPT:
            self.sums /= 2


class Rises(Kept):
    """How high wealth rises by chance in a population, for looks are never quite independent, nor their odds exact.

    Wealth that is fair falls back from e^a to nothing as often as it rises by chance to e^(a + 1) less than once in e
    times. Where more of the rises that came to nothing were high, as in restless stretches, all of it is worth less:
    its logarithm is shrunk by as much.
    """

    KEPT = ("counts",)

    def __init__(self) -> None:
        self.counts = _FIRST_RISES * np.array([1.0, math.exp(_RISEN - _HIGH)])
        """Rises that came to nothing, and how many of them were high."""

    def learn(self, highest: FloatArray) -> None:
        """Take the `highest` wealth (n,), as logarithms, of rises that came to nothing."""
        rises = highest[(highest >= _RISEN) & (highest < _NO_CHANCE)]
        self.counts += np.array([len(rises), np.count_nonzero(rises >= _HIGH)])
        if self.counts[0] > _RISES_KEPT:
            self.counts /= 2

    def worth(self, wealth: FloatArray) -> FloatArray:
        """Return what `wealth` (n,) is worth (logarithm), by how high it rises here by chance."""
        return np.where(wealth > _RISEN, _RISEN + self._share() * (wealth - _RISEN), wealth)

    def wealth(self, worth: float) -> float:
        """Return the wealth (logarithm) that is worth so much, above `_RISEN`: the inverse of `worth`."""
        return _RISEN + (worth - _RISEN) / self._share()

    def _share(self) -> float:
        rises, high = self.counts.tolist()
        return min(max(math.log(rises / high) / (_HIGH - _RISEN), _LEAST_SHARE), 1.0)


def bet(odds: FloatArray) -> FloatArray:
    """Return the logarithm (n,) of what a bet against chance is worth that wins by `odds` in (0, 1]."""
    p = clamp(odds, _LEAST_ODDS, 1 - 1e-6)
    log = np.log(p)
    gain: FloatArray = np.log1p(-p + p * log) - log - 2 * np.log(-log)
    return gain


def joint(odds: FloatArray) -> FloatArray:
    """Return the odds (n,) that the least of several (signals, n) is as small by chance: NaN where none is known.

    As many chances as there are signals: Bonferroni's bound, which asks nothing of how they depend on one another.
    """
    known = np.isfinite(odds)
    least = np.where(known, odds, 1.0).min(axis=0, initial=1.0)
    count = known.sum(axis=0)
    return np.where(count > 0, np.minimum(least * count, 1.0), np.nan)


def threshold(budget: float, entities: int, nodes: int, look_s: float) -> float:
    """Return the wealth (natural logarithm) at which to alert, for `budget` false alarms in 100 node-days at most.

    `entities` of `nodes` nodes are looked at every `look_s` seconds: in 100 node-days that is so many looks, and the
    wealth A is reached by chance at most once in A looks.
    """
    looks = 100 * _DAY_S / look_s * max(entities, 1) / max(nodes, 1)
    return math.log(max(looks / max(budget, 1e-9), 1.0))


def years_by_chance(wealth: float, entities: int, look_s: float) -> float:
    """Return once in how many years of this cluster chance alone brings one of its entities to that wealth."""
    return math.exp(min(wealth, 50.0)) * look_s / max(entities, 1) / _DAY_S / _YEAR_DAYS


def odds_in_words(wealth: float, entities: int, look_s: float) -> str:
    """Return how often chance alone would say so: "by chance once in 40 years of this cluster"."""
    years = years_by_chance(wealth, entities, look_s)
    if years >= 1000:
        return "by chance less than once in 1,000 years of this cluster"
    if years >= 1:
        return f"by chance once in {years:.0f} years of this cluster"
    days = years * _YEAR_DAYS
    return f"by chance once in {days:.0f} days of this cluster" if days >= 1 else "by chance more than once a day"
