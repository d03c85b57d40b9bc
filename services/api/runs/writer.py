"""What was found in a run and is not yet in the store, and what was: findings, incidents, alerts, and their events."""

import json
from collections.abc import Mapping
from typing import Any

from detectors import contract
from services.api.runs.models import Action, Alert, Finding, Incident
from services.api.runs.serializers import finding_of
from services.api.store import Store, now_ms
from services.kit.times import format_time, parse_time
from services.recording.model import Label
from services.score.matching import judge


class RunWriter:
    """Takes findings, and incidents as the engine writes them (JSON), and writes them to the store now and then."""

    def __init__(self, store: Store, run: str, *, start_ms: int, end_ms: int) -> None:
        self.run = run
        self.event_ms = start_ms
        """Event time that the run has come to."""
        self._store = store
        self._start_ms, self._end_ms = start_ms, end_ms
        self._findings: dict[str, Finding] = {}
        self._places: dict[str, int] = {}
        self._incidents: dict[str, int] = {}
        self._joined: set[str] = set()
        self._changed: dict[str, int] = {}
        self._revised: dict[str, Incident | None] = {}
        self._alerts: dict[str, Alert] = {}
        self._events: list[tuple[str, str]] = []
        self._event = 0

    def restore(self) -> None:
        """Take from the store what was written of the run before."""
        for row in self._store.all("SELECT id, place, body FROM findings WHERE run = ?", (self.run,)):
            self._findings[row["id"]] = Finding.model_validate_json(row["body"])
            self._places[row["id"]] = row["place"]
        for row in self._store.all("SELECT id, body FROM incidents WHERE run = ?", (self.run,)):
            self._incidents[row["id"]] = json.loads(row["body"])["revision"]
        for row in self._store.all("SELECT kind, body FROM events WHERE run = ? AND kind = 'joined'", (self.run,)):
            self._joined.add(json.loads(row["body"])["id"])
        found = self._store.one("SELECT max(id) AS last FROM events WHERE run = ?", (self.run,))
        self._event = int(found["last"] or 0) if found is not None else 0

    @property
    def findings(self) -> Mapping[str, Finding]:
        """All findings by id."""
        return self._findings

    @property
    def unwritten(self) -> bool:
        """Whether something was found since the last writing."""
        return bool(self._events)

    def take_finding(self, finding: contract.Finding, *, shadow: bool) -> None:
        """Note a finding that fires or is resolved."""
        found = self._findings.get(finding.id)
        if finding.state == "resolved" and found is not None:
            over = {"state": "resolved", "resolved_at": format_time(finding.detected_at)}
            found = found.model_copy(update=over)
        else:
            words = {"resolved_at": None, "shadow": shadow, "verdict": None, "truth": None, "delay_s": None}
            found = Finding.model_validate({"run": self.run, **finding.document(), **words})
        self._note(found)

    def act(self, finding: str, action: Action) -> Finding:
        """Note what a person did about a finding that was taken; one that is closed is over at this event time."""
        found = self._findings[finding]
        changes: dict[str, Any] = {"actions": [*found.actions, action]}
        if action.kind == "closed":
            changes |= {"state": "resolved", "resolved_at": format_time(self.event_ms)}
        self._note(found.model_copy(update=changes))
        return self._findings[finding]

    def _note(self, found: Finding) -> None:
        self._changed[found.id] = self._places.setdefault(found.id, len(self._places))
        self._findings[found.id] = found
        self._events.append(("finding", found.model_dump_json()))

    def take_incident(self, body: Mapping[str, Any]) -> None:
        """Note a revision of an incident."""
        name = str(body["id"])
        if body["state"] == "joined":
            self._revised[name] = None
            self._incidents.pop(name, None)
            self._joined.add(name)
            self._events.append(("joined", json.dumps({"id": name, "joined_to": body["joined_to"]})))
        else:
            incident = self._revised[name] = Incident.model_validate({"run": self.run, **body})
            self._incidents[name] = incident.revision
            self._events.append(("incident", incident.model_dump_json()))

    def hear_finding(self, finding: contract.Finding, *, shadow: bool) -> None:
        """Note a finding, unless that, or what came after it, was taken before."""
        found = self._findings.get(finding.id)
        if found is None or (finding.state == "resolved" and found.state == "firing"):
            self.take_finding(finding, shadow=shadow)

    def hear_incident(self, body: Mapping[str, Any]) -> None:
        """Note a revision of an incident, unless that, or a later one, was taken before.

        ValueError, KeyError, TypeError: it is none.
        """
        name = str(body["id"])
        if name not in self._joined and self._incidents.get(name, -1) < int(body["revision"]):
            self.take_incident(body)

    def take_alert(self, alert: Alert) -> None:
        """Note an alert, or what became of it."""
        self._alerts[alert.id] = alert
        self._events.append(("alert", alert.model_dump_json()))

    def write(self, state: str = "running", error: str | None = None) -> None:
        """Write what is noted, in one transaction; a run that is over stays as it is."""
        length = max(1, self._end_ms - self._start_ms)
        progress = 1.0 if state == "done" else min(1.0, max(0.0, (self.event_ms - self._start_ms) / length))
        over_ms = None if state == "running" else now_ms()
        numbered = list(enumerate(self._events, start=self._event + 1))
        with self._store.writing() as db:
            if db.execute("SELECT 1 FROM runs WHERE id = ?", (self.run,)).fetchone() is None:
                return  # it was deleted meanwhile
            db.executemany(
                "INSERT OR REPLACE INTO findings VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
                [self._row(self._findings[name], place) for name, place in self._changed.items()],
            )
            for name, incident in self._revised.items():
                if incident is None:
                    db.execute("DELETE FROM incidents WHERE run = ? AND id = ?", (self.run, name))
                    continue
                row = (self.run, name, parse_time(incident.opened_at), incident.state, incident.model_dump_json())
                db.execute("INSERT OR REPLACE INTO incidents VALUES (?, ?, ?, ?, ?)", row)
            db.executemany(
                "INSERT OR REPLACE INTO alerts VALUES (?, ?, ?, ?, ?)",
                [
                    (self.run, one.id, parse_time(one.sent_at), one.state, one.model_dump_json())
                    for one in self._alerts.values()
                ],
            )
            db.executemany(
                "INSERT INTO events VALUES (?, ?, ?, ?)", [(self.run, number, *event) for number, event in numbered]
            )
            db.execute(
                "UPDATE runs SET findings = ?, incidents = ? WHERE id = ?",
                (len(self._findings), len(self._incidents), self.run),
            )
            db.execute(
                "UPDATE runs SET state = ?, progress = ?, event_ms = ?, over_ms = ?, error = ?"
                " WHERE id = ? AND state = 'running'",
                (state, progress, self.event_ms, over_ms, error, self.run),
            )
        self._event += len(numbered)
        self._changed, self._revised, self._alerts, self._events = {}, {}, {}, []

    def judge(self, labels: list[Label]) -> None:
        """Judge the findings against the recording's labels; to be written then."""
        if not labels:
            return
        counted = [finding_of(one) for one in self._findings.values()]
        for outcome in judge(counted, labels):
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

    def _row(self, found: Finding, place: int) -> tuple[str | int | None, ...]:
        node = found.entity.get("node")
        return (
            self.run,
            found.id,
            place,
            found.detector,
            found.fault,
            found.severity,
            found.state,
            None if node is None else str(node),
            found.verdict,
            found.model_dump_json(),
        )
