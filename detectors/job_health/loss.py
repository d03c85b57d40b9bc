"""The course of jobs' loss and gradient norm, and when they leave it: by their logarithms, against their own past."""

from typing import Any, Final

import numpy as np

from detectors.contract import BoolArray, FloatArray, IntArray
from detectors.core.columns import REUSED, column
from detectors.core.evidence import Evidence
from detectors.core.kept import Kept
from detectors.core.residuals import MAD_TO_SIGMA
from detectors.core.statistics import masked_median
from detectors.core.tails import Tails

SIGNALS: Final = ("loss", "grad_norm")
WINDOW: Final = 25
"""Looks that are kept: two minutes of them at one every 5 s, and the one before."""
_AFTER: Final = np.arange(WINDOW)[::-1, None]
"""How many looks came after each."""
_NEXT: Final = np.minimum(np.arange(WINDOW) + 1, WINDOW - 1)
"""Which look came after each; the last is its own."""
FEW_STEPS: Final = 8
"""A bad batch is felt for some steps: what stays up does so for more than these."""
_STAYS_MS: Final = 120_000
"""A degradation is due within three minutes; spikes of the loss that recover do so within some steps."""
_LONG_MS, _FEWEST_STEPS = 600_000, 3
"""Steps of minutes, as in reinforcement learning, are of so many samples that one bad one seldom moves them: three that
stay as high suffice once they are ten minutes of a whole job's work (judgement)."""
_MOST_OF_IT, _LEAST_LOOKS = 0.75, 2
"""Reports that are far apart need not be of exactly that. However far apart, one alone may be of a bad batch."""
_BLOCK, _BLOCK_LOOKS, _BLOCK_STEPS, _BLOCK_MS = 16, 4, 8, 60_000
"""A block's median is one point of the course: of so many looks and steps and so long at least (16 looks at most)."""
_BLOCKS, _LOW = 24, 0.2
"""The course's level is this quantile of its blocks: a slow rise does not take it along."""
_KNOWN, _WARMED_UP = {"loss": 3, "grad_norm": 8}, 2000
"""Blocks without which nothing is called a rise; gradients wander for longer while a job begins: for the 2000 steps in
which Llama warms up. One that goes on from a later checkpoint does not begin."""
_LEAST_NOISE = 1e-3
_KEEPS_UP, _NEAR, _BEYOND = 0.9, 0.7, 1.5
"""What falls by more than a tenth, and by more than looks scatter (in deviations of one), falls back: an optimiser is
out of a spike after some tens of steps, and weights that are wrong stay so."""
_OVERTAKEN: Final = 8
"""Reports overtake each other by some steps; a job that began again from a checkpoint is further back."""
_NOBODY = 2**31
_LOGGED = 2**30
"""What is added to the rank of a line in a log, so that any rank's steps speak before it."""
_PHASE = 0.15
"""Another number of tokens a step, or step time, is other work with a course of its own: contexts double, say. Where
the loss goes on as before, its steps only take longer."""
_AS_BEFORE = 3.0
"""Deviations of a look."""
_OF_ANY_WORK: Final = ("voice", "iteration", "last", "sound", "bad", "bad_since")
"""What is known of a course whatever the work is."""
_PHASE_LOOKS, _PHASE_MS = 3, 45_000
"""So many looks, and so long, as steps that wait for a link are the same work; but before a rise is believed."""


def logged(ranks: FloatArray) -> FloatArray:
    """Return as which ranks (n,) lines of a log speak, of `ranks` (n,), NaN where unknown: after all that are known."""
    return np.where(np.isnan(ranks), _NOBODY - 1.0, _LOGGED + np.clip(ranks, 0, _LOGGED - 2))


class Steps:
    """Reports of steps (n,) of one signal, by job and time: whose, when, its iteration, value and phase (NaN: none)."""

    __slots__ = ("at", "iteration", "job", "phase", "rank", "value")

    def __init__(self, table: FloatArray) -> None:
        """Take rows (n, 6) of job, rank, at, iteration, phase, value."""
        rows = table[np.lexsort((table[:, 2], table[:, 0]))]
        self.job, self.rank, self.at = (rows[:, n].astype(np.int64) for n in range(3))
        self.iteration, self.phase, self.value = (rows[:, n] for n in range(3, 6))

    def where(self, which: BoolArray) -> "Steps":
        """Return some of them."""
        if np.count_nonzero(which) == len(which):
            return self
        some = object.__new__(Steps)
        for name in self.__slots__:
            setattr(some, name, getattr(self, name)[which])
        return some


class Waiting(Kept):
    """Reports that came since the last point of the grid: tables (n, 6) as `Steps` takes them."""

    KEPT = ("table",)

    def __init__(self) -> None:
        self.tables: list[FloatArray] = []

    def drain(self) -> list[FloatArray]:
        """Return the tables; from now on there are none."""
        tables, self.tables = self.tables, []
        return tables

    @property
    def table(self) -> FloatArray:
        """All of them as one table."""
        return np.concatenate([np.empty((0, 6)), *self.tables])

    @table.setter
    def table(self, table: FloatArray) -> None:
        self.tables = [table] if len(table) else []


class Course(Evidence):
    """One signal of every job: its past, its last looks, and the bet that chance made what they show.

    Of its past, in logarithms, NaN until known: its `level`, the `noise` of a look at it, and by how much it `wanders`
    from one block to the next; it is `young` while it has come down by a quarter and more.
    """

    axis = REUSED
    voice: IntArray = column(_NOBODY)
    iteration: FloatArray = column(np.nan)
    last: IntArray = column(-1)
    block: FloatArray = column(np.nan, _BLOCK)
    block_looks: IntArray = column(0)
    block_steps: FloatArray = column(0.0)
    block_since: IntArray = column(-1)
    blocks: FloatArray = column(np.nan, _BLOCKS)
    spreads: FloatArray = column(np.nan, _BLOCKS)
    level: FloatArray = column(np.nan)
    noise: FloatArray = column(np.nan)
    wanders: FloatArray = column(np.nan)
    young: BoolArray = column(False)
    recent: FloatArray = column(np.nan, WINDOW)
    recent_at: IntArray = column(-1, WINDOW)
    recent_step: FloatArray = column(np.nan, WINDOW)
    phase: FloatArray = column(np.nan)
    off_phase: IntArray = column(0)
    off_since: IntArray = column(-1)
    sound: IntArray = column(0)
    bad: IntArray = column(0)
    bad_since: IntArray = column(-1)
    held_since: IntArray = column(-1)

    def __init__(self, name: str, tails: Tails) -> None:
        super().__init__()
        self._known, self._tail = _KNOWN[name], tails[name]
        self._rise: tuple[FloatArray, BoolArray] | None = None
        """What `rise` returned, as long as nothing that it is made of has changed."""

    def grow(self, count: int) -> None:
        """Make room for `count` jobs."""
        if count > self.count:
            self._rise = None
            super().grow(count)

    def forget(self, entities: Any) -> None:
        """Begin anew with some jobs."""
        self._rise = None
        super().forget(entities)

    def take(self, steps: Steps, held: BoolArray) -> None:
        """Take the reports since the last point of the grid; `held` (jobs,): what is under suspicion is not learnt."""
        self._rise = None
        steps = self._spoken(steps)
        if not len(steps.job):
            return
        last = np.append(_begins(steps.job)[1:], True)
        jobs = steps.job[last]
        reached = np.fmax(self._reached(steps)[last], steps.iteration[last])
        progress = reached - self.iteration[jobs]
        self.last[jobs], self.iteration[jobs] = steps.at[last], reached
        finite = np.isfinite(steps.value)
        self._count_bad(steps, finite, jobs)
        level, noise = self.level[jobs], self.noise[jobs]
        with np.errstate(invalid="ignore", divide="ignore"):
            logs = np.log(np.where(finite & (steps.value > 0), np.minimum(steps.value, 1e12), np.nan))
        values, known = _medians(logs, steps.job, jobs)
        phases, _ = _medians(steps.phase, steps.job, jobs)
        some = known > 0
        counts: FloatArray = np.fmax(known, progress)
        jobs, values, counts, at = jobs[some], values[some], counts[some], steps.at[last][some]
        level, noise = level[some], noise[some]
        other = self._other_work(jobs, phases[some], at)
        residual = values - level
        scaled = residual / np.maximum(noise, _LEAST_NOISE)
        self.look(jobs, self._tail.odds(scaled), at)
        for column_of, newest in (
            (self.recent, residual), (self.recent_at, at), (self.recent_step, self.iteration[jobs]),
        ):  # fmt: skip
            column_of[:-1, jobs], column_of[-1, jobs] = column_of[1:, jobs], newest
        calm = ~held[jobs]
        self._tail.learn(scaled[calm])
        self._learn(jobs[calm], values[calm], counts[calm], at[calm])
        if np.count_nonzero(other):
            lately = np.abs(np.median(np.nan_to_num(self.recent[-_PHASE_LOOKS:, jobs]), axis=0))
            as_before = lately <= _AS_BEFORE * np.maximum(noise, _LEAST_NOISE)
            self.phase[jobs[other & as_before]] = np.nan
            self._begin_anew(jobs[other & calm & ~as_before])

    def _begin_anew(self, jobs: IntArray) -> None:
        """Forget the course of jobs (n,) that do other work now; no number is none in any work."""
        kept = {name: getattr(self, name)[jobs] for name in _OF_ANY_WORK}
        self.forget(jobs)
        for name, values in kept.items():
            getattr(self, name)[jobs] = values

    def _spoken(self, steps: Steps) -> Steps:
        """Return the reports of the lowest rank that reports a number, each iteration once.

        Where a job went back to an earlier one it begins anew.
        """
        sane = np.isfinite(steps.value) & (steps.value > 0)
        lowest = np.full(len(self), _NOBODY)
        np.minimum.at(lowest, steps.job[sane], steps.rank[sane])
        self.forget(np.flatnonzero((lowest < self.voice) & (self.voice < _NOBODY)))
        self.voice = np.minimum(self.voice, lowest)
        steps = steps.where(steps.rank == self.voice[steps.job])
        with np.errstate(invalid="ignore"):
            earlier = steps.iteration < self._reached(steps) - _OVERTAKEN
        if np.count_nonzero(earlier):
            back = np.unique(steps.job[earlier])
            voices = self.voice[back]
            self.forget(back)
            self.voice[back] = voices
        first = _begins(steps.job)
        again = first & (steps.iteration == self.iteration[steps.job])
        again[1:] |= ~first[1:] & (steps.iteration[1:] == steps.iteration[:-1])
        return steps.where(~again)

    def _reached(self, steps: Steps) -> FloatArray:
        """Return the highest iteration that the job of each report (n,) had reported before; NaN where it had none."""
        n, highest = len(steps.job), steps.iteration
        first = _begins(steps.job)
        if not np.all(first[1:] | (highest[1:] >= highest[:-1])):  # else each is the highest so far
            order = np.argsort(np.nan_to_num(steps.iteration, nan=-1.0), kind="stable")
            rank = np.empty(n, np.int64)
            rank[order] = np.arange(n)
            by_job = np.cumsum(first) * n
            highest = highest[order][np.maximum.accumulate(by_job + rank) - by_job]
        here = np.full(n, np.nan)
        here[1:] = highest[:-1]
        here[first] = np.nan
        return np.asarray(np.fmax(here, self.iteration[steps.job]))

    def _count_bad(self, steps: Steps, finite: BoolArray, jobs: IntArray) -> None:
        """Count how many reports in a row were no number."""
        if np.count_nonzero(finite) == len(finite):
            self.bad_since[jobs], self.bad[jobs] = -1, 0
            self.sound[jobs] += np.bincount(steps.job)[jobs]
            return
        at = np.arange(len(finite))
        latest = np.full(len(self), -1)
        np.maximum.at(latest, steps.job[finite], at[finite])
        ends = np.searchsorted(steps.job, jobs, side="right")
        begins = np.searchsorted(steps.job, jobs)
        again = latest[jobs] >= 0
        run = ends - np.where(again, latest[jobs] + 1, begins)
        since = steps.at[np.minimum(ends - run, len(at) - 1)]
        begun = np.where(again | (self.bad[jobs] == 0), since, self.bad_since[jobs])
        self.bad_since[jobs] = np.where(run > 0, begun, -1)
        self.bad[jobs] = np.where(again, run, self.bad[jobs] + run)
        self.sound[jobs] += np.bincount(steps.job[finite], minlength=len(self))[jobs]

    def _other_work(self, jobs: IntArray, phases: FloatArray, at: IntArray) -> BoolArray:
        """Return which of `jobs` (n,) do other work than before, as the size or time of their steps says."""
        usual = self.phase[jobs]
        with np.errstate(invalid="ignore", divide="ignore"):
            off = np.abs(phases / usual - 1) > _PHASE
        moved = np.where(np.isnan(usual), phases, usual + 0.1 * (phases - usual))
        if not np.count_nonzero(off):
            self.phase[jobs] = np.where(np.isnan(phases), usual, moved)
            self.off_phase[jobs], self.off_since[jobs] = 0, -1
            return off
        self.off_phase[jobs] = np.where(off, self.off_phase[jobs] + 1, 0)
        self.phase[jobs] = np.where(off | np.isnan(phases), usual, moved)
        since = self.off_since[jobs]
        self.off_since[jobs] = np.where(off, np.where(since < 0, at, since), -1)
        other: BoolArray = (self.off_phase[jobs] >= _PHASE_LOOKS) & (at - self.off_since[jobs] >= _PHASE_MS)
        return other

    def _learn(self, jobs: IntArray, values: FloatArray, steps: FloatArray, at: IntArray) -> None:
        place = np.minimum(self.block_looks[jobs], _BLOCK - 1)
        self.block[place, jobs] = values
        self.block_since[jobs] = np.where(self.block_looks[jobs] == 0, at, self.block_since[jobs])
        self.block_looks[jobs] += 1
        self.block_steps[jobs] += steps
        full = (self.block_steps[jobs] >= _BLOCK_STEPS) & (at - self.block_since[jobs] >= _BLOCK_MS)
        full &= self.block_looks[jobs] >= _BLOCK_LOOKS
        done = jobs[full]
        if not len(done):
            return
        block = self.block[:, done].T
        known = np.isfinite(block)
        middle = masked_median(block, known)
        spread = MAD_TO_SIGMA * masked_median(np.abs(block - middle[:, None]), known)
        self.blocks[:, done] = np.concatenate([self.blocks[1:, done], middle[None]])
        self.spreads[:, done] = np.concatenate([self.spreads[1:, done], spread[None]])
        self.block[:, done], self.block_looks[done], self.block_steps[done] = np.nan, 0, 0
        self._weigh(done)

    def _weigh(self, jobs: IntArray) -> None:
        """Take the past of `jobs` (n,) as their blocks have it now.

        The level of what still falls fast is its highest block: a young job's loss wanders by as much as it has fallen.
        """
        blocks, every = self.blocks[:, jobs], np.arange(len(jobs))
        oldest = blocks[np.argmax(np.isfinite(blocks), axis=0), every]
        young = oldest - blocks[-1] > np.log(4 / 3)
        ranked, spreads = np.sort(blocks, axis=0), np.sort(self.spreads[:, jobs], axis=0)  # NaN last
        count = np.isfinite(ranked).sum(axis=0)
        place = np.where(young, count - 1, (_LOW * (count - 1)).astype(np.int64))
        known = count >= np.where(self.iteration[jobs] >= _WARMED_UP, _KNOWN["loss"], self._known)
        moves = np.abs(np.diff(blocks, axis=0)).T
        self.young[jobs] = young
        self.level[jobs] = np.where(known, ranked[np.maximum(place, 0), every], np.nan)
        self.noise[jobs] = np.where(known, spreads[np.maximum(count - 1, 0) // 2, every], np.nan)
        self.wanders[jobs] = MAD_TO_SIGMA * masked_median(moves, np.isfinite(moves))

    def begin_afresh(self, name: str) -> None:
        """Take what an older version did not keep of the past from the blocks, which it did."""
        super().begin_afresh(name)
        if name == "young":  # the last of them, and after the blocks
            self._weigh(np.arange(len(self)))

    def scatter(self) -> FloatArray:
        """Return by how much (jobs,) looks at each job scatter, or blocks from one to the next if that is more; NaN
        until known.
        """
        return np.fmax(self.noise, self.wanders)

    def rise(self) -> tuple[FloatArray, BoolArray]:
        """Return by how much (jobs,) the last looks lie above the level, in logarithms, and whether that stays so.

        The looks of the last 120 s, and of `FEW_STEPS` at least, a few where few are reported; of long steps those of
        ten minutes suffice, if the last is near the highest. It stays if four of five lie above half the rise, and it
        is not falling back: what the optimiser recovers from falls by a tenth within half of them, by more than noise.
        """
        if self._rise is None:
            above, inside, soon = self._latest()
            middle, stays = self._risen(above, inside)
            if np.count_nonzero(soon != inside):  # some have long steps
                sooner, stay = self._risen(above, soon)
                stay &= above[-1] >= _NEAR * np.max(np.where(inside, above, -np.inf), axis=0, initial=0.0)
                middle, stays = np.where(stay, sooner, middle), stays | stay
            self._rise = middle, stays
        return self._rise

    def _risen(self, above: FloatArray, inside: BoolArray) -> tuple[FloatArray, BoolArray]:
        newer = inside & (inside.sum(axis=0) // 2 > _AFTER)
        parts = np.concatenate([inside, newer, inside & ~newer], axis=1)
        middles, lows = _quantiles(np.concatenate([above] * 3, axis=1), parts, 0.5, 0.2)
        (middle, new, old), low = middles.reshape(3, -1), lows[: len(self)]
        with np.errstate(invalid="ignore"):
            falls = (new < _NEAR * old) | ((new < _KEEPS_UP * old) & (old - new > _BEYOND * self.noise))
            stays = (low >= 0.5 * middle) & ~falls & np.isfinite(middle)
        return np.where(np.isfinite(middle), middle, 0.0), stays

    def size(self) -> FloatArray:
        """Return by how much (jobs,) the last looks lie above the level, as `rise` does."""
        return self.rise()[0]

    def _latest(self) -> tuple[FloatArray, BoolArray, BoolArray]:
        """Return the looks (WINDOW, jobs) against the level, which of them `rise` is of, and which of long steps."""
        steps = np.fmax(self.recent_step[-1] - self.recent_step, _AFTER)
        age = np.where(self.recent_at < 0, 0, self.recent_at[-1] - self.recent_at)
        inside = (age <= _STAYS_MS) | (age[_NEXT] < _MOST_OF_IT * _STAYS_MS)
        inside &= self.recent_at >= 0
        inside |= (_AFTER < _LEAST_LOOKS) | (steps[_NEXT] < _FEWEST_STEPS - 1)
        few = steps[_NEXT] < FEW_STEPS - 1
        above = np.where(np.isfinite(self.recent), self.recent, -np.inf)
        return above, inside | few, inside | (few & (age[_NEXT] < _LONG_MS))

    def since_when(self, job: int) -> int:
        """Return when the rise of a job that is seen in its last looks began, ms."""
        high = self.recent[:, job] >= 0.5 * self.size()[job]
        return int(self.recent_at[np.argmax(high), job])


def _begins(job: IntArray) -> BoolArray:
    """Return which of the rows (n,) of jobs, job after job, are the first of one."""
    first = np.ones(len(job), bool)
    np.not_equal(job[1:], job[:-1], out=first[1:])
    return first


def _medians(values: FloatArray, job: IntArray, jobs: IntArray) -> tuple[FloatArray, IntArray]:
    """Return the median (n,) of the finite values of each of `jobs` (ascending), and how many there were."""
    known = np.isfinite(values)
    if len(job) == len(jobs):  # each has one
        return np.where(known, values, np.nan), known.astype(np.int64)
    of, ranked = job[known], values[known]
    ranked = np.append(ranked[np.lexsort((ranked, of))], np.nan)  # the jobs ascend before and after
    begins, ends = of.searchsorted(jobs), of.searchsorted(jobs, side="right")
    count = ends - begins
    last = len(ranked) - 1
    low, high = begins + np.maximum(count - 1, 0) // 2, begins + count // 2
    middle = ranked[np.minimum(low, last)] / 2 + ranked[np.minimum(high, last)] / 2
    return np.where(count > 0, middle, np.nan), count


def _quantiles(values: FloatArray, inside: BoolArray, *shares: float) -> list[FloatArray]:
    """Return quantiles, without interpolation, of what is inside of each column."""
    ranked = np.sort(np.where(inside, values, np.inf), axis=0)
    last, every = np.maximum(inside.sum(axis=0) - 1, 0), np.arange(ranked.shape[1])
    return [ranked[(share * last).astype(np.int64), every] for share in shares]
