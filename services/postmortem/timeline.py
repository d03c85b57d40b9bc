"""The course of the incident: what happened when, and how long each step took."""

from collections.abc import Sequence
from dataclasses import dataclass

from detectors.contract import Instant
from services.kit.times import format_time
from services.postmortem.case import Case, place
from services.postmortem.evidence import Shown
from services.recording.model import Event

GROUP_WAIT_MS = {"page": 1000, "ticket": 5000}
"""How long Alertmanager waits for more of a live alert's group, by severity: alert-rules/alertmanager.yaml."""


@dataclass(frozen=True)
class Moment:
    """Something that happened. `kind`: onset, began, signal, found, alert, other, ended, resolved."""

    at: Instant
    kind: str
    name: str
    detail: str


def moments(case: Case, shown: Sequence[Shown], lines: Sequence[Event]) -> list[Moment]:
    """Return the moments in order of time."""
    incident, root, label = case.incident, case.root, case.label
    found = [
        Moment(root.started_at, "began", "Onset (estimate)", f"by {root.detector}, once it had found it"),
        *_signals(case, shown, lines),
        Moment(root.detected_at, "found", "Root cause found", root.summary),
    ]
    if label is not None:
        found.append(
            Moment(label.onset, "onset", "Onset (label)", f"{label.fault} at {place(label.entity)}: {label.note or ''}")
        )
        if label.end <= case.recording.manifest.end:
            found.append(Moment(label.end, "ended", "Fault over (label)", place(label.entity)))
    first = min(incident.members, key=lambda one: (one.detected_at, one.id))
    if first.id != root.id:
        found.append(Moment(first.detected_at, "found", "First finding", first.summary))
    if (alerted := case.alerted()) is not None:
        wait = GROUP_WAIT_MS[alerted.severity]
        words = f"when a live alert leaves Alertmanager, which waits {gap(wait)} for others of its group"
        found.append(Moment(alerted.detected_at + wait, "alert", f"Alert ({alerted.severity})", words))
    others = [one for one in incident.members if one.id not in {root.id, first.id}]
    found += [
        Moment(one.detected_at, "other", f"{one.fault} at {place(one.entity)} found", one.summary) for one in others[:6]
    ]
    if root.resolved_at is not None:
        found.append(Moment(root.resolved_at, "resolved", "Root cause resolved", f"by {root.detector}"))
    else:
        found.append(Moment(case.recording.manifest.end, "resolved", "The recording ends, not resolved", ""))
    if incident.closed_at is not None and incident.closed_at != root.resolved_at:
        found.append(Moment(incident.closed_at, "resolved", "Incident closed", "all its findings are resolved"))
    ranks = ("onset", "began", "signal", "found", "other", "alert", "ended", "resolved")
    return sorted(found, key=lambda one: (one.at, ranks.index(one.kind), one.name))


def _signals(case: Case, shown: Sequence[Shown], lines: Sequence[Event]) -> list[Moment]:
    """Return the first log line and the first reading that left the band, the earlier named as the first signal."""
    found = []
    if lines:
        found.append((lines[0].timestamp, f"log line ({lines[0].source}, {lines[0].node}): {lines[0].message}"))
    left = [(one.left_at, one) for one in shown if one.left_at is not None and one.left_at <= case.root.detected_at]
    if left:
        at, one = min(left, key=lambda entry: entry[0])
        rest = "its peers and its own past" if one.against_peers else "its own past"
        found.append((at, f"{one.signal.title} of {one.chart.culprit}: unlike {rest}"))
    still = [(one.silent_at, one) for one in shown if one.silent_at is not None]
    if still:
        at, one = min(still, key=lambda entry: entry[0])
        found.append((at, f"{one.signal.title} of {one.chart.culprit}: the reading that was due does not come"))
    found.sort(key=lambda entry: entry[0])
    names = ("First signal in the data", "Second signal in the data")
    return [Moment(at, "signal", name, words) for name, (at, words) in zip(names, found, strict=False)]


def clock(at: Instant) -> str:
    """Return the time of day of a moment, to the millisecond."""
    return format_time(at)[11:23]


def gap(milliseconds: int) -> str:
    """Return a length of time in words."""
    seconds = abs(milliseconds) / 1000
    whole, minutes = round(seconds), round(seconds / 60)
    if seconds < 120:
        words = f"{seconds:.1f} s"
    elif whole < 7200:
        words = f"{whole // 60} min {whole % 60} s"
    else:
        words = f"{minutes // 60} h {minutes % 60} min"
    return f"-{words}" if milliseconds < 0 else words
