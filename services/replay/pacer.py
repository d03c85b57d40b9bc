"""How far a replay ought to be: event time as a function of the wall clock. Pure: the clock is handed in."""

import math
from dataclasses import dataclass, replace
from typing import Self

MAX = 0.0
"""The speed that stands for "as fast as possible", as in `ReplayState.speed`."""
ALL_DUE = 2**62
"""The schedule at `MAX`: everything is due."""
# Of event time, in ms: what the rounding of floats may take off, so that what is due at a moment is sent at it.
_ROUNDING_MS = 1e-3


@dataclass(frozen=True, slots=True)
class Pacer:
    """A straight line from wall time (seconds of a monotonic clock) to event time (ms), or a standstill.

    The line is never bent towards what has really been sent: a replay that cannot keep up falls behind its schedule,
    and the difference is reported as its lag.
    """

    speed: float
    at_ms: float
    wall_s: float
    paused: bool = False

    def event_at(self, wall_s: float) -> int:
        """Return up to which event time (ms) everything is due at `wall_s`."""
        if self.paused:
            return math.floor(self.at_ms)
        if self.speed == MAX:
            return ALL_DUE
        return math.floor(self.at_ms + (wall_s - self.wall_s) * 1000.0 * self.speed + _ROUNDING_MS)

    def wall_at(self, event_ms: int) -> float:
        """Return when (seconds of the wall clock) `event_ms` is due: at once at `MAX`, never while paused."""
        if self.paused:
            return math.inf
        if self.speed == MAX:
            return -math.inf
        return self.wall_s + (event_ms - self.at_ms) / (1000.0 * self.speed)

    def lag_s(self, oldest_ms: int | None, wall_s: float) -> float:
        """Return for how many wall seconds `oldest_ms`, the oldest row not yet in Kafka, has been due: 0 at `MAX`."""
        if oldest_ms is None or self.paused or self.speed == MAX:
            return 0.0
        return max(0.0, wall_s - self.wall_at(oldest_ms))

    def anchored(self, at_ms: float, wall_s: float) -> Self:
        """Return a new line through this event time and wall time, with the same speed, paused if this one is."""
        return replace(self, at_ms=float(at_ms), wall_s=wall_s)

    def with_speed(self, speed: float, *, position_ms: int, wall_s: float) -> Self:
        """Return the line that goes on at another speed from where the schedule is, or, where there was none, from
        `position_ms`.
        """
        return replace(self.anchored(self._here(position_ms, wall_s), wall_s), speed=speed)

    def stopped(self, *, position_ms: int, wall_s: float) -> Self:
        """Return a standstill where the schedule is, or, where there was none, at `position_ms`."""
        return replace(self.anchored(self._here(position_ms, wall_s), wall_s), paused=True)

    def resumed(self, *, wall_s: float) -> Self:
        """Return the line that goes on from a standstill."""
        return replace(self.anchored(self.at_ms, wall_s), paused=False) if self.paused else self

    def _here(self, position_ms: int, wall_s: float) -> float:
        if self.paused:
            return self.at_ms
        if self.speed == MAX:
            return float(position_ms)
        return self.at_ms + (wall_s - self.wall_s) * 1000.0 * self.speed
