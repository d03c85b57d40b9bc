"""Findings that share a cause become one incident: linked, never merged, and revised as evidence comes in.

Every finding has at most one parent: of all that can have caused it (causes.yaml) the likeliest. So findings form
trees, and a tree is an incident. A finding that comes later may become the parent of earlier ones: then their incident
gets another root, or two become one, of which the older keeps its name and the other is `joined`. When all findings of
an incident are resolved it is closed; what comes back within the hold opens it again.

Deterministic however the input is cut: findings come in order of event time, one revision is made for each time at
which something changed, and impact is looked at on a schedule of event time with whole minutes of steps only.
"""

import hashlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, astuple
from itertools import groupby
from typing import Any, Self

from detectors.contract import Batch, Finding, Instant
from detectors.engine.state import pack, unpack
from detectors.faults import faults
from detectors.fleet.fleet import Fleet, JobEvent
from detectors.incidents.book import MOST_MEMBERS, NEVER, REFRESH_MS, Book
from detectors.incidents.knowledge import TABLE, IncidentConfig
from detectors.incidents.offenders import Offenders
from detectors.incidents.pace import Paces
from detectors.incidents.places import Places
from detectors.incidents.ranking import AGAIN, Edge, Sighted, carried, edge_score, rank
from detectors.incidents.report import Impact, Incident, Offender
from detectors.incidents.revision import Basis, joined, revise

_AGAIN_SCORE = 0.95
_MOST_CANDIDATES = 64
_MOST_EDGES = 4
"""Ways to explain one finding that are kept."""
_MOST_CLOSED = 1024
_FIRST_LOOK_MS = 180_000
"""The impact is first looked at when there were some whole minutes of steps."""
_RAREST_LOOK_MS = 6 * 3_600_000


class Correlator:
    """Takes findings, job events and steps; makes revisions of incidents."""

    def __init__(self, topology: Mapping[str, Any] | None, fleet: Fleet, config: IncidentConfig | None = None) -> None:
        self._table = TABLE
        self._config = config or self._table.configure({})
        self._places = Places(topology)
        self._paces = Paces(fleet)
        self._offenders = Offenders()
        self._found: dict[str, Sighted] = {}
        self._by_key: dict[str, dict[str, None]] = {}
        self._edges: dict[str, list[Edge]] = {}
        """What can explain a finding, the likeliest first."""
        self._parents: dict[str, Edge] = {}
        self._books: dict[str, Book] = {}
        self._due: Instant = NEVER
        self._ended = False
        self._rows_to, self._rows_from = self._table.rows_to(), self._table.rows_from()
        self._memory_ms = self._table.memory_ms(self._config)

    def happen(self, event: JobEvent) -> None:
        """Let a job start or end."""
        for job in self._places.happen(event):
            self._paces.forget(job)

    def observe(self, batch: Batch) -> None:
        """Take steps; other telemetry is of no use here."""
        if batch.kind == "steps":
            self._paces.observe(batch)

    def of_finding(self, finding: str) -> str | None:
        """Return the incident that a finding belongs to."""
        known = self._found.get(finding)
        return known.incident if known is not None else None

    def open_findings(self) -> dict[str, Finding]:
        """Return what fired and is not over, by id; without actions and evidence, which are not kept."""
        return {name: one.finding() for name, one in self._found.items() if one.resolved_at is None}

    def take(self, findings: Iterable[Finding], upto: Instant) -> list[Incident]:
        """Take findings in the engine's order, of event times up to `upto`; return the revisions made by them."""
        revisions: list[Incident] = []
        for at, group in groupby(findings, key=lambda finding: finding.detected_at):
            revisions += self._look(at - 1)
            changed: dict[str, None] = {}
            for finding in group:
                changed |= dict.fromkeys(self._fire(finding) if finding.state == "firing" else self._resolve(finding))
            revisions += [self._revise(self._books[name], at) for name in changed if name in self._books]
            self._forget(at)
        if self._due <= upto:
            revisions += self._look(upto)
        return revisions

    def end(self, at: Instant) -> list[Incident]:
        """Return a last revision of what is open when the feed has come to its end; later calls return nothing."""
        if self._ended:
            return []
        self._ended = True
        return [self._revise(book, at) for book in list(self._books.values()) if book.closed_at is None]

    def _look(self, upto: Instant) -> Iterator[Incident]:
        """Look at the impact of open incidents whose time has come; yield those that changed."""
        while self._due <= upto:
            at = self._due
            for book in sorted(self._books.values(), key=lambda book: book.age):
                if book.look_at != at:
                    continue
                book.look_at = at + book.wait_ms
                book.wait_ms = min(2 * book.wait_ms, _RAREST_LOOK_MS)
                if self._impact(book, at) != book.reported:
                    yield self._revise(book, at)
            self._due = min((book.look_at for book in self._books.values()), default=NEVER)

    def _fire(self, finding: Finding) -> list[str]:
        """Take a finding that began; return the incidents that it changes."""
        entity = dict(sorted(finding.entity.items()))
        lot = self._places.lot(entity, finding.started_at, finding.detected_at)
        same = f"of:{finding.fault} {entity}"
        one = Sighted(
            finding.id,
            finding.detector,
            finding.fault,
            entity,
            finding.severity,
            finding.score,
            finding.summary,
            finding.started_at,
            finding.detected_at,
            (same, *dict.fromkeys(lot.keys)),
            "",
            tuple(self._seen(finding)),
            str(finding.evidence["job_id"]) if "job_id" in finding.evidence else None,
        )
        causes = list(self._explaining(one, finding.detected_at))
        effects = list(self._explained_by(one, finding.detected_at))
        self._found[one.id] = one
        for key in one.keys:
            self._by_key.setdefault(key, {})[one.id] = None
        self._edges[one.id] = sorted(causes, key=self._surest_first)[:_MOST_EDGES]
        return self._join(one, effects)

    def _seen(self, finding: Finding) -> Iterator[tuple[int, str]]:
        """Yield the signs of the table that a finding's evidence has, in words."""
        for number, sign in enumerate(self._table.signs):
            if finding.fault in sign.fault and all(name in finding.evidence for name in sign.evidence):
                words = sign.words([finding.evidence[name] for name in sign.evidence])
                if words:
                    yield number, words

    def _join(self, one: Sighted, effects: Sequence[Edge]) -> list[str]:
        """Put a new finding into the trees; return the incidents that it changes."""
        involved: dict[str, None] = {}
        if self._edges[one.id]:
            edge = self._parents[one.id] = self._edges[one.id][0]
            involved[self._found[edge.cause].incident] = None
        moved: list[str] = []
        for edge in sorted(effects, key=self._surest_first):
            known = [*self._edges[edge.effect], edge]
            mine = self._edges[edge.effect] = sorted(known, key=self._surest_first)[:_MOST_EDGES]
            before = self._parents.get(edge.effect)
            if mine[0] is not edge or self._descends(one.id, edge.effect):
                continue
            self._parents[edge.effect] = edge
            if before is None:
                involved[self._found[edge.effect].incident] = None
            else:
                moved.append(edge.effect)
        books = sorted((self._books[name] for name in involved), key=lambda book: book.age)
        if books:
            home = books[0]
        else:
            name = hashlib.sha256(f"incident/{one.id}".encode()).hexdigest()[:16]
            look_at = one.detected_at + _FIRST_LOOK_MS
            home = self._books[name] = Book(name, one.detected_at, look_at=look_at)
            self._due = min(self._due, home.look_at)
        changed = {home.id: None}
        for other in books[1:]:
            for member in list(other.members):
                self._put(member, home)
            other.joined_to, other.look_at = home.id, NEVER
            changed[other.id] = None
        self._put(one.id, home)
        for top in moved:
            changed[self._found[top].incident] = None
            for member in [
                name for name in self._books[self._found[top].incident].members if self._descends(name, top)
            ]:
                self._put(member, home)
        if home.closed_at is not None:
            home.closed_at, home.wait_ms = None, REFRESH_MS
            home.look_at = one.detected_at + _FIRST_LOOK_MS
            self._due = min(self._due, home.look_at)
        return list(changed)

    def _put(self, finding: str, home: Book) -> None:
        one = self._found[finding]
        if one.incident == home.id:
            return
        if one.incident:
            self._books[one.incident].members.remove(finding)
        one.incident = home.id
        home.members.append(finding)
        while len(home.members) > MOST_MEMBERS:
            self._drop(home)

    def _drop(self, book: Book) -> None:
        """Forget one finding of an incident that has too many: the first resolved that is no root, else the first."""
        spare = [name for name in book.members[:-1] if name in self._parents]
        over = [name for name in spare if self._found[name].resolved_at is not None]
        gone = (over or spare or book.members)[0]
        up = self._parents.get(gone)
        for effect, edge in list(self._parents.items()):
            if edge.cause == gone:
                del self._parents[effect]
                if up is not None:
                    passed_on = Edge(up.cause, effect, edge.row, edge.key, edge.score * up.score)
                    self._parents[effect] = passed_on
                    self._edges[effect].append(passed_on)
        self._remove(gone)
        book.members.remove(gone)
        book.unlisted += 1

    def _remove(self, name: str) -> None:
        one = self._found.pop(name)
        for key in one.keys:
            self._by_key[key].pop(name, None)
            if not self._by_key[key]:
                del self._by_key[key]
        self._edges.pop(name, None)
        self._parents.pop(name, None)
        for effect, edges in self._edges.items():
            if any(edge.cause == name for edge in edges):
                self._edges[effect] = [edge for edge in edges if edge.cause != name]

    def _descends(self, name: str, top: str) -> bool:
        """Return whether a finding is `top`, or below it."""
        seen = name
        while seen != top:
            edge = self._parents.get(seen)
            if edge is None:
                return False
            seen = edge.cause
        return True

    def _resolve(self, finding: Finding) -> list[str]:
        one = self._found.get(finding.id)
        if one is None:
            return []
        one.resolved_at = finding.detected_at
        book = self._books[one.incident]
        if all(self._found[name].resolved_at is not None for name in book.members):
            book.closed_at = max(self._found[name].resolved_at or 0 for name in book.members)
            book.look_at = NEVER
        return [book.id]

    def _surest_first(self, edge: Edge) -> tuple[float, int, int, str, str, int]:
        cause = self._found[edge.cause]
        return -edge.score, cause.started_at, len(cause.entity), cause.id, edge.effect, edge.row

    def _explaining(self, one: Sighted, now: Instant) -> Iterator[Edge]:
        """Yield what, of all that is remembered, can have caused a finding."""
        yield from self._again(one)
        for number in self._rows_to.get(one.fault, ()):
            row = self._table.rows[number]
            for key, other in self._candidates(one, row.over, (one.fault,) if row.same else row.cause, now):
                score = edge_score(row, other, one, hold_s=self._config.hold_s)
                if score is not None:
                    yield Edge(other.id, one.id, number, key, score)

    def _again(self, one: Sighted) -> Iterator[Edge]:
        """Yield the finding of the same fault on the same entity that led the last ones, if these are not long over."""
        before = list(self._by_key.get(one.keys[0], ()))
        if before:
            over, home = self._found[before[-1]].resolved_at, self._found[before[-1]].incident
            if over is None or one.detected_at - over <= self._config.hold_s * 1000:
                first = next(name for name in before if self._found[name].incident == home)
                yield Edge(first, one.id, AGAIN, one.keys[0], _AGAIN_SCORE)

    def _explained_by(self, one: Sighted, now: Instant) -> Iterator[Edge]:
        """Yield what, of all that is remembered, a finding can have caused."""
        for number in self._rows_from.get(one.fault, ()):
            row = self._table.rows[number]
            for key, other in self._candidates(one, row.over, (one.fault,) if row.same else row.effect, now):
                score = edge_score(row, one, other, hold_s=self._config.hold_s)
                if score is not None:
                    yield Edge(one.id, other.id, number, key, score)

    def _candidates(
        self, one: Sighted, over: str, faults: Sequence[str], now: Instant
    ) -> Iterator[tuple[str, Sighted]]:
        """Yield findings of some faults that share something with `one`, each once, with the key they share."""
        seen: set[str] = set()
        for key in one.keys:
            if not key.startswith(f"{over}:"):
                continue
            names = list(self._by_key.get(key, ()))
            if len(names) > _MOST_CANDIDATES:
                names = names[: _MOST_CANDIDATES // 2] + names[-_MOST_CANDIDATES // 2 :]
            for name in names:
                other = self._found[name]
                gone = other.resolved_at is not None and now - other.resolved_at > self._memory_ms.get(other.fault, 0)
                if name in seen or other.fault not in faults or gone:
                    continue
                seen.add(name)
                yield key, other

    def _impact(self, book: Book, now: Instant) -> Impact:
        members = [self._found[name] for name in book.members]
        began = min(one.started_at for one in members)
        until = book.closed_at if book.closed_at is not None else now
        book.losses.update(members, began, until, now, self._places, self._paces)
        return book.losses.impact(members, self._places)

    def _revise(self, book: Book, at: Instant) -> Incident:
        """Return a new revision; one that has no findings any more is reported as joined, and forgotten."""
        book.revision += 1
        if not book.members:
            del self._books[book.id]
            return joined(book.id, book.revision, at, book.opened_at, book.joined_to or "")
        members = [self._found[name] for name in book.members]
        inside = set(book.members)
        edges = [edge for name in book.members for edge in self._edges[name] if edge.cause in inside]
        ranked = rank(members, edges, {name: facts.prior for name, facts in faults().items()})
        book.reported = self._impact(book, at)
        root = ranked[0].finding.entity
        before = self._offenders.record(root, at, but=book.opened_at if book.counted else None)
        basis = Basis(
            id=book.id,
            revision=book.revision,
            at=at,
            opened_at=book.opened_at,
            closed_at=book.closed_at,
            members=members,
            unlisted=book.unlisted,
            ranked=ranked,
            parents={name: self._parents[name] for name in book.members if name in self._parents},
            impact=book.reported,
            offenders=[Offender(dict(thing), count, score) for thing, count, score in before],
        )
        if book.closed_at is not None and not book.counted:
            book.counted = True
            self._offenders.count(root, book.opened_at)
        return revise(basis, self._table)

    def _forget(self, now: Instant) -> None:
        """Forget closed incidents that nothing can be joined to any more, and of too many the oldest."""
        closed = sorted(
            (book for book in self._books.values() if book.closed_at is not None), key=lambda book: book.age
        )
        for number, book in enumerate(closed):
            fresh = any(
                now - (self._found[name].resolved_at or now) <= self._memory_ms.get(self._found[name].fault, 0)
                for name in book.members
            )
            if fresh and len(closed) - number <= _MOST_CLOSED:
                continue
            for name in book.members:
                self._remove(name)
            del self._books[book.id]
            self._offenders.forget(now)

    def snapshot(self) -> bytes:
        """Return the whole state."""
        last, arrays = self._paces.snapshot()
        document = {
            "found": [asdict(one) for one in self._found.values()],
            "edges": [[name, [astuple(edge) for edge in edges]] for name, edges in self._edges.items()],
            "parents": [astuple(edge) for edge in self._parents.values()],
            "books": [book.snapshot() for book in self._books.values()],
            "places": self._places.snapshot(),
            "paces": last,
            "offenders": self._offenders.snapshot(),
            "due": self._due,
            "ended": self._ended,
        }
        return pack(document, arrays)

    @classmethod
    def restore(
        cls, topology: Mapping[str, Any] | None, fleet: Fleet, state: bytes, config: IncidentConfig | None = None
    ) -> Self:
        """Return a correlator that goes on exactly where `snapshot` was taken. Raises StateError if it is damaged."""
        document, arrays = unpack(state)
        made = cls(topology, fleet, config)
        for fields in document["found"]:
            seen = tuple((number, words) for number, words in fields["seen"] if number < len(made._table.signs))
            one = Sighted(**fields | {"keys": tuple(fields["keys"]), "seen": seen})
            made._found[one.id] = one
            for key in one.keys:
                made._by_key.setdefault(key, {})[one.id] = None
        known = made._found, made._table
        made._edges = {name: list(carried(edges, *known)) for name, edges in document["edges"]}
        made._parents = {edge.effect: edge for edge in carried(document["parents"], *known)}
        made._books = {fields["id"]: Book.restore(fields) for fields in document["books"]}
        made._places.load(document["places"])
        made._paces.load(document["paces"], arrays)
        made._offenders.load(document["offenders"])
        made._due, made._ended = document["due"], document["ended"]
        return made
