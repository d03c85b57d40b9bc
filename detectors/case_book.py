"""The open findings of a detector whose entities are no GPUs (jobs, mounts): at most one an entity and fault."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from detectors.contract import Entity, Evidence, Fault, Finding, Instant, Severity, finding_id

_BUCKET_MS = 1000
_REMEMBERED_MS = 7 * 86_400_000


@dataclass(slots=True)
class Case:
    """A finding that fired and is not over."""

    id: str
    fault: Fault
    entity: dict[str, str | int]
    started_at: Instant
    severity: Severity
    memo: dict[str, Any] = field(default_factory=dict)
    """What the detector notes of it, as JSON can say it."""


class CaseBook:
    """Makes findings, and never the same one twice."""

    def __init__(self, detector: str) -> None:
        self._detector = detector
        self._open: dict[tuple[str, str], Case] = {}
        self._latest: dict[tuple[str, str], Instant] = {}

    def get(self, fault: Fault, entity: Entity) -> Case | None:
        """Return the open finding of a fault on an entity."""
        return self._open.get(_key(fault, entity))

    def cases(self, fault: Fault) -> list[Case]:
        """Return the open findings of a fault."""
        return [case for case in self._open.values() if case.fault == fault]

    def fire(
        self,
        now: Instant,
        fault: Fault,
        entity: Entity,
        *,
        started_at: Instant,
        severity: Severity,
        score: float,
        summary: str,
        action: str,
        evidence: Evidence,
        memo: Mapping[str, Any] | None = None,
    ) -> list[Finding]:
        """Return the finding that a fault began, in a list; nothing if one is open already."""
        key = _key(fault, entity)
        if key in self._open:
            return []
        # A finding's identity holds its onset: one that comes right after another must not have the same.
        latest = self._latest.get(key)
        if latest is not None and started_at // _BUCKET_MS <= latest // _BUCKET_MS:
            started_at = latest + _BUCKET_MS
        if started_at > now:
            return []
        self._latest = {known: at for known, at in self._latest.items() if now - at <= _REMEMBERED_MS}
        self._latest[key] = started_at
        identity = finding_id(f"{self._detector}/{fault}", entity, started_at, bucket_ms=_BUCKET_MS)
        self._open[key] = Case(identity, fault, dict(entity), started_at, severity, dict(memo or {}))
        return [
            Finding(
                id=identity,
                detector=self._detector,
                fault=fault,
                entity=dict(entity),
                state="firing",
                started_at=started_at,
                detected_at=now,
                severity=severity,
                score=score,
                summary=summary,
                recommended_action=action,
                evidence=evidence,
            )
        ]

    def resolve(self, case: Case, now: Instant, reason: str) -> Finding:
        """Return the finding that a fault is over."""
        del self._open[_key(case.fault, case.entity)]
        where = " ".join(str(part) for part in case.entity.values())
        return Finding(
            id=case.id,
            detector=self._detector,
            fault=case.fault,
            entity=case.entity,
            state="resolved",
            started_at=case.started_at,
            detected_at=now,
            severity=case.severity,
            score=0.0,
            summary=f"{case.fault} on {where} is over: {reason}",
            recommended_action="none",
            evidence={"lasted_s": (now - case.started_at) / 1000},
        )

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON can say it."""
        return {
            "open": [asdict(case) for case in self._open.values()],
            "latest": [[*key, at] for key, at in self._latest.items()],
        }

    def load(self, document: dict[str, Any]) -> None:
        """Take what `snapshot` returned."""
        cases = [Case(**fields) for fields in document["open"]]
        self._open = {_key(case.fault, case.entity): case for case in cases}
        self._latest = {(fault, where): at for fault, where, at in document["latest"]}


def _key(fault: Fault, entity: Entity) -> tuple[str, str]:
    return fault, repr(sorted(entity.items()))
