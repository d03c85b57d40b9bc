"""A revision of an incident, as data and as one line of canonical JSON."""

import json
from dataclasses import dataclass, fields
from typing import Any, Literal

from detectors.contract import Entity, Fault, Instant, Severity, rfc3339

IncidentState = Literal["open", "closed", "joined"]


@dataclass(frozen=True, slots=True)
class Cause:
    """A finding as root cause: how much speaks for it (all causes of an incident add up to 1), and what."""

    finding: str
    fault: Fault
    entity: Entity
    score: float
    reasons: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Member:
    """A finding of the incident; it keeps its identity."""

    id: str
    detector: str
    fault: Fault
    entity: Entity
    severity: Severity
    started_at: Instant
    detected_at: Instant
    resolved_at: Instant | None
    summary: str


@dataclass(frozen=True, slots=True)
class Link:
    """One step of the chain. Both ends are ids of findings, or ``job:ID``, or ``seen:`` and what evidence says."""

    cause: str
    effect: str
    over: str
    because: str
    score: float


@dataclass(frozen=True, slots=True)
class Touched:
    """What a job lost: its step time against what it was before, and GPU-hours.

    Both are None where its steps are not known, or none came since: of a job that ended at once that is not zero.
    """

    job_id: str
    gpus: int
    step_time_factor: float | None
    stood_s: float
    gpu_hours_lost: float | None
    ended_at: Instant | None


@dataclass(frozen=True, slots=True)
class Impact:
    """What the incident cost so far, as far as it is known: None where no touched job's steps are, or no job is.

    `step_time_factor` is the worst job's, 1 where none is slower; `gpu_hours_lost` that of the jobs with known steps.
    """

    gpus: int
    nodes: int
    jobs: tuple[Touched, ...]
    step_time_factor: float | None
    gpu_hours_lost: float | None


@dataclass(frozen=True, slots=True)
class Offender:
    """A part that was the root of incidents before: how many in the last weeks, and a score that decays with age."""

    entity: Entity
    incidents: int
    score: float


@dataclass(frozen=True, slots=True)
class Incident:
    """One revision of an incident; the one with the highest `revision` holds.

    `state` is ``joined`` when all its findings turned out to belong to the incident `joined_to`. `members` beyond
    those listed are `unlisted`.
    """

    id: str
    revision: int
    revised_at: Instant
    state: IncidentState
    opened_at: Instant
    started_at: Instant
    closed_at: Instant | None
    severity: Severity
    title: str
    causes: tuple[Cause, ...]
    members: tuple[Member, ...]
    unlisted: int
    chain: tuple[Link, ...]
    impact: Impact
    offenders: tuple[Offender, ...] = ()
    joined_to: str | None = None

    def to_json(self) -> str:
        """Return the revision as one line of canonical JSON: the same revision is the same bytes."""
        return json.dumps(_plain(self), separators=(",", ":"), allow_nan=False)


_TIMES = frozenset({"revised_at", "opened_at", "started_at", "closed_at", "detected_at", "resolved_at", "ended_at"})


_PARTS = {
    kind: tuple(part.name for part in fields(kind))
    for kind in (Cause, Member, Link, Touched, Impact, Offender, Incident)
}


def _plain(value: Any, name: str = "") -> Any:
    """Return times as RFC 3339, entities in order, numbers rounded; all else as it is."""
    if name in _TIMES and value is not None:
        return rfc3339(value)
    if isinstance(value, float):
        return round(value, 4)
    if value is None or isinstance(value, (str, int)):
        return value
    if isinstance(value, (list, tuple)):
        return [_plain(part) for part in value]
    if isinstance(value, dict):
        keys = sorted(value) if name == "entity" else value
        return {key: _plain(value[key], key) for key in keys}
    return {part: _plain(getattr(value, part), part) for part in _PARTS[type(value)]}
