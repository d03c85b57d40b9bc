"""Which findings are open: one firing an id, and at most one resolved after it, whichever version of a detector found
it.

A finding whose detector was changed, and began afresh, is *held over*: the detector as it is now either finds the same
fault on the same entity again, and then it goes on under its first id; or it does not, and it is resolved for that
reason.
"""

import json
from collections.abc import Iterable, Mapping
from dataclasses import asdict, replace
from typing import Any

from detectors.case_book import in_words
from detectors.contract import Finding, Instant
from detectors.core.survivors import Survivors

_REMEMBERED = 4096
"""Ids of closed findings that are kept to refuse repeats; an id holds its onset, so old ones cannot come back."""


class Alarms:
    """The open findings of one unit, by id."""

    def __init__(self) -> None:
        self._open: dict[str, Finding] = {}
        self._closed: dict[str, None] = {}
        self._held: dict[str, tuple[Instant, str]] = {}
        """Of what is held over: until when, and why it is resolved then."""
        self._first: dict[str, str] = {}
        """Of what was found again under another id: the id that it has had first."""

    def open(self) -> list[Finding]:
        """Return the firing findings that are not over."""
        return list(self._open.values())

    def hold_over(self, finding: Finding, until: Instant, why: str) -> None:
        """Keep a finding open until `until`, unless it is found again; `why` it is resolved then."""
        self._open[finding.id] = finding
        self._held[finding.id] = until, why
        self._first = {later: first for later, first in self._first.items() if first != finding.id}

    def due(self, now: Instant) -> list[Finding]:
        """Return how what is held over until `now` is resolved, for `admit`."""
        return [_over(self._open[name], now, why) for name, (until, why) in self._held.items() if until <= now]

    def on_gone(self, survivors: Survivors, now: Instant, why: str) -> list[Finding]:
        """Return how what is open on machines and mounts that are gone is resolved, for `admit`."""
        return [_over(one, now, why) for one in self._open.values() if survivors.lost(one.entity)]

    def admit(self, found: Iterable[Finding]) -> list[Finding]:
        """Return those of `found` that are news, by (detected_at, detector, entity, state)."""
        news: list[Finding] = []
        for finding in sorted(found, key=canonical):
            news += self._fired(finding) if finding.state == "firing" else self._resolved(finding)
        return news

    def _fired(self, finding: Finding) -> list[Finding]:
        if finding.id in self._open or finding.id in self._closed or finding.id in self._first:
            self._held.pop(finding.id, None)
            return []
        news = []
        before = next((one for name in self._held if _same(one := self._open[name], finding)), None)
        if before is not None:
            del self._held[before.id]
            if before.severity == finding.severity:
                self._first[finding.id] = before.id
                return []
            news = self._resolved(
                _over(before, finding.detected_at, f"now it is a finding of severity {finding.severity}")
            )
        self._open[finding.id] = finding
        return [*news, finding]

    def _resolved(self, finding: Finding) -> list[Finding]:
        first = self._open.pop(self._first.pop(finding.id, finding.id), None)
        if first is None:
            return []
        self._held.pop(first.id, None)
        self._closed |= {finding.id: None, first.id: None}
        while len(self._closed) > _REMEMBERED:
            del self._closed[next(iter(self._closed))]
        if first.id == finding.id:
            return [finding]
        lasted_s = (finding.detected_at - first.started_at) / 1000
        evidence = {**finding.evidence, "lasted_s": lasted_s}
        return [replace(finding, id=first.id, started_at=first.started_at, evidence=evidence)]

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON can say it."""
        return {
            "open": [asdict(finding) for finding in self._open.values()],
            "closed": list(self._closed),
            "held": self._held,
            "first": self._first,
        }

    @classmethod
    def restore(cls, state: Mapping[str, Any], sighted: Mapping[str, Finding]) -> "Alarms":
        """Return what `snapshot` was taken of; of snapshots that hold ids alone, those that are `sighted` by id."""
        alarms = cls()
        for one in state["open"]:
            finding = sighted.get(one) if isinstance(one, str) else Finding(**one)
            if finding is not None:
                alarms._open[finding.id] = finding
        alarms._closed = dict.fromkeys(state["closed"])
        alarms._held = {name: (until, why) for name, (until, why) in state.get("held", {}).items()}
        alarms._first = dict(state.get("first", {}))
        return alarms


def canonical(finding: Finding) -> tuple[int, str, str, str]:
    """Return what findings are sorted by wherever they are compared: (detected_at, detector, entity, state)."""
    entity = json.dumps(dict(sorted(finding.entity.items())), separators=(",", ":"))
    return finding.detected_at, finding.detector, entity, finding.state


def _same(one: Finding, other: Finding) -> bool:
    return (one.detector, one.fault, dict(one.entity)) == (other.detector, other.fault, dict(other.entity))


def _over(finding: Finding, now: Instant, reason: str) -> Finding:
    return replace(
        finding,
        state="resolved",
        detected_at=now,
        score=0.0,
        summary=f"{finding.fault} on {in_words(finding.entity)} is over: {reason}",
        recommended_action="none",
        evidence={"lasted_s": (now - finding.started_at) / 1000},
    )
