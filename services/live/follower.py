"""A live run in this process: what each step brings is alerted, shown and kept."""

import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import NamedTuple

from detectors.contract import Finding
from services.detect.warmup import Line, closed_line, finding_line, incident_line, rows_of
from services.kit import topics
from services.live.poll_loop import News, PollLoop, Watcher
from services.live.start import Run
from services.live.state import Saved
from services.recording.embedded import Step

_SAVE_S = 60.0


class Closing(NamedTuple):
    """A finding that a person has closed; `words`: who, and why."""

    finding: str
    words: str


class Follower(PollLoop):
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
        super().__init__(run.feed, watchers, wall_ms=wall_ms)
        self._run, self._feed, self._alerts = run, run.feed, run.alerts
        self._closings = closings
        self._closed: set[str] = set()
        self._open = {line.id: line for line in run.open_lines}
        self._saved_s = time.monotonic()

    def run(self, stop: threading.Event, every_s: float) -> None:
        """Follow until `stop` is set; then keep the state."""
        super().run(stop, every_s)
        self.save()

    def turn(self, every_s: float) -> float:
        """Go on by one step; return after how many seconds the next is due."""
        self.close_by_hand()
        return super().turn(every_s)

    def between(self) -> None:
        """Take what was closed, and send alerts that are due."""
        self.close_by_hand()
        self._deliver()

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

    def take(self, step: Step) -> None:
        """Report what a step brought, keep what is open."""
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
        self.report(News(step, reported))

    def _line(self, finding: Finding) -> Line:
        engine = self._feed.engine
        return finding_line(finding, incident=engine.incident_of(finding), shadow=finding.detector in engine.shadow)

    def _deliver(self) -> None:
        if self._alerts is not None:
            self._alerts.deliver()
