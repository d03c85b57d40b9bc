"""How fast jobs go: step times by the minute, of the last two hours, in whole numbers.

Sums are kept in integer microseconds: they come out the same in whatever pieces the steps arrive.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, Instant, IntArray
from detectors.core.statistics import median_of, stable_order
from detectors.fleet.fleet import Fleet

BUCKET_MS = 60_000
BUCKETS = 130
LOOK_BACK = 120
"""Minutes that can be looked at: the others of the ring may already hold what came since, in the same stretch."""
_LONGEST_STEP_S = 86_400.0
_MOST_JOBS = 4096
_NEVER = -(2**62)


@dataclass(slots=True)
class _Pace:
    """Rings over minutes, of steps that ended in them."""

    rings: IntArray
    """All five, of shape (5, BUCKETS)."""
    last: Instant = _NEVER
    """When a step last was reported."""

    def _ring(self, number: int) -> IntArray:
        ring: IntArray = self.rings[number]
        return ring

    @property
    def minute(self) -> IntArray:
        """Return the number of the minute."""
        return self._ring(0)

    @property
    def steps(self) -> IntArray:
        """Return how many steps ended in it."""
        return self._ring(1)

    @property
    def sum_us(self) -> IntArray:
        """Return the sum of their times."""
        return self._ring(2)

    @property
    def pause_ms(self) -> IntArray:
        """Return the longest pause that ended in it."""
        return self._ring(3)

    @property
    def last_ms(self) -> IntArray:
        """Return when the last of them ended."""
        return self._ring(4)


@dataclass(frozen=True, slots=True)
class Steps:
    """A job's steps in a stretch: median step time (s), None without any; the longest pause between two (ms)."""

    step_s: float | None
    pause_ms: int


class Paces:
    """The pace of every job that reports steps. Looked at, only minutes that are over count."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._paces: dict[str, _Pace] = {}
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._job_of = np.empty(0, np.int64)

    def observe(self, batch: Batch) -> None:
        """Take steps, of all ranks or of the job as a whole."""
        values, valid = batch.values.get("step_time_s"), batch.valid.get("step_time_s")
        if values is None or valid is None:
            return
        good = batch.present & valid & np.isfinite(values) & (values > 0) & (values < _LONGEST_STEP_S)
        if not np.count_nonzero(good):
            return
        self._extend()
        at = batch.at[good]
        job = np.broadcast_to(self._job_of[batch.entities], good.shape)[good]
        micros = np.rint(values[good] * 1e6).astype(np.int64)
        order = stable_order(at)
        order = order[stable_order(job[order])]
        at, job, micros = at[order], job[order], micros[order]
        first = [0, *(np.flatnonzero(job[1:] != job[:-1]) + 1).tolist()]
        for begin, end in zip(first, [*first[1:], len(job)], strict=True):
            self._take(self._names[job[begin]], at[begin:end], micros[begin:end])

    def _take(self, name: str, at: IntArray, micros: IntArray) -> None:
        pace = self._paces.get(name)
        if pace is None:
            if len(self._paces) >= _MOST_JOBS:
                del self._paces[min(self._paces, key=lambda job: (self._paces[job].last, job))]
            pace = self._paces[name] = _Pace(np.zeros((5, BUCKETS), np.int64))
            pace.minute[:] = -1
        minutes = at // BUCKET_MS
        pauses = at - np.concatenate([at[:1] if pace.last == _NEVER else [pace.last], at[:-1]])
        pace.last = max(pace.last, int(at[-1]))
        first = [0]
        if minutes[0] != minutes[-1]:
            first += (np.flatnonzero(minutes[1:] != minutes[:-1]) + 1).tolist()
        for begin, end in zip(first, [*first[1:], len(at)], strict=True):
            minute = int(minutes[begin])
            slot = minute % BUCKETS
            if pace.minute[slot] != minute:
                pace.minute[slot] = minute
                pace.steps[slot] = pace.sum_us[slot] = pace.pause_ms[slot] = 0
            pace.steps[slot] += end - begin
            pace.sum_us[slot] += int(micros[begin:end].sum())
            pace.pause_ms[slot] = max(int(pace.pause_ms[slot]), int(pauses[begin:end].max()))
            pace.last_ms[slot] = int(at[end - 1])

    def _extend(self) -> None:
        entities = self._fleet.entities("steps")
        if len(entities) > len(self._job_of):
            new = []
            for job, _ in entities[len(self._job_of) :]:
                name = str(job)
                if name not in self._numbers:
                    self._numbers[name] = len(self._names)
                    self._names.append(name)
                new.append(self._numbers[name])
            self._job_of = np.concatenate([self._job_of, np.array(new, np.int64)])

    def steps(self, job: str, begin: Instant, until: Instant, now: Instant) -> Steps:
        """Return a job's steps in the whole minutes from `begin` to `until`, as they were known at `now`."""
        pace = self._paces.get(job)
        if pace is None:
            return Steps(None, 0)
        known = min(until, now) // BUCKET_MS
        there = (pace.minute >= max(-(-begin // BUCKET_MS), now // BUCKET_MS - LOOK_BACK)) & (pace.minute < known)
        there &= pace.steps > 0
        if not there.any():
            return Steps(None, 0)
        means = pace.sum_us[there] / pace.steps[there]
        return Steps(median_of(means) / 1e6, int(pace.pause_ms[there].max()))

    def waiting_ms(self, job: str, now: Instant) -> int:
        """Return for how long, at the beginning of the minute of `now`, a job had made no step."""
        pace = self._paces.get(job)
        if pace is None:
            return 0
        known = now // BUCKET_MS
        there = (pace.minute < known) & (pace.minute >= 0)
        return known * BUCKET_MS - int(pace.last_ms[there].max()) if there.any() else 0

    def forget(self, job: str) -> None:
        """Forget a job that is over."""
        self._paces.pop(job, None)

    def snapshot(self) -> tuple[list[tuple[str, Instant]], dict[str, NDArray[Any]]]:
        """Return when each job made its last step, and the rings as one array."""
        rings = [pace.rings for pace in self._paces.values()]
        arrays = {"pace": np.array(rings, np.int64).reshape(len(rings), 5, BUCKETS)}
        return [(name, pace.last) for name, pace in self._paces.items()], arrays

    def load(self, last: Iterable[tuple[str, Instant]], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self._paces = {name: _Pace(rings.copy(), at) for (name, at), rings in zip(last, arrays["pace"], strict=True)}
