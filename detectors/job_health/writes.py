"""When nodes last wrote as one does that saves a checkpoint: a job that writes does not hang."""

from collections import defaultdict
from collections.abc import Sequence
from typing import Final

import numpy as np

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import Columns, column
from detectors.core.counting import COLLECTED_MS, Counter
from detectors.fleet.fleet import Fleet
from detectors.fleet.gpus import GpuLayout, reported
from detectors.fleet.presence import NEVER
from detectors.signals.saves import SAVES

_USUALLY: Final = 0.1
"""Share of a mount's readings in steps: of what writes so while its job makes steps it shows nothing. With what is left
of a checkpoint in a node's cache it is 0.01 to 0.07 in others' recordings."""
_FEW, _MEMORY = 20, 200


class Writes(Columns):
    """Columns over mounts of nodes: `wrote_at`, when (ms) the node last wrote much there; `usual`, in which share of
    the `known` readings it did while its job made steps; `read` and `high`, all and such readings since the last look.
    """

    axis = "storage"
    BESIDE = ("counted",)
    wrote_at: IntArray = column(NEVER)
    usual: FloatArray = column(0.0)
    known: IntArray = column(0)
    read: IntArray = column(0)
    high: IntArray = column(0)

    def __init__(self, fleet: Fleet, layout: GpuLayout) -> None:
        super().__init__()
        self._fleet, self._layout, self.counted = fleet, layout, Counter()

    def take(self, batch: Batch) -> None:
        """Take readings of mounts."""
        self.grow(len(self._fleet.entities("storage")))
        for tick, here in batch.ticks():
            mounts, at = batch.entities[here], batch.at[tick, here]
            rate = self.counted.rates(mounts, at, reported(batch, "write_bytes", tick, here), COLLECTED_MS)
            saves = rate >= SAVES
            self.wrote_at[mounts[saves]] = at[saves]
            self.read[mounts[np.isfinite(rate)]] += 1
            self.high[mounts[saves]] += 1

    def look(self, at_work: BoolArray) -> None:
        """At a point of the grid: learn what is usual on nodes `at_work`, (n,) as they are numbered in the layout."""
        due = np.flatnonzero(self.read)
        if not len(due):
            return
        keys = self._fleet.entities("storage")
        node = np.array([self._layout.number(str(keys[mount][0])) for mount in due.tolist()], np.int64)
        mine = due[(node >= 0) & np.append(at_work, False)[node]]
        read = self.read[mine]
        self.known[mine] = np.minimum(self.known[mine] + read, _MEMORY)
        self.usual[mine] += (self.high[mine] - read * self.usual[mine]) / self.known[mine]
        self.read[due], self.high[due] = 0, 0

    def last(self, nodes: Sequence[str], since: Instant) -> Instant:
        """Return when one of the nodes last wrote much after `since` (ms); `since` where none did.

        To a mount that they usually write so much to, on average, they may at any time.
        """
        machines, by_mount = frozenset(nodes), defaultdict[str, list[int]](list)
        for place, (node, mount) in enumerate(self._fleet.entities("storage")[: len(self)]):
            if str(node) in machines:
                by_mount[str(mount)].append(place)
        latest = since
        for places in by_mount.values():
            known = self.usual[places][self.known[places] >= _FEW]
            if not len(known) or known.mean() <= _USUALLY:
                latest = max(latest, int(self.wrote_at[places].max()))
        return latest
