"""Incidents against the labels' incidents: is the root cause ranked first, and is the impact right.

A labelled incident is the labels that name it, of which one is the root. The reported incident that answers for it is
the one with a finding about the root, else the one with most findings about its labels. The root is ranked first if
the first cause is of the root's fault and place, and was found while the root, or another label of the same incident
with that fault and place, lasted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from detectors.contract import Entity, Instant
from detectors.incidents.report import Impact, Incident
from services.recording.model import Label
from services.score.matching import about
from services.score.sheet import Row, Sheet, number
from services.score.tally import Summed

FACTOR_WITHIN = 0.1
"""A step-time factor is right within a tenth: step times vary, and onsets are estimates."""
HOURS_WITHIN, HOURS_LEAST = 0.25, 0.3
"""GPU-hours lost are right within a quarter, or within 0.3: an incident lasts as long as its findings are open."""


def factor_right(true: float | None, found: float | None) -> bool:
    """Return whether a factor of step time is right: whatever it is where the label gives none, never if unknown."""
    return true is None or (found is not None and abs(found - true) <= FACTOR_WITHIN * true)


def hours_right(true: float | None, found: float | None) -> bool:
    """Return whether GPU-hours lost are right, as above."""
    return true is None or (found is not None and abs(found - true) <= max(HOURS_LEAST, HOURS_WITHIN * true))


@dataclass(frozen=True)
class JudgedIncident:
    """A labelled incident and what answers for it; `rank` is the root's place among its causes, from 1."""

    name: str
    root: Label
    reported: Incident | None
    rank: int | None
    parts: int
    """Into how many reported incidents its findings fell."""
    foreign: int
    """Other labelled incidents whose findings are in the reported one."""


@dataclass
class IncidentTally(Summed):
    """Counts over labelled incidents."""

    labelled: int = 0
    reported: int = 0
    """Of these, something was found of them."""
    root_first: int = 0
    split: int = 0
    """Their findings are in more than one reported incident."""
    mixed: int = 0
    """The reported incident also has findings of another labelled one."""
    impacts: int = 0
    """Reported, and the label gives the impact."""
    gpus_right: int = 0
    jobs_right: int = 0
    factor_right: int = 0
    hours_right: int = 0
    wrong: list[str] = field(default_factory=list)
    """Those whose root is not ranked first, and what is."""

    def add(self, one: JudgedIncident) -> None:
        """Count one incident."""
        self.labelled += 1
        if one.rank != 1:
            first = one.reported.title if one.reported is not None else "nothing was found of it"
            self.wrong.append(f"{one.name}: {one.root.fault} is the root; {first}")
        if one.reported is None:
            return
        self.reported += 1
        self.root_first += one.rank == 1
        self.split += one.parts > 1
        self.mixed += one.foreign > 0
        if one.root.impact is not None:
            self.impacts += 1
            self._compare(one.root.impact, one.reported.impact)

    def _compare(self, true: dict[str, int | float], found: Impact) -> None:
        self.gpus_right += found.gpus == true.get("gpus", found.gpus)
        self.jobs_right += len(found.jobs) == true.get("jobs", len(found.jobs))
        self.factor_right += factor_right(true.get("step_time_factor"), found.step_time_factor)
        self.hours_right += hours_right(true.get("gpu_hours_lost"), found.gpu_hours_lost)


def incident_sheet(figures: Mapping[str, Any]) -> Sheet:
    """Return how often the root cause is ranked first, and how often the impact is right."""
    counts = figures["incidents"]
    rows = [
        ("root cause ranked first, of all labelled incidents", counts["root_first"], counts["labelled"]),
        ("something was found of the incident", counts["reported"], counts["labelled"]),
        ("its findings are in one incident", counts["reported"] - counts["split"], counts["reported"]),
        ("no finding of another incident is in it", counts["reported"] - counts["mixed"], counts["reported"]),
        ("impact: GPUs", counts["gpus_right"], counts["impacts"]),
        ("impact: jobs", counts["jobs_right"], counts["impacts"]),
        (f"impact: step-time factor within {FACTOR_WITHIN:.0%}", counts["factor_right"], counts["impacts"]),
        (
            f"impact: GPU-hours lost within {HOURS_WITHIN:.0%} or {HOURS_LEAST}",
            counts["hours_right"],
            counts["impacts"],
        ),
    ]
    cells = [
        Row([name, str(part), str(whole), number(part / whole if whole else None, ".1%")]) for name, part, whole in rows
    ]
    notes = [f"Root not first: {words}." for words in counts["wrong"]]
    return Sheet("Incidents", ["", "so", "of", "share"], cells, notes)


@dataclass
class _Truth:
    """The labels of one incident."""

    labels: list[Label] = field(default_factory=list)

    @property
    def root(self) -> Label | None:
        return next((label for label in self.labels if label.root), None)

    def concerns(self, fault: str, entity: Entity, detected_at: Instant) -> bool:
        """Return whether a finding is about one of the labels."""
        return any(_is_of(label, fault, entity, detected_at) for label in self.labels)


def judge_incidents(incidents: Sequence[Incident], labels: Sequence[Label]) -> list[JudgedIncident]:
    """Return what became of every labelled incident that has a root; `incidents` are last revisions.

    One whose root need not be found (`optional`) counts if something of it was reported.
    """
    truths: dict[str, _Truth] = {}
    for label in labels:
        if label.incident is not None and not label.distractor:
            truths.setdefault(label.incident, _Truth()).labels.append(label)
    judged = []
    for name, truth in sorted(truths.items()):
        root = truth.root
        if root is None:
            continue
        having = [incident for incident in incidents if _held(incident, truth)]
        reported = max(having, key=lambda incident: _answers(incident, truth, root), default=None)
        rank = foreign = None
        if reported is not None:
            rank = _rank(reported, truth, root)
            foreign = sum(other is not truth and bool(_held(reported, other)) for other in truths.values())
        elif root.optional:
            continue
        judged.append(JudgedIncident(name, root, reported, rank, len(having), foreign or 0))
    return judged


def _held(incident: Incident, truth: _Truth) -> int:
    return sum(truth.concerns(one.fault, one.entity, one.detected_at) for one in incident.members)


def _answers(incident: Incident, truth: _Truth, root: Label) -> tuple[bool, int, Instant]:
    about_root = any(_is_of(root, one.fault, one.entity, one.detected_at) for one in incident.members)
    return about_root, _held(incident, truth), -incident.opened_at


def _rank(incident: Incident, truth: _Truth, root: Label) -> int | None:
    """Return the place, from 1, of the first cause that is the root's."""
    same = [label for label in truth.labels if label.fault == root.fault and about(root, label.entity)]
    detected = {one.id: one.detected_at for one in incident.members}
    for place, cause in enumerate(incident.causes, start=1):
        at = detected[cause.finding]
        if any(_is_of(label, cause.fault, cause.entity, at) for label in same):
            return place
    return None


def _is_of(label: Label, fault: str, entity: Entity, detected_at: Instant) -> bool:
    return label.fault == fault and label.onset <= detected_at <= label.end and about(label, entity)
