"""Up to which event time each stream of a unit was fed."""

from collections.abc import Iterable, Mapping

from detectors.contract import Instant

BEGINNING: Instant = -(2**62)


class Watermarks:
    """The watermark of each stream: up to there all of it was fed; of one that has `ended` no more will follow."""

    def __init__(self, at: Mapping[str, Instant] | None = None, ended: Iterable[str] = ()) -> None:
        self.at = dict(at or {})
        self.ended = set(ended)

    def move(self, stream: str, at: Instant, *, end: bool) -> None:
        """Note that all of `stream` up to `at` was fed; it never goes back."""
        self.at[stream] = max(at, self.at.get(stream, BEGINNING))
        if end:
            self.ended.add(stream)

    def least(self, streams: set[str]) -> Instant:
        """Return the time up to which each of `streams` was fed; where there are none, the latest of all."""
        if not streams:
            return max(self.at.values(), default=BEGINNING)
        fed = {stream: self.at.get(stream, BEGINNING) for stream in streams}
        return min((fed[stream] for stream in streams - self.ended), default=max(fed.values()))

    def awaited(self, streams: set[str]) -> set[str]:
        """Return those of `streams` without which the watermark goes no further."""
        upto = self.least(streams)
        return {stream for stream in streams - self.ended if self.at.get(stream, BEGINNING) == upto}
