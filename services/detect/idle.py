"""Watermarks of a feed that sends none, as live ones: derived from what arrives, with a timeout for silent streams.

This is where wall time enters detection, and the only place: the engine sees watermarks, whoever made them.
"""

from collections.abc import Iterable
from dataclasses import dataclass

_AHEAD_MS = 60_000
"""A collector's clock may run ahead so far; a stray reading from the future must not make all others late."""


@dataclass(slots=True)
class _Arrival:
    latest_ms: int
    wall_s: float


class ArrivalWatermarks:
    """A stream's watermark is a little behind its latest reading; a silent one no longer holds the others back."""

    def __init__(self, *, idle_timeout_s: float, lateness_ms: int) -> None:
        self._idle_s = idle_timeout_s
        self._lateness_ms = lateness_ms
        self._arrivals: dict[str, _Arrival] = {}
        self._began_s = self._asked_s = 0.0
        self._wall_ahead_ms = 0.0
        """Of the monotonic clock, when something came last."""

    def arrived(self, stream: str, latest_ms: int, *, monotonic_s: float, wall_ms: int) -> None:
        """Note that rows of a stream came, the latest of them of `latest_ms`."""
        if not self._arrivals:
            self._began_s = monotonic_s
        known = self._arrivals.get(stream)
        self._wall_ahead_ms = wall_ms - 1000 * monotonic_s
        latest = min(latest_ms, wall_ms + _AHEAD_MS)
        self._arrivals[stream] = _Arrival(max(latest, known.latest_ms) if known else latest, monotonic_s)

    def watermarks(self, streams: Iterable[str], *, monotonic_s: float, held: Iterable[str] = ()) -> dict[str, int]:
        """Return the watermarks at this moment of those of `streams` that have one; none while all are silent.

        A stream that was never heard holds the others back for one idle timeout after the first was. While one is
        `held`, as it is not read, its timeout stands still. Silence says nothing of the future: where one of the others
        is ahead of the present, a silent one has come to the present, or what it has to say next would be late.
        """
        for stream in self._arrivals.keys() & set(held):
            self._arrivals[stream].wall_s += monotonic_s - self._asked_s
        self._asked_s = monotonic_s
        last_heard = {stream: arrival.wall_s for stream, arrival in self._arrivals.items()}
        silent = {s for s in streams if monotonic_s - last_heard.get(s, self._began_s) >= self._idle_s}
        watermarks = {
            stream: arrival.latest_ms - self._lateness_ms
            for stream, arrival in self._arrivals.items()
            if stream in set(streams) - silent
        }
        if watermarks:
            present_ms = int(1000 * monotonic_s + self._wall_ahead_ms) - self._lateness_ms
            watermarks |= dict.fromkeys(silent, min(max(watermarks.values()), present_ms))
        return watermarks
