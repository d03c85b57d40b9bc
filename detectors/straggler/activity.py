"""What GPUs' own readings tell: who computes while the others wait.

Readings become means over windows of a minute. A GPU is compared with its node mates of the same job, which are scraped
at the same moment and so see the same phase of the step; a node (the median of its GPUs) with the job's other nodes, of
the same model. Residuals are taken from the entity's own habit in this job, so a heavier stage, a favoured expert or a
tighter power cap is a property and no change. Three signatures are looked for:

- slow clock: the clock is lower and, at once, tensor or memory activity is higher. Activity is a share of the cycles,
  so the same work takes more of a slower clock's;
- longer work: tensor or memory activity is higher at the same clock, as slow memory or a slow chip has it;
- starved (nodes only): the GPUs are idle more than those of other nodes: the host does not keep up.

A victim shows none of them: it has less to do, like all its peers. How unusual the residuals are, the tails of this
cluster say, and the evidence adds up from window to window.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import Columns, column
from detectors.core.evidence import Evidence
from detectors.core.residuals import MAD_TO_SIGMA, Habit, group_medians
from detectors.core.tails import Tails

WINDOW_S: Final = 60
"""Long enough for several steps and for a reading at 60 s scrapes."""
CLOCK, POWER, TENSOR, MEMORY, BUSY, UTIL = range(6)
_FIELDS: Final = (
    "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL",
)  # fmt: skip
_COMPARED: Final = len(_FIELDS)
SLOW_CLOCK, LONG_WORK, STARVED = range(3)
_WORKING: Final = 0.3
"""Below this share of the time at work a GPU says nothing of a job's pace."""
_LEAST: Final = 1e-3
_FLOOR: Final = 0.01
"""A relative difference of a hundredth is what sensors resolve: clocks move in steps of 15 MHz."""
_LEARN_S: Final = 240.0
_MEMORY_S: Final = 21_600.0
"""A ramp of forty minutes must not become the habit."""
_INDEPENDENT: Final = 0.5
"""Two windows that follow one another count as one reading: scrapes and steps drift through each other in minutes."""
_DOUBTED: Final = 3
_MOST_WEALTH: Final = 30.0
"""Wealth is kept within what any budget asks for, so that what is over is soon believed to be."""
_ODD: Final = 0.1


class Sums(Columns):
    """By GPU: the sum of each signal's readings since the window began, and their number."""

    total: FloatArray = column(0.0, len(_FIELDS))
    read: NDArray[np.int32] = column(0, len(_FIELDS), dtype=np.int32)

    def take(self, batch: Batch) -> None:
        """Add the readings of a batch."""
        known = [(row, batch.sound[name]) for row, name in enumerate(_FIELDS) if name in batch.sound]
        for tick, here in batch.ticks():
            gpus = batch.entities[here]
            for row, values in known:
                now = values[tick][here]
                finite, total, read = np.isfinite(now), self.total[row], self.read[row]
                total[gpus] += np.where(finite, now, 0.0)
                read[gpus] += finite

    def means(self) -> FloatArray:
        """Return the means (6, GPUs) of the window that ends, NaN where nothing was read, and begin the next."""
        with np.errstate(invalid="ignore", divide="ignore"):
            means = np.where(self.read > 0, self.total / self.read, np.nan)
        means[UTIL] /= 100
        means[BUSY] = np.where(np.isfinite(means[BUSY]), means[BUSY], means[UTIL])
        self.total[:], self.read[:] = 0.0, 0
        return means


class _Marks(Columns):
    """By entity: the `job` it is compared in, how it is slow (`how`), by how much (`lag`, logarithm), and in which of
    the last 64 windows (`odd`, the newest in the lowest bit); since it is odd, its `lowest` clock beside its peers'
    (logarithm).
    """

    job: IntArray = column(-1)
    how: NDArray[np.int8] = column(0, dtype=np.int8)
    lag: NDArray[np.float32] = column(0.0, dtype=np.float32)
    odd: NDArray[np.uint64] = column(0, dtype=np.uint64)
    lowest: NDArray[np.float32] = column(0.0, dtype=np.float32)


@dataclass(frozen=True)
class Look:
    """What is compared in a window: `who` (n,) entities in ascending order, the `job` of each (a number that no other
    job has had), its `group` of peers out of `groups`, and the logarithms of the signals, (rows, n).
    """

    who: IntArray
    job: IntArray
    group: IntArray
    groups: int
    signals: FloatArray


class Comparison:
    """Entities of one kind (GPUs, nodes) against their peers, window after window."""

    def __init__(self, name: str, tails: Tails, kinds: int, effect_share: float) -> None:
        self.evidence = Evidence()
        self.marks = _Marks()
        self._habit = Habit(_MEMORY_S)
        self.tails = tails
        self._name, self._kinds, self._most_spread = name, kinds, effect_share
        self._least_lag = float(np.log1p(effect_share / 2))

    def grow(self, count: int) -> None:
        """Make room for `count` entities."""
        for columns in (self.evidence, self.marks):
            columns.grow(count)
        self._habit.grow(_COMPARED * count)

    def forget(self, who: IntArray) -> None:
        """Begin anew with some entities."""
        self.evidence.forget(who)
        self.marks.forget(who)
        self._habit.forget(_places(who).ravel())

    def absolve(self, who: IntArray) -> None:
        """Take what some entities are like now for their habit."""
        job = self.marks.job[who]
        self.forget(who)
        self.marks.job[who] = job

    def over(self, who: IntArray, enough: float) -> IntArray:
        """Return the places in `who` of those that are odd now, with evidence enough."""
        odd = (self.marks.odd[who] & np.uint64(1)) > 0
        return np.flatnonzero(odd & (self.evidence.wealth[who] >= enough))

    def look(self, now: Instant, look: Look, held: BoolArray) -> None:
        """Take a look at a window; `held` (n,) are under a finding, and teach nothing."""
        who = look.who
        self.forget(who[self.marks.job[who] != look.job])
        self.marks.job[who] = look.job
        beside = look.signals - medians(look.signals, look.group, look.groups)[0]
        places = _places(who)
        ready = self._habit.learnt_s[places] >= _LEARN_S
        apart = np.where(ready, beside - self._habit.level[places], np.nan)
        distance = self._distance(apart, places, look)
        waits = beside[CLOCK] > self._least_lag  # its peers are the slow ones, whatever holds them
        scores = np.where(waits, np.nan, _scores(distance)[: self._kinds])
        lags = _lags(apart)[: self._kinds]
        tails = [self.tails[f"{self._name}/{kind}"] for kind in range(self._kinds)]
        odds = np.array([tail.odds(score) for tail, score in zip(tails, scores, strict=True)])
        filled = np.where(np.isfinite(odds), odds, 2.0)
        how = filled.argmin(axis=0)
        filled[:, waits] = 1.0
        least = filled.min(axis=0)
        self.evidence.look(
            who, np.where(least <= 1, np.minimum(self._kinds * least, 1.0), np.nan), now, most=_MOST_WEALTH
        )
        lag = np.nan_to_num(lags[how, np.arange(len(who))])
        odd = (self._kinds * least <= _ODD) & (lag >= self._least_lag)
        begins = odd & (self.evidence.looks[who] <= 1)
        moved = self.marks.lag[who] + (lag - self.marks.lag[who]) / 2
        self.marks.lag[who] = np.where(begins, lag, np.where(odd, moved, self.marks.lag[who]))
        self.marks.how[who] = np.where(odd, how, self.marks.how[who])
        self.marks.odd[who] = (self.marks.odd[who] << np.uint64(1)) | odd.astype(np.uint64)
        fresh = self.evidence.looks[who] <= 1
        self.marks.lowest[who] = np.where(fresh, beside[CLOCK], np.fmin(self.marks.lowest[who], beside[CLOCK]))
        calm = ~held & (self.evidence.looks[who] < _DOUBTED)
        for tail, score in zip(tails, scores, strict=True):
            tail.learn(score[calm], _INDEPENDENT)
        self._habit.learn(places[:, calm].ravel(), beside[:, calm].ravel(), float(WINDOW_S))

    def _distance(self, apart: FloatArray, places: IntArray, look: Look) -> FloatArray:
        """Return residuals in deviations: the entity's own, or its group's in this window where that is more; NaN where
        the group is too far out of step to compare anybody.
        """
        spread, sizes = medians(np.abs(apart), look.group, look.groups)
        among = np.where(sizes >= 4, MAD_TO_SIGMA * spread, 0.0)
        scale = np.maximum(np.maximum(among, self._habit.spread[places]), _FLOOR)
        with np.errstate(invalid="ignore"):
            return np.where(among <= self._most_spread, apart / scale, np.nan)

    def arrays(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Return the state's arrays."""
        return (
            self.evidence.arrays(f"{prefix}evidence/")
            | self.marks.arrays(f"{prefix}marks/")
            | self._habit.arrays(f"{prefix}habit/")
        )

    def load(self, arrays: Mapping[str, NDArray[Any]], prefix: str) -> None:
        """Take what `arrays` returned."""
        self.evidence.load(arrays, f"{prefix}evidence/")
        self.marks.load(arrays, f"{prefix}marks/")
        self._habit.load(arrays, f"{prefix}habit/")


def logarithms(means: FloatArray) -> FloatArray:
    """Return the logarithms (6, GPUs) of what is compared, NaN of GPUs that are not at work."""
    with np.errstate(invalid="ignore"):
        idle = means[BUSY] < _WORKING
        compared = np.where(means > _LEAST, means, np.nan)
    compared[:, idle] = np.nan
    result: FloatArray = np.log(compared)
    return result


def medians(signals: FloatArray, group: IntArray, groups: int) -> tuple[FloatArray, IntArray]:
    """Return the median of each signal in the group of each entity, (rows, n), and of how many it is."""
    rows, n = signals.shape
    apart = (groups * np.arange(rows)[:, None] + group).ravel()
    middle, sizes = group_medians(signals.ravel(), apart, groups * rows)
    return middle[apart].reshape(rows, n), sizes[apart].reshape(rows, n)


def _places(who: IntArray) -> IntArray:
    """Return where the habits of some entities are kept, (6, n)."""
    return _COMPARED * who[None, :] + np.arange(_COMPARED)[:, None]


def _scores(z: FloatArray) -> FloatArray:
    """Return how far each signature (3, n) goes, from residuals in deviations (6, n)."""
    active = np.fmax(z[TENSOR], z[MEMORY])
    worked = np.where(np.isfinite(active), active, z[POWER])
    beside = np.where(np.isfinite(active), active, -z[POWER])  # a slow clock draws less
    slow = np.where(np.isfinite(beside), np.minimum(-z[CLOCK], beside), -z[CLOCK])
    return np.array([slow, worked, np.fmax(-z[BUSY], -z[UTIL])])


def _lags(apart: FloatArray) -> FloatArray:
    """Return by how much longer the work takes by each signature (3, n), as a logarithm."""
    active = np.fmax(apart[TENSOR], apart[MEMORY])
    return np.array(
        [-apart[CLOCK], np.where(np.isfinite(active), active, apart[POWER]), np.fmax(-apart[BUSY], -apart[UTIL])]
    )
