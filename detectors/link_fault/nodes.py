"""Whether the nodes at the ends of cables live: a port whose node is down, booting or drained is no link fault."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Instant, IntArray
from detectors.link_fault.config import LinkFaultConfig
from detectors.presence import NEVER, Presence, Roster
from detectors.scheduling import Scheduler

_SILENT_INTERVALS, _SILENT_MS = 5.5, 60_000
_OF_OLD_MS: Final = 600_000


class Nodes:
    """When every node was last heard in band, and when it came back after a silence (-1: it was never away)."""

    def __init__(self, config: LinkFaultConfig, roster: Roster, streams: list[Presence], scheduler: Scheduler) -> None:
        self._config, self._roster, self._streams, self._scheduler = config, roster, streams, scheduler
        self._last: IntArray = np.empty(0, np.int64)
        self._back: IntArray = np.empty(0, np.int64)

    def measure(self) -> None:
        """At a point of the grid: note who is heard, and who again."""
        for presence in self._streams:
            self._roster.owners(presence.kind, len(presence))
        heard = [self._roster.latest(presence) for presence in self._streams]
        last = np.array([times for times, _ in heard]).max(axis=0)
        usual = np.array([intervals for _, intervals in heard]).min(axis=0)
        more = len(last) - len(self._last)
        if more:
            self._last = np.concatenate([self._last, np.full(more, NEVER, np.int64)])
            self._back = np.concatenate([self._back, np.full(more, NEVER, np.int64)])
        away = np.maximum(_SILENT_INTERVALS * np.where(np.isfinite(usual), usual, 0.0), _SILENT_MS)
        again = (self._last >= 0) & (last - self._last > away)
        self._back[again] = last[again]
        self._last = last

    def settled_since(self, node: str) -> Instant:
        """Return since when a node that was away has been back for long enough for its links to have trained."""
        number = self._roster.number(node)
        if number >= len(self._back) or self._back[number] < 0:
            return NEVER
        return int(self._back[number] + self._config.boot_grace_s * 1000)

    def lives(self, node: str, since: Instant, now: Instant) -> bool:
        """Return whether a node is at work, and was heard after `since`; a node that never is cannot be told."""
        if self._scheduler.on_purpose(node, now) is not None:
            return False
        fate = self._scheduler.fate(node, since - _OF_OLD_MS)
        if fate is not None and fate.said == "down":
            return False
        number = self._roster.number(node)
        if number >= len(self._last) or self._last[number] < 0:
            return True
        return bool(self._last[number] > since and self.settled_since(node) < now)

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays."""
        return {"node_last": self._last, "node_back": self._back}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self._last, self._back = arrays["node_last"], arrays["node_back"]
