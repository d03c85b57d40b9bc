"""The case: the engine's run over the recording, the incident, and the labels that are about it."""

import re
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass

from detectors.contract import Entity, Finding, Instant
from detectors.engine.engine import Choice
from detectors.incidents.knowledge import IncidentConfig
from detectors.incidents.report import Cause, Incident, Member
from services.kit.errors import UsageError, UserError
from services.recording.embedded import latest, steps
from services.recording.model import Event, Job, Label
from services.recording.reader import Recording
from services.score.matching import about, same_place

_LOG_LEAD_MS = 120_000
"""A line so long before the onset may be about it."""
_CLOCKS_MS = 1000
"""A machine's clock may be so far ahead of that by which the label was written."""
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

    @property
    def onset(self) -> Instant:
        """When it began: as the label says, or else as the detector of the root cause estimates."""
        return self.root.started_at if self.label is None else self.label.onset

    def finding(self, name: str) -> Finding:
        """Return the firing finding of an id."""
        return next(one for one in self.findings if one.id == name and one.state == "firing")

    def shadow(self, detector: str) -> bool:
        """Return whether a detector runs without alerting anybody."""
        return any(kind.spec.name == detector and settings.shadow for kind, settings in self.choices)

    def alerted(self) -> Member | None:
        """Return the first finding of the incident that alerts somebody."""
        alerting = [one for one in self.incident.members if one.severity != "info" and not self.shadow(one.detector)]
        return min(alerting, key=lambda one: (one.detected_at, one.id), default=None)

    def lines(self) -> list[Event]:
        """Return the first loud log lines about the culprit, from the onset on; of jobs' own logs none."""
        root, label = self.root, self.label
        known = min(self.onset, root.started_at)
        begin = known - (_LOG_LEAD_MS if label is None else _CLOCKS_MS)
        return loud_lines(self.recording.events(begin, root.detected_at + _LOG_LEAD_MS), self.cause.entity)

    @property
    def whereabouts(self) -> str:
        """What helps to find the culprit: rack, feeds and bus, or what is plugged into its port; "" where unknown."""
        entity = self.cause.entity
        port = entity.get("switch"), entity.get("port")
        words: list[str] = []
        for node in self.recording.topology.nodes:
            ends = [nic.nic for nic in node.nics if nic.port is not None and (nic.switch, nic.port) == port]
            words += [f"the port of {node.name} {nic}" for nic in ends]
            if node.rack is not None and (ends or node.name == entity.get("node")):
                words.append(f"rack {node.rack}")
            if node.name == entity.get("node"):
                bus = [gpu.pci_bus_id for gpu in node.gpus if gpu.gpu == entity.get("gpu") and gpu.pci_bus_id]
                words += [f"PCI bus {one}" for one in bus]
                if node.power_feeds and "gpu" not in entity:
                    words.append(f"power feeds {', '.join(node.power_feeds)}")
        return ", ".join(words)


def loud_lines(events: Iterable[Event], entity: Entity) -> list[Event]:
    """Return the first loud lines that a node or switch logs, or that name it; of a port those that name the port."""
    machine = str(entity.get("node", entity.get("switch", "")))
    if not machine:
        return []
    named, port = _named(machine), _named(str(entity.get("port", "")))
    found = [
        event
        for event in events
        if event.source != "job"
        and event.severity in _LOUD
        and (event.node == machine or named.search(event.message) is not None)
    ]
    if "port" in entity:  # what a switch says of its other ports is beside the point, if it names this one
        found = [event for event in found if port.search(event.message)] or found
    return found[:_MOST_LINES]


def _named(name: str) -> re.Pattern[str]:
    return re.compile(rf"(?<!\w){re.escape(name)}(?!\w)")


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
            remedy="there is nothing to report; `hindcast score` lists what was missed, if it has labels",
        )
    by_cost = sorted(incidents, key=lambda one: (-(one.impact.gpu_hours_lost or 0.0), one.opened_at, one.id))
    picked = next((one for one in by_cost if chosen is None or one.id == chosen), None)
    if picked is None:
        raise UsageError(
            f"{recording.path}: has no incident {chosen!r}",
            remedy=f"there are: {', '.join(one.id for one in incidents)}",
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
