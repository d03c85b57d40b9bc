"""Counts that burst: how much every entity's counter grows, and when habit, peers and chance explain it no more.

A counter of errors is looked at every `LOOK_MS`: what it grew by beyond what is usual of that entity, and beyond what
the others grew by at the same time, over the root of what is usual. How often such a burst occurs here is known from
all entities (`detectors.core.tails`), apart for those that err now and then and those that never did. A burst that goes
on for some looks is one event: it counts once in the tail, by its worst look, and only where it was no fault.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import BoolArray, FloatArray, Instant, IntArray, index_of
from detectors.core.columns import Columns, column
from detectors.core.evidence import Evidence, threshold
from detectors.core.statistics import median_of
from detectors.core.tails import Tail, Tails

COLLECTED_MS: Final = 30_000
"""Exporters collect at least so often."""
LOOK_MS: Final = 20_000
RECENT_S: Final = 300.0
"""`Bursts.recent` forgets with this time constant: five minutes, the sliding window of dcgm-exporter's XID counts."""
_BEYOND: Final = 100.0
ONE_EVENT_MS: Final = 90_000
"""What is odd again within three times the collection interval of dcgm-exporter's defaults is one event."""
_HOT: Final = 3.0
"""Deviations of a Poisson count above which a look is part of a burst, and no longer what a habit scatters by."""
_BLANK_MS: Final = 120_000
"""A counter that is back where it was within two minutes of a fall was not reset: its collector was blank."""
_KNOWN: Final = 6
"""After so many looks, two minutes, an entity's habit is known well enough to bet on."""
_MEMORY: Final = 1080
"""Looks over which a habit is averaged: six hours."""
_DOUBT: Final = 3.0
"""Wealth (natural logarithm) from which on a burst is not learnt as habit: chance brings it once in twenty looks."""
_STRUCK: Final = 0.05
"""A look that chance brings more seldom than once in twenty is one in which an entity was struck."""
_KNOWN_TIMES: Final = 3
"""What lasts must have been away for three times as long: a pause in a habit is shorter."""
UNEVEN: Final = 5.0
"""What lasts is a fault at five times the rate of all time before, the next error counted with it; a storm's errors are
those beyond as many (judgement: errors that come by habit come at twice their rate for a quarter of an hour in
recordings of others; none says how rates of healthy memory vary, and jobs read a weak cell more often or less)."""
_HABIT: Final = LOOK_MS / 3_600_000
"""Errors a look, one an hour, from which on an entity is one that errs now and then."""


def credible(tail: Tail, residuals: FloatArray) -> FloatArray:
    """Return the odds (n,) of residuals, none smaller than what so many readings can speak for.

    A tail that is fitted to n readings is believed to a hundredth of 1 / n: the fewer there are, the more looks it
    takes.
    """
    return np.maximum(tail.odds(residuals), 1.0 / (_BEYOND * (tail.total + 1.0)))


class Counter(Columns):
    """A cumulative counter of every entity, or `rows` of each: through resets, blanks, and readings that repeat.

    `value` and `at` (ms) of the last reading, NaN and -1 before; `moved` the last that differed from the one before;
    `high` the value before it last fell, at `fell_at`; `grown` by how much it grew since the last look, in `spent_ms`
    between readings.
    """

    value: FloatArray = column(np.nan)
    at: IntArray = column(-1)
    moved: IntArray = column(-1)
    high: FloatArray = column(np.nan)
    fell_at: IntArray = column(-1)
    grown: FloatArray = column(0.0)
    spent_ms: FloatArray = column(0.0)

    def __init__(self, rows: int = 0) -> None:
        self.rows = (rows,) if rows else ()
        super().__init__()

    def take(self, entities: Any, at: IntArray, value: FloatArray) -> FloatArray:
        """Take one reading of each of `entities` at `at` (n,), NaN left out; return by how much each has grown.

        `value` and what is returned have shape (n,), and `entities` is an index of n; or (rows, n), and it is (n,).
        """
        if value.ndim == 1:
            return self._take(entities, at, value)
        places = (np.arange(len(value))[:, None] * self.count + entities).ravel()
        return self._take(places, np.concatenate([at] * len(value)), value.ravel()).reshape(value.shape)

    def _take(self, where: Any, at: IntArray, value: FloatArray) -> FloatArray:
        growth = np.zeros(len(value))
        known = np.isfinite(value)
        seen = np.count_nonzero(known)
        if not seen:
            return growth
        when, now = at, value
        if seen < len(known):
            where, when, now = np.arange(self.value.size)[where][known], at[known], value[known]
        values, highs, fell_at = self.value.reshape(-1), self.high.reshape(-1), self.fell_at.reshape(-1)
        change, last = now - values[where], self.at.reshape(-1)
        moves, spent = change != 0, when - last[where]  # or nothing is known yet; mostly few
        moved = np.count_nonzero(moves)
        if moved and np.count_nonzero(stays := change >= 0) < len(stays):
            spent = spent * stays
        self.spent_ms.reshape(-1)[where] += spent
        last[where] = when
        if not moved:
            return growth
        changed, then = np.arange(self.value.size)[where][moves], when[moves]
        reads, change = now[moves], change[moves]
        self.moved.reshape(-1)[changed] = then
        fell = change < 0
        if np.count_nonzero(fell):
            down = changed[fell]
            highs[down], fell_at[down] = values[down], then[fell]
        falls = fell_at[changed]
        more = np.where(change > 0, change, 0.0)
        blank = (falls >= 0) & (change > 0) & (then - falls <= _BLANK_MS) & (reads >= highs[changed])
        if np.count_nonzero(blank):
            more[blank] = reads[blank] - highs[changed[blank]]
            fell_at[changed[blank]] = -1
        self.grown.reshape(-1)[changed] += more
        values[changed] = reads
        growth[np.flatnonzero(known)[moves]] = more
        return growth

    def rates(self, entities: IntArray, at: IntArray, value: FloatArray, hold_ms: int) -> FloatArray:
        """Take readings as `take` does; return the rate of each per ms, NaN where there is none.

        A counter that fell has none. A reading that repeats the one before may be a collector's cached copy: growth is
        counted from the last that differed, and the rate is 0 only when the counter has not moved for `hold_ms`. One
        that stood for longer did not grow in all that time, as collectors collect at least so often.
        """
        before, since = self.value[..., entities], self.moved[..., entities]
        spent = np.maximum(at - self.at[..., entities], hold_ms)
        growth = self.take(entities, at, value)
        elapsed = np.maximum(np.minimum(at - since, spent), 1)
        settled = (since >= 0) & ((growth > 0) | ((value == before) & (at - since >= hold_ms)))
        rate = np.full(growth.shape, np.nan)
        np.divide(growth, elapsed, out=rate, where=settled)
        return rate

    def look(self, entities: Any) -> tuple[FloatArray, FloatArray]:
        """Return by how much each of `entities` (an index) grew since the last look, and in how many ms; begin anew."""
        of = (Ellipsis, entities) if self.rows else entities  # of one axis an index of one is much faster
        grown, spent = self.grown[of].copy(), self.spent_ms[of].copy()
        self.grown[of], self.spent_ms[of] = 0.0, 0.0
        return grown, spent


class Bursts(Columns):
    """Whose counter grows beyond habit, peers and chance.

    `level` errors a look that are usual, from `learnt` looks; `worst` the largest residual of the burst that goes on;
    `recent` errors, forgotten over `RECENT_S`; `now` errors in the last look; `hot_at` when it was last far too many;
    `struck` looks of more than chance brings since the evidence began, the last of them at `struck_at`; `totals` all
    errors, and the s in which they came, of which `before` the evidence began.
    """

    level: FloatArray = column(0.0)
    learnt: NDArray[np.int32] = column(0, dtype=np.int32)
    worst: NDArray[np.float32] = column(0.0, dtype=np.float32)
    recent: NDArray[np.float32] = column(0.0, dtype=np.float32)
    now: NDArray[np.float32] = column(0.0, dtype=np.float32)
    hot_at: IntArray = column(-1)
    struck: NDArray[np.int32] = column(0, dtype=np.int32)
    struck_at: IntArray = column(-1)
    totals: NDArray[np.float32] = column(0.0, 2, dtype=np.float32)
    before: NDArray[np.float32] = column(0.0, 2, dtype=np.float32)

    def __init__(self, name: str, tails: Tails, budget: float) -> None:
        """Bet with `budget` false alarms in 100 node-days; `name` is the signal's in `tails`."""
        super().__init__()
        self._name, self._tails, self._budget = name, tails, budget
        self.counter, self.evidence = Counter(), Evidence()
        self.bar, self.watched, self.usual_of_peers = np.inf, 0, 0.0
        self._looked: Instant = -1

    def grow(self, count: int) -> None:
        """Make room for `count` entities."""
        super().grow(count)
        self.counter.grow(count)
        self.evidence.grow(count)

    def due(self, now: Instant) -> bool:
        """Return whether a look is due at a point of the grid."""
        return now // LOOK_MS > self._looked

    def look(self, now: Instant, nodes: int, held: BoolArray) -> bool:
        """At a point of the grid: if a look is due, take it; `held` (count,) are those of which a finding is open.

        `nodes` is how many nodes the entities are of. Returns whether there was a look.
        """
        if not self.due(now):
            return False
        self._looked = now // LOOK_MS
        those = np.flatnonzero(self.counter.spent_ms > 0)
        if not len(those):
            return True
        where = index_of(those, self.count)
        grown, spent = self.counter.look(where)
        errors = grown * np.minimum(LOOK_MS / spent, 1.0)
        self.recent[where] = self.recent[where] * np.exp(-spent / 1000 / RECENT_S) + grown * np.minimum(
            RECENT_S * 1000 / spent, 1.0
        )
        wealth = self.evidence.wealth[where]
        calm = where if wealth.max() <= 0 else those[wealth <= 0]
        for before, total, more in zip(self.before, self.totals, (grown, spent / 1000), strict=True):
            before[calm] = total[calm]
            total[where] += more
        level = self.level[where]
        excess = errors - level
        most = len(those) > 3 and 2 * np.count_nonzero(excess > 0) >= len(those)  # else the median is not above 0
        common = max(median_of(excess), 0.0) if most else 0.0
        residual = np.maximum(excess - common, 0.0) / np.sqrt(level + common + 1.0)
        self.now[where] = errors
        self.hot_at[those[residual > _HOT]] = now
        never, at_times = (self._tails[f"{self._name}, {how}"] for how in ("never before", "now and then"))
        errs = level >= _HABIT
        odds = credible(never, residual)
        odds[errs] = credible(at_times, residual[errs])
        struck = odds < _STRUCK
        self.struck_at[those[struck]] = now
        odds[(self.learnt[where] < _KNOWN) | held[where]] = np.nan
        if common > 0:  # what most count at once is no fault of any of them, and says nothing of one
            odds[:] = np.nan
        self.evidence.look(those, odds, now, most=self.bar + 10 if np.isfinite(self.bar) else 60.0)
        self.struck[where] = np.where(self.evidence.wealth[where] > 0, self.struck[where] + struck, 0)
        self.watched = int(np.count_nonzero(self.learnt >= _KNOWN))
        self.bar = threshold(self._budget, self.watched, nodes, LOOK_MS / 1000)
        self._learn(now, those, where, errors, residual, errs, held[where])
        level = self.level[where]
        self.usual_of_peers = median_of(level) if 2 * np.count_nonzero(level) >= len(level) else 0.0
        return True

    def _learn(
        self,
        now: Instant,
        those: IntArray,
        where: Any,
        errors: FloatArray,
        residual: FloatArray,
        errs: BoolArray,
        held: BoolArray,
    ) -> None:
        wealth = self.evidence.wealth[where]
        on = (residual > _HOT) | held
        self.worst[those[on]] = np.maximum(self.worst[those[on]], residual[on])
        worst = self.worst[where]
        ended = ~on & ((worst <= 0) | (now - self.hot_at[where] > ONE_EVENT_MS))
        ended &= wealth < self.bar  # what chance does not explain is no chance to learn from
        typical = np.maximum(residual[ended], worst[ended])
        self.worst[those[ended & (worst > 0)]] = 0.0
        for tail, which in (("never before", ~errs[ended]), ("now and then", errs[ended])):
            self._tails[f"{self._name}, {tail}"].learn(typical[which])
        calm = ~held & (wealth < _DOUBT)
        some = where if np.count_nonzero(calm) == len(calm) else those[calm]
        seen = self.level[some]
        self.learnt[some] = np.minimum(self.learnt[some] + 1, _MEMORY)
        self.level[some] = seen + (np.minimum(errors[calm], 3 * seen + 1) - seen) / self.learnt[some]

    def beyond_chance(self) -> IntArray:
        """Return who counts more than usual now, with evidence that exceeds what chance may bring within the budget."""
        now = (self.now >= self.level + 1) & (self.counter.at > (self._looked - 1) * LOOK_MS)
        return np.flatnonzero((self.evidence.wealth >= self.bar) & now)

    def lasting(self, now: Instant, looks: int, for_ms: int) -> IntArray:
        """Return who counts beyond chance for so long, in so many looks, and far more often than in all time before."""
        lasts = (self.struck >= looks) & (now - self.evidence.since >= for_ms) & (now - self.struck_at < LOOK_MS)
        those = np.flatnonzero((self.evidence.wealth >= self.bar) & lasts)
        errors, spent_s = self.totals[:, those] - self.before[:, those]
        errors_before, spent_before_s = self.before[:, those]
        known = spent_before_s * 1000 >= _KNOWN_TIMES * for_ms
        more = errors * spent_before_s >= UNEVEN * (errors_before + 1) * spent_s
        found: IntArray = those[known & more]
        return found

    def begin_anew(self, entities: Any) -> None:
        """Drop the evidence against some entities, whose finding is over: it is no habit either."""
        self.evidence.forget(entities)
        self.worst[entities], self.recent[entities] = 0.0, 0.0

    def arrays(self, prefix: str = "") -> dict[str, NDArray[Any]]:
        """Return the arrays by name, for a snapshot."""
        own = {f"{prefix}bar": np.array([self.bar, self.watched, self.usual_of_peers, self._looked], np.float64)}
        parts = self.counter.arrays(f"{prefix}counter_") | self.evidence.arrays(f"{prefix}evidence_")
        return super().arrays(prefix) | parts | own

    def load(self, arrays: Any, prefix: str = "") -> "Bursts":
        """Take what `arrays` returned."""
        super().load(arrays, prefix)
        self.counter.load(arrays, f"{prefix}counter_")
        self.evidence.load(arrays, f"{prefix}evidence_")
        bar, watched, usual, looked = arrays[f"{prefix}bar"].tolist()
        self.bar, self.watched, self.usual_of_peers, self._looked = bar, int(watched), usual, int(looked)
        return self
