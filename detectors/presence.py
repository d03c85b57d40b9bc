"""Who is heard, and how often: the last reading of every entity, its usual interval, and how the jobs get on.

Missing data is a signal only against a habit. The interval is each entity's own (clusters are collected every 5 s,
every 30 s or every minute, often several in one), and how many readings in a row may be missing follows from how many
scrapes of that stream get lost anyway. Every figure of an entity comes of its own readings alone, so that it does
not matter where the stream is cut.
"""

import math
from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray, Kind
from detectors.fleet import Fleet

NEVER: Final = -1
_STEP = 0.1
"""How far one gap can move an interval: a new cadence is learnt within ten readings, one outage moves it little."""
_LATE = 1.7
"""A gap of so many intervals holds a lost scrape; up to `_OUTAGE` it was scrapes that got lost, beyond an outage."""
_OUTAGE = 5.5
_PRIOR_LOST, _PRIOR_ROWS = 0.1, 200
"""What is assumed of a stream before it is known: one scrape of two thousand gets lost."""
_CHANCE = 1e-8
"""How improbable so many lost scrapes in a row must be: 600 nodes read every 5 s are 1e7 readings a day."""
_FEWEST, _MOST = 3, 8
_STEPS_LATE, _STEPS_SLACK_MS = 2.0, 2000
"""A job's next step is overdue after so many of its usual intervals."""
_STEPS_GONE_MS = 3_600_000


def learnt_interval(usual: FloatArray, gap: FloatArray, step: float) -> FloatArray:
    """Return the usual intervals (n,) after one more gap each: moved towards it, by `step` of what they were at most.

    Where no interval was known the gap is taken for it; where the gap is NaN nothing changes.
    """
    most = step * usual
    moved = gap - usual
    np.minimum(moved, most, out=moved)
    np.maximum(moved, -most, out=moved)
    moved += usual
    unknown = np.isnan(moved)  # either was
    if np.count_nonzero(unknown):
        told = gap[unknown]
        moved[unknown] = np.where(np.isnan(told), usual[unknown], told)
    return moved


class Presence:
    """When each entity of a kind was last heard (`last`, ms; -1 never) and how often it is (`usual`, ms; NaN)."""

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.last = np.empty(0, np.int64)
        self.usual = np.empty(0)
        self._rows = 0
        self._lost = 0

    def __len__(self) -> int:
        return len(self.last)

    def grow(self, count: int) -> None:
        """Make room for entities that were not known before."""
        more = count - len(self)
        if more > 0:
            self.last = np.concatenate([self.last, np.full(more, NEVER, np.int64)])
            self.usual = np.concatenate([self.usual, np.full(more, np.nan)])

    def take(self, batch: Batch, present: BoolArray | None = None) -> None:
        """Take note of who is heard in a batch; `present` (ticks, entities) tells which of its rows count."""
        if len(batch.entities):
            self.grow(int(batch.entities.max()) + 1)
        for tick, here in enumerate(batch.present if present is None else present):
            if np.count_nonzero(here) == len(here):
                self.heard(batch.entities, batch.at[tick])
            else:
                self.heard(batch.entities[here], batch.at[tick, here])

    def heard(self, entities: IntArray, at: IntArray) -> None:
        """Take note of one reading of each of `entities`, all (n,), every entity at most once."""
        before, usual = self.last[entities], self.usual[entities]
        self.last[entities] = at
        self._rows += len(entities)
        gap = (at - before).astype(np.float64)
        fresh = before < 0
        if np.count_nonzero(fresh):
            gap[fresh] = np.nan
        self.usual[entities] = learnt_interval(usual, gap, _STEP)
        missed = gap / usual
        late = (missed > _LATE) & (missed < _OUTAGE)
        if np.count_nonzero(late):
            self._lost += int(np.rint(missed[late] - 1).sum())

    @property
    def patience(self) -> int:
        """Return how many readings in a row must be missing before that is no accident, as this stream goes."""
        chance = min((self._lost + _PRIOR_LOST) / (self._rows + _PRIOR_ROWS), 0.5)
        return min(max(math.ceil(math.log(_CHANCE) / math.log(chance)), _FEWEST), _MOST)

    def snapshot(self) -> tuple[list[int], dict[str, NDArray[Any]]]:
        """Return the state as numbers and arrays."""
        return [self._rows, self._lost], {f"{self.kind}_last": self.last, f"{self.kind}_usual": self.usual}

    def load(self, numbers: list[int], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self._rows, self._lost = numbers
        self.last, self.usual = arrays[f"{self.kind}_last"], arrays[f"{self.kind}_usual"]


class Roster:
    """The numbers that a detector gives to nodes (or switches), and whose each entity of a kind is."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
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

    def latest(self, presence: Presence) -> tuple[IntArray, FloatArray]:
        """Return when each of the owners was last heard in a stream (-1 never) and its interval there (ms; inf)."""
        owner = self.owners(presence.kind, len(presence))
        last = np.full(len(self), NEVER, np.int64)
        usual = np.full(len(self), np.inf)
        np.maximum.at(last, owner, presence.last)
        np.fmin.at(usual, owner, presence.usual)
        return last, usual


class Progress:
    """How the jobs that report steps get on: when each was last heard, and how often it usually is.

    In a synchronous job a step of any rank says that all of them live.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._job_of = np.empty(0, np.int64)
        self._heard = np.empty(0, np.int64)
        self._settled = np.empty(0, np.int64)
        self._usual = np.empty(0)

    def take(self, batch: Batch) -> None:
        """Take note of the steps in a batch."""
        if not len(batch.entities):
            return
        self._extend(int(batch.entities.max()) + 1)
        latest = np.where(batch.present, batch.at, NEVER).max(axis=0)
        np.maximum.at(self._heard, self._job_of[batch.entities], latest)

    def _extend(self, count: int) -> None:
        for job_id, _ in self._fleet.entities("steps")[len(self._job_of) : count]:
            name = str(job_id)
            if name not in self._numbers:
                self._numbers[name] = len(self._names)
                self._names.append(name)
        more = len(self._names) - len(self._heard)
        if more > 0:
            self._heard = np.concatenate([self._heard, np.full(more, NEVER, np.int64)])
            self._settled = np.concatenate([self._settled, np.full(more, NEVER, np.int64)])
            self._usual = np.concatenate([self._usual, np.full(more, np.nan)])
        keys = self._fleet.entities("steps")[len(self._job_of) : count]
        fresh = np.array([self._numbers[str(job_id)] for job_id, _ in keys], np.int64)
        self._job_of = np.concatenate([self._job_of, fresh])

    def settle(self) -> None:
        """At a point of the grid: learn how often each job is heard."""
        moved = self._heard > self._settled
        if not np.count_nonzero(moved):
            return
        gap = np.where(moved & (self._settled >= 0), self._heard - self._settled, np.nan)
        self._usual = learnt_interval(self._usual, gap, 2 * _STEP)
        self._settled = self._heard.copy()

    def of(self, job_id: str) -> tuple[Instant, float]:
        """Return when a job was last heard (-1 never) and its usual interval (ms; NaN unknown)."""
        number = self._numbers.get(job_id)
        if number is None:
            return NEVER, math.nan
        return int(self._settled[number]), float(self._usual[number])

    def goes_on(self, job_id: str, since: Instant, now: Instant) -> bool:
        """Return whether a job was heard after `since`, and lately."""
        last, usual = self.of(job_id)
        return last > since and not now - last > (_STEPS_LATE + 0.5) * usual + _STEPS_SLACK_MS

    def stopped(self, job_id: str, now: Instant) -> bool | None:
        """Return whether a job's next step is overdue; None if that cannot be told."""
        last, usual = self.of(job_id)
        if last == NEVER or math.isnan(usual):
            return None
        return now - last > _STEPS_LATE * usual + _STEPS_SLACK_MS

    def any_goes_on(self, now: Instant) -> bool:
        """Return whether any job at all was heard lately."""
        late = now - self._settled > (_STEPS_LATE + 0.5) * np.nan_to_num(self._usual, nan=0.0) + _STEPS_SLACK_MS
        return bool(((self._settled >= 0) & ~late).any())

    def snapshot(self) -> tuple[list[str], dict[str, NDArray[Any]]]:
        """Return the state as names and arrays."""
        arrays: dict[str, NDArray[Any]] = {
            "steps_job": self._job_of,
            "steps_heard": self._heard,
            "steps_settled": self._settled,
            "steps_usual": self._usual,
        }
        return self._names, arrays

    def load(self, names: list[str], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self._names = list(names)
        self._numbers = {name: number for number, name in enumerate(names)}
        self._job_of, self._heard = arrays["steps_job"], arrays["steps_heard"]
        self._settled, self._usual = arrays["steps_settled"], arrays["steps_usual"]


def reported(batch: Batch) -> BoolArray:
    """Return which rows of a batch report anything at all in the fields that were asked for, (ticks, entities)."""
    if not batch.valid:
        return batch.present
    some, rows = np.zeros(batch.present.shape, bool), np.count_nonzero(batch.present)
    for name, valid in batch.valid.items():
        some |= valid & np.isfinite(batch.values[name]) & batch.present
        if np.count_nonzero(some) == rows:
            break
    return some
