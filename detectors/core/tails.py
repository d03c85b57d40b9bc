"""Calibrated tails: how often residuals as large as this one occur in this cluster.

A `Tail` is an empirical distribution (a histogram, so that its state is bounded) of the residuals of one signal, pooled
over the entities that share a behaviour. The probability of a residual at least as large is its conformal rank,
(how many were as large + 1) / (how many there were + 1): valid for any distribution, if residuals are exchangeable
(Vovk, Gammerman, Shafer, Algorithmic Learning in a Random World, 2005). Beyond the data a Pareto tail goes on from the
largest hundredth (Hill, Annals of Statistics 3, 1975): never a Gaussian's.
"""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import FloatArray

BINS: Final = 512
"""How many bins a tail's document can speak of."""
_MOST: Final = 12.0
"""Residuals are binned by ln(1 + r), in bins of 0.023, up to 160,000; what lies above is in the last."""
_WIDTH: Final = _MOST / BINS
_MIDS: Final = np.arange(BINS) * _WIDTH + _WIDTH / 2
_TAIL_SHARE: Final = 0.01
_FEWEST_IN_TAIL: Final = 10.0
_PRIOR_MEAN: Final = 0.25
"""Until the tail has shown its own, the mean of ln(1 + r) beyond its beginning is that of a Pareto tail of index 4."""
_STEEPEST: Final = 0.1
"""The least mean of ln(1 + r) beyond the tail's beginning: never steeper than a Pareto tail of index 10, however
short the tail in hand looks. No sample of a few thousand can show a steeper one."""
_LEAST: Final = 1e-12
_HALVED_AT: Final = 4_000_000.0
"""When so much has been counted all counts are halved: what is usual may change over months."""


class Tail:
    """The distribution of one signal's residuals from 0 up: give the side that matters; below 0 counts as 0."""

    def __init__(self) -> None:
        self._counts = np.zeros(BINS)
        self._above = np.zeros(BINS)
        self._total = 0.0
        self._fit: tuple[float, float, float] | None = None
        self._stale = False

    @property
    def total(self) -> float:
        """How many (effective) residuals it has seen."""
        return self._total

    def learn(self, residuals: FloatArray, weight: float = 1.0) -> None:
        """Count residuals (n,), NaN left out; `weight` below 1 where they are no independent readings.

        Readings of one entity that follow one another within the signal's correlation time are one: give each of n
        such the weight 1/n.
        """
        known = np.count_nonzero(np.isfinite(residuals))
        if not known:
            return
        more = _above_zero(residuals)
        if len(more):
            counts = np.bincount(_bin(_scale(residuals[more])), minlength=BINS)
            counts[0] += known - len(more)
            self._counts += weight * counts
        else:
            self._counts[0] += weight * known
        self._total += weight * known
        if self._total > _HALVED_AT:
            self._counts /= 2
            self._total /= 2
        self._stale = True

    def odds(self, residuals: FloatArray) -> FloatArray:
        """Return the probability (n,) of a residual at least as large: NaN where none is, 1 before any is known."""
        more = _above_zero(residuals)  # of counts that seldom grow few, and all others have the same odds
        if len(more):
            self._settle()
        every = float(self._counts[::-1].cumsum()[-1] if self._stale else self._above[0])
        usual = min(max((every + 1) / (self._total + 1), _LEAST), 1.0)
        odds = np.where(np.isfinite(residuals), usual, np.nan)
        if len(more):
            scale = _scale(residuals[more])
            rank = (self._above.take(_bin(scale)) + 1) / (self._total + 1)
            if self._fit is not None:
                begins, share, mean = self._fit
                far = scale > begins
                rank[far] = share * np.exp(-(scale[far] - begins) / mean)
            odds[more] = np.minimum(np.maximum(rank, _LEAST), 1.0)
        return odds

    def quantile(self, share: float) -> float:
        """Return the residual that only `share` of them exceed, by the counts alone; NaN while nothing is known."""
        self._settle()
        if self._total <= 0:
            return float("nan")
        return float(np.expm1(_WIDTH * int(np.argmax(self._above <= share * self._total))))

    def _settle(self) -> None:
        """Derive what `odds` needs: cumulative counts, and the Pareto tail."""
        if not self._stale or self._total <= 0:
            return
        self._stale = False
        self._above = self._counts[::-1].cumsum()[::-1]
        """How many lie in each bin or above it."""
        self._fit = None
        wanted = max(_TAIL_SHARE * self._total, _FEWEST_IN_TAIL)
        first = int((self._above <= wanted).argmax())
        held = self._above[first]
        if held <= 0:  # nothing beyond: the tail begins where the data ends
            first = int(np.flatnonzero(self._counts)[-1]) + 1 if self._counts.any() else 0
        begins = first * _WIDTH
        excess = float((self._counts[first:] * (_MIDS[first:] - begins)).sum())
        mean = (excess + _FEWEST_IN_TAIL * _PRIOR_MEAN) / (held + _FEWEST_IN_TAIL)
        self._fit = begins, (held + 1) / (self._total + 1), max(mean, _STEEPEST)

    def document(self) -> dict[str, Any]:
        """Return the counts as JSON can say them."""
        bins = np.flatnonzero(self._counts)
        return {"bins": bins.tolist(), "counts": [float(count) for count in self._counts[bins]]}

    def merge(self, document: Mapping[str, Any]) -> None:
        """Add the counts of another tail's document."""
        self._counts[np.array(document["bins"], np.int64)] += np.array(document["counts"], float)
        self._total = float(self._counts.sum())
        self._stale = True


def learn_events(
    tail: Tail, events: FloatArray, entities: NDArray[np.int64], residuals: FloatArray, calm: NDArray[np.bool_]
) -> None:
    """Learn how large events are: those of `entities` (n,) that are `calm` (n,) now have had theirs.

    `events` (count,) has the largest residual so far of each entity's event that goes on, NaN where none does.
    """
    going_on = events[entities]
    if np.count_nonzero(calm) == len(calm) and np.count_nonzero(np.isnan(going_on)) == len(going_on):
        return  # as mostly
    tail.learn(going_on[calm])
    events[entities] = np.where(calm, np.nan, np.fmax(going_on, residuals))


class Tails:
    """The tails of one detector, by the name of the signal (and group); what `hindcast calibrate` writes down."""

    def __init__(self, calibration: Mapping[str, Any] | None = None) -> None:
        """Begin with the counts of a calibration (`document`), or with none."""
        self._tails: dict[str, Tail] = {}
        self.merge(calibration or {})

    def __getitem__(self, name: str) -> Tail:
        if name not in self._tails:
            self._tails[name] = Tail()
        return self._tails[name]

    def document(self) -> dict[str, Any]:
        """Return all tails as JSON can say them."""
        return {name: tail.document() for name, tail in sorted(self._tails.items())}

    def merge(self, document: Mapping[str, Any]) -> None:
        """Add the counts of a document: those of a calibration to what was learnt, or a snapshot's to nothing."""
        for name, counts in document.items():
            self[name].merge(counts)

    snapshot, load = document, merge


def _above_zero(residuals: FloatArray) -> NDArray[np.int64]:
    """Return the places of the finite ones that are above 0."""
    return ((residuals > 0) & (residuals < np.inf)).nonzero()[0]


def _scale(residuals: FloatArray) -> FloatArray:
    scale: FloatArray = np.log1p(residuals)
    return scale


def _bin(scale: FloatArray) -> NDArray[np.int64]:
    return np.minimum((scale / _WIDTH).astype(np.int64), BINS - 1)
