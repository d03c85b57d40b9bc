"""One run, in a process of its own: the embedded engine over a recording, what it says written to the store."""

import json
import logging
import os
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from detectors import contract
from services.api.models import Finding
from services.api.store import Store, now_ms
from services.api.telling import finding_meant, finding_told, incident_told
from services.detect.choices import choices_of, incident_config_of
from services.kit.errors import UserError
from services.recording.embedded import Step, steps
from services.recording.reader import Recording
from services.score.matching import judge

if TYPE_CHECKING:
    from detectors.incidents import report

_log = logging.getLogger(__name__)
_EVERY_S = 0.25


def main(database: Path, run: str, parent: int) -> None:
    """Carry out a run that was claimed; its state says at the end how that went. `parent`: ends where that is gone."""
    store = Store(database)
    try:
        _carry_out(store, run, parent)
    except UserError as error:
        _fail(store, run, str(error))
    except Exception:  # noqa: BLE001 - whatever it is, the run says that it failed
        _log.exception("run failed run=%s", run)
        _fail(store, run, "a defect of hindcast ended it: the service's log has more")
        sys.exit(1)


def _fail(store: Store, run: str, message: str) -> None:
    with store.writing() as db:
        db.execute(
            "UPDATE runs SET state = 'failed', error = ?, over_ms = ? WHERE id = ? AND state = 'running'",
            (message, now_ms(), run),
        )


def _carry_out(store: Store, run: str, parent: int) -> None:
    row = store.one("SELECT path, detectors FROM runs WHERE id = ?", (run,))
    if row is None:
        return
    recording = Recording.open(row["path"])
    overrides: dict[str, Any] = json.loads(row["detectors"])
    choices = choices_of(overrides)
    shadow = {kind.spec.name for kind, config in choices if config.shadow}
    notes = _Notes(store, run, recording, shadow)
    due = time.monotonic()
    for step in steps(recording, choices, incident_config_of(overrides)):
        notes.take(step)
        if time.monotonic() >= due:
            if os.getppid() != parent:
                return  # nobody would hear of it; the next start of the service begins it anew
            notes.write()
            due = time.monotonic() + _EVERY_S
    notes.finish()


class _Notes:
    """What was said and is not yet in the store, and what was."""

    def __init__(self, store: Store, run: str, recording: Recording, shadow: set[str]) -> None:
        self._store = store
        self._run = run
        self._recording = recording
        self._shadow = shadow
        self._findings: dict[str, Finding] = {}
        self._places: dict[str, int] = {}
        self._incidents: set[str] = set()
        self._changed: dict[str, int] = {}
        self._revised: list[report.Incident] = []
        self._events: list[tuple[str, str]] = []
        self._event = 0
        self._event_ms = recording.manifest.start

    def take(self, step: Step) -> None:
        """Note what came of a step."""
        self._event_ms = step.at
        for finding in step.findings:
            self._take(finding)
        for incident in step.incidents:
            self._revised.append(incident)
            if incident.state == "joined":
                self._incidents.discard(incident.id)
                body = json.dumps({"id": incident.id, "joined_to": incident.joined_to})
                self._events.append(("joined", body))
            else:
                self._incidents.add(incident.id)
                self._events.append(("incident", incident_told(incident, self._run).model_dump_json()))

    def _take(self, finding: contract.Finding) -> None:
        told = self._findings.get(finding.id)
        if finding.state == "resolved" and told is not None:
            at = contract.rfc3339(finding.detected_at)
            told = told.model_copy(update={"state": "resolved", "resolved_at": at})
        else:
            told = finding_told(finding, self._run, shadow=finding.detector in self._shadow)
        self._changed[finding.id] = self._places.setdefault(finding.id, len(self._places))
        self._findings[finding.id] = told
        self._events.append(("finding", told.model_dump_json()))

    def write(self, state: str = "running") -> None:
        """Write what is noted, in one transaction."""
        manifest = self._recording.manifest
        progress = min(1.0, max(0.0, (self._event_ms - manifest.start) / max(1, manifest.end - manifest.start)))
        with self._store.writing() as db:
            db.executemany(
                "INSERT OR REPLACE INTO findings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [self._row(self._findings[name], place) for name, place in self._changed.items()],
            )
            for one in self._revised:
                if one.state == "joined":
                    db.execute("DELETE FROM incidents WHERE run = ? AND id = ?", (self._run, one.id))
                    continue
                body = incident_told(one, self._run).model_dump_json()
                row = (self._run, one.id, one.opened_at, one.state, body)
                db.execute("INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?)", row)
            numbered = enumerate(self._events, start=self._event + 1)
            db.executemany(
                "INSERT INTO events VALUES (?, ?, ?, ?)", [(self._run, number, *event) for number, event in numbered]
            )
            db.execute(
                "UPDATE runs SET state = ?, progress = ?, event_ms = ?, findings = ?, incidents = ?, over_ms = ?"
                " WHERE id = ? AND state = 'running'",
                (
                    state,
                    1.0 if state == "done" else progress,
                    self._event_ms,
                    len(self._findings),
                    len(self._incidents),
                    now_ms() if state == "done" else None,
                    self._run,
                ),
            )
        self._event += len(self._events)
        self._changed, self._revised, self._events = {}, [], []

    def _row(self, told: Finding, place: int) -> tuple[str | int | None, ...]:
        node = told.entity.get("node")
        return (
            self._run,
            told.id,
            place,
            told.detector,
            told.fault,
            told.severity,
            told.state,
            None if node is None else str(node),
            told.verdict,
            told.model_dump_json(),
        )

    def finish(self) -> None:
        """Judge the findings against the recording's labels, if it has any, and write that it is done."""
        labels = list(self._recording.labels())
        if labels:
            for outcome in judge([finding_meant(told) for told in self._findings.values()], labels):
                if outcome.finding is None:
                    continue
                name = outcome.finding.id
                verdict = {
                    "verdict": outcome.kind,
                    "truth": outcome.label.id if outcome.label else None,
                    "delay_s": outcome.delay_s,
                }
                self._findings[name] = self._findings[name].model_copy(update=verdict)
            self._changed = dict(self._places)
        self.write("done")
