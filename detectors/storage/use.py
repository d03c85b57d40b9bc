"""How much more of the time the GPUs of jobs wait than they did: who waits for data computes nothing meanwhile.

They idle, as utilisation shows, or spin while ranks wait for each other, and draw less for it at the same clock.
"""

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import REUSED, Columns, column
from detectors.core.residuals import Habit
from detectors.core.slots import Slots
from detectors.fleet.fleet import Fleet
from detectors.fleet.gpus import GpuLayout, reported
from detectors.storage.waits import DEVIATIONS, FAR, LASTS_MS, MEMORY_S, since_when, soon

_FIELDS = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE")
_CLOCK = "DCGM_FI_DEV_SM_CLOCK"
_SAME_CLOCK = 0.97
"""GPUs at a lower clock than usual draw less for that: a brake, and no wait."""
_PAUSE_MS = 90_000
"""A checkpoint, an evaluation or a new attempt stops GPUs for as long, whatever storage does."""
_AT_WORK = 0.2
"""Of the time; a job that is used for less loads, or stands: that is neither a habit nor a wait for slow data."""
_SHOWN = 0.15
"""Of the time, as `starving_share`: GPUs whose utilisation and power vary by less show it when they starve."""
_KNOWN_S = 300.0
"""Five minutes; before that nothing is usual."""
_SPINS_AT = 0.5
"""Of its power at work a GPU draws while it spins, about."""


class GpuUse(Columns):
    """By GPU: the sums over this window of what is read of it (per cent, W), and of how many readings each is; the
    highest SM clock in it (MHz; 0: none was read).
    """

    axis = "dcgm"
    total: NDArray[np.float32] = column(0.0, len(_FIELDS), dtype=np.float32)  # half the bytes are exact enough
    read: NDArray[np.int16] = column(0, len(_FIELDS), dtype=np.int16)
    clock: NDArray[np.float32] = column(0.0, dtype=np.float32)

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
            self.clock[gpus] = np.fmax(self.clock[gpus], reported(batch, _CLOCK, tick, here))

    def means(self) -> FloatArray:
        """Return the means of the window that ends and the clock, (3, GPUs), NaN where unread; begin the next."""
        means = np.where(self.read > 0, self.total / np.maximum(self.read, 1), np.nan)
        means = np.vstack([means, np.where(self.clock > 0, self.clock, np.nan)])
        self.total[:], self.read[:], self.clock[:] = 0.0, 0, 0.0
        return means


class JobsUse(Columns):
    """By job: by how much more of the time than usual its GPUs were `idle` in the last window with readings (`at`, ms),
    and by how much more they waited, idle or spinning (`rise`), since when (`longer_since`, ms; -1: they do not).
    """

    axis = REUSED
    at: IntArray = column(-1)
    idle: FloatArray = column(0.0)
    rise: FloatArray = column(0.0)
    longer_since: IntArray = column(-1)
    BESIDE = ("usual", "draws", "clocks")

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._fleet, self._layout = fleet, GpuLayout(fleet)
        self.usual, self.draws, self.clocks = Habit(MEMORY_S), Habit(MEMORY_S), Habit(MEMORY_S)

    def close(self, now: Instant, means: FloatArray, jobs: Slots, window_s: float, kept: IntArray) -> None:
        """End a window in which GPUs were used as `means` (3, GPUs) say; the habit of `kept` (jobs) is not learnt."""
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
        some, (used, watts, clock) = np.array(numbers, np.int64), np.array(found).reshape(-1, len(means)).T
        idle = 1 - used / 100
        more, level = idle - self.usual.level[some], np.maximum(self.draws.level[some], 1.0)
        less, learnt = 1 - watts / level, self.usual.learnt_s[some] >= 5 * window_s
        idles = learnt & (more > DEVIATIONS * self.usual.spread[some])
        spared = learnt & (less > DEVIATIONS * self.draws.spread[some] / level)
        spared &= ~(clock < _SAME_CLOCK * self.clocks.level[some])
        self.at[some], self.idle[some] = now, np.where(idles, more, 0.0)
        self.rise[some] = np.fmax(self.idle[some], np.where(spared, np.minimum(less / _SPINS_AT, 1.0), 0.0))
        self.longer_since[some] = since_when(self.rise[some] > 0, self.longer_since[some], now)
        learn = ~np.isin(some, kept) & (used >= 100 * _AT_WORK)
        for habit, value in ((self.usual, idle), (self.draws, watts), (self.clocks, clock)):
            sure = learn & np.isfinite(value)
            habit.learn(some[sure], value[sure], window_s * np.where(idles | spared, FAR, 1.0)[sure])

    def works(self, now: Instant) -> BoolArray:
        """Return of which jobs (jobs,) the GPUs work as they did: they vary so little that a wait would be seen, and
        none is, by their utilisation, as of who idles for it, or by their power, as of who spins.
        """
        vary = np.maximum(self.usual.spread, self.draws.spread / np.maximum(self.draws.level, 1.0))
        known = np.minimum(self.usual.learnt_s, self.draws.learnt_s) >= _KNOWN_S
        shows = known & (DEVIATIONS * vary <= _SHOWN) & (self.at >= 0) & (now - self.at <= LASTS_MS)
        return shows & (self.rise < _SHOWN)

    def felt(self, now: Instant, since: Instant) -> FloatArray:
        """Return by how much of its time (jobs,) each job's GPUs wait more than they did, for what is slow `since` then
        and for longer than a pause; NaN where none are read now.
        """
        lasts = soon(self.longer_since, since) & (now - self.longer_since >= _PAUSE_MS)
        read = (self.at >= 0) & (now - self.at <= LASTS_MS)
        return np.where(read, np.where(lasts, self.rise, 0.0), np.nan)
