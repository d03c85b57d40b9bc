"""How the ports of a kind are doing: who waits, and whether that is unusual for it, here.

What a port waits for is measured in shares of what would matter (a strength of 1: `Bars`). At each look, every twenty
seconds, its strengths are compared with its own habit, and that change with the change of its peers: ports of its kind
on other switches (each switch has one voice), and ports of the same job. What is high for good is thus no change, and
what rises everywhere is nobody's. How often changes as large occur in this cluster is learnt (`detectors.core.tails`);
evidence adds up over looks (`detectors.core.evidence`).
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np

from detectors.congestion.config import CongestionConfig
from detectors.congestion.counters import SIGNALS, Counters, Fields
from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray, Kind
from detectors.core.columns import Columns, column
from detectors.core.evidence import Evidence, bet, joint
from detectors.core.kept import Kept
from detectors.core.residuals import Groups, Habit, learn_together
from detectors.core.statistics import clamp, known_or, median_of
from detectors.core.tails import Tails, learn_events

LOOK_MS: Final = 20_000
_WHOLE: Final = 0.9
"""Scrapes jitter: four readings every five seconds are a look."""
_BURST_S: Final = 30.0
"""Incasts of collectives and checkpoints congest a port for up to half a minute: looks within one burst are no
independent ones, and count for as much of one as they last of it."""
_APART_S: Final = 60.0
"""Looks a minute apart are learnt as independent ones."""
_HABIT_S, _HABIT_LEAST_S = 3600.0, 90.0
TRACE: Final = 0.1
"""A tenth of what matters is nothing: below it no change counts."""
_COOLING: Final = 0.5
"""A calm second takes back half of a hot one: what comes and goes adds up, a burst in every three minutes does not."""
_FRESH_MS: Final = 150_000
_IDLE_PER_S: Final = 1e6
"""Bytes or words a second: management traffic stays far below it, work does not."""
_NO_WAIT: Final = 1e-15
"""Of the strength that each word waits: a trace of what matters, at any traffic that there is."""
_ODD: Final = 0.01
_MARKS_TIMES: Final = 10.0
"""Of what a port marks, and is paused, usually: twice the traffic may mark some times as much. Policy."""
_PAUSED: Final = 0.02
"""Of what matters: somebody waits a little, and is not only asked to send less."""
JUDGED: Final = len(SIGNALS) - 1
"""All signals but traffic."""
_WAIT: Final = SIGNALS.index("wait")
WAITS: Final = ("rx", "tx", "drop", "wait", "retry")
"""What makes somebody wait; marks alone are how a RoCE fabric works."""
_PARTS_OF_TIME: Final = [SIGNALS.index(signal) for signal in ("rx", "tx", "wait")]


class Looks(Columns):
    """By port: `strength` at the last look (signals, n), `shown` at the last one that was hot, its `change` against its
    habit (ln), the `odds` of each by chance, for how many seconds it has been `hot` (calm ones taken off), since when
    and until when; what it `carried` over `carried_s` seconds, by how much the last traffic was a `surge` over it (ln);
    `burst` the largest residual of what is not known yet to be a burst or a fault; `per_word` the strength of its
    waiting for each word that it sent, NaN where it sent none to speak of.
    """

    strength: FloatArray = column(np.nan, JUDGED)
    shown: FloatArray = column(np.nan, JUDGED)
    change: FloatArray = column(np.nan, JUDGED)
    odds: FloatArray = column(np.nan, JUDGED)
    burst: FloatArray = column(np.nan, JUDGED)
    at: IntArray = column(-1)
    hot_s: FloatArray = column(0.0)
    hot_since: IntArray = column(-1)
    last_hot: IntArray = column(-1)
    per_word: FloatArray = column(np.nan)
    surge: FloatArray = column(np.nan)
    carried: FloatArray = column(np.nan)
    carried_s: FloatArray = column(0.0)
    BESIDE = ("evidence", "habits", "usual_per_word")

    def __init__(self) -> None:
        super().__init__()
        self.evidence = Evidence()
        self.habits = [Habit(_HABIT_S) for _ in range(JUDGED)]
        self.usual_per_word = Habit(_HABIT_S)


class Flows(Kept):
    """Looks at the ports of a kind, `switch` or `nic`."""

    KEPT = ("_counters", "looks")

    def __init__(self, config: CongestionConfig, kind: Kind, fields: Fields, tails: Tails) -> None:
        self._config, self._kind, self.tails = config, kind, tails
        self._counters = Counters(fields).along(kind)
        self._judged = [row for row in range(JUDGED) if fields[SIGNALS[row]]]
        self.looks = Looks().along(kind)
        self.evidence, self.habits = self.looks.evidence, self.looks.habits
        self._matters: FloatArray = np.empty(0)

    def __len__(self) -> int:
        return len(self.looks)

    def take(self, batch: Batch) -> None:
        """Take a batch, row after row of each port."""
        self._counters.take(batch)
        self.looks.grow(len(self._counters))

    def look(self, now: Instant, bars: FloatArray, peers: "Peers", known: BoolArray, matters: FloatArray) -> None:
        """Look at every port that has been read since the last look.

        `bars` (signals, ports) are the rates that matter (1/s); `known` (ports,) are those that a finding covers
        already: nothing is learnt of them. `matters` (ports,) says from which share of these rates on that is so.
        """
        self._matters = matters
        self.looks.hot_s[now - self.looks.at > _FRESH_MS] = 0.0
        ports = self._counters.ready(int(_WHOLE * LOOK_MS))
        if not len(ports):
            return
        looks = self.looks
        rates, spent_s = self._counters.rates(ports)
        strength = looks.strength[:, ports] = rates[:JUDGED] / bars[:, ports]
        looks.at[ports] = self._counters.at[ports]
        self._load(now, ports, rates[JUDGED], peers)
        expected = self._at_traffic(now, ports, rates[JUDGED], peers)
        level, used_to = np.log(strength + TRACE), self._used_to(ports)
        change = level - used_to
        # Who sends more waits more: what a port waits at its traffic is no change.
        change[_WAIT] = np.minimum(change[_WAIT], level[_WAIT] - np.log(expected + TRACE))
        looks.change[:, ports] = change
        residual = self._residuals(now, ports, peers)
        for row in self._judged:
            looks.odds[row, ports] = self.tails[self._name(row)].odds(residual[row])
        waits = self._waits(ports, strength, used_to, expected)
        self._weigh(ports, spent_s, waits)
        self._learn(ports, spent_s, level, rates[JUDGED], residual, known[ports], waits)

    def _load(self, now: Instant, ports: IntArray, traffic: FloatArray, peers: "Peers") -> None:
        """Forget what ports are used to that carry twice what they did when they learnt it, and their peers as well.

        A job has begun there, or works again: what a port waits at one load says nothing of what it waits at another.
        Not what they drop, for which no load is an excuse. Traffic that doubles at one port alone is no load.
        """
        looks = self.looks
        looks.surge[ports] = np.log((traffic + _IDLE_PER_S) / (looks.carried[ports] + _IDLE_PER_S))
        surge = np.where(now - looks.at <= _FRESH_MS, looks.surge, np.nan)
        surging = surge[ports] > np.log(2)
        if not np.count_nonzero(surging):
            return
        loaded = surging & (peers.common(surge[None], ports, [True], self._held_up())[0] > np.log(2))
        if not np.count_nonzero(loaded):
            return
        looks.carried[ports[loaded]], looks.carried_s[ports[loaded]] = np.nan, 0.0
        self._unlearn(ports[loaded])

    def accept(self, ports: IntArray) -> None:
        """Take what some ports (n,) wait now for what they are used to, though not what they drop."""
        self.looks.usual_per_word.forget(ports)
        self._unlearn(ports)

    def _unlearn(self, ports: IntArray) -> None:
        for row in self._judged:
            if SIGNALS[row] not in {"drop", "retry"}:
                self.habits[row].forget(ports)
        self.looks.hot_s[ports] = 0.0
        self.evidence.forget(ports)

    def _at_traffic(self, now: Instant, ports: IntArray, traffic: FloatArray, peers: "Peers") -> FloatArray:
        """Return how much each of `ports`, with `traffic` (n,) words a second, would wait if each word waited as usual.

        A port that has only begun to send has no habit of its own: there it is the median of those of its kind. What
        is usual moves with that of its peers: where the words of a job wait longer than those of the job before, a port
        that has always waited ten times as long as the others goes on to, from far below what matters to above it.
        """
        looks = self.looks
        sent = np.where(traffic > _IDLE_PER_S, traffic, np.nan)
        looks.per_word[ports] = looks.strength[_WAIT, ports] / sent
        alike = median_of(looks.per_word[(now - looks.at <= _FRESH_MS) & np.isfinite(looks.per_word)])
        own = looks.usual_per_word
        learnt = own.learnt_s >= _HABIT_LEAST_S
        waited = learnt & (own.level > np.log(_NO_WAIT)) & (now - looks.at <= _FRESH_MS) & (looks.per_word > _NO_WAIT)
        with np.errstate(invalid="ignore", divide="ignore"):
            longer = np.where(waited, np.log(looks.per_word) - own.level, np.nan)
        common = known_or(peers.common(longer[None], ports, [False], self._held_up())[0], 0.0)
        own.level[ports] += np.where(waited[ports], common, 0.0)
        usual = np.where(learnt[ports], np.exp(own.level[ports]), alike)
        return known_or(usual * sent, 0.0)

    def _held_up(self) -> BoolArray:
        """Return at which ports a job is held up, (ports,): less matters there."""
        return self._matters < 1

    def _name(self, row: int) -> str:
        return f"{self._kind}.{SIGNALS[row]}"

    def _residuals(self, now: Instant, ports: IntArray, peers: "Peers") -> FloatArray:
        """Return by how much (a share of the rate) each of `ports` changed more than its peers did, (signals, n)."""
        looks = self.looks
        recent = now - looks.at <= _FRESH_MS
        residual = np.full((JUDGED, len(ports)), np.nan)
        rows = [row for row in self._judged if np.count_nonzero(np.isfinite(looks.change[row, ports]))]
        if rows:
            change = np.where(recent, looks.change[rows], np.nan)
            alike = [row == _WAIT and self._kind == "switch" for row in rows]
            common = peers.common(change, ports, alike, self._held_up())
            residual[rows] = np.expm1(change[:, ports] - np.fmax(common, 0.0))
        return residual

    def _weigh(self, ports: IntArray, spent_s: FloatArray, waits: BoolArray) -> None:
        """Add what the looks at `ports` say to their evidence."""
        looks = self.looks
        odds = looks.odds[:, ports]
        nobody_waits = np.isfinite(odds) & ~waits
        chance = known_or(joint(np.where(nobody_waits, 1.0, odds)), 1.0)
        share = np.minimum(spent_s / _BURST_S, 1.0)
        self.evidence.look(ports, chance, looks.at[ports], weight=share)
        hot = bet(chance) > 0
        before = looks.hot_s[ports]
        spent = np.minimum(np.round(spent_s), self._config.sustain_s)
        after = clamp(before + np.where(hot, spent, -_COOLING * spent), 0.0, 1.5 * self._config.sustain_s)
        began = looks.at[ports] - (1000 * spent_s).astype(np.int64)
        looks.hot_since[ports] = np.where(hot & (before <= 0), began, np.where(after > 0, looks.hot_since[ports], -1))
        looks.hot_s[ports] = after
        looks.last_hot[ports[hot]], looks.shown[:, ports[hot]] = looks.at[ports[hot]], looks.strength[:, ports[hot]]

    def _waits(self, ports: IntArray, strength: FloatArray, used_to: FloatArray, expected: FloatArray) -> BoolArray:
        """Return which signals (signals, n) of `ports` say that somebody waits, and far more than usual.

        `strength` is that of this look, of which they are `used_to` so much (ln), `expected` (n,) at their traffic.
        By what matters, and by as much again or half of the time that was left to wait in: a pause need not last as
        long as it may, so that a tenth of it matters where the steps of the job at the port have become longer. Packets
        come twice where links err, too: of retransmissions only those count that come with marked packets. Marks
        alone are how a RoCE fabric works: far more than usual, and some pauses, say why such steps became longer.
        """
        usual = known_or(_strengths(used_to), 0.0)
        usual[_WAIT] = np.maximum(usual[_WAIT], expected)
        left = np.full(usual.shape, np.inf)
        left[_PARTS_OF_TIME] = 1 / self._config.waiting_share - usual[_PARTS_OF_TIME]
        more = known_or(strength, 0.0) - usual
        waits = more >= np.fmax(np.fmin(usual, left / 2), self._matters[ports])
        mark, retry = SIGNALS.index("mark"), SIGNALS.index("retry")
        rose = known_or(strength, 0.0) >= np.fmax(_MARKS_TIMES * usual, _PAUSED)
        waits[mark] = rose[mark] & (strength[mark] >= 1) & rose[_PARTS_OF_TIME].any(axis=0)
        waits[mark] &= (self._matters[ports] < 1) & (self.looks.odds[mark, ports] <= _ODD)
        waits[retry] &= self.looks.odds[mark, ports] <= _ODD
        return waits

    def _learn(
        self,
        ports: IntArray,
        spent_s: FloatArray,
        level: FloatArray,
        traffic: FloatArray,
        residual: FloatArray,
        known: BoolArray,
        waits: BoolArray,
    ) -> None:
        """Learn habits, at which traffic they are so, and tails from what is no fault.

        What is twice as much as usual may be a burst or a fault: it is learnt from when it is over, as one burst.
        """
        looks = self.looks
        cool, odd = (looks.hot_s[ports] <= 0) & ~known, residual >= 1
        steady = cool & ~(waits & odd).any(axis=0)
        # In eighths: sums of these are exact, in whatever order they are added up.
        eighths = clamp(np.ceil(8 * spent_s / _APART_S), 1, 8).astype(np.int64)
        shares = [(number / 8, eighths == number) for number in np.flatnonzero(np.bincount(eighths)).tolist()]
        those, spent = ports[steady], spent_s[steady]
        self._carry(those, traffic[steady], spent)
        per_word = np.log(np.maximum(looks.per_word[those], _NO_WAIT))
        looks.usual_per_word.learn(those, per_word, spent)
        if self._judged:
            learn_together([self.habits[row] for row in self._judged], those, level[self._judged][:, steady], spent)
        for row in self._judged:
            tail, burst = self.tails[self._name(row)], looks.burst[row]
            calm = cool & ~odd[row]
            for share, alike in shares:
                tail.learn(residual[row, calm & alike], share)
            learn_events(tail, burst, ports, residual[row], calm)
            burst[ports[known]] = np.nan  # a fault is no burst

    def _carry(self, ports: IntArray, traffic: FloatArray, spent_s: FloatArray) -> None:
        """Learn what ports (n,) carry: the plain mean of as long as habits are, in which idle hours count."""
        looks = self.looks
        some = np.isfinite(traffic)
        those, spent = ports[some], spent_s[some]
        looks.carried_s[those] = np.minimum(looks.carried_s[those] + spent, _HABIT_S)
        before = known_or(looks.carried[those], 0.0)
        looks.carried[those] = before + (traffic[some] - before) * spent / looks.carried_s[those]

    def hot(self, now: Instant, share: float, wealth: float) -> IntArray:
        """Return the ports that are hot for that share of what must be sustained, by that much evidence."""
        enough = (
            (now - self.looks.at <= _FRESH_MS)
            & (self.looks.hot_s >= share * self._config.sustain_s)
            & (self.evidence.wealth >= wealth)
        )
        return np.flatnonzero(enough)

    def pausing(self, least: float) -> BoolArray:
        """Return which ports pause those who send to them unusually often, for `least` of what matters, (ports,)."""
        sent = SIGNALS.index("tx")
        return np.asarray((self.looks.odds[sent] <= _ODD) & (self.looks.strength[sent] >= least))

    def odd_marks(self) -> BoolArray:
        """Return which ports mark (are sent marked packets) unusually often, (ports,)."""
        mark = SIGNALS.index("mark")
        return np.asarray((self.looks.odds[mark] <= _ODD) & (self.looks.strength[mark] >= 1))

    def usual(self) -> FloatArray:
        """Return what each port is used to, in strengths, (signals, ports); NaN where that is not known yet."""
        return _strengths(self._used_to(slice(None)))

    def _used_to(self, ports: Any) -> FloatArray:
        """Return what some ports are used to, (signals, n), as a logarithm; NaN where that is not known yet."""
        known = [(habit.learnt_s[ports] >= _HABIT_LEAST_S, habit.level[ports]) for habit in self.habits]
        return np.array([np.where(learnt, level, np.nan) for learnt, level in known])


def _strengths(level: FloatArray) -> FloatArray:
    """Return the strengths that are learnt as such logarithms; any shape."""
    return np.asarray(np.maximum(np.exp(level) - TRACE, 0.0))


class Peers:
    """Who is compared with whom: `unit` (ports,) numbers the ports of one kind on one switch, `kind_of` (units,) the
    kind of each unit, `job` (ports,) the job of the host at the port, -1 where there is none.
    """

    def __init__(self, unit: IntArray, kind_of: IntArray, job: IntArray) -> None:
        self._unit, self._kind_of, self._job = unit, kind_of, job
        self._units = Groups(unit, len(kind_of))
        self._kinds = Groups(kind_of, int(kind_of.max(initial=-1)) + 1)
        self._jobs = Groups(job, int(job.max(initial=-1)) + 1)

    def common(self, change: FloatArray, ports: IntArray, alike: Sequence[bool], held_up: BoolArray) -> FloatArray:
        """Return what the peers of some `ports` (n,) have in common of changes (rows, ports), (rows, n); NaN: no peers.

        In rows that are `alike` also what the ports of its own kind on its own switch do: a leaf whose uplinks all wait
        alike for credits is given more than they carry, and that is load; unless a job there is `held_up` (ports,).
        """
        units, sizes = self._units.medians(change, lower=True)
        kinds, many = self._kinds.medians(units, lower=True)
        alone = (many[:, self._kind_of] < 2) & (sizes < 2)
        theirs = np.where(alone, np.nan, kinds[:, self._kind_of])
        common = theirs[:, self._unit[ports]]
        for row in np.flatnonzero(alike).tolist():
            beside = np.where(sizes[row] > 1, units[row], np.nan)[self._unit[ports]]
            common[row] = np.fmax(common[row], np.where(held_up[ports], np.nan, beside))
        jobs, mates = self._jobs.medians(change)
        if jobs.size:
            jobs = np.append(np.where(mates > 2, jobs, np.nan), np.full((len(jobs), 1), np.nan), axis=1)
            common = np.fmax(common, jobs[:, self._job[ports]])  # -1 is the last: no job
        return common
