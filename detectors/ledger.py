"""The open findings of a detector whose entities are GPUs, or nodes: at most one an entity and fault."""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from detectors.contract import Entity, Evidence, Fault, Finding, Instant, Severity, finding_id
from detectors.gpus import GpuLayout

WHOLE_NODE = -1
"""In place of a GPU's index: the node as a whole."""
_BUCKET_MS = 1000


@dataclass(slots=True)
class Entry:
    """A finding that fired and is not over; `gpu` is an index into the fleet's GPUs, or `WHOLE_NODE`."""

    id: str
    fault: Fault
    node: str
    gpu: int
    started_at: Instant
    last_at: Instant
    """When its cause was last seen."""
    severity: Severity
    memo: dict[str, Any] = field(default_factory=dict)
    """What the detector notes of it, as JSON can say it."""


class Ledger:
    """Makes findings, and never the same one twice."""

    def __init__(self, detector: str, layout: GpuLayout) -> None:
        self._detector, self._layout = detector, layout
        self._open: dict[tuple[str, str, int], Entry] = {}
        self._latest: dict[tuple[str, str, int], Instant] = {}

    def get(self, fault: Fault, node: str, gpu: int) -> Entry | None:
        """Return the open finding of a fault on an entity."""
        return self._open.get((fault, node, gpu))

    def entries(self, fault: Fault | None = None) -> list[Entry]:
        """Return the open findings, of one fault or all."""
        return [entry for entry in self._open.values() if fault in (None, entry.fault)]

    def fire(
        self,
        now: Instant,
        fault: Fault,
        node: str,
        gpu: int,
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
        key = (fault, node, gpu)
        if key in self._open:
            return []
        # A finding's identity holds its onset: one that comes right after another must not have the same.
        latest = self._latest.get(key)
        if latest is not None and started_at // _BUCKET_MS <= latest // _BUCKET_MS:
            started_at = latest + _BUCKET_MS
        if started_at > now:
            return []
        self._latest[key] = started_at
        entity = self.entity(node, gpu)
        identity = finding_id(f"{self._detector}/{fault}", entity, started_at, bucket_ms=_BUCKET_MS)
        self._open[key] = Entry(identity, fault, node, gpu, started_at, started_at, severity, dict(memo or {}))
        return [
            Finding(
                id=identity,
                detector=self._detector,
                fault=fault,
                entity=entity,
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

    def resolve(self, entry: Entry, now: Instant, reason: str, evidence: Evidence) -> Finding:
        """Return the finding that a fault is over."""
        del self._open[entry.fault, entry.node, entry.gpu]
        return Finding(
            id=entry.id,
            detector=self._detector,
            fault=entry.fault,
            entity=self.entity(entry.node, entry.gpu),
            state="resolved",
            started_at=entry.started_at,
            detected_at=now,
            severity=entry.severity,
            score=0.0,
            summary=f"{entry.fault} on {self.where(entry.node, entry.gpu)} is over: {reason}",
            recommended_action="none",
            evidence={"lasted_s": (now - entry.started_at) / 1000, **evidence},
        )

    def entity(self, node: str, gpu: int) -> Entity:
        """Return what a finding names."""
        return {"node": node} if gpu == WHOLE_NODE else self._layout.entity(gpu)

    def where(self, node: str, gpu: int) -> str:
        """Return the entity in words."""
        return node if gpu == WHOLE_NODE else f"{node} GPU {self._layout.gpu[gpu]}"

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON can say it."""
        return {
            "open": [asdict(entry) for entry in self._open.values()],
            "latest": [[*key, at] for key, at in self._latest.items()],
        }

    def load(self, document: dict[str, Any]) -> None:
        """Take what `snapshot` returned."""
        entries = [Entry(**fields) for fields in document["open"]]
        self._open = {(entry.fault, entry.node, entry.gpu): entry for entry in entries}
        self._latest = {(fault, node, gpu): at for fault, node, gpu, at in document["latest"]}
