"""The open findings of a detector: at most one an entity, fault and aspect, and no identity twice."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from detectors.contract import Entity, Evidence, Fault, Finding, Instant, Severity, finding_id
from detectors.core.survivors import Survivors
from detectors.fleet.gpus import WHOLE_NODE

_BUCKET_MS = 1000
_WIDE_TO_NARROW = ("job_id", "mount", "switch", "node", "gpu", "nic", "port")
_REMEMBERED_MS = 7 * 86_400_000


@dataclass(slots=True)
class OpenCase:
    """A finding that fired and is not over."""

    id: str
    fault: Fault
    entity: dict[str, str | int]
    started_at: Instant
    last_at: Instant
    """When its cause was last seen, for a detector that keeps this up to date; else its start."""
    severity: Severity
    gpu: int = WHOLE_NODE
    """Of a GPU: its index into ``fleet.entities("dcgm")``."""
    aspect: str = ""
    memo: dict[str, Any] = field(default_factory=dict)
    """What the detector notes of it, as JSON can say it."""

    @property
    def node(self) -> str:
        """The node that it names, or that its GPU sits in."""
        return str(self.entity["node"])


class CaseBook:
    """Makes findings, and never the same one twice."""

    def __init__(self, detector: str, returns_ms: int = 0) -> None:
        """Begin with none; for `returns_ms` it is remembered that a finding was over (`returned`)."""
        self._detector, self._returns_ms = detector, returns_ms
        self._open: dict[tuple[str, str], OpenCase] = {}
        self._latest: dict[tuple[str, str], Instant] = {}
        self._ends: dict[tuple[str, str], Instant] = {}

    def get(self, fault: Fault, entity: Entity, aspect: str = "") -> OpenCase | None:
        """Return the open finding of a fault on an entity."""
        return self._open.get(_key(fault, aspect, entity))

    def cases(self, fault: Fault | None = None) -> list[OpenCase]:
        """Return the open findings, of one fault or all."""
        return [case for case in self._open.values() if fault in (None, case.fault)]

    def returned(self, now: Instant, fault: Fault, entity: Entity) -> bool:
        """Return whether a finding of a fault on an entity was over lately: what is back is the same trouble."""
        ended = self._ends.get(_key(fault, "", entity))
        return ended is not None and now - ended < self._returns_ms

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
        gpu: int = WHOLE_NODE,
        aspect: str = "",
        memo: Mapping[str, Any] | None = None,
    ) -> list[Finding]:
        """Return the finding that a fault began, in a list; nothing if one is open already.

        Two causes of one fault that an entity can have at a time are distinguished by `aspect`.
        """
        key = _key(fault, aspect, entity)
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
        identity = finding_id(f"{self._detector}/{key[0]}", entity, started_at, bucket_ms=_BUCKET_MS)
        self._open[key] = OpenCase(
            identity, fault, dict(entity), started_at, started_at, severity, gpu, aspect, dict(memo or {})
        )
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

    def resolve(self, case: OpenCase, now: Instant, reason: str, evidence: Evidence | None = None) -> Finding:
        """Return the finding that a fault is over."""
        key = _key(case.fault, case.aspect, case.entity)
        del self._open[key]
        if self._returns_ms:
            self._ends = {known: at for known, at in self._ends.items() if now - at < self._returns_ms} | {key: now}
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
            summary=f"{case.fault} on {in_words(case.entity)} is over: {reason}",
            recommended_action="none",
            evidence={"lasted_s": (now - case.started_at) / 1000, **(evidence or {})},
        )

    def go_on_with(self, survivors: Survivors) -> None:
        """Drop what is open on what is gone: the engine resolves it."""
        self._open = {key: case for key, case in self._open.items() if not survivors.lost(case.entity)}
        for case in self._open.values():
            case.gpu = survivors.number("dcgm", case.gpu)

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON can say it."""
        ends = {"ends": [[*key, at] for key, at in self._ends.items()]} if self._returns_ms else {}
        return {
            "open": [asdict(case) for case in self._open.values()],
            "latest": [[*key, at] for key, at in self._latest.items()],
        } | ends

    def load(self, document: dict[str, Any]) -> None:
        """Take what `snapshot` returned."""
        cases = [OpenCase(**fields) for fields in document["open"]]
        self._open = {_key(case.fault, case.aspect, case.entity): case for case in cases}
        self._latest = {(what, where): at for what, where, at in document["latest"]}
        self._ends = {(what, where): at for what, where, at in document.get("ends", ())}


def in_words(entity: Entity) -> str:
    """Return an entity as a summary names it."""
    names = [name for name in _WIDE_TO_NARROW if name in entity]
    return " ".join(f"GPU {entity[name]}" if name == "gpu" else str(entity[name]) for name in names)


def _key(fault: Fault, aspect: str, entity: Entity) -> tuple[str, str]:
    return f"{fault}/{aspect}" if aspect else fault, repr(sorted(entity.items()))
