"""The loop of a live run: read, hand on, keep; while a server is away, wait and ask again."""

import threading
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from services.detect.warmup import Line
from services.kit.errors import UserError
from services.live.lateness import Lateness
from services.recording.embedded import Step

_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_TICK_S = 1.0
"""How often what is due between polls is looked for."""


class News(NamedTuple):
    """What a step brought: all findings and incidents, and of these the lines that are to be reported now.

    Until the lookback is over nothing is reported; then what is still open is.
    """

    step: Step
    reported: Sequence[Line]


class Watcher(Protocol):
    """Who wants to know what happens."""

    def news(self, news: News) -> None:
        """Take what a step brought."""

    def following(self) -> None:
        """Take note that the present is reached, after the lookback or after an outage."""

    def away(self, error: UserError) -> None:
        """Take note that a server did not answer."""


class Source(Protocol):
    """What goes on step by step; `at`: how far it has come (epoch ms)."""

    at: int
    lateness: Lateness

    def step(self, now: int) -> Step | None:
        """Go on by one step; None where nothing is due at `now` (epoch ms), UserError where a server is away."""


class PollLoop:
    """Takes a source on, turn by turn. `wall_ms`: wall time, epoch ms."""

    def __init__(self, source: Source, watchers: Sequence[Watcher], *, wall_ms: Callable[[], int]) -> None:
        self._source, self._watchers, self._wall_ms = source, watchers, wall_ms
        self._reached = False
        self._pause_s = 0.0

    def run(self, stop: threading.Event, every_s: float) -> None:
        """Go on until `stop` is set."""
        while not stop.is_set():
            wait_s = self.turn(every_s)
            until = time.monotonic() + wait_s
            while not stop.is_set() and (left := until - time.monotonic()) > 0:
                stop.wait(min(left, _TICK_S))
                self.between()

    def turn(self, every_s: float) -> float:
        """Go on by one step; return after how many seconds the next is due."""
        try:
            step = self._source.step(self._wall_ms())
        except UserError as error:
            self._reached = False
            self._pause_s = min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * self._pause_s))
            for watcher in self._watchers:
                watcher.away(error)
            return self._pause_s
        self._pause_s = 0.0
        if step is not None:
            self.take(step)
        if self._wall_ms() - self._source.lateness.delay_ms - self._source.at > 2000 * every_s:
            return 0.0
        if not self._reached:
            self._reached = True
            for watcher in self._watchers:
                watcher.following()
        return every_s

    def between(self) -> None:
        """Do what is due between steps."""

    def take(self, step: Step) -> None:
        """Hand on what a step brought."""
        self.report(News(step, ()))

    def report(self, news: News) -> None:
        """Let all watchers know."""
        for watcher in self._watchers:
            watcher.news(news)
