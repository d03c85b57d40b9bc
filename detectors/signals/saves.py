"""Which nodes write as one does that saves a checkpoint, and since when: a job that saves makes no steps, and lives."""

from collections.abc import Collection
from typing import Final

import numpy as np

from detectors.contract import Batch, Instant, IntArray
from detectors.core.columns import Columns, column
from detectors.core.counting import COLLECTED_MS, Counter
from detectors.fleet.fleet import Fleet
from detectors.fleet.gpus import reported
from detectors.fleet.presence import NEVER

SAVES: Final = 50_000.0
"""Bytes a ms. Logs and metrics write some MB a second at most; a node saves its part of a checkpoint at 0.1 to 2 GB/s,
or it would take hours (80 GB a GPU)."""
_FRESH_MS: Final = 5 * COLLECTED_MS // 2
"""What a node did at its last reading but one it may do no more."""


class Saves(Columns):
    """Columns over mounts of nodes: `since`, the first reading (ms) of those in a row up to the last, at `at`, before
    which the node wrote much there; NEVER where it did not before the last.
    """

    axis = "storage"
    BESIDE = ("counted",)
    since: IntArray = column(NEVER)
    at: IntArray = column(NEVER)

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._fleet, self.counted = fleet, Counter()

    def take(self, batch: Batch) -> None:
        """Take readings of mounts."""
        self.grow(batch.reach)
        for tick, here in batch.ticks():
            mounts, at = batch.entities[here], batch.at[tick, here]
            rate = self.counted.rates(mounts, at, reported(batch, "write_bytes", tick, here), COLLECTED_MS)
            known = np.isfinite(rate)
            mounts, at, much = mounts[known], at[known], rate[known] >= SAVES
            self.at[mounts] = at
            self.since[mounts] = np.where(much, np.where(self.since[mounts] < 0, at, self.since[mounts]), NEVER)

    def began(self, nodes: Collection[str], after: Instant, now: Instant) -> bool:
        """Return whether one of some nodes began to write much after a time, and still does."""
        saves = np.flatnonzero((self.since > after) & (now - self.at <= _FRESH_MS))
        keys = self._fleet.entities("storage")
        return any(str(keys[mount][0]) in nodes for mount in saves.tolist())
