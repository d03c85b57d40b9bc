"""When nodes last wrote as one does that saves a checkpoint: a job that writes does not hang."""

from collections.abc import Sequence
from typing import Final

import numpy as np

from detectors.contract import Batch, Instant, IntArray
from detectors.core.columns import Columns, column
from detectors.core.counting import COLLECTED_MS, Counter
from detectors.fleet.fleet import Fleet
from detectors.fleet.gpus import reported
from detectors.fleet.presence import NEVER

_SAVES: Final = 50_000.0
"""Bytes a ms. Logs and metrics write some MB a second at most; a node saves its part of a checkpoint at 0.1 to 2 GB/s,
or it would take hours (80 GB a GPU)."""


class Writes(Columns):
    """Columns over mounts of nodes: `wrote_at`, when (ms) the node last wrote much there."""

    axis = "storage"
    BESIDE = ("counted",)
    wrote_at: IntArray = column(NEVER)

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._fleet, self.counted = fleet, Counter()

    def take(self, batch: Batch) -> None:
        """Take readings of mounts."""
        self.grow(len(self._fleet.entities("storage")))
        for tick, here in batch.ticks():
            mounts, at = batch.entities[here], batch.at[tick, here]
            rate = self.counted.rates(mounts, at, reported(batch, "write_bytes", tick, here), COLLECTED_MS)
            saves = rate >= _SAVES
            self.wrote_at[mounts[saves]] = at[saves]

    def last(self, nodes: Sequence[str], since: Instant) -> Instant:
        """Return when one of the nodes last wrote much after `since` (ms); `since` where none did."""
        keys = self._fleet.entities("storage")
        those = np.flatnonzero(self.wrote_at > since).tolist()
        return max((int(self.wrote_at[mount]) for mount in those if str(keys[mount][0]) in nodes), default=since)
