"""How much of their steps the jobs wait for data, and how long these take: sums over a window, however it is cut."""

import numpy as np

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import REUSED, Columns, column
from detectors.core.residuals import Habit
from detectors.core.slots import Slots
from detectors.fleet.fleet import SHORTEST_STEP_S

_MICRO = 1e6
_MOST_S = 86_400.0
_SHARE = 0.1
"""A rank that waits for data for so much of its steps counts among those that wait."""
MEMORY_S = 1800.0
LASTS_MS = 120_000
DEVIATIONS = 4.0
"""Mean absolute deviations: three standard deviations of a normal distribution."""
FAR = 0.1
"""Of a window in which steps are far from usual so much is learnt: another fault that lasts for a while is no habit."""
_SLOWER = 3.0
"""Steps take longer for many reasons besides storage: a step time counts for a third of a wait for data, and not at all
where the job reports how long it waits."""
LEAD_MS = 300_000
"""Clients wait a little before the mount's mean shows it; steps that were longer long before have another cause."""
_LAG_MS = 600_000
"""Steps that come to be longer so long after a mount is slow have another cause: caches and read-ahead last minutes."""
_FEW = 4
"""So few steps in a window may all have been long by chance: the window before must show it, too."""


def since_when(longer: BoolArray, since: IntArray, now: Instant) -> IntArray:
    """Return since when (jobs,) each job takes longer, ms, if it does now; -1 of the others."""
    return np.asarray(np.where(longer, np.where(since < 0, now, since), -1))


def soon(longer_since: IntArray, since: Instant) -> BoolArray:
    """Return which jobs (jobs,) began to take longer, `longer_since` (ms), about when a mount came to be slow."""
    return np.asarray((longer_since >= since - LEAD_MS) & (longer_since <= since + _LAG_MS))


class Waits(Columns):
    """By job: sums of this window in microseconds, and what the last window with steps (`at`, ms) had.

    That is the share of the steps spent waiting for data, on what part of the ranks' steps (`wide`), the time of a
    step (s), and by how much of a step the first and the last rose above the job's habit; `alone` is what the last rose
    by in that window alone, and `waits_since` and `longer_since` when waits and steps began to be longer (ms; -1: they
    are not).
    """

    axis = REUSED
    sums: IntArray = column(0, 6)
    at: IntArray = column(-1)
    share: FloatArray = column(np.nan)
    wide: FloatArray = column(np.nan)
    step_s: FloatArray = column(np.nan)
    wait_rise: FloatArray = column(0.0)
    step_rise: FloatArray = column(0.0)
    alone: FloatArray = column(0.0)
    waits_since: IntArray = column(-1)
    longer_since: IntArray = column(-1)

    BESIDE = ("usual_share", "usual_step")

    def __init__(self) -> None:
        super().__init__()
        self.usual_share, self.usual_step = Habit(MEMORY_S), Habit(MEMORY_S)

    def take(self, batch: Batch, slots: Slots) -> None:
        """Take note of the steps in a batch."""
        jobs = slots.of(batch.entities)
        self.grow(len(slots))
        step = batch.sound.get("step_time_s")
        if step is None:
            return
        wait = batch.sound.get("data_wait_s", np.full(step.shape, np.nan))
        with np.errstate(invalid="ignore"):
            ticks, places = np.nonzero(batch.present & (step >= SHORTEST_STEP_S) & (step < _MOST_S))
        took = np.round(step[ticks, places] * _MICRO).astype(np.int64)
        waits = wait[ticks, places]
        known = np.isfinite(waits) & (waits < _MOST_S)
        waited = np.round(np.where(known, waits, 0.0) * _MICRO).astype(np.int64)
        much = known & (waited >= _SHARE * took)
        one = np.ones(len(took), np.int64)
        for row, values in enumerate((took, one, waited, took * known, one * known, one * much)):
            np.add.at(self.sums[row], jobs[places], values)

    def close(self, now: Instant, window_s: float, kept: IntArray) -> None:
        """End a window; the habit of `kept` (jobs) is not learnt: they wait for a mount that is slow."""
        took, count, waited, of, reported, much = self.sums.astype(float)
        some = np.flatnonzero(count > 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            share, wide, step = waited / of, much / reported, took / count / _MICRO
        self.at[some] = now
        for name, values in (("share", share), ("wide", wide), ("step_s", step)):
            getattr(self, name)[some] = values[some]
        learn = ~np.isin(some, kept)
        for habit, value, name in ((self.usual_share, share, "wait_rise"), (self.usual_step, step, "step_rise")):
            level = habit.level[some]
            unit = np.ones(len(some)) if name == "wait_rise" else level
            far = value[some] - level > DEVIATIONS * habit.spread[some]
            far &= habit.learnt_s[some] >= 5 * window_s
            with np.errstate(invalid="ignore", divide="ignore"):
                rise = np.where(far, (value[some] - level) / unit, 0.0)
            longer = self.longer_since if name == "step_rise" else self.waits_since
            longer[some] = since_when(rise > 0, longer[some], now)
            if name == "step_rise":
                before, self.alone[some] = self.alone[some], rise
                rise = np.where(count[some] < _FEW, np.minimum(rise, before), rise)
            getattr(self, name)[some] = rise
            habit.learn(some[learn], value[some][learn], window_s * np.where(far, FAR, 1.0)[learn])
        self.sums[:] = 0

    def reported(self, now: Instant) -> BoolArray:
        """Return which jobs (jobs,) have reported steps of late."""
        return np.asarray((self.at >= 0) & (now - self.at <= LASTS_MS))

    def felt(self, now: Instant, since: Instant) -> FloatArray:
        """Return by how much of its time (jobs,) each job waits more than it did, for what is slow `since` then; NaN
        where it reports no steps now.
        """
        waits = np.where(self.waits_since >= since - LEAD_MS, self.wait_rise, 0.0)
        longer = np.where(soon(self.longer_since, since), self.step_rise / _SLOWER, 0.0)
        rise = np.where(np.isfinite(self.share), waits, longer)
        return np.where(self.reported(now), rise, np.nan)
