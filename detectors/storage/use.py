"""How much more of the time the GPUs of jobs wait than they did: who waits for data computes nothing meanwhile.

They idle, as utilisation shows, or spin while ranks wait for each other, and draw less for it.
"""

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import REUSED, Columns, column
from detectors.core.residuals import Habit
from detectors.core.slots import Slots
from detectors.fleet.fleet import Fleet
from detectors.fleet.gpus import GpuLayout, reported
from detectors.storage.waits import DEVIATIONS, FAR, LASTS_MS, MEMORY_S

_FIELDS = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE")
_AT_WORK = 0.2
"""Of the time; a job that is used for less loads, or stands: that is neither a habit nor a wait for slow data."""
_SPINS_AT = 0.5
"""Of its power at work a GPU draws while it spins, about."""


class GpuUse(Columns):
    """By GPU: the sums over this window of what is read of it (per cent, W), and of how many readings each is."""

    axis = "dcgm"
    total: NDArray[np.float32] = column(0.0, len(_FIELDS), dtype=np.float32)  # half the bytes are exact enough
    read: NDArray[np.int16] = column(0, len(_FIELDS), dtype=np.int16)

    def take(self, batch: Batch) -> None:
        """Take readings of GPUs."""
        self.grow(batch.reach)
        for tick, here in batch.ticks():
            gpus = batch.index(here, len(self))
            for row, name in enumerate(_FIELDS):
                value = reported(batch, name, tick, here)
                known = np.isfinite(value)
                self.total[row][gpus] += np.where(known, value, 0.0)
                self.read[row][gpus] += known

    def means(self) -> FloatArray:
        """Return the means (2, GPUs) of the window that ends, NaN where nothing was read, and begin the next."""
        means = np.where(self.read > 0, self.total / np.maximum(self.read, 1), np.nan)
        self.total[:], self.read[:] = 0.0, 0
        return means


class JobsUse(Columns):
    """By job: by how much more of the time than usual its GPUs were `idle` in the last window with readings (`at`, ms),
    and by how much more they waited, idle or spinning (`rise`).
    """

    axis = REUSED
    at: IntArray = column(-1)
    idle: FloatArray = column(0.0)
    rise: FloatArray = column(0.0)
    BESIDE = ("usual", "draws")

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._fleet, self._layout = fleet, GpuLayout(fleet)
        self.usual, self.draws = Habit(MEMORY_S), Habit(MEMORY_S)

    def close(self, now: Instant, means: FloatArray, jobs: Slots, window_s: float, kept: IntArray) -> None:
        """End a window in which GPUs were used as `means` (2, GPUs) say; the habit of `kept` (jobs) is not learnt."""
        self._layout.extend()
        numbers, found = [], []
        for name, job in self._fleet.jobs.items():
            gpus = self._layout.of_job(job)
            its = means[:, gpus[gpus < means.shape[1]]]
            its = its[:, np.isfinite(its[0])]
            if its.shape[1]:
                numbers.append(jobs.number(name))
                found.append(its.mean(axis=1))
        self.grow(len(jobs))
        some, (used, watts) = np.array(numbers, np.int64), np.array(found).reshape(-1, len(_FIELDS)).T
        idle = 1 - used / 100
        more, level = idle - self.usual.level[some], np.maximum(self.draws.level[some], 1.0)
        less, learnt = 1 - watts / level, self.usual.learnt_s[some] >= 5 * window_s
        idles = learnt & (more > DEVIATIONS * self.usual.spread[some])
        spared = learnt & (less > DEVIATIONS * self.draws.spread[some] / level)
        self.at[some], self.idle[some] = now, np.where(idles, more, 0.0)
        self.rise[some] = np.fmax(self.idle[some], np.where(spared, less / _SPINS_AT, 0.0))
        learn = ~np.isin(some, kept) & (used >= 100 * _AT_WORK)
        for habit, value in ((self.usual, idle), (self.draws, watts)):
            habit.learn(some[learn], value[learn], window_s * np.where(idles | spared, FAR, 1.0)[learn])

    def lately(self, now: Instant) -> BoolArray:
        """Return which jobs' (jobs,) GPUs are read now."""
        return np.asarray((self.at >= 0) & (now - self.at <= LASTS_MS))
