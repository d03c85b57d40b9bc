"""What the engine says, as the API says it; and back, for the scorer."""

import json

from detectors import contract
from services.api.recordings.library import truth
from services.api.runs.models import Finding, Incident, Run, Score, TimelineEntry
from services.api.store import Row
from services.kit.findings import finding_in
from services.recording.model import Label
from services.score.matching import Outcome
from services.score.tally import tally


def finding_of(found: Finding) -> contract.Finding:
    """Return the finding as the engine reported it when it fired."""
    return finding_in(found.model_copy(update={"state": "firing"}).model_dump_json())


def run_of(row: Row) -> Run:
    """Return a run as the store has it."""
    read = {
        "detectors": json.loads(row["detectors"]),
        "event_time": row["event_ms"],
        "created_at": row["created_ms"],
        "began_at": row["began_ms"],
        "over_at": row["over_ms"],
        "versions": None if row["versions"] is None else json.loads(row["versions"]),
        "replay": None if row["unit"] is None else row["unit"].partition("/")[2],
    }
    return Run.model_validate({**row, **read})


def score_of(outcomes: list[Outcome]) -> Score:
    """Return the figures of a run, or of several together."""
    missed = [truth(outcome.label) for outcome in outcomes if outcome.kind == "miss" and outcome.label]
    return Score.model_validate({**tally(outcomes)["all"].figures(), "missed": missed})


def timeline(labels: list[Label], findings: list[Finding], incidents: list[Incident]) -> list[TimelineEntry]:
    """Return all moments in order: what was true, what could be seen, what was found."""
    entries: list[TimelineEntry] = []
    for label in labels:
        if label.distractor:
            continue
        words = label.note or label.cause or label.fault
        for at, moment, text in ((label.onset, "onset", f"begins: {words}"), (label.end, "end", f"is over: {words}")):
            entries.append(_entry(at, moment, label.id, label.fault, label.entity, None, text))
    for one in findings:
        finding = (one.id, one.fault, one.entity, one.severity)
        entries.append(_entry(one.started_at, "signal", *finding, f"first signal of: {one.summary}"))
        entries.append(_entry(one.detected_at, "finding", *finding, one.summary))
        if one.resolved_at is not None:
            entries.append(_entry(one.resolved_at, "resolved", *finding, f"resolved: {one.summary}"))
    for incident in incidents:
        root = incident.causes[0] if incident.causes else None
        fault, entity = (root.fault, root.entity) if root else (None, {})
        entries.append(
            _entry(incident.opened_at, "incident", incident.id, fault, entity, incident.severity, incident.title)
        )
    order = ("onset", "signal", "finding", "incident", "end", "resolved")
    return sorted(entries, key=lambda entry: (entry.at, order.index(entry.moment), entry.id))


def _entry(
    at: str | int, moment: str, name: str, fault: str | None, entity: object, severity: str | None, text: str
) -> TimelineEntry:
    return TimelineEntry.model_validate(
        {"at": at, "moment": moment, "id": name, "fault": fault, "entity": entity, "severity": severity, "text": text}
    )
