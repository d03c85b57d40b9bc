"""One revision of an incident, put together and into words."""

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from detectors.contract import Entity, Instant, Severity
from detectors.incidents.impact import SLOWED
from detectors.incidents.knowledge import Knowledge
from detectors.incidents.ranking import AGAIN, Edge, Ranked, Sighted
from detectors.incidents.report import Cause, Impact, Incident, Link, Member, Offender, Touched

_RANKS: Mapping[Severity, int] = {"info": 0, "ticket": 1, "page": 2}
_SHARED_FROM: Final = 2
"""Two nodes of a rack within a minute are no coincidence (a power distribution unit feeds six, Vela report)."""
_ENDED_MS = 1_800_000
"""A job that ends so soon after something broke may have been ended by it (collective timeouts: 10 to 30 min)."""


@dataclass(frozen=True, slots=True)
class Basis:
    """What a revision is made of."""

    id: str
    revision: int
    at: Instant
    opened_at: Instant
    closed_at: Instant | None
    members: Sequence[Sighted]
    unlisted: int
    ranked: Sequence[Ranked]
    parents: Mapping[str, Edge]
    impact: Impact
    offenders: Sequence[Offender]


def revise(basis: Basis, table: Knowledge) -> Incident:
    """Return the revision: causes ranked, the chain in order of time, and a line that says it all."""
    members = sorted(basis.members, key=lambda one: (one.started_at, one.detected_at, one.id))
    shared = _shared(members, basis.parents, table)
    causes = tuple(_cause(entry, members, shared) for entry in basis.ranked)
    return Incident(
        id=basis.id,
        revision=basis.revision,
        revised_at=basis.at,
        state="open" if basis.closed_at is None else "closed",
        opened_at=basis.opened_at,
        started_at=members[0].started_at,
        closed_at=basis.closed_at,
        severity=max((one.severity for one in members), key=lambda severity: _RANKS[severity]),
        title=_title(causes[0], basis.impact, shared.get(causes[0].finding)),
        causes=causes,
        members=tuple(_member(one) for one in members),
        unlisted=basis.unlisted,
        chain=_chain(members, basis, table),
        impact=basis.impact,
        offenders=tuple(basis.offenders),
    )


def joined(name: str, revision: int, at: Instant, opened_at: Instant, home: str) -> Incident:
    """Return the last revision of an incident whose findings all turned out to belong to another."""
    return Incident(
        id=name,
        revision=revision,
        revised_at=at,
        state="joined",
        opened_at=opened_at,
        started_at=opened_at,
        closed_at=at,
        severity="info",
        title=f"belongs to incident {home}",
        causes=(),
        members=(),
        unlisted=0,
        chain=(),
        impact=Impact(0, 0, (), None, None),
        joined_to=home,
    )


def where(entity: Entity) -> str:
    """Return an entity in words."""
    if "job_id" in entity:
        return f"job {entity['job_id']}"
    order = ("node", "gpu", "nic", "switch", "port", "mount")
    return " ".join(f"GPU {entity[key]}" if key == "gpu" else str(entity[key]) for key in order if key in entity)


def _shared(members: Sequence[Sighted], parents: Mapping[str, Edge], table: Knowledge) -> dict[str, str]:
    """Return, by finding that leads several of the same trouble, what they have in common."""
    followers: dict[tuple[str, int, str], list[str]] = defaultdict(list)
    for edge in parents.values():
        if edge.row != AGAIN and table.rows[edge.row].named is not None:
            followers[edge.cause, edge.row, edge.key].append(edge.effect)
    by_id = {one.id: one for one in members}
    found: dict[str, str] = {}
    for (leader, row, key), effects in sorted(followers.items()):
        lot = [by_id[name] for name in (leader, *effects) if name in by_id]
        things = {where({k: v for k, v in one.entity.items() if k != "gpu"}) for one in lot}
        if len(things) >= _SHARED_FROM and leader in by_id:
            span_s = (max(one.started_at for one in lot) - min(one.started_at for one in lot)) / 1000
            kind, _, name = key.partition(":")
            found[leader] = f"{len(things)} in {kind} {name} within {span_s:.0f} s: its {table.rows[row].named}"
    return found


def _cause(entry: Ranked, members: Sequence[Sighted], shared: Mapping[str, str]) -> Cause:
    one, others = entry.finding, len(members) - 1
    reasons = [shared[one.id]] if one.id in shared else []
    if not others:
        reasons.append("the only finding")
    else:
        if entry.explains:
            reasons.append(f"explains {entry.explains} of {others} other finding(s)")
        if one is members[0]:
            reasons.append(f"began first, {(members[1].started_at - one.started_at) / 1000:.0f} s before the next")
        reasons.append(
            f"explained by others to {entry.explained:.0%}" if entry.explained else "nothing found explains it"
        )
    reasons.append(f"its detector is sure to {one.score:.0%}")
    return Cause(one.id, one.fault, one.entity, entry.share, tuple(reasons))


def _member(one: Sighted) -> Member:
    return Member(
        one.id,
        one.detector,
        one.fault,
        one.entity,
        one.severity,
        one.started_at,
        one.detected_at,
        one.resolved_at,
        one.summary,
    )


def _chain(members: Sequence[Sighted], basis: Basis, table: Knowledge) -> tuple[Link, ...]:
    """Return what came before the root, what followed from what, what it did to the part, and what jobs felt."""
    root = basis.ranked[0].finding
    before, after = [], []
    for number, words in root.seen:
        sign = table.signs[number]
        if sign.before:
            before.append(Link(f"seen:{words}", root.id, "evidence", sign.because, root.score))
        else:
            after.append(Link(root.id, f"seen:{words}", "evidence", sign.because, root.score))
    return (*before, *_links(members, basis.parents, table), *after, *_felt(root, basis.impact))


def _links(members: Sequence[Sighted], parents: Mapping[str, Edge], table: Knowledge) -> list[Link]:
    links = []
    for one in members:
        edge = parents.get(one.id)
        if edge is None:
            continue
        because = "the same again" if edge.row == AGAIN else table.rows[edge.row].because
        links.append(Link(edge.cause, edge.effect, edge.key, because, edge.score))
    return links


def _felt(root: Sighted, impact: Impact) -> list[Link]:
    """Return what the jobs felt: slower steps, no steps, their end."""
    if "job_id" in root.entity and len(impact.jobs) == 1 and not impact.gpu_hours_lost:
        return []
    return [
        Link(root.id, f"job:{job.job_id}", "job", words, 1.0)
        for job in impact.jobs
        if (words := _job_words(job, root.started_at))
    ]


def _job_words(job: Touched, began: Instant) -> str:
    words = []
    if job.stood_s:
        words.append(f"no step for {job.stood_s:.0f} s")
    elif job.step_time_factor is not None and job.step_time_factor >= SLOWED:
        words.append(f"its steps take {job.step_time_factor:.2f} times as long")
    if job.ended_at is not None and 0 <= job.ended_at - began <= _ENDED_MS:
        words.append(f"it ended {(job.ended_at - began) / 1000:.0f} s after the onset")
    return ", ".join(words)


def _title(cause: Cause, impact: Impact, shared: str | None) -> str:
    place = f"{where(cause.entity)} and others ({shared})" if shared else where(cause.entity)
    parts = [f"{cause.fault} on {place}"]
    if impact.gpus:
        parts.append(f"{impact.gpus} GPU(s) on {impact.nodes} node(s)")
    if impact.jobs:
        worst = max(impact.jobs, key=lambda job: (job.step_time_factor or 1.0, job.gpu_hours_lost or 0.0))
        words = f"job {worst.job_id}" if len(impact.jobs) == 1 else f"{len(impact.jobs)} jobs"
        if impact.step_time_factor is not None and impact.step_time_factor > 1:
            words += f", steps {impact.step_time_factor:.2f} times as long"
        parts.append(words)
    if impact.gpu_hours_lost:
        parts.append(f"{impact.gpu_hours_lost:.1f} GPU-hours lost")
    if impact.gpu_hours_lost is None:
        parts.append("what it cost is not known")
    return "; ".join(parts)
