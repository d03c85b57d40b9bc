"""Whether the nodes at the ends of cables live: a port whose node is down, booting or drained is no link fault.

A node that is heard again after a silence has booted, unless its NICs' counters went on: then only its collector was
away.
"""

from typing import Final

import numpy as np

from detectors.contract import Instant, IntArray
from detectors.core.columns import Columns, column
from detectors.fleet.presence import NEVER, Attendance, Roster
from detectors.fleet.scheduling import Scheduler
from detectors.link_fault.states import States

_SILENT_INTERVALS, _SILENT_MS = 5.5, 60_000
_OF_OLD_MS: Final = 600_000
_BOOT_GRACE_MS: Final = 180_000
"""After a boot drivers load and links train, for two or three minutes."""


class Nodes(Columns):
    """When every node was last heard in band, and when it came back after a silence (-1: it was never away)."""

    last: IntArray = column(NEVER)
    back: IntArray = column(NEVER)

    def __init__(self, roster: Roster, gpus: Attendance, nics: States, scheduler: Scheduler) -> None:
        super().__init__()
        self.axis = roster
        self._roster, self._streams, self._scheduler = roster, [gpus, nics.heard], scheduler
        self._nics = nics

    def measure(self) -> None:
        """At a point of the grid: note who is heard, and who again."""
        for presence in self._streams:
            self._roster.owners(presence.kind, len(presence))
        heard = [self._roster.latest(presence) for presence in self._streams]
        last = np.array([times for times, _ in heard]).max(axis=0)
        usual = np.array([intervals for _, intervals in heard]).min(axis=0)
        self.grow(len(last))
        away = np.maximum(_SILENT_INTERVALS * np.where(np.isfinite(usual), usual, 0.0), _SILENT_MS)
        again = (self.last >= 0) & (last - self.last > away)
        self.back[again] = last[again]
        self.last = last

    def settled_since(self, node: str) -> Instant:
        """Return since when a node that was away has been back for long enough for its links to have trained."""
        number = self._roster.number(node)
        if number >= len(self.back) or self.back[number] < 0:
            return NEVER
        back, sent = int(self.back[number]), self._nics.sent
        its = self._roster.owners("nic", len(self._nics)) == number
        counted_at, anew_at = (int(at[its].max(initial=NEVER)) for at in (sent.at, sent.fell_at))
        if counted_at >= back and anew_at < back - _SILENT_MS:
            return NEVER
        return back + _BOOT_GRACE_MS

    def lives(self, node: str, since: Instant, now: Instant) -> bool:
        """Return whether a node is at work, and was heard after `since`; of a node that never is nothing is known."""
        if (
            self._scheduler.on_purpose(node, now) is not None
            or since <= self._scheduler.back_at(node) > now - _BOOT_GRACE_MS
            or self._scheduler.gives_up(node, since - _OF_OLD_MS)
        ):
            return False
        if not self.is_gathered(node):
            return True
        return bool(self.last[self._roster.number(node)] > since and self.settled_since(node) < now)

    def is_gathered(self, node: str) -> bool:
        """Return whether a node was ever heard in band."""
        number = self._roster.number(node)
        return number < len(self.last) and bool(self.last[number] >= 0)
