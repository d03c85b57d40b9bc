"""How long every node has been silent, over all its in-band streams, in intervals of its own."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, FloatArray, Instant, IntArray, Kind
from detectors.presence import NEVER, Presence, Roster

IN_BAND: Final[tuple[Kind, ...]] = ("dcgm", "nic", "storage")
_STILL_THERE = 1.7
"""A stream that had been missing for more of its intervals when the node was last heard had ended before."""


class Silence:
    """Columns over nodes: `last` heard (ms; -1 never), `usual` interval (ms; inf), `silent_ms`, `missed` intervals.

    The interval is that of the fastest stream that was still there when the node was last heard: a storage client
    read every minute does not make the GPUs' silence of half a minute usual.
    """

    def __init__(self, roster: Roster) -> None:
        self._roster = roster
        self._streams: dict[str, Presence] = {kind: Presence(kind) for kind in IN_BAND}
        self.last: IntArray = np.empty(0, np.int64)
        self.usual: FloatArray = np.empty(0)
        self.missed: FloatArray = np.empty(0)
        self.silent_ms: IntArray = np.empty(0, np.int64)
        self._there = np.empty((len(IN_BAND), 0), bool)
        self.patience = 0

    def take(self, batch: Batch) -> None:
        """Take note of who is heard."""
        self._streams[batch.kind].take(batch)

    def measure(self, now: Instant) -> None:
        """At a point of the grid: measure every node's silence."""
        for presence in self._streams.values():
            self._roster.owners(presence.kind, len(presence))
        heard = [self._roster.latest(presence) for presence in self._streams.values()]
        last = np.array([times for times, _ in heard])
        usual = np.array([intervals for _, intervals in heard])
        self.last = last.max(axis=0)
        self._there = (last >= 0) & (last + _STILL_THERE * usual >= self.last)
        self.usual = np.where(self._there, usual, np.inf).min(axis=0, initial=np.inf)
        self.silent_ms = now - self.last
        self.missed = np.where(self.last >= 0, self.silent_ms / np.maximum(self.usual, 1.0), 0.0)
        self.patience = max((p.patience for p in self._streams.values() if len(p)), default=3)

    def grow(self) -> None:
        """Make room for nodes that only logs have told of."""
        more = len(self._roster) - len(self.last)
        if more > 0:
            self.last = np.concatenate([self.last, np.full(more, NEVER, np.int64)])
            self.usual = np.concatenate([self.usual, np.full(more, np.inf)])
            self.missed = np.concatenate([self.missed, np.zeros(more)])
            self.silent_ms = np.concatenate([self.silent_ms, np.zeros(more, np.int64)])
            self._there = np.concatenate([self._there, np.zeros((len(IN_BAND), more), bool)], axis=1)

    def reporting(self, now: Instant, forget_ms: float) -> int:
        """Return how many nodes have reported in the last `forget_ms`."""
        return int(((self.last >= 0) & (now - self.last <= forget_ms)).sum())

    def streams(self, node: int) -> str:
        """Return the streams of a node that fell silent with it."""
        return ", ".join(kind for kind, there in zip(IN_BAND, self._there[:, node], strict=True) if there)

    def snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state as numbers and arrays."""
        numbers: dict[str, Any] = {}
        arrays: dict[str, NDArray[Any]] = {}
        for kind, presence in self._streams.items():
            numbers[kind], own = presence.snapshot()
            arrays |= own
        return numbers, arrays

    def load(self, numbers: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        for kind, presence in self._streams.items():
            presence.load(numbers[kind], arrays)
