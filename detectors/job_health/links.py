"""Which nodes' links have gone down, by what their NICs read: a job that stands for it does not hang by itself."""

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, Instant, IntArray
from detectors.core.columns import Columns, column
from detectors.fleet.fleet import Fleet
from detectors.fleet.gpus import reported

_UNKNOWN = -1
_NEVER = -(2**61)


class Links(Columns):
    """Columns over NICs: `state` (1 up, 0 down, -1 unknown); `down_at`, when (ms) it went down."""

    axis = "nic"
    state: NDArray[np.int8] = column(_UNKNOWN, dtype=np.int8)
    down_at: IntArray = column(_NEVER)

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._fleet = fleet

    def take(self, batch: Batch) -> None:
        """Take readings of NICs."""
        self.grow(len(self._fleet.entities("nic")))
        for tick, here in batch.ticks():
            state = reported(batch, "state", tick, here)
            known = np.isfinite(state)
            nics, at, up = batch.entities[here][known], batch.at[tick, here][known], state[known] > 0
            lost = ~up & (self.state[nics] == 1)
            self.down_at[nics[lost]] = at[lost]
            self.state[nics] = up

    def lost(self, nodes: Sequence[str], since: Instant) -> bool:
        """Return whether a NIC of one of the nodes went down after `since`, by its readings."""
        keys = self._fleet.entities("nic")
        return any(str(keys[nic][0]) in nodes for nic in np.flatnonzero(self.down_at >= since).tolist())
