"""How jobs get on: when each last reported a step, how often it usually does, and how long its pauses are."""

import math
from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, Instant, IntArray
from detectors.fleet import Fleet
from detectors.statistics import clamp

NEVER = -1
_STEP = 0.2
"""How far one gap moves the usual interval, relative: a checkpoint moves it little."""
_PAUSE_STEPS, _PAUSE_MS = 3.0, 8000
"""A gap of so many usual ones, and so long, is a pause."""
_PAUSES = 8
"""So many pauses are remembered."""
_WARM_UP = 3


class Pace:
    """Arrays by job that reported steps; times in ms.

    `settled` is the last step known at the last point of the grid, `usual` the interval between reports (NaN:
    unknown), `steps` how many intervals were seen, `pauses` (jobs, 8) the lengths of the last pauses.
    """

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._job_of: IntArray = np.empty(0, np.int64)
        self._heard: IntArray = np.empty(0, np.int64)
        self.settled: IntArray = np.empty(0, np.int64)
        self.usual = np.empty(0)
        self.steps: IntArray = np.empty(0, np.int64)
        self._pauses: IntArray = np.empty((0, _PAUSES), np.int64)
        self._paused: IntArray = np.empty(0, np.int64)

    def take(self, batch: Batch) -> IntArray:
        """Take note of the steps in a batch; return the job's number of each of its entities."""
        self._extend(int(batch.entities.max(initial=-1)) + 1)
        jobs = self._job_of[batch.entities]
        np.maximum.at(self._heard, jobs, np.where(batch.present, batch.at, NEVER).max(axis=0))
        return jobs

    def _extend(self, count: int) -> None:
        keys = self._fleet.entities("steps")[len(self._job_of) : count]
        if not keys:
            return
        for job_id, _ in keys:
            if str(job_id) not in self._numbers:
                self._numbers[str(job_id)] = len(self.names)
                self.names.append(str(job_id))
        fresh = np.array([self._numbers[str(job_id)] for job_id, _ in keys], np.int64)
        self._job_of = np.concatenate([self._job_of, fresh])
        more = len(self.names) - len(self._heard)
        never, none = np.full(more, NEVER, np.int64), np.zeros(more, np.int64)
        self._heard, self.settled = np.concatenate([self._heard, never]), np.concatenate([self.settled, never])
        self.steps, self._paused = np.concatenate([self.steps, none]), np.concatenate([self._paused, none])
        self.usual = np.concatenate([self.usual, np.full(more, np.nan)])
        self._pauses = np.concatenate([self._pauses, np.zeros((more, _PAUSES), np.int64)])

    def number(self, job_id: str) -> int | None:
        """Return a job's number, if it has reported a step."""
        return self._numbers.get(job_id)

    def settle(self, hung: list[int]) -> None:
        """At a point of the grid: learn the jobs' pace; the silence of the jobs that hung was no pause."""
        moved = np.flatnonzero((self._heard > self.settled) & (self.settled >= 0))
        gap = (self._heard - self.settled)[moved]
        usual = self.usual[moved]
        long = (gap > _PAUSE_STEPS * usual) & (gap > _PAUSE_MS) & (self.steps[moved] >= _WARM_UP)
        learnt = np.where(np.isnan(usual), gap, usual + clamp(gap - usual, -_STEP * usual, _STEP * usual))
        self.usual[moved] = np.where(long, usual, learnt)
        self.steps[moved] += 1
        for job, length in zip(moved[long].tolist(), gap[long].tolist(), strict=True):
            if job not in hung:
                self._pauses[job, self._paused[job] % _PAUSES] = length
                self._paused[job] += 1
        self.settled = self._heard.copy()

    def longest_pause(self, job: int) -> int:
        """Return the longest of the last pauses of a job, ms; 0 if there was none."""
        return int(self._pauses[job].max())

    def silent(self, now: Instant, job: int) -> float:
        """Return for how many of its usual intervals a job is silent; NaN if that cannot be told."""
        usual = float(self.usual[job])
        return (now - int(self.settled[job])) / usual if usual > 0 else math.nan

    def snapshot(self) -> tuple[list[str], dict[str, NDArray[Any]]]:
        """Return the state as names and arrays."""
        arrays: dict[str, NDArray[Any]] = {
            "pace_job": self._job_of,
            "pace_heard": self._heard,
            "pace_settled": self.settled,
            "pace_usual": self.usual,
            "pace_steps": self.steps,
            "pace_pauses": self._pauses,
            "pace_paused": self._paused,
        }
        return self.names, arrays

    def load(self, names: list[str], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self.names = list(names)
        self._numbers = {name: number for number, name in enumerate(names)}
        self._job_of, self._heard, self.settled, self.usual, self.steps, self._pauses, self._paused = (
            arrays[f"pace_{name}"] for name in ("job", "heard", "settled", "usual", "steps", "pauses", "paused")
        )
