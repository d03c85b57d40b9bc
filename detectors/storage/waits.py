"""How much of their steps the jobs wait for data: sums over a window, exact however the stream is cut."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, IntArray
from detectors.fleet import Fleet

_MICRO = 1e6
_MOST_S = 86_400.0
_SHARE = 0.1
"""A rank that waits for data for so much of its steps counts among those that wait."""
_MEMORY = 0.1


@dataclass(frozen=True, slots=True)
class Wait:
    """A job's last window: the share of its steps spent waiting for data, of how many ranks, and what was usual."""

    share: float
    wide: float
    """The part of its ranks' steps in which they waited for a good part."""
    wait_s: float
    usual_share: float


class Waits:
    """Sums by job since the last window, in microseconds: whole numbers, whose order does not matter."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._job_of: IntArray = np.empty(0, np.int64)
        self._sums: IntArray = np.zeros((4, 0), np.int64)
        self._usual = np.empty(0)

    def take(self, batch: Batch) -> None:
        """Take note of the steps in a batch."""
        self._extend(int(batch.entities.max(initial=-1)) + 1)
        if "data_wait_s" not in batch.values or "step_time_s" not in batch.values:
            return
        wait, step = batch.values["data_wait_s"], batch.values["step_time_s"]
        sound = batch.present & batch.valid["data_wait_s"] & batch.valid["step_time_s"]
        with np.errstate(invalid="ignore"):
            sound = sound & (wait >= 0) & (wait < _MOST_S) & (step > 0) & (step < _MOST_S)
        ticks, columns = np.nonzero(sound)
        jobs = self._job_of[batch.entities[columns]]
        waited, took = _micro(wait, ticks, columns), _micro(step, ticks, columns)
        much: BoolArray = waited >= _SHARE * took
        for row, values in enumerate((waited, took, much.astype(np.int64), np.ones(len(jobs), np.int64))):
            np.add.at(self._sums[row], jobs, values)

    def _extend(self, count: int) -> None:
        keys = self._fleet.entities("steps")[len(self._job_of) : count]
        for job_id, _ in keys:
            if str(job_id) not in self._numbers:
                self._numbers[str(job_id)] = len(self._names)
                self._names.append(str(job_id))
        fresh = np.array([self._numbers[str(job_id)] for job_id, _ in keys], np.int64)
        self._job_of = np.concatenate([self._job_of, fresh])
        more = len(self._names) - len(self._usual)
        if more > 0:
            self._sums = np.concatenate([self._sums, np.zeros((4, more), np.int64)], axis=1)
            self._usual = np.concatenate([self._usual, np.full(more, np.nan)])

    def close(self) -> dict[str, Wait]:
        """Return the jobs that made steps in the window that ends now, and begin the next."""
        found = {}
        for number in np.flatnonzero(self._sums[3]).tolist():
            waited, took, much, rows = (int(value) for value in self._sums[:, number])
            share, usual = waited / max(took, 1), float(self._usual[number])
            found[self._names[number]] = Wait(share, much / rows, waited / _MICRO / rows, usual)
            self._usual[number] = share if np.isnan(usual) else usual + _MEMORY * (share - usual)
        self._sums[:] = 0
        return found

    def snapshot(self) -> tuple[list[str], dict[str, NDArray[Any]]]:
        """Return the state as names and arrays."""
        return self._names, {"waits_job": self._job_of, "waits_sums": self._sums, "waits_usual": self._usual}

    def load(self, names: list[str], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self._names = list(names)
        self._numbers = {name: number for number, name in enumerate(names)}
        self._job_of, self._sums, self._usual = (arrays[f"waits_{name}"] for name in ("job", "sums", "usual"))


def _micro(values: FloatArray, ticks: IntArray, columns: IntArray) -> IntArray:
    return np.round(values[ticks, columns] * _MICRO).astype(np.int64)
