"""Which finding of an incident is its root: ranked, with reasons."""

import heapq
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final

from detectors.contract import Fault, Finding, Instant, Severity
from detectors.incidents.knowledge import Knowledge, Row

_LEAST = 0.05
"""A cause with a smaller share is not listed, unless nothing else is."""
_MOST_RANKED = 8
_BEFORE_S: Final = 60.0
"""An effect may seem to begin so long before its cause, where its row has no `before_s`: an onset is known to one or
two readings, of up to 30 s in dcgm-exporter's default."""
AGAIN = -1
"""In place of a row's number: the same fault on the same entity, not long after it was over."""


@dataclass(slots=True)
class Sighted:
    """A finding that is remembered, and where it lies (keys as of `places`)."""

    id: str
    detector: str
    fault: Fault
    entity: dict[str, str | int]
    severity: Severity
    score: float
    summary: str
    started_at: Instant
    detected_at: Instant
    keys: tuple[str, ...]
    incident: str
    seen: tuple[tuple[int, str], ...] = ()
    """What its evidence shows of the chain: number of the sign in the table, and the words."""
    job: str | None = None
    """The job that its detector saw it in."""
    resolved_at: Instant | None = None

    def finding(self) -> Finding:
        """Return the finding as it fired, without its action and evidence, which are not remembered."""
        return Finding(
            self.id, self.detector, self.fault, self.entity, "firing", self.started_at, self.detected_at,
            self.severity, self.score, self.summary, "",
        )  # fmt: skip


@dataclass(frozen=True, slots=True)
class Edge:
    """`cause` can have caused `effect` (ids of findings), by a row of the table, with a score between 0 and 1."""

    cause: str
    effect: str
    row: int
    key: str
    score: float


@dataclass(frozen=True, slots=True)
class Ranked:
    """A finding with its share of all that speaks for any root cause."""

    finding: Sighted
    share: float
    explains: int
    explained: float


def carried(edges: Iterable[Sequence[Any]], found: Mapping[str, Sighted], table: Knowledge) -> Iterator[Edge]:
    """Yield the edges of a snapshot by the numbers that their rows have in this table; not those that it lacks."""
    for edge in (Edge(*fields) for fields in edges):
        if edge.row == AGAIN:
            yield edge
            continue
        over = edge.key.partition(":")[0]
        row = table.row_like(edge.row, over, found[edge.cause].fault, found[edge.effect].fault)
        if row is not None:
            yield replace(edge, row=row)


def rank(members: Sequence[Sighted], edges: Sequence[Edge], prior: Mapping[Fault, float]) -> list[Ranked]:
    """Return the findings by how much speaks for each being the root: the surest first, never an empty list.

    For a finding speak its fault's prior, its own score, and all others that it explains, directly or through others;
    against it, what explains it.
    """
    onward: dict[str, list[Edge]] = {}
    unexplained = {one.id: 1.0 for one in members}
    for edge in edges:
        onward.setdefault(edge.cause, []).append(edge)
        unexplained[edge.effect] *= 1 - edge.score
    weights = []
    for one in members:
        reached = _reached(one.id, onward)
        weight = prior.get(one.fault, 1.0) * (0.5 + one.score / 2) * (1 + sum(reached.values())) * unexplained[one.id]
        weights.append((one, weight, len(reached)))
    whole = sum(weight for _, weight, _ in weights)
    found = [Ranked(one, weight / whole, explains, 1 - unexplained[one.id]) for one, weight, explains in weights]
    found.sort(key=lambda r: (-r.share, r.finding.started_at, len(r.finding.entity), r.finding.id))
    listed = [entry for entry in found[:_MOST_RANKED] if entry.share >= _LEAST]
    return listed or found[:1]


def _reached(start: str, onward: Mapping[str, Sequence[Edge]]) -> dict[str, float]:
    """Return what a finding explains, each with the surest way's product of scores."""
    best: dict[str, float] = {}
    waiting = [(-1.0, start)]
    while waiting:
        sure, at = heapq.heappop(waiting)
        if at in best:
            continue
        best[at] = -sure
        for edge in onward.get(at, ()):
            if edge.effect not in best:
                heapq.heappush(waiting, (sure * edge.score, edge.effect))
    del best[start]
    return best


def edge_score(row: Row, cause: Sighted, effect: Sighted, *, hold_s: float) -> float | None:
    """Return how likely `cause` caused `effect` by a row, from the times alone; None if they do not fit.

    Of findings of the same trouble the one that began first leads, and of two at once the wider entity.
    """
    lag_s = (effect.started_at - cause.started_at) / 1000
    if row.same:
        if lag_s > row.lag_s or _order(cause) > _order(effect):
            return None
        share = 0.0  # all follow the leader, and not one another
    else:
        before = _BEFORE_S if row.before_s is None else row.before_s
        if not -before <= lag_s <= row.lag_s:
            return None
        share = lag_s / row.lag_s if lag_s >= 0 else -lag_s / before
    after_s = hold_s if row.after_s is None else row.after_s
    if cause.resolved_at is not None and effect.started_at > cause.resolved_at + after_s * 1000:
        return None
    return row.weight * (1 - 0.5 * share)


def _order(one: Sighted) -> tuple[int, int, str]:
    return one.started_at, len(one.entity), one.id
