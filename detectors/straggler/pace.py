"""How fast the ranks of one job are: the last steps of each, its own level, and for how long it has lagged.

A *beat* is a handful of steps: it ends when nearly all ranks have reported one. In it a rank is slow if its computation
takes longer than its own level times what all ranks' have changed by, by a share of the step that matters and by more
than the tails of this cluster's ranks explain; or, from the job's first steps on, longer than the others', unless such
ranks form a pipeline stage. Who computes no longer than its peers holds up nobody, whatever it did before.
"""

from collections.abc import Mapping
from typing import Any, Final, Self

import numpy as np
from numpy.typing import NDArray

from detectors.contract import BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import Columns, column
from detectors.core.evidence import Evidence, threshold
from detectors.core.residuals import MAD_TO_SIGMA
from detectors.core.tails import Tails
from detectors.statistics import clamp
from detectors.straggler.config import StragglerConfig
from detectors.straggler.shape import Places, individuals

_MOST_RANKS: Final = 1 << 20
_BEAT_SHARE, _LATE_SHARE = 0.9, 0.5
"""A beat ends when so many of the ranks have reported; or so many, if it takes long."""
_LONG_BEAT_MS: Final = 60_000
_GONE_MS: Final = 600_000
_SMOOTH_S, _FALL_S, _MEMORY_S = 60.0, 300.0, 21_600.0
"""Time constants: of the lag that is told; of a level that falls; of one that rises: a ramp of forty minutes must not
become the level."""
_STEADY_BEATS: Final = 20
_SCORE_CAP: Final = 1.5
_FORGET: Final = 2.0
"""A beat in time takes back twice what a slow beat of the same length gave."""
_FEW: Final = 4
"""So few ranks have no median to speak of; then each one's own past counts."""
_LEARN_BEATS, _LEARN_BEATS_FEW = 3, 20
_CONFIRM_BEATS: Final = 3
_FEW_SHARE: Final = 1.5
"""With one to three peers there is no telling how ranks scatter: half as much again is asked for."""
_FLOOR: Final = 0.01
"""Of the step: ranks scatter by 0.5 to 2 % from step to step (ByteDance AR trace)."""
_APART: Final = 5.0
"""Robust deviations, where peers are all there is: one in three million of a normal distribution."""
_WAIT_SHARE: Final = 0.5
"""The others wait for all of the culprit's lag, it does not; half, as trainers measure the shares of a step."""
_MOST_NODES, _MOST_NODE_SHARE = 2, 0.05
"""More that are slow at once have something in common that is not a machine's."""


def middle(values: FloatArray | IntArray) -> float:
    """Return the median of (n,) values, n > 0; for few of them in a fraction of NumPy's time."""
    ranked = np.sort(values)
    return float(ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) / 2


class Pace(Columns):
    """Columns by rank; a rank that never reported has `seen` 0.

    `compute`, `step`, `wait` (s) and `steps` sum up the steps since the last beat, of which the first began at `begun`;
    `at` last report (ms). `level` computation of a step as it should be (s), over `learnt` beats; `behind` how far it
    lags now, smoothed, as a share of the step; `score` for how long it has been slow, less what it was not (s), over
    `slow_beats`, since `onset`; `always` from the first step on; `slow_at` when it last was, and `kept_up` beats in
    time since; its `first` begin; `computes_s` and `waits_s` in its last beat, s a step, NaN where it had none.
    """

    compute: FloatArray = column(0.0)
    step: FloatArray = column(0.0)
    wait: FloatArray = column(0.0)
    steps: IntArray = column(0)
    begun: IntArray = column(-1)
    at: IntArray = column(-1)
    seen: IntArray = column(0)
    level: FloatArray = column(np.nan)
    learnt: IntArray = column(0)
    behind: FloatArray = column(0.0)
    score: FloatArray = column(0.0)
    slow_beats: IntArray = column(0)
    always: BoolArray = column(False)
    onset: IntArray = column(-1)
    slow_at: IntArray = column(-1)
    kept_up: IntArray = column(0)
    first: IntArray = column(-1)
    computes_s: FloatArray = column(np.nan)
    waits_s: FloatArray = column(np.nan)

    def __init__(self, config: StragglerConfig, tails: Tails, start: Instant) -> None:
        super().__init__()
        self._config, self._tails = config, tails
        self.evidence = Evidence()
        self.start = start
        """When the job started: one of the same name that starts anew is another."""
        self.step_s = 0.0
        self.beat_s = 0.0

    @property
    def telling(self) -> bool:
        """Whether at least two ranks report."""
        return int(np.count_nonzero(self.seen)) >= 2

    def add(self, ranks: IntArray, at: IntArray, step: FloatArray, compute: FloatArray, wait: FloatArray) -> None:
        """Take one step of each of some ranks: its end (ms), how long it took, computed and waited (s)."""
        if int(ranks.max()) >= _MOST_RANKS:
            return
        self.grow(int(ranks.max()) + 1)
        self.evidence.grow(len(self))
        first = ranks[self.steps[ranks] == 0]
        begun = at - np.round(step * 1000).astype(np.int64)
        self.begun[first] = begun[self.steps[ranks] == 0]
        self.first[ranks] = np.where(self.first[ranks] < 0, begun, self.first[ranks])
        self.compute[ranks] += clamp(compute, 0.0, step)
        self.step[ranks] += step
        self.wait[ranks] += clamp(wait, 0.0, step)
        self.steps[ranks] += 1
        self.seen[ranks] += 1
        self.at[ranks] = at

    def beat(self, now: Instant, places: Places) -> bool:
        """End the beat if it is time to; return whether it did."""
        fresh = self.steps > 0
        active = int(np.count_nonzero((self.seen > 0) & (now - self.at <= _GONE_MS + 3000 * self.step_s)))
        got = int(np.count_nonzero(fresh))
        if got < 2 or got < _LATE_SHARE * active:
            return False
        if got < _BEAT_SHARE * active and now - int(self.begun[fresh].min()) < _LONG_BEAT_MS + 2000 * self.step_s:
            return False
        if middle(self.seen[fresh]) > self._config.warm_up_steps:
            self._judge(now, fresh.nonzero()[0], places)
        for name in ("compute", "step", "wait", "steps"):
            getattr(self, name)[:] = 0
        return True

    def _judge(self, now: Instant, who: IntArray, places: Places) -> None:
        share = self.compute[who] / self.step[who]
        length = middle(self.step[who] / self.steps[who])
        spent = length * middle(self.steps[who])
        compute = np.maximum(share * length, 1e-6)
        self.step_s, self.beat_s = length, spent
        self.computes_s[:], self.waits_s[:] = np.nan, np.nan
        self.computes_s[who] = compute
        self.waits_s[who] = self.wait[who] / self.step[who] * length

        known = self.learnt[who] > 0
        level = np.where(known, self.level[who], compute)
        change = self._change(compute / level, known if known.any() else ~known, places.node[who])
        rise = (compute / level - change) * level / length
        slow, always, lag = self._slow(now, who, compute, rise, level * change, length, places)
        self._note(now, who, slow, always, lag, spent)
        if len(who) > _FEW or not slow.any():  # of few, the others' peers would be the culprit
            self._learn(who, compute / change, known, rise, spent)

    def _change(self, ratio: FloatArray, known: BoolArray, node: IntArray) -> FloatArray:
        """Return by what each rank's computation should have changed, as its peers' did: sequences differ in length."""
        if len(ratio) <= _FEW:
            others = np.where(np.eye(len(ratio), dtype=bool) | ~known[None, :], -np.inf, ratio[None, :])
            highest = others.max(axis=1)
            return np.where(np.isfinite(highest), highest, 1.0)
        nodes = np.unique(node[known])
        if 1 < len(nodes) <= 3:  # of two nodes either may be the slow one: it is not the one that is as it was
            return np.full(len(ratio), min(middle(ratio[known & (node == one)]) for one in nodes))
        return np.full(len(ratio), middle(ratio[known]))

    def _slow(
        self, now: Instant, who: IntArray, compute: FloatArray, rise: FloatArray, usual: FloatArray,
        length: float, places: Places,
    ) -> tuple[BoolArray, BoolArray, FloatArray]:  # fmt: skip
        """Return which ranks are slow in this beat, which from the start on, and by how much of the step each lags."""
        share, few = self._config.effect_share, len(who) <= _FEW
        wait = self.waits_s[who] / length
        over = (compute - middle(compute)) / length
        longest = over >= np.where(np.isfinite(wait), _FLOOR, share / 2)  # who waits less than others says the rest
        learnt = self.learnt[who] >= (_LEARN_BEATS_FEW if few else _LEARN_BEATS)
        scatter = _FLOOR if few else self._spread(rise, places.node[who])
        tail, distance = self._tails["few ranks" if few else "ranks"], rise / scatter
        self.evidence.look(who, np.where(learnt, tail.odds(distance), np.nan), now)
        tail.learn(distance[learnt & (rise < share / 2)])
        if few:
            slow = (rise >= _FEW_SHARE * share) & learnt & longest
            return slow & self._waits_least(wait, rise), np.zeros(len(who), bool), rise
        grown = learnt & (rise >= share) & longest
        ahead = (usual - middle(usual)) / length
        apart = learnt & (ahead >= share) & (ahead >= _APART * self._spread(ahead))
        lag = rise
        if np.count_nonzero(apart):
            ratio = usual / middle(usual)
            apart &= individuals(ahead >= share / 2, ratio, places.of(who))
            lag = np.where(apart, over, rise)
            apart &= (over >= share) & (over >= _APART * self._spread(over))
        slow = (grown | apart) & self._waits_least(wait, lag)
        if len(np.unique(places.node[who[slow]])) > max(_MOST_NODES, _MOST_NODE_SHARE * places.nodes):
            slow[:] = False  # so many are no individuals, but how the work is spread
        return slow, apart, lag

    def _spread(self, values: FloatArray, node: IntArray | None = None) -> float:
        """Return the robust deviation; of few nodes, that within them."""
        centre = np.full(len(values), middle(values))
        if node is not None and 1 < len(nodes := np.unique(node)) <= 3:
            for one in nodes:
                centre[node == one] = middle(values[node == one])
        return max(MAD_TO_SIGMA * middle(np.abs(values - centre)), _FLOOR)

    def _waits_least(self, wait: FloatArray, lag: FloatArray) -> BoolArray:
        """Return who waits less than the others do by a good part of what they lag; all, where nobody tells."""
        told = np.isfinite(wait)
        if not np.count_nonzero(told):
            return ~told
        ranked = np.sort(wait[told])
        others = float(ranked[(3 * len(ranked)) // 4])  # of two nodes that are half the ranks, those of one wait
        return np.asarray(~told | (np.where(told, wait, 0.0) <= others - _WAIT_SHARE * lag))

    def _note(
        self, now: Instant, who: IntArray, slow: BoolArray, always: BoolArray, lag: FloatArray, spent: float
    ) -> None:
        weight = min(1.0, spent / _SMOOTH_S)
        self.behind[who] += weight * (lag - self.behind[who])
        begins = slow & (self.score[who] <= 0)
        since = np.where(always & (self.slow_at[who] < 0), self.first[who], self.begun[who])
        self.onset[who[begins]], self.slow_beats[who[begins]] = since[begins], 0
        gain = np.where(slow, spent, -_FORGET * spent)
        cap = _SCORE_CAP * max(self._config.confirm_s, spent * _CONFIRM_BEATS)
        self.always[who] = np.where(self.score[who] > 0, self.always[who], False) | (slow & always)
        self.score[who] = clamp(self.score[who] + gain, 0.0, cap)
        self.slow_beats[who] = np.where(self.score[who] > 0, self.slow_beats[who] + slow, 0)
        self.slow_at[who[slow]] = now
        self.kept_up[who] = np.where(slow, 0, self.kept_up[who] + 1)

    def _learn(self, who: IntArray, compute: FloatArray, known: BoolArray, rise: FloatArray, spent: float) -> None:
        """Let levels follow: at once in the first beats, slowly later, faster downwards, and not while a rank lags."""
        learnt = self.learnt[who]
        half = self._config.effect_share / 2
        weight = np.maximum(np.where(learnt < _STEADY_BEATS, 1 / (learnt + 1), 0.0), min(1.0, spent / _MEMORY_S))
        weight = np.where(rise <= -half, np.maximum(weight, min(1.0, spent / _FALL_S)), weight)
        hold = (rise >= half) & (learnt >= _LEARN_BEATS)
        weight = np.where(known, np.where(hold, 0.0, weight), 1.0)
        before = np.where(known, self.level[who], 0.0)
        self.level[who] = before + weight * (compute - before)
        self.learnt[who] = np.where(hold, learnt, np.minimum(learnt + 1, 1 << 30))

    def confirmed(self, nodes: int) -> IntArray:
        """Return the ranks that have been slow for long enough, beyond chance, and were in the last beat.

        `nodes` are the cluster's.
        """
        long = (self.score >= self._config.confirm_s) & (self.slow_beats >= _CONFIRM_BEATS)
        ranks = int(np.count_nonzero(self.seen))
        enough = threshold(self._config.false_alarms_per_100_node_days, ranks, nodes, max(self.beat_s, 1.0))
        return np.flatnonzero(long & (self.always | (self.evidence.wealth >= enough)) & (self.kept_up == 0))

    def snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state as numbers and arrays."""
        numbers = {"start": self.start, "step_s": self.step_s, "beat_s": self.beat_s}
        return numbers, self.arrays() | self.evidence.arrays("evidence/")

    def restore(self, numbers: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> Self:
        """Take what `snapshot` returned."""
        self.step_s, self.beat_s = numbers["step_s"], numbers["beat_s"]
        self.evidence.load(arrays, "evidence/")
        return self.load(arrays)
