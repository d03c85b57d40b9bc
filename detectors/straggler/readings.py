"""What DCGM's readings show: who computes while the others wait.

Readings become means over windows of a minute. A GPU is compared with its node mates of the same job, which are scraped
at the same moment and so see the same phase of the step; a node (the median of its GPUs) with the job's other nodes, of
the same model. Three signatures are looked for:

- slow clock: the clock is lower and, at once, tensor, memory or SM activity is higher. Activity is a share of the
  cycles, so the same work takes more of a slower clock's. Where there is no tensor activity, lower power will do; a
  clock far below that of its mates is slow however active it is; so is a memory's clock below theirs;
- longer work: memory or SM activity is higher at the same clock, as slow memory or a slow chip has it, and neither for
  more work, where that is known, nor for being busy more: who waits in a collective is as busy, where GPUs serve
  requests each for itself some have more. Where SM activity is not read, power says who works and who waits. Where
  tensor activity is not read, a GPU that draws less than it did was not given more work; and where its mates spin
  while they wait (GPU_UTIL), the energy that each uses shows the one that they wait for, slow or with more to do;
- starved: it is idle more than the others and does as much: the host does not keep up. Who waits in a collective spins.

Who does more work is not slow: a rank that was given longer sequences, or a favoured expert, computes longer while its
clock, its memory and its chip are as ever. The work done in a second is tensor activity times the clock: between steps
that all ranks take together, a slow GPU does as much as its peers, however long that takes it.

A victim shows none of them: it has less to do, like all its peers. What a signature explains is what shows both beside
the peers and beside the entity's own habit: who is as fast as its peers holds up nobody, nor who always was a little
slower. Who stands far apart from peers that are alike, by a tenth and more since its job's first steps, does.
"""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import column
from detectors.core.evidence import Rises
from detectors.core.residuals import MAD_TO_SIGMA
from detectors.core.statistics import clamp, known_or, masked_median
from detectors.core.tails import Tails
from detectors.straggler.comparison import APART, FLOOR, Comparison, Look, Verdict
from detectors.straggler.windows import (
    BUSY,
    CLOCK,
    MEMORY,
    POWER,
    SIGNALS,
    SM,
    SPENT,
    TENSOR,
    UTIL,
    WINDOW_S,
)

SLOW_CLOCK, LONG_WORK, STARVED, SILENT, LATE = range(5)
"""How somebody is slow: by the readings, by its power alone (`silent_chips`), and by its ranks' times."""
_WINDOWS, _LATE_WINDOWS = 8, 3
"""Windows of work that are remembered (evidence is judged by its last eight looks, too), and those that count alone."""
_HABIT_S, _EARLY_S = 240.0, 900.0
"""What is usual is learnt in some minutes; whom a host starves from the first step on shows when its job has loaded."""
_OWN: Final = (TENSOR, MEMORY, POWER, SPENT)
_RISES_S, _FALLS_S = 300.0, 1800.0
"""What a GPU does at work is known soon after its job has loaded, and isn't forgotten for a checkpoint or in a ramp of
forty minutes."""
_FEWEST: Final = 4
"""With fewer, what stands apart and what it stands apart from look alike."""
PAIR: Final = 2
"""The middle of two lies between them. Who works longer of two may serve more requests: half of that rarely counts."""
_NO_MIDDLE: Final = 3
"""Of three, two may have been given more: then they are the middle."""
_WAITS_AT_SM, WAITS_AT_WATTS = 0.2, 0.5
"""Of the SM activity and of the power that a GPU has at work, while it waits for others: estimates, as there is no
measurement of both at hand. NCCL's kernels hold a part of the SMs; collectives draw less than computation."""
IDLES_SPARE: Final = 0.15
"""Of its power at work, for all of the time that it idles: GPUs that spin draw half of that (`WAITS_AT_WATTS`), idle
ones a fifth (`IDLE_POWER`); half of the difference, as power is read at moments."""
_LEAST_DRAWN: Final = float(np.log(1.3))
"""Power is read at a moment of the step: among few nodes it is by a quarter more or less for minutes, as our own worlds
draw it (judgement: none of the recordings of others has such phases)."""
_LEAST_SPENT: Final = float(np.log(1.1))
_LEAST_SHARED: Final = float(np.log(1.05))
"""Energy is that of whole steps. GPUs of one model draw by 2 to 5 % more or less for the same work: that will do beside
a habit where another process came."""
_CLOCK_CUBED: Final = 3.0
"""Power rises with the clock times the voltage squared, which rises with the clock."""
_SPARED: Final = float(np.log(0.95))
"""Who draws less than it did has not been given more to do: the same work, over a longer time, takes less power.
A whole node may have been given other work: an evaluation."""
_FAR: Final = float(np.log(1 / 1.15))
"""Chips of a model differ by a tenth under a cap; further below its mates no clock is by itself, however active."""
SAME_ORDER: Final = 2.0
"""What is measured apart of one cause, as the culprit's lag and what its job lost, agrees to a factor of two."""
LOW: Final = float(np.log(0.95))
"""Memory runs at one clock while a GPU works, the same on all of a model; only what holds it down lowers it."""
_DRAWS_MORE: Final = 2.0
"""Deviations: slow memory draws little, and those that wait for it still less."""
_ONLY_MEMORY: Final = np.arange(SIGNALS)[:, None] == MEMORY
"""Of the signals, memory's: without profiling it is that of a moment of the step."""
_MOST_LONGER: Final = float(np.log(10))
FULL: Final = 0.9
"""Who waits for others spins: GPUs of a job that works in step are as good as always busy, less the job's pauses."""


class Readings(Comparison):
    """GPUs, or nodes; `lowest` is an entity's lowest clock beside its peers' since it is suspected (logarithm), `more`
    by how much more work than its peers it did in the last windows, the newest first, and `always` by how much it had
    done so until then; NaN where work is not read, or the habit not known, inf where all were out of step; `own` what
    it did at work of late, by each of `_OWN`, a logarithm: a habit's level is that of the job's first minutes;
    `early`, who was slow in the last look by what it is beside its peers, whatever it is used to.
    """

    lowest: FloatArray = column(0.0)
    more: NDArray[np.float32] = column(np.nan, _WINDOWS, dtype=np.float32)  # half the bytes are exact enough
    always: NDArray[np.float32] = column(np.nan, _WINDOWS, dtype=np.float32)
    own: NDArray[np.float32] = column(np.nan, len(_OWN), dtype=np.float32)
    early: BoolArray = column(False)
    KEPT = ("rises",)

    def __init__(self, name: str, ways: int, tails: Tails, effect_share: float) -> None:
        """Compare by the first `ways` of being slow."""
        names = tuple(f"{name}/{way}" for way in range(ways))
        super().__init__(names, SIGNALS, tails, Rises())
        self._least, self._most_spread = np.log1p(effect_share / 2), effect_share
        self._whole_nodes = name == "node"

    def _learn_s(self, _look: Look) -> float:
        return _HABIT_S

    def watts_at_work(self, who: IntArray) -> FloatArray:
        """Return what some drew at work of late (W), while nothing spoke against them; NaN where that is not known."""
        return np.asarray(np.exp(self.own[_OWN.index(POWER), who]), np.float64)

    def look(self, look: Look) -> None:
        """Take a look, and learn what those do whom nothing speaks against."""
        super().look(look)
        calm = ~look.held & self.is_calm(look.who)
        who, now = look.who[calm], look.signals[list(_OWN)][:, calm]
        own = self.own[:, who]
        before = np.where(np.isnan(own), now, own)
        memory_s = np.where(now > before, _RISES_S, _FALLS_S)
        weight = look.spent_s / clamp(self.habits[CLOCK].learnt_s[who], look.spent_s, memory_s)
        self.own[:, who] = np.where(np.isfinite(now), before + weight * (now - before), before)

    def is_one_of_several(self, look: Look, place: int) -> bool:
        """Return whether another of its job, on whatever node, is about as active as the one at a `place` that works
        longer than its peers: work is given out unevenly, and there is always one that has most.
        """
        others = look.signals[:, (look.job == look.job[place]) & (look.who != look.who[place])]
        behind = np.fmax.reduce((look.signals[:, [place]] - others)[[MEMORY, SM, SPENT]])
        return bool((behind <= self.least[look.who[place]] / 2).any())

    def work_moved(self, who: IntArray) -> FloatArray:
        """Return by how much more work some do of late than they used to, beside their peers, (n,), a logarithm."""
        more, always = (of[:, who].T.astype(np.float64) for of in (self.more, self.always))
        known = np.isfinite(more) & np.isfinite(always)
        return masked_median(np.where(known, more, 0.0) - np.where(known, always, 0.0), known)

    def _judge(self, apart: FloatArray, among: FloatArray, z: FloatArray, _usual: FloatArray, look: Look) -> Verdict:
        ways = len(self.echoes)
        beside = look.signals - look.usual
        may = ~(beside[CLOCK] > self._least)  # else its peers are the slow ones, whatever holds them
        z = np.where(among <= self._most_spread, z, np.nan)  # else all are out of step
        active = np.fmax.reduce(z[[TENSOR, MEMORY, SM]])
        self._note_work(apart, beside, among, look)
        moved = look.signals[list(_OWN)] - self.own[:, look.who]
        done, draws = np.fmin(*moved[:2]), np.where(np.isnan(moved[3]), moved[2], moved[3])
        no_more = np.isfinite(_more_work(apart)) | ((draws <= _SPARED) & (not self._whole_nodes))
        # Where the others spin while they wait, and no work is read, energy says whom they wait for: one, while they
        # are alike; where each is given other work they are not.
        by_energy = _others_spin(look) & ~no_more & np.isfinite(apart[SPENT]) & (not self._whole_nodes)
        no_more |= by_energy
        done[by_energy] = np.where(z[SPENT, by_energy] >= APART, -np.inf, np.inf)
        copies = (z[SPENT] >= _DRAWS_MORE) & (z[MEMORY] >= APART)
        alias = by_energy & ~copies & _ONLY_MEMORY
        apart, beside, z = (np.where(alias, np.nan, of) for of in (apart, beside, z))
        with np.errstate(invalid="ignore", divide="ignore"):
            longer = np.where(apart > 0, z * (1 - _explained(apart) / apart), z)
            power, sure = np.where(np.isnan(apart[SPENT]), (apart[POWER], z[POWER]), (apart[SPENT], z[SPENT]))
            drawn = np.where(power > 0, sure * _drawn(apart, done, look.shared) / power, np.nan)
        # A node that does ten times what the others do works alone: at an evaluation, say.
        by_itself = np.fmax(apart[MEMORY], apart[SM]) > _MOST_LONGER if self._whole_nodes else False
        worked = np.fmax(np.fmax(longer[MEMORY], longer[SM]), drawn)
        worked = np.where(by_energy & np.isnan(worked), sure, worked)  # what is little teaches what is usual
        worked = np.where(no_more & np.logical_not(by_itself), worked, np.nan)
        # A slow clock draws less; to move the same data takes memory as long on any.
        waits = np.where(np.isfinite(z[TENSOR]), active, np.fmax(active, -z[POWER]))
        far = (apart[CLOCK] <= _FAR) & ~(np.fmax(apart[TENSOR], apart[MEMORY]) < apart[CLOCK] / 3)
        slow = np.where(np.isfinite(waits) & ~far, np.minimum(-z[CLOCK], waits), -z[CLOCK])
        score = np.array([np.where(may, slow, np.nan), np.where(may, worked, np.nan), -z[BUSY]])[:ways]
        may |= score[STARVED:].max(axis=0, initial=0.0) > 0  # who idles in between may have a higher clock for it
        self.lowest[look.who] = np.fmin(beside[CLOCK], np.where(self.odd[look.who] == 0, 0.0, self.lowest[look.who]))
        lag = np.fmin(*(_lags(of, done, look.shared) for of in (apart, beside)))[:ways]
        twice = np.where(look.middles[1].max(axis=0) == PAIR, 2.0, 1.0)
        lag[SLOW_CLOCK] *= twice
        lag[STARVED:] *= twice
        first = self._from_the_first(beside, look)[:ways]
        first[SLOW_CLOCK] = np.fmax(first[SLOW_CLOCK], _by_memory_clock(beside, look))
        self.early[look.who] = first.any(axis=0)
        lag, since = np.where(first > 0, first, lag), np.full(len(look.who), look.begun)
        certain = first > 0
        certain[LONG_WORK] |= look.shared & (drawn > 0) & (lag[LONG_WORK] >= self._least)
        return Verdict(score, lag, self._least, may, certain, since)

    def _from_the_first(self, beside: FloatArray, look: Look) -> FloatArray:
        """Return by how much longer work takes (3, n), as a logarithm, who has been slow since its job's first steps.

        Its peers are all there is to compare it with: it must stand far apart from them, and they be alike. 0 else.
        """
        of, learnt_s = look.middles[1][CLOCK], self.habits[CLOCK].learnt_s[look.who]
        new = (learnt_s < _EARLY_S) & (of >= _NO_MIDDLE)
        if not new.any():
            return np.zeros((3, len(new)))
        with np.errstate(invalid="ignore"):
            clock, active = -beside[CLOCK], np.fmax(beside[TENSOR], beside[MEMORY])
            # A power cap lowers the clock of who draws as much; who works on a slow clock is active for longer.
            clock = np.where((-beside[POWER] >= clock / 2) & ~(active < clock / 2), clock, 0.0)
            among = MAD_TO_SIGMA * look.medians(np.abs(beside))[0]
            apart = APART * np.fmax(among, FLOOR)
            by = [SM] if self._whole_nodes else [SM, MEMORY]  # no host has slow memory in all its GPUs
            more = np.where(beside[by] >= apart[by], beside[by] - _has_more(beside), np.nan)
            longer = np.where(np.isfinite(_more_work(beside)), np.fmax.reduce(more), 0.0)
            longer = longer if look.ends is None else np.where(look.ends, 0.0, longer)
            # Utilisation is of moments, and sees a part of what a GPU is idle in between.
            idle = np.where(-beside[UTIL] <= FLOOR, 0.0, -beside[BUSY])
            spared = ~(beside[POWER] > np.log1p(-IDLES_SPARE * (1 - np.exp(-idle))))
            starved = np.where(_others_spin(look) & spared, _starved(active, idle), 0.0)
            # Who spins waits for who does not, of three too, once the job has loaded; who works longer may have work.
            other = (of < _FEWEST) | (learnt_s >= _HABIT_S)
            lags = np.array([np.where(other, 0.0, clock), np.where(other, 0.0, longer), starved])
            apart = np.array([apart[CLOCK], np.zeros(len(new)), apart[BUSY]])
            alike = ~(_more_work(beside) >= lags / 3)
            return np.where(new & alike & (lags >= np.fmax(np.log1p(self._most_spread), apart)), lags, 0.0)

    def _note_work(self, apart: FloatArray, beside: FloatArray, among: FloatArray, look: Look) -> None:
        """Note who does more work, inf where all are out of step; of two or three peers more than the one with least.

        Activity is the mean since the reading before. Where there is one reading a window, the window before is the one
        that it lies in, or reaches back to.
        """
        who, sparse = look.who, look.reads <= 1
        few = (look.middles[1][TENSOR] > 1) & (look.middles[1][TENSOR] <= _NO_MIDDLE)
        more, habit = map(_more_work, (beside, apart))
        if np.count_nonzero(few):
            more, habit = (np.where(few, work - look.lowest_other(work), work) for work in (more, habit))
        more[among[TENSOR] > self._most_spread] = np.inf
        latest, before = np.where(sparse, np.nan, more), np.where(sparse, more, self.more[0, who])
        self.more[:, who] = np.concatenate([[latest, before], self.more[1:-1, who]])
        self.always[:, who] = np.concatenate([[more - habit], self.always[:-1, who]])

    def works_more(
        self, entities: IntArray, since: Instant, began: Instant, window_end: Instant, *, fewest: int, is_read: bool
    ) -> FloatArray:
        """Return how much more work each of some entities did since then, (n,), as a logarithm.

        It is the median of the windows that lie after `since`, or that of the last three, or of all since they `began`
        to be slow, whichever is highest: work moves on, and single windows are noisy; less what it always was, if that
        was known before they began. The last ended at `window_end`. Where less than the `fewest` windows know it, inf
        if it is read (`is_read`, or was before) and will be known within some, or all are out of step; else NaN.
        """
        whole, slow = (min(max((window_end - at) // (1000 * WINDOW_S), 0), _WINDOWS) for at in (since, began))
        more, always = self.more[:, entities].T.astype(np.float64), self.always[min(slow, _WINDOWS - 1) :, entities]
        known = np.isfinite(more)
        middles = [masked_median(more[:, :n], known[:, :n]) for n in (whole, min(whole, _LATE_WINDOWS), slow)]
        before = masked_median(always.T.astype(np.float64), np.isfinite(always.T))
        learnt_s = self.habits[TENSOR].learnt_s[entities] - (window_end - began) / 1000
        before = np.where(learnt_s >= _HABIT_S, known_or(before, 0.0), 0.0)
        few = known[:, :whole].sum(axis=1) < max(min(whole, 2), fewest)
        soon = few & (whole < _LATE_WINDOWS) & (is_read | known.any(axis=1))
        soon |= few & np.isposinf(more[:, :whole]).any(axis=1)
        return np.asarray(np.where(soon, np.inf, np.where(few, np.nan, np.fmax.reduce(middles) - before)))


def _lags(apart: FloatArray, done: FloatArray, shared: BoolArray | bool) -> FloatArray:
    """Return by how much longer the work takes by each signature (3, n), a logarithm; the rest as `_drawn` takes it."""
    active, idle = np.fmax(apart[TENSOR], apart[MEMORY]), -apart[BUSY]
    explained = _explained(apart)
    waits_at = np.where(apart[BUSY] >= apart[SM] / 2, 0.0, _WAITS_AT_SM)  # who does not spin idles
    by_sm = than_who_waits(apart[SM] - explained, waits_at)
    # Warps that wait for slow memory hold their SM: memory that alone is used more is read at another moment.
    by_memory = np.fmin(apart[MEMORY] - explained, SAME_ORDER * np.maximum(by_sm, 0.0))
    longer = np.fmax(by_memory, by_sm)
    longer = np.fmax(longer, than_who_waits(_drawn(apart, done, shared), WAITS_AT_WATTS))
    capped = _more_work(apart) > -apart[CLOCK]  # a power cap lowers the clock of who works more
    slower = np.where(capped, 0.0, -apart[CLOCK])
    return np.array([slower, longer, _starved(active, idle)])


def _by_memory_clock(beside: FloatArray, look: Look) -> FloatArray:
    """Return by how much longer work takes (n,), a logarithm, whose memory's clock lies below its peers': by so much
    for the part of the time in which they use theirs. 0 of those whose memory is used less: they idle, or do less.
    """
    if look.memory_clocks is None or np.isnan(look.memory_clocks).all():  # mostly nobody reports it
        return np.zeros(len(look.who))
    usual, of = look.usual_memory_clocks
    below = look.memory_clocks - usual
    low = (below <= LOW) & (of >= _NO_MIDDLE) & (beside[MEMORY] >= 0)
    return np.where(low, np.log1p(np.expm1(-below) * np.exp(look.usual[MEMORY])), 0.0)


def _others_spin(look: Look) -> BoolArray:
    """Return whose peers are busy all the time, (n,), as they are while they wait in a collective."""
    return np.asarray(np.fmax(look.usual[BUSY], look.usual[UTIL]) >= np.log(FULL))


def _starved(active: FloatArray, idle: FloatArray) -> FloatArray:
    """Return how much more GPUs idle (n,), 0 of those that also do less: they have less to do; logarithms."""
    return np.asarray(np.where(active < -idle / 2, 0.0, idle))


def _more_work(apart: FloatArray) -> FloatArray:
    """Return by how much more work GPUs do than usual, (n,), as a logarithm; NaN where it is not read."""
    return np.asarray(apart[TENSOR] + apart[CLOCK])


def _explained(apart: FloatArray) -> FloatArray:
    """Return for how much longer GPUs are active by what they have to do, or by their clock, (n,), as a logarithm."""
    return np.asarray(_has_more(apart) + np.fmax(-apart[CLOCK], 0.0))


def _drawn(apart: FloatArray, done: FloatArray, shared: BoolArray | bool) -> FloatArray:
    """Return by how much more power GPUs draw than what they have to do and their clock explain, (n,), as a logarithm.

    NaN where that is little (less will do of those that are `shared`), or they do as much as ever (`done`, (n,), beside
    their habit): nobody waits for them. NaN where SM activity is read, which shows better who works.
    """
    read = np.isnan(apart[SPENT])
    drawn = np.where(read, apart[POWER], apart[SPENT])
    drawn -= _has_more(apart) + np.fmax(_CLOCK_CUBED * apart[CLOCK], 0.0)
    least = np.where(shared, _LEAST_SHARED, np.where(read, _LEAST_DRAWN, _LEAST_SPENT))
    counts = np.isnan(apart[SM]) & (drawn >= least) & (done <= -drawn / 2)
    return np.asarray(np.where(counts, drawn, np.nan))


def than_who_waits(more: FloatArray, waits_at: float | FloatArray) -> FloatArray:
    """Return how much longer those work of whom `more` is read than of their peers, that wait meanwhile, and read
    `waits_at` of what they do at work; all logarithms, (n,).
    """
    with np.errstate(divide="ignore", invalid="ignore"):
        longer = np.log((1 - waits_at) / np.maximum(np.exp(-more) - waits_at, 1e-9))
    return np.asarray(np.where(more > 0, np.minimum(longer, _MOST_LONGER), more))


def _has_more(apart: FloatArray) -> FloatArray:
    """Return by how much more GPUs have to do than usual, (n,), as a logarithm: work, or requests.

    Who is busy more has more of them; but who computes and moves no more meanwhile only takes longer.
    """
    work = _more_work(apart)
    busy = np.where(np.isfinite(work + apart[MEMORY]), np.fmin(apart[BUSY], apart[MEMORY]), apart[BUSY])
    return np.asarray(np.fmax(np.fmax(busy, work), 0.0))
