"""How fast the ranks of one job are: the last steps of each, its own level, and for how long it has lagged.

A *beat* is a handful of steps: it ends when nearly all ranks have reported one. In it a rank is slow if its computation
takes longer than its own level times what all ranks' have changed by; or, from the job's first steps on, longer than
the others', unless such ranks form a pipeline stage.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.contract import BoolArray, FloatArray, Instant, IntArray
from detectors.statistics import clamp
from detectors.straggler.config import StragglerConfig
from detectors.straggler.shape import Places, individuals

_MAD_TO_SIGMA = 1.4826
_MOST_RANKS = 1 << 20
_BEAT_SHARE, _LATE_SHARE = 0.9, 0.5
"""A beat ends when so many of the ranks have reported; or so many, if it takes long."""
_LONG_BEAT_MS = 60_000
_GONE_MS = 600_000
_SMOOTH_S, _FALL_S = 60.0, 300.0
_STEADY_BEATS = 20
_SCORE_CAP = 1.5
_FORGET = 2.0
"""A beat in time takes back twice what a slow beat of the same length gave."""

_BLANK: dict[str, tuple[Any, float]] = {
    "compute": (np.float64, 0),
    "step": (np.float64, 0),
    "wait": (np.float64, 0),
    "count": (np.int64, 0),
    "begun": (np.int64, -1),
    "at": (np.int64, -1),
    "seen": (np.int64, 0),
    "level": (np.float64, np.nan),
    "learnt": (np.int64, 0),
    "behind": (np.float64, 0),
    "score": (np.float64, 0),
    "slow_beats": (np.int64, 0),
    "onset": (np.int64, -1),
    "slow_at": (np.int64, -1),
    "kept_up": (np.int64, 0),
    "first": (np.int64, -1),
}


def middle(values: FloatArray | IntArray) -> float:
    """Return the median of (n,) values, n > 0; for few of them in a fraction of NumPy's time."""
    ranked = np.sort(values)
    return float(ranked[(len(ranked) - 1) // 2] + ranked[len(ranked) // 2]) / 2


class Pace:
    """Columns by rank; a rank that never reported has `seen` 0.

    `compute`, `step`, `wait` (s) and `count` sum up the steps since the last beat, of which the first began at `begun`;
    `at` last report (ms). `level` computation of a step as it should be (s), over `learnt` beats; `behind` how far it
    lags now, smoothed, as a share of the step; `score` for how long it has been slow, less what it was not (s), over
    `slow_beats`, since `onset`; `slow_at` when it last was, and `kept_up` beats in time since; its `first` begin.
    """

    compute: FloatArray
    step: FloatArray
    wait: FloatArray
    count: IntArray
    begun: IntArray
    at: IntArray
    seen: IntArray
    level: FloatArray
    learnt: IntArray
    behind: FloatArray
    score: FloatArray
    slow_beats: IntArray
    onset: IntArray
    slow_at: IntArray
    kept_up: IntArray
    first: IntArray

    def __init__(self, config: StragglerConfig, start: Instant) -> None:
        self._config = config
        self.start = start
        """When the job started: one of the same name that starts anew is another."""
        self.step_s = 0.0
        self.computes_s, self.waits_s = np.empty(0), np.empty(0)
        """Each rank's last beat: seconds a step, NaN where it had none."""
        for name, (dtype, _) in _BLANK.items():
            setattr(self, name, np.empty(0, dtype))

    def __len__(self) -> int:
        return len(self.at)

    @property
    def telling(self) -> bool:
        """Whether at least two ranks report."""
        return int(np.count_nonzero(self.seen)) >= 2

    def add(self, ranks: IntArray, at: IntArray, step: FloatArray, compute: FloatArray, wait: FloatArray) -> None:
        """Take one step of each of some ranks: its end (ms), how long it took, computed and waited (s)."""
        if int(ranks.max()) >= _MOST_RANKS:
            return
        self._grow(int(ranks.max()) + 1)
        first = ranks[self.count[ranks] == 0]
        begun = at - np.round(step * 1000).astype(np.int64)
        self.begun[first] = begun[self.count[ranks] == 0]
        self.first[ranks] = np.where(self.first[ranks] < 0, begun, self.first[ranks])
        self.compute[ranks] += clamp(compute, 0.0, step)
        self.step[ranks] += step
        self.wait[ranks] += clamp(wait, 0.0, step)
        self.count[ranks] += 1
        self.seen[ranks] += 1
        self.at[ranks] = at

    def beat(self, now: Instant, places: Places) -> bool:
        """End the beat if it is time to; return whether it did."""
        fresh = self.count > 0
        active = int(np.count_nonzero((self.seen > 0) & (now - self.at <= _GONE_MS + 3000 * self.step_s)))
        got = int(np.count_nonzero(fresh))
        if got < 2 or got < _LATE_SHARE * active:
            return False
        if got < _BEAT_SHARE * active and now - int(self.begun[fresh].min()) < _LONG_BEAT_MS + 2000 * self.step_s:
            return False
        if middle(self.seen[fresh]) > self._config.warm_up_steps:
            self._judge(now, fresh.nonzero()[0], places)
        for name in ("compute", "step", "wait", "count"):
            getattr(self, name)[:] = 0
        return True

    def _judge(self, now: Instant, who: IntArray, places: Places) -> None:
        share = self.compute[who] / self.step[who]
        length = middle(self.step[who] / self.count[who])
        spent = length * middle(self.count[who])
        compute = np.maximum(share * length, 1e-6)
        self.step_s = length
        self.computes_s, self.waits_s = np.full((2, len(self)), np.nan)
        self.computes_s[who] = compute
        self.waits_s[who] = self.wait[who] / self.step[who] * length

        known = self.learnt[who] > 0
        level = np.where(known, self.level[who], compute)
        change = self._change(compute / level, known if known.any() else ~known, places.node[who])
        rise = (compute / level - change) * level / length
        slow, always, lag = self._slow(who, compute, rise, level * change, length, places)
        self._note(now, who, slow, always, lag, spent)
        self._learn(who, compute / change, known, rise, spent)

    def _change(self, ratio: FloatArray, known: BoolArray, node: IntArray) -> FloatArray:
        """Return by what each rank's computation should have changed, as its peers' did: sequences differ in length."""
        few = len(ratio) <= self._config.peer_minimum
        if few:
            others = np.where(np.eye(len(ratio), dtype=bool) | ~known[None, :], -np.inf, ratio[None, :])
            highest = others.max(axis=1)
            return np.where(np.isfinite(highest), highest, 1.0)
        nodes = np.unique(node[known])
        if 1 < len(nodes) <= 3:  # of two nodes either may be the slow one: it is not the one that is as it was
            return np.full(len(ratio), min(middle(ratio[known & (node == one)]) for one in nodes))
        return np.full(len(ratio), middle(ratio[known]))

    def _slow(
        self, who: IntArray, compute: FloatArray, rise: FloatArray, usual: FloatArray, length: float, places: Places
    ) -> tuple[BoolArray, BoolArray, FloatArray]:
        """Return which ranks are slow in this beat, which from the start on, and by how much of the step each lags."""
        config = self._config
        wait = self.waits_s[who] / length
        if len(who) <= config.peer_minimum:
            slow = (rise >= config.effect_share_few) & (self.learnt[who] >= config.learn_beats_few)
            return slow & self._waits_least(wait, rise), np.zeros(len(who), bool), rise
        learnt = self.learnt[who] >= config.learn_beats
        spread = self._spread(rise, places.node[who])
        grown = learnt & (rise >= config.effect_share) & (rise >= config.peer_deviations * spread)
        ahead = (usual - middle(usual)) / length
        apart = learnt & (ahead >= config.effect_share) & (ahead >= config.peer_deviations * self._spread(ahead))
        lag = rise
        if np.count_nonzero(apart):
            ratio = usual / middle(usual)
            apart &= individuals(ahead >= config.effect_share / 2, ratio, places.of(who), config)
            over = (compute - middle(compute)) / length
            lag = np.where(apart, over, rise)
            apart &= (over >= config.effect_share) & (over >= config.peer_deviations * self._spread(over))
        slow = (grown | apart) & self._waits_least(wait, lag)
        most = max(config.most_nodes, config.most_node_share * places.nodes)
        if len(np.unique(places.node[who[slow]])) > most:
            slow[:] = False  # so many are no individuals, but how the work is spread
        return slow, apart, lag

    def _spread(self, values: FloatArray, node: IntArray | None = None) -> float:
        """Return the robust deviation; of few nodes, that within them."""
        centre = np.full(len(values), middle(values))
        if node is not None and 1 < len(nodes := np.unique(node)) <= 3:
            for one in nodes:
                centre[node == one] = middle(values[node == one])
        return max(_MAD_TO_SIGMA * middle(np.abs(values - centre)), self._config.spread_floor)

    def _waits_least(self, wait: FloatArray, lag: FloatArray) -> BoolArray:
        """Return who waits less than the others do by a good part of what they lag; all, where nobody tells."""
        told = np.isfinite(wait)
        if not np.count_nonzero(told):
            return ~told
        ranked = np.sort(wait[told])
        others = float(ranked[(3 * len(ranked)) // 4])  # of two nodes that are half the ranks, those of one wait
        return np.asarray(~told | (np.where(told, wait, 0.0) <= others - self._config.wait_share * lag))

    def _note(
        self, now: Instant, who: IntArray, slow: BoolArray, always: BoolArray, lag: FloatArray, spent: float
    ) -> None:
        weight = min(1.0, spent / _SMOOTH_S)
        self.behind[who] += weight * (lag - self.behind[who])
        begins = slow & (self.score[who] <= 0)
        since = np.where(always & (self.slow_at[who] < 0), self.first[who], self.begun[who])
        self.onset[who[begins]], self.slow_beats[who[begins]] = since[begins], 0
        gain = np.where(slow, spent, -_FORGET * spent)
        cap = _SCORE_CAP * max(self._config.confirm_s, spent * self._config.confirm_beats)
        self.score[who] = clamp(self.score[who] + gain, 0.0, cap)
        self.slow_beats[who] = np.where(self.score[who] > 0, self.slow_beats[who] + slow, 0)
        self.slow_at[who[slow]] = now
        self.kept_up[who] = np.where(slow, 0, self.kept_up[who] + 1)

    def _learn(self, who: IntArray, compute: FloatArray, known: BoolArray, rise: FloatArray, spent: float) -> None:
        """Let levels follow: at once in the first beats, slowly later, faster downwards, and not while a rank lags."""
        config, learnt = self._config, self.learnt[who]
        half = config.effect_share / 2
        weight = np.maximum(np.where(learnt < _STEADY_BEATS, 1 / (learnt + 1), 0.0), min(1.0, spent / config.level_s))
        weight = np.where(rise <= -half, np.maximum(weight, min(1.0, spent / _FALL_S)), weight)
        hold = (rise >= half) & (learnt >= config.learn_beats)
        weight = np.where(known, np.where(hold, 0.0, weight), 1.0)
        before = np.where(known, self.level[who], 0.0)
        self.level[who] = before + weight * (compute - before)
        self.learnt[who] = np.where(hold, learnt, np.minimum(learnt + 1, 1 << 30))

    def confirmed(self) -> IntArray:
        """Return the ranks that have been slow for long enough, and were in the last beat."""
        config = self._config
        long = (self.score >= config.confirm_s) & (self.slow_beats >= config.confirm_beats)
        return np.flatnonzero(long & (self.kept_up == 0))

    def _grow(self, count: int) -> None:
        more = count - len(self)
        if more > 0:
            for name, (dtype, blank) in _BLANK.items():
                setattr(self, name, np.concatenate([getattr(self, name), np.full(more, blank, dtype)]))

    def snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state as numbers and arrays."""
        arrays: dict[str, NDArray[Any]] = {name: getattr(self, name) for name in _BLANK}
        return {"start": self.start, "step_s": self.step_s}, arrays | {
            "computes": self.computes_s,
            "waits": self.waits_s,
        }

    @classmethod
    def restore(cls, config: StragglerConfig, numbers: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> "Pace":
        """Return what `snapshot` was taken of."""
        pace = cls(config, numbers["start"])
        pace.step_s = numbers["step_s"]
        pace.computes_s, pace.waits_s = arrays["computes"], arrays["waits"]
        for name in _BLANK:
            setattr(pace, name, arrays[name])
        return pace
