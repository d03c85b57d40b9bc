"""Entities of one kind (a job's ranks, all GPUs, all nodes) against their peers, look after look.

What is looked at are logarithms of signals. An entity's residual is by how much a signal has moved from its own habit
in this job beyond what its peers' have moved meanwhile: a uniform slowdown, longer sequences or a checkpoint cancel
out, and a heavier stage, a favoured expert or a tighter power cap is habit and no change. How unusual a residual is,
the tails of this cluster say; the evidence adds up from look to look, each for as much as it does not repeat the last.
"""

from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import Columns, column
from detectors.core.evidence import Echo, Evidence, Rises
from detectors.core.residuals import MAD_TO_SIGMA, Groups, Habit, learn_together
from detectors.core.statistics import clamp, known_or
from detectors.core.tails import Tails

KEPT: Final = 64
"""Looks that are remembered: as many as an entity's bits."""
FLOOR: Final = 0.01
"""A relative difference of a hundredth is what sensors resolve (clocks move in steps of 15 MHz), and ranks scatter by
0.5 to 2 % from step to step (ByteDance AR trace)."""
APART: Final = 5.0
"""Robust deviations, where peers are all there is: one in three million of a normal distribution."""
_MEMORY_S: Final = 21_600.0
"""A ramp of forty minutes must not become the habit."""
_DOUBTED: Final = 3
_MOST_WEALTH: Final = 30.0
"""What wealth is worth is kept within what any budget asks for, so that what is over is soon believed to be."""
_ODD: Final = 0.1
_CERTAIN: Final = 1e-6
_CONFIRM_LOOKS, _CONFIRM_S = 3, 60.0
"""A checkpoint, or a dip, that falls on the edge of two looks is in both; slow data, garbage collection and the first
step after a checkpoint last for a step or two. Published systems ask for four minutes."""
LATELY: Final = np.uint64(0xFFFF)
"""What is odd again within sixteen looks has been so since it first was."""
_LAST_LOOKS: Final = 8
"""What was odd now and then, by chance, may be slow from now on: not all that went before must be outweighed."""
_RISE_LOOKS: Final = 2
_PLAIN: Final = "/plain"
"""After the names of tails: of those that do no tensor work, or of whom it isn't read."""
_PAUSE: Final = 3
"""Who is slow by not much more than counts is now and then not odd; after more looks it has another reason."""
DUTY: Final = 0.2
"""What comes and goes is odd for a fifth of the time at least; checkpoints that scrapes see unevenly much less."""


@dataclass(frozen=True)
class Look:
    """What is compared: `who` (n,) entities in ascending order, the `job` of each (a number that no other job has had),
    their groups of `peers`, the logarithms of the `signals`, (rows, n), of how many `reads` they are, (n,), and which
    are `held` under a finding, (n,), and teach nothing. It stands for `spent_s` seconds from `begun` on; there is one
    every `every_s`. At the `ends` (n,) of a pipeline work is another from the first step on. `memory_clocks` (n,) are
    logarithms, which need no habit to be compared. Another process has come to those that are `shared`, (n,).
    Of those that are `plain`, (n,), no tensor work is read: how their scores are distributed is learnt apart, for what
    tensor work explains of the others leaves next to nothing over.
    """

    who: IntArray
    job: IntArray
    peers: Groups
    signals: FloatArray
    reads: FloatArray
    held: BoolArray
    begun: Instant
    spent_s: float
    every_s: float
    ends: BoolArray | None = None
    memory_clocks: FloatArray | None = None
    shared: BoolArray | bool = False
    plain: BoolArray | None = None

    @cached_property
    def middles(self) -> tuple[FloatArray, IntArray]:
        """The median of each of the `signals` in the group of each entity, (rows, n), and of how many it is."""
        return self.medians(self.signals)

    @cached_property
    def populations(self) -> tuple[tuple[str, BoolArray], ...]:
        """What is added to the names of the tails of some entities, and which these are, (n,)."""
        if self.plain is None:
            return (("", np.ones(len(self.who), bool)),)
        return ("", ~self.plain), (_PLAIN, self.plain)

    @property
    def usual(self) -> FloatArray:
        """The first of the `middles`."""
        return self.middles[0]

    @cached_property
    def usual_memory_clocks(self) -> tuple[FloatArray, IntArray]:
        """The median of the `memory_clocks` in the group of each entity, (n,), and of how many it is."""
        clocks = np.full(len(self.who), np.nan) if self.memory_clocks is None else self.memory_clocks
        middle, sizes = self.medians(clocks[None])
        return middle[0], sizes[0]

    def lowest_other(self, values: FloatArray) -> FloatArray:
        """Return the lowest of the `values`, (n,), of the others in each entity's group, (n,); inf where unknown."""
        group = self.peers.group
        least, second = np.full((2, self.peers.groups), np.inf)
        np.fmin.at(least, group, values)
        lowest = values == least[group]
        np.fmin.at(second, group, np.where(lowest, np.inf, values))
        alone = np.bincount(group, lowest, self.peers.groups) == 1
        return np.where(lowest & alone[group], second[group], least[group])

    def are_alike(self, row: int) -> BoolArray:
        """Return whose peers all read the same of a signal, (n,), as far as it is read: they work in step."""
        spread, _ = self.medians(np.abs(self.signals[[row]] - self.usual[[row]]))
        return np.asarray(MAD_TO_SIGMA * spread[0] <= 2 * FLOOR)

    def medians(self, signals: FloatArray) -> tuple[FloatArray, IntArray]:
        """Return the median of each signal in the group of each entity, (rows, n), and of how many it is."""
        middle, sizes = self.peers.medians(signals)
        return middle[:, self.peers.group], sizes[:, self.peers.group]


@dataclass(frozen=True)
class Verdict:
    """How each way of being slow fits: its `score` in deviations and by how much longer the work takes for it (`lag`),
    both (ways, n), as is who is slow by it beyond doubt (`certain`); the `least` lag that matters; who `may` be the
    culprit at all, and since when (ms), (n,).
    """

    score: FloatArray
    lag: FloatArray
    least: float | FloatArray
    may: BoolArray
    certain: BoolArray
    since: IntArray


class Comparison(Columns):
    """By entity: the `job` it is compared in, `how` it is slow, by how much on the way (`lag`) and in the last look too
    (`least`), in which of the last looks (`odd`, the newest in the lowest bit), `since` when (ms), how many looks ago
    (`run`), the highest scores (`peak`) of a run of suspicion and the `highest` wealth of a rise of the evidence.
    """

    job: IntArray = column(0)
    how: IntArray = column(0)
    lag: FloatArray = column(0.0)
    least: FloatArray = column(0.0)
    odd: NDArray[np.uint64] = column(0, dtype=np.uint64)
    since: IntArray = column(-1)
    run: IntArray = column(0)
    peak: FloatArray = column(0.0, 3)
    highest: FloatArray = column(0.0)
    BESIDE = ("evidence", "habits", "echoes")

    def __init__(self, ways: tuple[str, ...], rows: int, tails: Tails, rises: Rises) -> None:
        """Compare `rows` signals for some `ways` of being slow, by their names among the `tails`."""
        super().__init__()
        self._tails, self._ways = tails, ways
        self.evidence, self.rises = Evidence(), rises
        self.habits = [Habit(_MEMORY_S) for _ in range(rows)]
        self.echoes = [Echo() for _ in ways]

    def look(self, look: Look) -> None:
        """Take a look."""
        who = look.who
        others = self.job[who] != look.job
        if np.count_nonzero(others):
            self.forget(who[others])
            self.job[who] = look.job
        level, spread, learnt = (
            np.array([getattr(habit, name)[who] for habit in self.habits]) for name in ("level", "spread", "learnt_s")
        )
        moved = look.signals - level
        change = known_or(self._change(moved, look), 0.0)
        apart = np.where(learnt >= self._learn_s(look), moved - change, np.nan)
        among = self._scatter(apart, look)
        with np.errstate(invalid="ignore"):
            verdict = self._judge(
                apart, among, apart / np.maximum(np.maximum(among, spread), FLOOR), level + change, look
            )
        each = self._odds(verdict.score, look)
        odds = np.where(verdict.certain, _CERTAIN, np.where(np.isfinite(each), each, 2.0))
        how, least = odds.argmin(axis=0), odds.min(axis=0)
        chance = np.where(verdict.may, np.minimum(len(self._ways) * least, 1.0), 1.0)
        before = self.evidence.looks[who]
        weight = np.array([echo.weight for echo in self.echoes])
        certain: BoolArray = np.asarray(verdict.certain.any(axis=0))
        known = (least <= 1) | ~verdict.may
        most = self.rises.wealth(_MOST_WEALTH)
        counts = np.where(certain, 1.0, weight[how])  # nothing that is beyond doubt repeats itself by chance
        self.evidence.look(who, np.where(known, chance, np.nan), look.begun, most=most, weight=counts)
        wealth = self.evidence.wealth[who]
        highest = np.fmax(self.highest[who], wealth)
        self.highest[who] = np.where(wealth > 0, highest, 0.0)
        self._learn_rises(who, highest, (wealth <= 0) & ~look.held, before)
        lag = known_or(verdict.lag[how, np.arange(len(who))], 0.0)
        odd = (chance <= _ODD) & (lag >= verdict.least)
        looks = self.evidence.looks[who]
        self.run[who] = np.minimum(self.run[who] + 1, KEPT)
        if len(some := odd.nonzero()[0]):
            self._note(who[some], how[some], lag[some], verdict.since[some], certain[some], look)
        self.odd[who] = (self.odd[who] << np.uint64(1)) | odd.astype(np.uint64)
        calm = ~look.held & (looks < _DOUBTED) & ~certain
        # A run of suspicion that came to nothing was chance, and is learnt by its peak; one that lasted was not.
        nothing = ~look.held & (looks == 0) & (before <= 2 * _DOUBTED)
        peaks = np.fmax(self.peak[: len(self._ways), who], verdict.score)
        self.peak[: len(self._ways), who] = np.where(looks > 0, known_or(peaks, 0.0), 0.0)
        taught = np.where(before > 0, peaks, verdict.score)
        for row, (way, echo) in enumerate(zip(self._ways, self.echoes, strict=True)):
            for name, those in look.populations:
                self._tails[way + name].learn(taught[row, nothing & those], float(weight[row]))
            echo.take(who, each[row], calm & ~odd)
        learn_together(self.habits, who[calm], (look.signals - change)[:, calm], look.spent_s)

    def _odds(self, score: FloatArray, look: Look) -> FloatArray:
        """Return how seldom a `score` as high comes by chance, (ways, n)."""
        odds = np.empty(score.shape)
        for name, those in look.populations:
            for row, way in enumerate(self._ways):
                odds[row, those] = self._tails[way + name].odds(score[row, those])
        return odds

    def _note(
        self, who: IntArray, how: IntArray, lag: FloatArray, since: IntArray, certain: BoolArray, look: Look
    ) -> None:
        """Note of those who are odd in this look, (n,), how they are slow, by how much, and since when."""
        before, bits = self.lag[who], self.odd[who]
        lately = np.bitwise_count(bits & LATELY)
        first, second = lately == 0, (lately == 1) & (bits & np.uint64(1) > 0) & ~certain
        self.since[who[first]], self.run[who[first]] = since[first], 1
        with np.errstate(divide="ignore", invalid="ignore"):  # it began within the first: that one lags for a part
            early = look.begun - 1000 * look.every_s * np.fmin(before / lag, 1.0)
        self.since[who[second]] = early[second].astype(np.int64)
        self.lag[who] = np.where(first, lag, (before + lag) / 2)
        self.least[who], self.how[who] = np.minimum(lag, self.lag[who]), how

    def _learn_rises(self, who: IntArray, highest: FloatArray, ended: BoolArray, looks: IntArray) -> None:
        """Learn how high the evidence rose, of those that `ended` after `looks`.

        One look far out is a spike, which no alert rests on: a rise is made of several.
        """
        rose = (ended & (highest > 0)).nonzero()[0]
        if not len(rose):
            return
        several = np.bitwise_count(self.odd[who[rose]] & _newest(looks[rose])) >= _RISE_LOOKS
        self.rises.learn(highest[rose[several]])

    def _learn_s(self, _look: Look) -> float:
        raise NotImplementedError

    def _change(self, moved: FloatArray, look: Look) -> FloatArray:
        """Return by what each entity's signals should have moved, as its peers' did; NaN where nobody is known."""
        return look.medians(moved)[0]

    def _scatter(self, apart: FloatArray, look: Look) -> FloatArray:
        """Return by how much the residuals of each entity's peers scatter in this look; 0 where they are too few."""
        spread, sizes = look.medians(np.abs(apart))
        return np.where(sizes >= 4, MAD_TO_SIGMA * spread, 0.0)

    def _judge(self, apart: FloatArray, among: FloatArray, z: FloatArray, usual: FloatArray, look: Look) -> Verdict:
        """Judge residuals `apart`, in deviations `z`, from what is `usual` of an entity now, all (rows, n); its peers'
        scatter by `among`.
        """
        raise NotImplementedError

    def over(
        self, who: IntArray, enough: float | FloatArray, look_s: float, duty: float | FloatArray = DUTY
    ) -> IntArray:
        """Return the places in `who` of those that are odd now, with evidence enough, (n,), and for long enough.

        There is a look every `look_s` seconds; `duty` (n,) is the least share of the looks since the first odd one that
        are odd; or of the last few, where it is the first of the ways, whose evidence is the plainest.
        """
        odd = (self.odd[who] & np.uint64(1) > 0).nonzero()[0]
        if not len(odd):
            return odd
        those, (least, evidence) = who[odd], (np.broadcast_to(one, who.shape)[odd] for one in (duty, enough))
        run, confirmed = self.run[those], max(_CONFIRM_LOOKS, _CONFIRM_S / look_s)
        long = np.zeros(len(those), bool)
        for looks in (run, np.where(self.how[those] == 0, np.minimum(run, _LAST_LOOKS), run)):
            long |= np.bitwise_count(self.odd[those] & _newest(looks)) >= np.maximum(confirmed, least * looks)
        over: IntArray = odd[(self.wealth(those) >= evidence) & long]
        return over

    def is_calm(self, who: IntArray) -> BoolArray:
        """Return against whom nothing speaks, (n,): not in the last look, nor in several before."""
        return np.asarray((self.odd[who] & np.uint64(1) == 0) & (self.evidence.looks[who] < _DOUBTED))

    def drop(self, who: IntArray) -> None:
        """Forget what speaks against some, for which another cause is known; what is usual of them stays."""
        self.evidence.forget(who)
        self.odd[who], self.lag[who], self.highest[who], self.peak[:, who] = 0, 0.0, 0.0, 0.0

    def wealth(self, who: IntArray) -> FloatArray:
        """Return what the evidence against chance is worth, (n,), as a logarithm."""
        return self.rises.worth(self.evidence.wealth[who])

    def without_pause(self, entity: int) -> int:
        """Return since how many looks an entity has been odd, with no pause of `_PAUSE` looks in between."""
        bits, looks = self.bits(entity)
        since = 0
        for ago in range(looks):
            if bits >> ago & 1:
                since = ago + 1
            elif ago + 1 - since >= _PAUSE:
                break
        return since

    def bits(self, entity: int) -> tuple[int, int]:
        """Return in which looks an entity was odd since it first was, as bits, and of how many, at most 64."""
        windows = int(self.run[entity])
        return int(self.odd[entity]) & ((1 << windows) - 1), windows


def _newest(looks: IntArray) -> NDArray[np.uint64]:
    """Return the bits of so many last looks, at least one."""
    older: NDArray[np.uint64] = np.uint64(0xFFFFFFFFFFFFFFFE) << clamp(looks - 1, 0, KEPT - 1).astype(np.uint64)
    return ~older
