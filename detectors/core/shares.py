"""What an entity carries beside its peers in the job and beside its own past: whose link has become a bottleneck.

Readings are gathered into looks of half a minute. At each, an entity's figure is compared with the median of its peers
(those of the same place on the job's other nodes where they are enough, else all of the job) and with what it carried
so far in this job. Only where it lies below `ratio` times both, and as far below for the work it does, and further than
it varies by itself, and the peers carry what they always do, does the look count against it: by how improbable its fall
is among all falls seen here. A share that was small from the job's beginning is a role in the job.
"""

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import Columns, column
from detectors.core.counting import ONE_EVENT_MS, credible
from detectors.core.evidence import Evidence, threshold
from detectors.core.residuals import Groups, Habit, learn_together, peer_residuals
from detectors.core.tails import Tail

LOOK_MS: Final = 30_000
"""The collection interval of dcgm-exporter's defaults, and several steps of most jobs."""
FEWEST: Final = 5
"""Peers of whose median one outlier is less than a quarter."""
_LOOK_BACK_MS: Final = 90_000
"""Peers that are scraped every minute are asked what they last carried."""
_KNOWN_S: Final = 180.0
_MEMORY_S: Final = 1800.0
_STEADY: Final = float(np.log(1.6))
"""Peers that carry so many times what they did, or less, are in another phase of the job: nothing can be concluded."""
_LOUD: Final = float(np.log(1.5))
"""Who carries half as much again as it did, and as its peers do, makes those beside it wait."""
_LOUD_COUNTS: Final = 0.1
_SPREAD: Final = 0.08
"""The least deviation that logarithms of shares are given: rates of DCGM's profiling are samples of a second or so."""
_LEAST_WORK: Final = 0.01
_PLACES: Final = 64


class Shares(Columns):
    """By entity: what it carries, in the unit of the readings.

    `sum` (or peak), `work` and `readings` of the look that goes on; `value` of the last look, at `value_at`; `job` the
    number of its job; `now`, `usual`, `peers` the figures last compared; `low_at` when it was last too low, `judged_at`
    compared, `well` looks since it was low; `alone` low looks that its neighbours explain.
    """

    sum: FloatArray = column(0.0)
    work: NDArray[np.float32] = column(0.0, dtype=np.float32)
    readings: NDArray[np.int32] = column(0, dtype=np.int32)
    value: FloatArray = column(np.nan)
    value_at: IntArray = column(-1)
    job: IntArray = column(0)
    now: NDArray[np.float32] = column(np.nan, dtype=np.float32)
    usual: NDArray[np.float32] = column(np.nan, dtype=np.float32)
    peers: NDArray[np.float32] = column(np.nan, dtype=np.float32)
    worst: NDArray[np.float32] = column(0.0, dtype=np.float32)
    low_at: IntArray = column(-1)
    judged_at: IntArray = column(-1)
    well: NDArray[np.int32] = column(0, dtype=np.int32)
    excused: NDArray[np.int32] = column(0, dtype=np.int32)

    def __init__(
        self, tail: Tail, budget: float, *, ratio: float, least: float, peaks: bool, takes_part: float = 0.0
    ) -> None:
        """Bet with `budget` false alarms in 100 node-days on falls below `ratio`, where peers carry `least` or more.

        With `peaks` the highest reading of a look counts, else their mean. Who carries less than a share of
        `takes_part` of what it did has another role now, or waits for work: it is not judged.
        """
        super().__init__()
        self._tail, self._budget, self._peaks = tail, budget, peaks
        self._bound, self._least = float(np.log(ratio)), least
        self._takes_part = math.log(takes_part) if takes_part else -math.inf
        self.own, self.others, self.for_work = Habit(_MEMORY_S), Habit(_MEMORY_S), Habit(_MEMORY_S)
        self.evidence = Evidence()
        self.bar, self.watched = np.inf, 0
        self._looked: Instant = -1
        self._grouped: tuple[IntArray, tuple[Groups, ...]] = np.empty(0, np.int64), ()
        """Job and place of each entity in one number; the groups by job, and by place in it."""

    def grow(self, count: int) -> None:
        """Make room for `count` entities."""
        super().grow(count)
        for part in (self.own, self.others, self.for_work, self.evidence):
            part.grow(count)

    def take(self, entities: Any, carried: FloatArray, work: FloatArray) -> None:
        """Take one reading (n,) of each of `entities`, an index of n of them that are at work: what it carried (NaN:
        unknown), how busy it was.
        """
        known, before, value = carried > 0, self.sum[entities], np.fmax(carried, 0.0)
        self.sum[entities] = np.maximum(before, value) if self._peaks else before + value
        self.work[entities] += np.where(known, work, 0.0)
        self.readings[entities] += known

    def due(self, now: Instant) -> bool:
        """Return whether a look is due at a point of the grid."""
        return self.count > 0 and now // LOOK_MS > self._looked

    def look(
        self, now: Instant, jobs: IntArray, place: IntArray, nodes: IntArray, held: BoolArray, patience: int = 0
    ) -> bool:
        """At a point of the grid: if a look is due, take it and return True.

        All shaped (count,): the number of each entity's job (0: none), its place in its node, its node's number,
        whether a finding of it is open. Of several entities of a node that are low at once, or beside one that carries
        half as much again as usual, the first `patience` looks do not count: they share what is between them.
        """
        if not self.due(now):
            return False
        self._looked = now // LOOK_MS
        fresh = self.readings > 0
        if not fresh.any():
            return True
        self._settle(now, fresh, jobs)
        figure = np.where((now - self.value_at <= _LOOK_BACK_MS) & (self.job != 0), self.value, np.nan)
        self._compare(now, np.flatnonzero(fresh & np.isfinite(figure)), figure, place, nodes, held, patience)
        self.sum[:], self.work[:], self.readings[:] = 0.0, 0.0, 0
        return True

    def _settle(self, now: Instant, fresh: BoolArray, jobs: IntArray) -> None:
        """Take the figures of the look; what was learnt in another job is forgotten."""
        count = np.maximum(self.readings, 1)
        self.value[fresh] = (self.sum if self._peaks else self.sum / count)[fresh]
        self.value_at[fresh] = now
        moved = np.flatnonzero(jobs != self.job)
        if len(moved):
            self.job[moved] = jobs[moved]
            for part in (self.own, self.others, self.for_work, self.evidence):
                part.forget(moved)
            self.worst[moved], self.excused[moved] = 0.0, 0

    def _compare(
        self,
        now: Instant,
        those: IntArray,
        figure: FloatArray,
        place: IntArray,
        nodes: IntArray,
        held: BoolArray,
        patience: int,
    ) -> None:
        usual = self._of_peers(figure, place)[those]
        x, m = np.log(figure[those]), np.log(usual)
        work = self.work[those] / np.maximum(self.readings[those], 1)
        for_work = x - np.log(np.maximum(work, _LEAST_WORK))  # NaN where it is not known
        known = (self.own.learnt_s[those] >= _KNOWN_S) & np.isfinite(m) & (usual >= self._least)
        mine, theirs = x - self.own.level[those], m - self.others.level[those]
        steady = known & (np.abs(theirs) <= _STEADY) & (mine >= self._takes_part)
        fall = np.fmax(np.maximum(mine, x - m), for_work - self.for_work.level[those])
        low = steady & (fall <= np.minimum(self._bound, -self.own.spread[those]))
        group = self._grouped[1][0].group[those]
        drop = np.where(steady, theirs - mine, np.nan)
        spread = np.maximum(self.own.spread[those], _SPREAD)
        residual, _, _ = peer_residuals(drop, group, int(group.max(initial=0)) + 1, spread, fewest=2)
        residual = np.where(steady, np.where(np.isfinite(residual), residual, drop / spread), np.nan)

        odds = np.where(low, credible(self._tail, residual), np.where(steady, 1.0, np.nan))
        loud = steady & (np.minimum(mine, x - m) >= _LOUD)
        odds[self._excuse(those, low, loud, nodes, patience) | held[those]] = np.nan
        self.evidence.look(those, odds, now, most=self.bar + 10 if np.isfinite(self.bar) else 60.0)
        self.watched = int(np.count_nonzero(self.own.learnt_s >= _KNOWN_S))
        self.bar = threshold(self._budget, self.watched, int(nodes.max()) + 1, LOOK_MS / 1000)

        self.now[those], self.usual[those], self.peers[those] = figure[those], np.exp(self.own.level[those]), usual
        self.low_at[those[low]], self.judged_at[those[steady]] = now, now
        self.well[those] = np.where(low, 0, np.minimum(self.well[those] + steady, 2**20))
        self._learn(now, those, x, m, for_work, residual, (low | held[those], loud))

    def _learn(
        self,
        now: Instant,
        those: IntArray,
        x: FloatArray,
        m: FloatArray,
        for_work: FloatArray,
        residual: FloatArray,
        odd: tuple[BoolArray, BoolArray],
    ) -> None:
        """Learn what is usual; nothing of those that are low, and little of those that are loud: no copy is a habit."""
        low, loud = odd
        on = low | loud
        self.worst[those[on]] = np.fmax(self.worst[those[on]], residual[on])
        ended = ~on & (now - self.low_at[those] > ONE_EVENT_MS)
        over = those[ended]
        self._tail.learn(np.fmax(residual[ended], np.where(self.worst[over] > 0, self.worst[over], np.nan)))
        self.worst[over] = 0.0
        spent_s = np.where(loud, _LOUD_COUNTS, 1.0) * LOOK_MS / 1000
        calm = (ended | (loud & ~low)) & np.isfinite(m)
        habits = self.own, self.others, self.for_work
        learn_together(habits, those[calm], np.array([x, m, for_work])[:, calm], spent_s[calm])

    def _of_peers(self, figure: FloatArray, place: IntArray) -> FloatArray:
        """Return the median (count,) of each entity's peers, NaN where they are too few."""
        key = self.job * _PLACES + np.minimum(place, _PLACES - 1)
        if not np.array_equal(key, self._grouped[0]):  # jobs seldom come and go
            numbers = (np.unique(by, return_inverse=True)[1] for by in (self.job, key))
            self._grouped = key, tuple(Groups(group, int(group.max()) + 1) for group in numbers)
        usual = np.full(self.count, np.nan)
        for groups in self._grouped[1]:
            medians, sizes = groups.medians(figure[None])
            enough = np.where(sizes >= FEWEST, medians, np.nan)[0, groups.group]
            np.copyto(usual, enough, where=np.isfinite(enough))
        return usual

    def _excuse(self, those: IntArray, low: BoolArray, loud: BoolArray, nodes: IntArray, patience: int) -> BoolArray:
        """Return whose fall its neighbours explain, for not more than `patience` looks."""
        if not patience:
            return np.zeros(len(those), bool)
        node = nodes[those]
        beside = np.bincount(node[low | loud], minlength=int(node.max(initial=0)) + 1)[node]
        shared = low & (beside > 1)
        self.excused[those] = np.where(shared, self.excused[those] + 1, np.where(low, self.excused[those], 0))
        excused: BoolArray = shared & (self.excused[those] <= patience)
        return excused

    def beyond_chance(self) -> IntArray:
        """Return who is low now, with evidence that exceeds what chance may bring within the budget."""
        return np.flatnonzero((self.evidence.wealth >= self.bar) & (self.well == 0))

    def arrays(self, prefix: str = "") -> dict[str, NDArray[Any]]:
        """Return the arrays by name, for a snapshot."""
        own = {f"{prefix}bar": np.array([self.bar, self.watched, self._looked], np.float64)}
        for name, part in self._parts():
            own |= part.arrays(f"{prefix}{name}_")
        return super().arrays(prefix) | own

    def load(self, arrays: Any, prefix: str = "") -> "Shares":
        """Take what `arrays` returned."""
        super().load(arrays, prefix)
        for name, part in self._parts():
            part.load(arrays, f"{prefix}{name}_")
        bar, watched, looked = arrays[f"{prefix}bar"].tolist()
        self.bar, self.watched, self._looked = bar, int(watched), int(looked)
        return self

    def _parts(self) -> tuple[tuple[str, Columns], ...]:
        return (
            ("own", self.own), ("others", self.others), ("for_work", self.for_work), ("evidence", self.evidence),
        )  # fmt: skip
