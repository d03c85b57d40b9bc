"""When a unit was last heard of at all, by any row or log line: after an hour of silence the grid rests."""

from typing import Final

import numpy as np

from detectors.contract import Instant, IntArray

SILENCE_MS: Final = 3_600_000
"""After an hour without any telemetry or log line the grid rests until some comes: a feed that was away for a month,
or one stray timestamp in 1970, must not cost a call for every five seconds of it."""


class Pulse:
    """When something was `last` heard, and when rows come that nobody reads, of which no snapshot is made."""

    def __init__(self) -> None:
        self.last: Instant | None = None
        self._coming: IntArray = np.empty(0, np.int64)

    def coming(self, times: IntArray, after: Instant) -> None:
        """Note when rows come, in any order; those up to `after` are too late."""
        fresh = times[(times > after) & (np.diff(times, prepend=after) != 0)]
        self._coming = np.sort(np.concatenate([self._coming, fresh]), kind="stable")

    def first(self) -> Instant | None:
        """Return when the first of the rows comes that nobody reads."""
        return int(self._coming[0]) if len(self._coming) else None

    def heard(self, at: Instant) -> None:
        """Note that something was heard."""
        self.last = max(self.last or at, at)

    def go_on(self, upto: Instant) -> None:
        """Hear the rows that came up to then."""
        passed = int(self._coming.searchsorted(upto, side="right"))
        if passed:
            self.heard(int(self._coming[passed - 1]))
            self._coming = self._coming[passed:]

    def rests(self, at: Instant) -> bool:
        """Return whether nothing has been heard for so long that the grid rests."""
        return self.last is None or at - self.last > SILENCE_MS
