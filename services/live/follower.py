"""The loop of a live run: read, detect, alert, keep; while the server is away, wait and ask again."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple, Protocol

from detectors.contract import Finding
from services.detect.warmup import Line, closed_line, finding_line, incident_line, rows_of
from services.kit import topics
from services.kit.errors import UserError
from services.live.start import Run
from services.live.state import Saved
from services.recording.embedded import Step

_SAVE_S = 60.0
_FIRST_PAUSE_S, _LONGEST_PAUSE_S = 1.0, 30.0
_TICK_S = 1.0
"""How often alerts that are due are looked for between polls."""


class News(NamedTuple):
    """What a step brought: all findings and incidents, and of these the lines that are to be reported now.

    Until the lookback is over nothing is reported; then what is still open is.
    """

    step: Step
    reported: Sequence[Line]


class Closing(NamedTuple):
    """A finding that a person has closed; `words`: who, and why."""

    finding: str
    words: str


class Watcher(Protocol):
    """Who wants to know what happens."""

    def news(self, news: News) -> None:
        """Take what a step brought."""

    def following(self) -> None:
        """Take note that the present is reached, after the lookback or after an outage."""

    def away(self, error: UserError) -> None:
        """Take note that the server did not answer."""


class Follower:
    """Sees a run through. `wall_ms`: wall time, epoch ms; `closings`: what was closed by hand since it was asked last,
    first also before this run.
    """

    def __init__(
        self,
        run: Run,
        watchers: Sequence[Watcher],
        *,
        wall_ms: Callable[[], int],
        closings: Callable[[], Iterable[Closing]] = tuple,
    ) -> None:
        self._run, self._feed, self._alerts = run, run.feed, run.alerts
        self._watchers, self._wall_ms, self._closings = watchers, wall_ms, closings
        self._closed: set[str] = set()
        self._open = {line.id: line for line in run.open_lines}
        self._saved_s = time.monotonic()
        self._reached = False
        self._pause_s = 0.0

    def run(self, stop: threading.Event, every_s: float) -> None:
        """Follow until `stop` is set; then keep the state."""
        while not stop.is_set():
            wait_s = self.turn(every_s)
            until = time.monotonic() + wait_s
            while not stop.is_set() and (left := until - time.monotonic()) > 0:
                stop.wait(min(left, _TICK_S))
                self.close_by_hand()
                self._deliver()
        self.save()

    def turn(self, every_s: float) -> float:
        """Go on by one step; return after how many seconds the next is due."""
        self.close_by_hand()
        try:
            step = self._feed.step(self._wall_ms())
        except UserError as error:
            self._reached = False
            self._pause_s = min(_LONGEST_PAUSE_S, max(_FIRST_PAUSE_S, 2 * self._pause_s))
            for watcher in self._watchers:
                watcher.away(error)
            return self._pause_s
        self._pause_s = 0.0
        if step is not None:
            self._take(step)
        if self._wall_ms() - self._feed.lateness.delay_ms - self._feed.at > 2000 * every_s:
            return 0.0
        if not self._reached:
            self._reached = True
            for watcher in self._watchers:
                watcher.following()
        return every_s

    def close_by_hand(self) -> None:
        """Take what people closed: its alert is resolved, and nothing more is reported of it."""
        closed: list[Line] = []
        for finding, words in self._closings():
            self._closed.add(finding)
            line = self._open.pop(finding, None)
            if line is not None:
                closed.append(closed_line(line, self._feed.at, words))
        if closed:
            self._report(Step(self._feed.at, [], []), closed)
            self.save()

    def save(self) -> None:
        """Keep the state, where there is a place for it."""
        self._saved_s = time.monotonic()
        if self._run.state is None:
            return
        document = {
            "server": self._feed.server,
            "feed": self._feed.snapshot(),
            "from": self._run.warmup.from_ms,
            "warm": self._run.warmup.snapshot(),
            "open": rows_of(self._open.values()),
            "alerts": self._alerts.snapshot() if self._alerts is not None else None,
        }
        self._run.state.save(Saved(document, self._feed.engine.snapshot()))

    def _take(self, step: Step) -> None:
        engine = self._feed.engine
        lines = [self._line(one) for one in step.findings] + [incident_line(one) for one in step.incidents]
        lines.sort(key=lambda line: line.at_ms)  # stable: a finding before the incident that it changes
        released = self._run.warmup.release(lines, engine.event_time)
        for line in lines:
            if line.topic == topics.FINDINGS:
                self._open.pop(line.id, None)
                if line.state == "firing" and line.id not in self._closed:
                    self._open[line.id] = line
        self._report(step, [line for line in released if line.id not in self._closed])
        if time.monotonic() - self._saved_s >= _SAVE_S:
            self.save()

    def _report(self, step: Step, reported: Sequence[Line]) -> None:
        if self._alerts is not None:
            for line in reported:
                if line.topic == topics.FINDINGS:
                    self._alerts.take(line, self._feed.topology)
        self._deliver()
        for watcher in self._watchers:
            watcher.news(News(step, reported))

    def _line(self, finding: Finding) -> Line:
        engine = self._feed.engine
        return finding_line(finding, incident=engine.incident_of(finding), shadow=finding.detector in engine.shadow)

    def _deliver(self) -> None:
        if self._alerts is not None:
            self._alerts.deliver()
