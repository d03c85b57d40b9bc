"""How far every GPU lies from the peers of its job, and from what it used to lie: what the model is fitted on.

Workload cancels: what all GPUs of a job do alike is at distance 0. The second half of the features is the distance
less the GPU's own habit in this job, so that a card that always was the warmest is no news, and one that became it is.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from detectors.contract import BoolArray, FloatArray, Instant, IntArray
from detectors.core.statistics import masked_median
from services.model.fields import FIELDS, NAMES, UTILISATION, spread_floor
from services.model.windows import Gpus, Window, gpus_of, windows
from services.recording.reader import Recording

PEERS: Final = 4
"""A median of fewer is one outlier's word; as in the detectors (judgement)."""
IDLE_UTILISATION: Final = 10.0
"""A job whose median GPU is used less (%) is loading, or over: its GPUs are not compared (as in the detectors)."""
WARM_UP_MS: Final = 180_000
"""So long after a job's start its GPUs warm up one by one, and nothing is compared (judgement)."""
HABIT_WINDOWS: Final = 10
"""Windows of a job until a GPU's habit is known; before that only the distance to its peers counts."""
_HABIT_WEIGHT: Final = 1 / 60
"""Of a window in the habit: the memory of an hour, longer than the ramps that labels of a recording allow."""
_HABIT_STEP: Final = 1.0
_YOUNG_STEP: Final = 3.0
"""No window moves the habit as though it lay further off (deviations): neither a fault nor one odd minute at a job's
start must become the habit."""
_MAD_TO_SIGMA: Final = 1.4826
_FARTHEST: Final = 50.0
"""Deviations; beyond, how far is no longer of interest, and squares stay small."""

FEATURES: Final = (*NAMES, *(f"{name} against its habit" for name in NAMES))


@dataclass(frozen=True)
class Compared:
    """One window's features: of `gpus` (n,), in jobs `jobs` (n,), `features` (n, 2 x fields) in robust deviations.

    What was not read lies at distance 0. `values` and `middle` (n, fields) are the readings and the peers' medians.
    """

    start: Instant
    end: Instant
    gpus: IntArray
    jobs: IntArray
    features: FloatArray
    values: FloatArray
    middle: FloatArray


class Assignments:
    """Which job has every GPU, window by window, and of which model it is."""

    def __init__(self, recording: Recording, gpus: Gpus) -> None:
        self._gpus = gpus
        self.jobs = sorted(recording.jobs(), key=lambda job: (job.start, job.job_id))
        self._model_of = {node.name: str(node.gpu_model) for node in recording.topology.nodes}
        self._model_names = sorted(set(self._model_of.values()))
        self._members: list[IntArray] = []
        self._models = np.empty(0, np.int64)
        self._learn()

    def at(self, window: Window) -> tuple[IntArray, IntArray]:
        """Return the job's place in `jobs` (gpus,) for those at work in one all through the window, -1 for others.

        And a number of the model of each GPU (gpus,); -1 where the topology has none.
        """
        count = len(window.values)
        if count > len(self._models):
            self._learn()
        found = np.full(count, -1, np.int64)
        for place, (job, members) in enumerate(zip(self.jobs, self._members, strict=True)):
            ended = job.end is not None and job.end < window.end
            if job.start + WARM_UP_MS <= window.start and not ended:
                found[members[members < count]] = place
        return found, self._models[:count]

    def _learn(self) -> None:
        """Take note of the GPUs that are known by now."""
        by_node = self._gpus.by_node()
        self._members = [
            np.array([self._gpus.number(gpu) for gpu in gpus_of(job, by_node)], np.int64) for job in self.jobs
        ]
        numbers = {name: number for number, name in enumerate(self._model_names)}
        self._models = np.array(
            [numbers.get(self._model_of.get(node, ""), -1) for node, _ in self._gpus.keys], np.int64
        )


class Habits:
    """Every GPU's usual distance from its peers, in the job it is in."""

    def __init__(self) -> None:
        self._job = np.empty(0, np.int64)
        self._level = np.empty((0, len(FIELDS)))
        self._count = np.empty((0, len(FIELDS)), np.int64)

    def compare(self, window: Window, jobs: IntArray, models: IntArray) -> Compared:
        """Return the features of one window and learn from it.

        GPUs of a job that is idle, or has fewer than `PEERS` others of the model in it, are left out.
        """
        values = window.values
        self._grow(len(values))
        moved = self._job != jobs
        self._level[moved], self._count[moved], self._job[moved] = 0, 0, jobs[moved]
        distance, middle, compared = distances(values, jobs, models)
        who = np.flatnonzero(compared)
        far = distance[who]
        known = np.isfinite(far)
        level, count = self._level[who], self._count[who]
        shift = np.where(known & (count >= HABIT_WINDOWS), far - level, 0.0)
        self._learn(who, far, known)
        features = np.concatenate([np.where(known, far, 0.0), shift], axis=1)
        near = np.clip(features, -_FARTHEST, _FARTHEST)
        return Compared(window.start, window.end, who, jobs[who], near, values[who], middle[who])

    def _learn(self, who: IntArray, far: FloatArray, known: BoolArray) -> None:
        """Let the habit follow: as a mean at first, then slowly, and never in large steps."""
        level, count = self._level[who], self._count[who]
        most = np.where(count < HABIT_WINDOWS, _YOUNG_STEP, _HABIT_STEP)
        step = np.clip(np.where(known, far, level) - level, -most, most)
        self._level[who] = level + step * np.fmax(1 / (count + 1), _HABIT_WEIGHT)
        self._count[who] = count + known

    def _grow(self, count: int) -> None:
        more = count - len(self._job)
        if more > 0:
            self._job = np.concatenate([self._job, np.full(more, -1, np.int64)])
            self._level = np.concatenate([self._level, np.zeros((more, len(FIELDS)))])
            self._count = np.concatenate([self._count, np.zeros((more, len(FIELDS)), np.int64)])


def distances(values: FloatArray, jobs: IntArray, models: IntArray) -> tuple[FloatArray, FloatArray, BoolArray]:
    """Return how far GPUs lie from the peers of their job and model, the peers' medians, and who was compared.

    `values` (gpus, fields), NaN: not read; `jobs` and `models` (gpus,). Distances are robust deviations, with the
    field's floor; NaN where a GPU did not report, or fewer than `PEERS` others did.
    """
    distance, middle = np.full(values.shape, np.nan), np.full(values.shape, np.nan)
    compared = np.zeros(len(values), bool)
    groups = np.where(jobs >= 0, jobs * (int(models.max(initial=0)) + 2) + models + 1, -1)
    for group in np.unique(groups[groups >= 0]):
        members = np.flatnonzero(groups == group)
        own = values[members]
        here = np.isfinite(own)
        present = here.sum(axis=0)
        usual = masked_median(own.T, here.T)
        if len(members) <= PEERS or not usual[UTILISATION] >= IDLE_UTILISATION:
            continue
        off = np.where(here, own, 0.0) - usual
        spread = _MAD_TO_SIGMA * masked_median(np.abs(off).T, here.T)
        far = off / np.maximum(spread, spread_floor(usual))
        distance[members] = np.where(here & (present > PEERS), far, np.nan)
        middle[members] = usual
        compared[members] = here[:, UTILISATION]
    return distance, middle, compared


def comparisons(recording: Recording, gpus: Gpus, *, max_rows: int = 32_768) -> Iterator[Compared]:
    """Yield every window of a recording that has GPUs to compare, in order of time."""
    habits, assigned = Habits(), Assignments(recording, gpus)
    for window in windows(recording, gpus, max_rows=max_rows):
        found = habits.compare(window, *assigned.at(window))
        if len(found.gpus):
            yield found
