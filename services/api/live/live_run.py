"""Live clusters as runs: what `hindcast live` finds, shown by the API as any run is, and what people do about it."""

import json
import threading

from services.api.replays.generations import Generation
from services.api.runs.models import Action, ActionRequest, Finding, SilenceRequest
from services.api.runs.serializers import finding_of
from services.api.runs.writer import RunWriter
from services.api.store import Store, now_ms
from services.detect.warmup import finding_line
from services.kit.errors import UserError
from services.kit.problems import RefusedError, missing
from services.kit.times import format_time
from services.live.alerts import alerted, finding_record
from services.live.follower import Closing
from services.live.poll_loop import News
from services.live.start import Run


class LiveRun:
    """Writes what a live run finds to the store, as the run of the replay ``live``: the same one after a restart.

    `name`: the run's id, `recording`: what it is called. The live run and the API's threads may call it at a time.
    """

    def __init__(self, store: Store, run: Run) -> None:
        unit = run.origin.unit
        self.name, self.recording = Generation(unit, 0, 0).run, f"live-{run.origin.cluster}"
        self._run = run
        row = (self.name, self.recording, run.feed.server, now_ms(), now_ms(), unit)
        with store.writing() as db:
            db.execute(
                "INSERT INTO runs (id, recording, path, detectors, state, created_ms, began_ms, unit, generation)"
                " VALUES (?, ?, ?, '{}', 'running', ?, ?, ?, 0)"
                " ON CONFLICT (id) DO UPDATE SET state = 'running', over_ms = NULL, error = NULL",
                row,
            )
        self._notes = RunWriter(store, self.name, start_ms=run.feed.at, end_ms=run.feed.at)
        self._notes.restore()
        self._lock = threading.Lock()
        self._error: str | None = None
        self._closed = [
            _closing(found.id, action)
            for found in self._notes.findings.values()
            for action in found.actions
            if action.kind == "closed"
        ]

    # ---- found

    def news(self, news: News) -> None:
        """Write what a step brought."""
        with self._lock:
            for finding in news.step.findings:
                shadow = finding.detector in self._run.feed.engine.shadow
                self._notes.hear_finding(finding, shadow=shadow)
            for incident in news.step.incidents:
                self._notes.hear_incident(json.loads(incident.to_json()))
            self._notes.event_ms, self._error = news.step.at, None
            self._notes.write()

    def following(self) -> None:
        """Write that the server answers."""
        with self._lock:
            self._error = None
            self._notes.write()

    def away(self, error: UserError) -> None:
        """Write that the server does not answer: what is known may be old."""
        with self._lock:
            self._error = error.message
            self._notes.write(error=self._error)

    def end(self) -> None:
        """Write that nobody watches any more."""
        with self._lock:
            self._notes.write("cancelled")

    # ---- done about it

    def acknowledge(self, finding: str, asked: ActionRequest, author: str) -> Finding:
        """Note that somebody sees to a finding; RefusedError (404, 409): there is none, or it is over."""
        return self._act(finding, Action(kind="acknowledged", author=author, note=asked.note, at=format_time(now_ms())))

    def close(self, finding: str, asked: ActionRequest, author: str) -> Finding:
        """Have a finding be over, whatever its detector says; RefusedError as `acknowledge`."""
        return self._act(finding, Action(kind="closed", author=author, note=asked.note, at=format_time(now_ms())))

    def silence(self, finding: str, asked: SilenceRequest, author: str) -> Finding:
        """Silence a finding's alert in Alertmanager.

        RefusedError as `acknowledge`, 409 where it alerts nobody, 502 and 503 where Alertmanager does not do it.
        """
        with self._lock:
            found = self._open(finding)
        line = finding_line(finding_of(found), shadow=found.shadow)
        labels = alerted(finding_record(self._run.origin, line, self._run.feed.topology))
        if self._run.alerts is None or labels is None:
            why = (
                "hindcast live has no --alertmanager" if labels is not None else "it is in shadow, or of severity info"
            )
            raise RefusedError(409, f"finding {finding} alerts nobody: {why}", remedy="there is nothing to silence")
        now, until = now_ms(), now_ms() + 1000 * asked.for_s
        link = self._run.alerts.silence(labels, author=author, note=asked.note, span_ms=(now, until))
        action = Action(
            kind="silenced",
            author=author,
            note=asked.note,
            at=format_time(now),
            until=format_time(until),
            link=link,
        )
        return self._act(finding, action)

    def closings(self) -> list[Closing]:
        """Return what was closed since this was asked last, at first also before."""
        with self._lock:
            closed, self._closed = self._closed, []
        return closed

    def _open(self, finding: str) -> Finding:
        found = self._notes.findings.get(finding)
        if found is None:
            raise missing("finding", finding, f"GET /api/v1/runs/{self.name}/findings lists those there are")
        if found.resolved_at is not None:
            raise RefusedError(
                409, f"finding {finding} is over since {found.resolved_at}", remedy="judge it, if need be"
            )
        return found

    def _act(self, finding: str, action: Action) -> Finding:
        with self._lock:
            self._open(finding)
            found = self._notes.act(finding, action)
            self._notes.write(error=self._error)
            if action.kind == "closed":
                self._closed.append(_closing(finding, action))
        return found


def _closing(finding: str, action: Action) -> Closing:
    return Closing(finding, f"closed by {action.author}: {action.note}")
