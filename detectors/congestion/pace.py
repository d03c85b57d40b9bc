"""Whether the steps of jobs have become longer: the last two minutes beside the eight before, or the first of those."""

from typing import Final

import numpy as np

from detectors.contract import Batch, FloatArray, Instant, IntArray
from detectors.core.columns import REUSED, Columns, column
from detectors.core.residuals import MAD_TO_SIGMA, MEDIAN_ERROR
from detectors.core.slots import Slots
from detectors.core.statistics import masked_median
from detectors.fleet.fleet import SHORTEST_STEP_S, Fleet

WINDOW_MS: Final = 30_000
_NOW, _BEFORE = 4, 16
_FEWEST, _FEWEST_BEFORE = 3, 6
"""So many windows with steps show what is usual, and so many before show that it is not so any more."""
_SURE: Final = 3.0
"""Standard errors of a difference of medians: one in a thousand by chance."""
_LEAST_SCATTER: Final = 0.003
_MICRO: Final = 1e6
_LONGEST_S: Final = 86_400.0
_MOST: Final = 1.5
"""Of its job's usual step: what takes longer is a checkpoint or an evaluation."""
FELT: Final = 0.05
"""Of a step: a job that loses a twentieth is held up. A policy."""
_WANDERS: Final = 0.01
"""Of a step: less is what a job's pace wanders by, and holds up nobody."""
_LEAD_MS: Final = 120_000
"""A cause is read some looks after it is felt; steps that were longer before that have another one."""
_LASTS_MS: Final = 120_000
"""So long a job may make no step, as for a checkpoint, before it counts as one that stands."""
_FORGET_MS: Final = 3_600_000


class Paces(Columns):
    """By job, numbered in `jobs`: the mean step (s) of the last windows that had any, the newest first.

    `took` (us) and `steps` are sums over the window that goes on, however it is cut; a step counts for `most` (s), so
    that one which writes a checkpoint does not make a window long. `at` is the end of the last window with steps (ms).
    """

    axis = REUSED
    recent: FloatArray = column(np.nan, _NOW + _BEFORE)
    took: IntArray = column(0)
    steps: IntArray = column(0)
    most: FloatArray = column(_LONGEST_S)
    at: IntArray = column(-1)
    KEPT = ("jobs",)

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._fleet = fleet
        self.jobs = Slots(fleet, "steps")

    def take(self, batch: Batch) -> None:
        """Take note of the steps in a batch."""
        step = batch.sound.get("step_time_s")
        if step is None:
            return
        jobs = self.jobs.of(batch.entities)
        self.grow(len(self.jobs))
        with np.errstate(invalid="ignore"):
            ticks, places = np.nonzero(batch.present & (step >= SHORTEST_STEP_S) & (step < _LONGEST_S))
        of = jobs[places]
        took = np.minimum(step[ticks, places], self.most[of])
        np.add.at(self.took, of, np.round(took * _MICRO).astype(np.int64))
        np.add.at(self.steps, of, 1)

    def close(self, now: Instant) -> None:
        """End a window, and forget jobs that are over and have been silent for an hour."""
        some = np.flatnonzero(self.steps)
        self.recent[:, some] = np.roll(self.recent[:, some], 1, axis=0)
        self.recent[0, some] = self.took[some] / self.steps[some] / _MICRO
        self.most[some] = _MOST * masked_median(self.recent[:, some].T, np.isfinite(self.recent[:, some]).T)
        self.at[some] = now
        self.took[:], self.steps[:] = 0, 0
        quiet = np.flatnonzero(now - self.at > _FORGET_MS).tolist()
        names = self.jobs.names
        gone = [job for job in quiet if names[job] is not None and names[job] not in self._fleet.jobs]
        if gone:
            self.jobs.forget(gone)
            self.forget(np.array(gone))

    def before_and_now(self) -> tuple[FloatArray, FloatArray]:
        """Return the median steps (s) of each job before and lately, (jobs,); NaN where too few are known."""
        few = (self._counted() < _FEWEST).any(axis=0)
        earlier, lately = (masked_median(part.T, np.isfinite(part.T)) for part in self._parts())
        return np.where(few, np.nan, earlier), np.where(few, np.nan, lately)

    def is_known(self, job_id: str) -> bool:
        """Return whether the steps of a job are known, before and lately."""
        number = self.jobs.find(job_id)
        return 0 <= number < len(self) and bool((self._counted()[:, number] >= _FEWEST).all())

    def as_before(self, now: Instant, job_id: str, *, shown: bool = False) -> bool:
        """Return whether a job's steps go on, and take as long as they did, as far as their scatter shows.

        If that must be `shown` they scatter so little that they would show it if the job were held up.
        """
        if not self.is_known(job_id):
            return False
        number = self.jobs.find(job_id)
        lately = self.before_and_now()[1][number]
        moved, error = (values[number] for values in self._moved())
        goes_on = now - self.at[number] <= max(_LASTS_MS, 2000 * lately)
        within = _SURE * error
        if shown and within > np.log1p(FELT):
            return False
        return bool(goes_on and moved <= max(np.log1p(_WANDERS), within))

    def was_slow(self, now: Instant, job_id: str, onset: Instant) -> bool:
        """Return whether a job is slower, and was, by half of that, long before something's `onset`."""
        number = self.jobs.find(job_id)
        if not self.slower(now)[number] > 0:
            return False
        earlier, lately = (values[number] for values in self.before_and_now())
        shorter = ~(self.recent[:, number] >= np.sqrt(earlier * lately))
        windows = int(np.argmax(shorter)) if shorter.any() else len(shorter)
        return bool(self.at[number] - windows * max(WINDOW_MS, 1000 * float(lately)) < onset - _LEAD_MS)

    def slower(self, now: Instant) -> FloatArray:
        """Return by how much longer (a share, jobs) the steps of each job surely are; 0 where they are not."""
        moved, error = self._moved()
        sure = (moved >= _SURE * error) & (now - self.at <= _LASTS_MS) & (self._counted()[0] >= _FEWEST_BEFORE)
        return np.where(sure, np.expm1(moved), 0.0)

    def _counted(self) -> IntArray:
        """Return how many windows with steps are known of each job, before and lately, (2, jobs)."""
        return np.array([np.count_nonzero(np.isfinite(part), axis=0) for part in self._parts()])

    def _parts(self) -> tuple[FloatArray, FloatArray]:
        """Return the windows before, and the last ones, (windows, jobs).

        Of those before the older half, once there are enough: what grows over ten minutes grows little in five.
        """
        before = self.recent[_NOW:].copy()
        enough = np.count_nonzero(np.isfinite(before[_BEFORE // 2 :]), axis=0) >= _FEWEST_BEFORE
        before[: _BEFORE // 2, enough] = np.nan
        return before, self.recent[:_NOW]

    def _moved(self) -> tuple[FloatArray, FloatArray]:
        """Return by how much longer the steps of each job are (a logarithm, jobs), and the standard error of that."""
        earlier, lately = self.before_and_now()
        logs = np.abs(np.log(self._parts()[0]) - np.log(earlier)).T
        scatter = np.fmax(MAD_TO_SIGMA * masked_median(logs, np.isfinite(logs)), _LEAST_SCATTER)
        error = MEDIAN_ERROR * scatter * np.sqrt((1 / np.maximum(self._counted(), 1)).sum(axis=0))
        return np.log(lately) - np.log(earlier), error
