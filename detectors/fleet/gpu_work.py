"""Which jobs work on, by what their GPUs do: for jobs that report no steps."""

from collections.abc import Iterable
from typing import Final

import numpy as np

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import Columns, column
from detectors.fleet.fleet import Fleet, Job
from detectors.fleet.gpus import GpuLayout, reported

TENSOR: Final = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"
_AT_WORK: Final = 0.5
"""Of its usual tensor activity: the kernels of a collective that waits, though resident, use the tensor cores not at
all."""
_LEAST: Final = 0.01
_STEP: Final = 0.05
"""How far one reading at work moves what is usual: twenty of them make it."""
_LATELY_MS: Final = 120_000
"""Two scrapes at 60 s; a checkpoint or an evaluation proves nothing either way."""


class GpuWork(Columns):
    """By GPU: when it was last read (`at`) and last read doing tensor work (`worked_at`, ms; -1 never), and how much of
    that is usual (`level`, 0 to 1).
    """

    axis = "dcgm"
    at: IntArray = column(-1)
    worked_at: IntArray = column(-1)
    level: FloatArray = column(np.nan)

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._layout = GpuLayout(fleet)

    def take(self, batch: Batch) -> None:
        """Take readings of GPUs."""
        if TENSOR not in batch.sound:
            return
        self.grow(int(batch.entities.max(initial=-1)) + 1)
        for tick, here in batch.ticks():
            where, at = batch.index(here, len(self)), batch.at[tick, here]
            tensor, level = reported(batch, TENSOR, tick, here, most=1.0), self.level[where]
            works: BoolArray = tensor >= np.fmax(_AT_WORK * level, _LEAST)
            moved = np.where(np.isnan(level), tensor, level + _STEP * (tensor - level))
            self.at[where] = np.where(np.isfinite(tensor), at, self.at[where])
            self.worked_at[where] = np.where(works, at, self.worked_at[where])
            self.level[where] = np.where(works, moved, level)

    def goes_on(self, job: Job, since: Instant, now: Instant) -> bool:
        """Return whether most GPUs of a job that were read after `since` have worked after it, and lately.

        In a synchronous job none does for longer than a step once a node of it is dead.
        """
        heard = self._heard(job.nodes, since)
        worked = self.worked_at[heard] > max(since, now - _LATELY_MS)
        return len(heard) > 1 and 2 * int(np.count_nonzero(worked)) > len(heard)

    def stands_since(self, nodes: Iterable[str], since: Instant) -> Instant:
        """Return when the GPUs of some nodes that were read after `since` last worked, in the middle; -1: never."""
        heard = self._heard(nodes, since)
        return int(np.median(self.worked_at[heard])) if len(heard) > 1 else -1

    def _heard(self, nodes: Iterable[str], since: Instant) -> IntArray:
        self._layout.extend()
        gpus = np.concatenate([np.empty(0, np.int64), *(self._layout.members(node) for node in nodes)])
        gpus = gpus[gpus < self.count]
        return np.asarray(gpus[self.at[gpus] > since])
