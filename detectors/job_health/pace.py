"""How jobs get on: when each last reported a step, how often it usually does, and how long its pauses are."""

from typing import Any

import numpy as np

from detectors.contract import BoolArray, FloatArray, IntArray
from detectors.core.columns import REUSED, Columns, column
from detectors.fleet.presence import learnt_interval

NEVER = -1
_STEP = 0.2
"""How far one gap moves the usual interval, relative: a checkpoint moves it little."""
_PAUSE_STEPS, _PAUSE_MS = 3.0, 8000
"""A gap of so many usual ones, and so long, is a pause."""
_WARM_UP = 3


class Pace(Columns):
    """By job, times in ms: `settled` is the last step known at the last point of the grid, `usual` the interval.

    `steps` is how many intervals were seen, `pauses` (8, jobs) the lengths of the last pauses.
    """

    axis = REUSED
    heard: IntArray = column(NEVER)
    settled: IntArray = column(NEVER)
    usual: FloatArray = column(np.nan)
    steps: IntArray = column(0)
    pauses: IntArray = column(0, 8)

    def take(self, jobs: IntArray, at: Any) -> None:
        """Take note of steps (n,) that ended at `at`."""
        np.maximum.at(self.heard, jobs, at)

    def settle(self, hung: IntArray) -> tuple[IntArray, FloatArray]:
        """At a point of the grid: learn the jobs' pace; return the jobs (n,) whose pauses ended, and how long these
        were (n,), in seconds.

        The silence of the jobs that hung was no pause.
        """
        moved = np.flatnonzero(self.heard > self.settled)
        if not len(moved):
            return moved, np.empty(0)
        before = self.settled[moved]
        gap = np.where(before >= 0, self.heard[moved] - before, np.nan)
        usual = self.usual[moved]
        with np.errstate(invalid="ignore"):
            long = (gap > np.maximum(_PAUSE_STEPS * usual, _PAUSE_MS)) & (self.steps[moved] >= _WARM_UP)
        self.usual[moved] = np.where(long, usual, learnt_interval(usual, gap, _STEP))
        self.steps[moved] += before >= 0
        self.settled[moved] = self.heard[moved]
        paused = long & ~np.isin(moved, hung) if np.count_nonzero(long) else long
        those = moved[paused]
        if len(those):
            self.pauses[:, those] = np.concatenate([self.pauses[1:, those], gap[paused].astype(np.int64)[None]])
        return those, gap[paused] / 1000

    def silent(self, now: int) -> FloatArray:
        """Return for how long each job is silent, ms; NaN where it was never heard."""
        return np.where(self.settled >= 0, now - self.settled, np.nan)


class StepPace(Pace):
    """By job: its steps, as they are gathered, or as its log's lines report them where they are not.

    `by_lines` says of which jobs they are the lines', `losses` of which the steps themselves give loss or gradient.
    """

    by_lines: BoolArray = column(False)
    losses: BoolArray = column(False)

    def take(self, jobs: IntArray, at: Any) -> None:
        """Take note of steps (n,) that were gathered: from now on lines count for nothing, with all learnt by them."""
        self.forget(jobs[self.by_lines[jobs]])
        super().take(jobs, at)

    def take_lines(self, jobs: IntArray, at: IntArray) -> None:
        """Take note of what lines (n,) report, of jobs whose steps are not gathered."""
        mine = (self.heard[jobs] == NEVER) | self.by_lines[jobs]
        self.by_lines[jobs[mine]] = True
        super().take(jobs[mine], at[mine])
