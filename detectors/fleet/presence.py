"""Who is heard, and how often: the last reading of every entity, its usual interval, and how the jobs get on.

Missing data is a signal only against a habit. The interval is each owner's own (clusters are collected every 5 s,
every 30 s or every minute, often several in one); how long a silence must last follows from those that end by
themselves here (`lapses`). Every figure of an entity comes of its own readings alone, and everything else is made
on the grid, so that it does not matter where the stream is cut.
"""

import math
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import Columns, column
from detectors.core.kept import Kept
from detectors.core.statistics import clamp
from detectors.core.survivors import Survivors
from detectors.fleet.fleet import Fleet
from detectors.fleet.gpu_work import GpuWork

NEVER: Final = -1
LATE: Final = 1.7
"""What was last heard more of its intervals ago has missed a reading; below lies jitter."""
LEAST_READINGS: Final = 9
"""Policy of silence: more in a row than the 3 to 8 scrapes that other clusters usually lose."""
REBOOT_MS: Final = 900_000
"""Physics: a server with eight GPUs boots within a quarter of an hour; a silent node without work may be doing so."""
_NOBODY: Final = np.empty(0, np.int64), np.empty(0)
_STEP = 0.1
"""How far one gap can move an interval: a new cadence is learnt within ten readings, one outage moves it little."""
_FEW: Final = 256
"""Of so many entities each is looked at: to leave out those that say the same as the one before takes longer."""
_STEPS_LATE, _STEPS_SLACK_MS = 2.0, 2000
"""A job's next step is overdue after so many of its usual intervals."""
_MOST, _ALL = 0.5, 0.95
"""Of the GPUs of a job that is listed, and of one that is inferred: its nodes are approximate, and where none of them
stands, none of those that wait for a dead one is among them.
"""


def learnt_interval(usual: FloatArray, gap: FloatArray, step: float) -> FloatArray:
    """Return the usual intervals (n,) after one more gap each: moved towards it, by `step` of what they were at most.

    Where no interval was known the gap is taken for it; where the gap is NaN nothing changes.
    """
    learnt, other = usual.copy(), (gap != usual) & ~np.isnan(gap)
    # Mostly few, or none: Prometheus aligns the times of its scrapes.
    some = np.count_nonzero(other)
    if not some:
        return learnt
    those: Any = other.nonzero()[0] if 4 * some < len(other) else slice(None)
    usual, gap = usual[those], gap[those]
    moved = usual + clamp(gap - usual, -step * usual, step * usual)
    learnt[those] = np.where(np.isnan(gap), usual, np.where(np.isnan(usual), gap, moved))
    return learnt


def gap_since(before: IntArray, at: IntArray) -> FloatArray:
    """Return the time (n,) from one reading to the next, NaN where there was none before (-1)."""
    gap = (at - before).astype(np.float64)
    never = before < 0
    if np.count_nonzero(never):
        gap[never] = np.nan
    return gap


def _unlike_the_last(*columns: NDArray[Any]) -> IntArray:
    """Return the rows of some columns (n,) that differ from the one before: entities of one owner mostly say the same.

    Of equal ones in a row one is enough where only the least or the greatest counts.
    """
    unlike = np.ones(len(columns[0]), bool)
    np.not_equal(columns[0][1:], columns[0][:-1], out=unlike[1:])
    for values in columns[1:]:
        unlike[1:] |= values[1:] != values[:-1]
    return unlike.nonzero()[0]


class Readings(Columns):
    """By entity: its `last` reading (ms; -1 never) and the longest `gap` between two since the last look (ms; NaN)."""

    last: IntArray = column(NEVER)
    gap: FloatArray = column(np.nan)
    _looked_at = False
    """All gaps are NaN, as it was looked at since the last reading."""

    def take(self, batch: Batch, present: BoolArray | None = None) -> None:
        """Take note of who is heard in a batch; `present` (ticks, entities) is which of its rows count."""
        self.grow(batch.reach)
        if present is None:
            for tick, here in batch.ticks():
                self.heard(batch.index(here, len(self)), batch.at[tick, here])
            return
        for tick, here in enumerate(present):
            if np.count_nonzero(here) == len(here):
                self.heard(batch.index(slice(None), len(self)), batch.at[tick])
            else:
                self.heard(batch.entities[here], batch.at[tick, here])

    def heard(self, entities: Any, at: IntArray) -> None:
        """Take note of a reading at `at` (n,) of each of `entities`, an index of n of them, every one at most once."""
        gap = gap_since(self.last[entities], at)
        self.gap[entities] = gap if self._looked_at else np.fmax(self.gap[entities], gap)
        self.last[entities], self._looked_at = at, False

    def look(self) -> FloatArray:
        """Return the gaps, and begin with none."""
        gaps, self.gap, self._looked_at = self.gap, np.full(len(self), np.nan), True
        return gaps


class Attendance(Columns):
    """Of every owner in one stream (a node of its GPUs, a switch of its ports, a job of its ranks), at the last look.

    `last` reading of any of its entities (ms; -1 never); `usual` interval (ms; NaN unknown); `gap` before its readings
    since the look before (ms; NaN: none came); `back_at` when it came back after readings were missing (-1 never).
    An entity may be its own owner: then no `axis` is given. Else that is what numbers the owners.
    """

    last: IntArray = column(NEVER)
    usual: FloatArray = column(np.nan)
    gap: FloatArray = column(np.nan)
    back_at: IntArray = column(NEVER)

    KEPT = ("readings", "_looked")

    def __init__(self, kind: str, axis: Any = None) -> None:
        super().__init__()
        self.kind, self.axis = kind, kind if axis is None else axis
        self.readings = Readings().along(kind)
        self._looked: Instant = NEVER
        self.late: IntArray = _NOBODY[0]
        """The owners whose gap before the newest readings exceeds jitter, mostly none."""
        self.late_by: FloatArray = _NOBODY[1]
        """How many of its intervals the gap of each of these was."""
        self._silent = False
        """All gaps are NaN, as nobody was heard since the look before."""
        self._missed: tuple[Instant, FloatArray] | None = None
        """What `missed` returned since the last look, and for when: several ask the same."""

    def look(self, now: Instant, owner: IntArray | None = None, owners: int = 0) -> None:
        """At a point of the grid: take note of who was heard; `owner` (entities,) says whose each entity is.

        One entity's lost reading is not its owner's: the owner's gap is the least of theirs.
        """
        readings = self.readings
        owners = len(readings) if owner is None else owners
        self.grow(owners)
        looked, self._looked, self._missed = self._looked, now, None
        self.late, self.late_by = _NOBODY
        if not len(readings) or np.maximum.reduce(readings.last) <= looked:  # nobody was heard
            if not self._silent:
                self.gap, self._silent = np.full(owners, np.nan), True
            return
        gaps, self._silent = readings.look(), False
        if owner is None:
            interval = self.gap = gaps
            self.last = readings.last.copy()
        else:
            if len(readings) <= _FEW:
                rows = (readings.last > looked).nonzero()[0]
            else:
                rows = _unlike_the_last(owner, readings.last, gaps)
                rows = rows[readings.last.take(rows) > looked]
            own, at = owner, readings.last
            if len(rows) < len(readings):
                own, at, gaps = owner.take(rows), at.take(rows), gaps.take(rows)
            since = gap_since(self.last.take(own), at)
            usual = self.usual.take(own)
            since[np.isnan(usual)] = np.nan
            self.gap, interval = np.full((2, owners), np.nan)
            np.fmin.at(self.gap, own, np.fmin(gaps, since))
            # How often an owner is read is how often its entities are: the rest of a scrape that a look divides is no
            # second scrape; who is back later than others of its owner says nothing of it.
            most = LATE * usual
            gaps[(gaps > most) & ~(since > most)] = np.nan
            np.fmin.at(interval, own, gaps)
            np.maximum.at(self.last, own, at)
        missed = self.gap / self.usual
        late = missed > LATE
        if np.count_nonzero(late):
            self.late = late.nonzero()[0]
            self.late_by, self.back_at[self.late] = missed[self.late], self.last[self.late]
        self.usual = learnt_interval(self.usual, interval, _STEP)

    def silent(self, now: Instant) -> FloatArray:
        """Return for how long each owner has not been heard, ms; 0 of one that never was."""
        return np.where(self.last >= 0, now - self.last, 0).astype(np.float64)

    def missed(self, now: Instant) -> FloatArray:
        """Return how many of its intervals ago each owner was last heard; 0 where that is not known."""
        if self._missed is None or self._missed[0] != now:
            self._missed = now, np.fmax(self.silent(now) / np.maximum(self.usual, 1.0), 0.0)
            self._missed[1].setflags(write=False)
        return self._missed[1]

    def fresh(self, now: Instant, intervals: float, least_ms: float) -> BoolArray:
        """Return who was heard in the last so many of its intervals, or in the last `least_ms`."""
        reach = np.fmax(intervals * self.usual, least_ms)
        return np.asarray((self.last >= 0) & (now - self.last <= reach))


class Roster:
    """The numbers that a detector gives to machines (nodes, switches) or jobs, and whose each entity of a kind is."""

    def __init__(self, fleet: Fleet, what: str = "machine") -> None:
        self._fleet, self._what = fleet, what
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._owner: dict[str, IntArray] = {}

    def __len__(self) -> int:
        return len(self.names)

    def number(self, name: str) -> int:
        """Return the number of a name; it is given one if it has none."""
        if name not in self._numbers:
            self._numbers[name] = len(self.names)
            self.names.append(name)
        return self._numbers[name]

    def known(self, name: str) -> int | None:
        """Return the number of a name, if it has one."""
        return self._numbers.get(name)

    def owners(self, kind: str, count: int) -> IntArray:
        """Return whose each of the first `count` entities of a kind is, (count,)."""
        known = self._owner.get(kind)
        if known is None:
            known = self._owner[kind] = np.empty(0, np.int64)
        if count > len(known):
            keys = self._fleet.entities(kind)[len(known) : count]
            more = np.array([self.number(str(key[0])) for key in keys], np.int64)
            known = self._owner[kind] = np.concatenate([known, more])
        return known[:count]

    def latest(self, heard: Attendance) -> tuple[IntArray, FloatArray]:
        """Return when each of the owners was last heard in a stream (-1 never) and its interval there (ms; inf).

        `heard` is by entity.
        """
        owner = self.owners(heard.kind, len(heard))
        last = np.full(len(self), NEVER, np.int64)
        usual = np.full(len(self), np.inf)
        if len(heard):
            rows: Any = slice(None) if len(owner) <= _FEW else _unlike_the_last(owner, heard.last, heard.usual)
            np.maximum.at(last, owner[rows], heard.last[rows])
            np.fmin.at(usual, owner[rows], heard.usual[rows])
        return last, usual

    def surviving(self, survivors: Survivors) -> IntArray:
        """Return which numbers (n,) survive, in order of the new ones."""
        gone = survivors.names(self._what)
        return np.array([number for number, name in enumerate(self.names) if name not in gone], np.int64)

    def go_on_with(self, survivors: Survivors) -> None:
        """Drop the names that are gone."""
        self.names = [self.names[number] for number in self.surviving(survivors).tolist()]

    def snapshot(self) -> list[str]:
        """Return the state as JSON can say it."""
        return self.names

    def load(self, names: list[str]) -> None:
        """Take what `snapshot` returned."""
        for name in names:
            self.number(name)


class Progress(Kept):
    """How jobs get on: when each last reported a step, and how often it usually does; of others, what their GPUs do.

    In a synchronous job a step of any rank says that all of them live.
    """

    KEPT = ("_jobs", "_steps", "_gpus")

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._jobs = Roster(fleet, "job")
        self._steps = Attendance("steps", self._jobs)
        self._gpus = GpuWork(fleet)

    def take(self, batch: Batch) -> None:
        """Take note of the steps in a batch, or of what GPUs do."""
        if batch.kind == "steps":
            self._steps.readings.take(batch)
        elif batch.kind == "dcgm":
            self._gpus.take(batch)

    def settle(self, now: Instant) -> tuple[int, FloatArray]:
        """At a point of the grid: learn how often each job is heard; return how many were, and the pauses that ended.

        A pause is given in intervals of its job.
        """
        steps = self._steps
        steps.look(now, self._jobs.owners("steps", len(steps.readings)), len(self._jobs))
        return int(np.count_nonzero(np.isfinite(steps.gap))), steps.late_by

    def of(self, job_id: str) -> tuple[Instant, float]:
        """Return when a job was last heard (-1 never) and its usual interval (ms; NaN unknown)."""
        number = self._jobs.known(job_id)
        if number is None or number >= len(self._steps):
            return NEVER, math.nan
        return int(self._steps.last[number]), float(self._steps.usual[number])

    def goes_on(self, job_id: str, since: Instant, now: Instant) -> bool:
        """Return whether a job was heard after `since`, and lately."""
        last, usual = self.of(job_id)
        return last > since and not now - last > (_STEPS_LATE + 0.5) * usual + _STEPS_SLACK_MS

    def lives_by(self, job_id: str, since: Instant, now: Instant) -> str:
        """Return what shows that a job worked after `since`, and lately: its steps, else its GPUs; empty: nothing.

        Which nodes an inferred job has is approximate: that some of them work on is no sign of the others, all are.
        """
        if self.of(job_id)[0] != NEVER:
            return f"steps of job {job_id}" if self.goes_on(job_id, since, now) else ""
        job = self._fleet.jobs.get(job_id)
        works = job is not None and self._gpus.goes_on(job, since, now, share=_ALL if job.inferred else _MOST)
        return f"the work of job {job_id} on other nodes" if works else ""

    def stands_since(self, job_id: str, node: str, since: Instant) -> Instant:
        """Return when the GPUs of a job's other nodes last worked, by what was read after `since`; -1 if that is not
        known, or the job reports steps, which know better.
        """
        job = self._fleet.jobs.get(job_id)
        if job is None or self.of(job_id)[0] != NEVER:
            return NEVER
        others = [other for other in job.nodes if other != node]
        return self._gpus.stands_since(others, since, spinning=job.inferred)  # nobody says when such a job ends

    def stopped(self, job_id: str, now: Instant) -> bool | None:
        """Return whether a job's next step is overdue; None if that is not known."""
        last, usual = self.of(job_id)
        if last == NEVER or math.isnan(usual):
            return None
        return now - last > _STEPS_LATE * usual + _STEPS_SLACK_MS

    def any_goes_on(self, now: Instant) -> bool:
        """Return whether any job at all was heard lately."""
        late = self._steps.silent(now) > (_STEPS_LATE + 0.5) * np.fmax(self._steps.usual, 0.0) + _STEPS_SLACK_MS
        return bool(((self._steps.last >= 0) & ~late).any())


def reported(batch: Batch) -> BoolArray:
    """Return which rows of a batch report anything at all in the fields that were asked for, (ticks, entities)."""
    if not batch.valid:
        return batch.present
    some, rows = np.zeros(batch.present.shape, bool), np.count_nonzero(batch.present)
    for name in batch.sound:  # the others nobody reports
        some |= batch.valid[name] & np.isfinite(batch.values[name]) & batch.present
        if np.count_nonzero(some) == rows:
            break
    return some
