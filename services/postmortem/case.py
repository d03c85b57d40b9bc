"""What there is to tell: the engine's run over the recording, the incident, and the labels that are about it."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from detectors.contract import Entity, Finding, Instant
from detectors.engine import Choice
from detectors.incidents.knowledge import IncidentConfig
from detectors.incidents.report import Cause, Incident, Member
from services.kit.errors import UserError
from services.recording.embedded import latest, steps
from services.recording.model import Event, Job, Label
from services.recording.reader import Recording
from services.score.matching import about, same_place

_LOG_LEAD_MS = 120_000
"""A line so long before the onset may tell of it."""
_MOST_LINES = 8
_LOUD = frozenset({"warning", "error", "critical"})


@dataclass(frozen=True)
class Case:
    """One incident of one recording; `others` are the recording's other incidents."""

    recording: Recording
    findings: Sequence[Finding]
    incident: Incident
    others: Sequence[Incident]
    jobs: Sequence[Job]
    labels: Sequence[Label]
    """All of the recording that are no distractors."""
    choices: Sequence[Choice]

    @property
    def cause(self) -> Cause:
        """The likeliest root cause."""
        return self.incident.causes[0]

    @property
    def root(self) -> Member:
        """The finding that is the root cause."""
        return next(member for member in self.incident.members if member.id == self.cause.finding)

    @property
    def over_at(self) -> Instant | None:
        """When the incident was over; None if it lasted to the recording's end."""
        return self.incident.closed_at

    @property
    def label(self) -> Label | None:
        """The label that the root cause answers for, else one of those that lasted meanwhile, a root first."""
        root, end = self.root, self.over_at or self.recording.manifest.end
        lasting = [one for one in self.labels if one.onset <= end and one.end >= self.incident.started_at]
        for one in lasting:
            if one.fault == root.fault and about(one, root.entity):
                return one
        return min(lasting, key=lambda one: (not one.root, one.onset), default=None)

    def finding(self, name: str) -> Finding:
        """Return the firing finding of an id."""
        return next(one for one in self.findings if one.id == name and one.state == "firing")

    def shadow(self, detector: str) -> bool:
        """Return whether a detector runs without alerting anybody."""
        return any(kind.spec.name == detector and settings.shadow for kind, settings in self.choices)

    def alerted(self) -> Member | None:
        """Return the first finding of the incident that somebody is told of."""
        told = [one for one in self.incident.members if one.severity != "info" and not self.shadow(one.detector)]
        return min(told, key=lambda one: (one.detected_at, one.id), default=None)

    def lines(self) -> list[Event]:
        """Return the first loud log lines of the culprit, of machines and not of jobs, from around the onset."""
        node, switch = self.cause.entity.get("node"), self.cause.entity.get("switch")
        begin, end = self.root.started_at - _LOG_LEAD_MS, self.root.detected_at + _LOG_LEAD_MS
        found = [
            event
            for event in self.recording.events(begin, end)
            if event.source != "job"
            and event.severity in _LOUD
            and ((node is not None and event.node == node) or (switch is not None and str(switch) in event.message))
        ]
        return found[:_MOST_LINES]


def place(entity: Entity) -> str:
    """Return an entity in words."""
    names = {"gpu": "GPU ", "job_id": "job ", "switch": "", "node": "", "port": "", "nic": "", "mount": ""}
    return " ".join(f"{names[key]}{entity[key]}" for key in _ORDER if key in entity)


_ORDER = ("switch", "node", "gpu", "nic", "port", "mount", "job_id")


def related(one: Entity, other: Entity) -> bool:
    """Return whether two entities are of the same part: the same place, or the same node or switch."""
    return same_place(one, other) or any(key in one and one[key] == other.get(key) for key in ("node", "switch"))


def investigate(
    recording: Recording,
    choices: Sequence[Choice],
    config: IncidentConfig | None = None,
    chosen: str | None = None,
    *,
    progress: Callable[[Instant], None] = lambda _: None,
) -> Case:
    """Run the detectors over a recording and return the incident `chosen`, by default the one that cost most.

    UserError: there is no incident, or not that one. `progress` hears of event time.
    """
    findings: list[Finding] = []
    revisions: list[Incident] = []
    for step in steps(recording, choices, config):
        findings += step.findings
        revisions += step.incidents
        progress(step.at)
    incidents = latest(revisions)
    if not incidents:
        raise UserError(
            f"{recording.path}: no incident was found in it",
            remedy="there is nothing to tell; `hindcast score` says what was missed, if it has labels",
        )
    by_cost = sorted(incidents, key=lambda one: (-one.impact.gpu_hours_lost, one.opened_at, one.id))
    picked = next((one for one in by_cost if chosen is None or one.id == chosen), None)
    if picked is None:
        raise UserError(
            f"{recording.path}: has no incident {chosen!r}",
            remedy=f"there are: {', '.join(one.id for one in incidents)}",
            exit_code=2,
        )
    return Case(
        recording,
        findings,
        picked,
        [one for one in incidents if one is not picked],
        list(recording.jobs()),
        [label for label in recording.labels() if not label.distractor],
        choices,
    )
