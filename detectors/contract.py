"""The whole vocabulary between telemetry and findings, on one page.

Time is `Instant`: integer milliseconds since the Unix epoch, UTC, always event time. Nothing here, and nothing in a
detector, reads a clock, a file or a socket.
"""

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any, ClassVar, Literal, Protocol, Self

import numpy as np
from numpy.typing import NDArray
from pydantic import BaseModel, ConfigDict
from pydantic import Field as PydanticField

from detectors.fleet.fleet import Fleet
from detectors.signals.xid import XidOverrides

EXACT = 2.0**53
"""From here on a float holds no counts, and no bits, any more."""
_EXACT_BITS = np.float64(EXACT).view(np.uint64)

_CELLS_A_GAP = 32
"""With fewer cells from one gap to the next a mask takes longer than indices."""

Instant = int
IntArray = NDArray[np.int64]
FloatArray = NDArray[np.float64]
BoolArray = NDArray[np.bool_]

Kind = Literal["dcgm", "nic", "switch", "bmc", "steps", "storage"]
KINDS: tuple[Kind, ...] = ("bmc", "switch", "nic", "storage", "steps", "dcgm")
"""Telemetry kinds in the order in which the engine hands over one stretch of event time; logs come before all."""

Fault = str
"""A name that some detector's faults.yaml has."""
Severity = Literal["page", "ticket", "info"]
State = Literal["firing", "resolved"]
Evidence = Mapping[str, float | int | str]
Entity = Mapping[str, str | int]
"""Keys as in labels.jsonl: node, gpu, nic, switch, port, mount, job_id."""


@dataclass(frozen=True, slots=True)
class Batch:
    """Readings of one kind: a stretch of event time, for the entities that reported in it.

    `entities` (e,) are indices into ``fleet.entities(kind)``, ascending. Everything else has shape (ticks, e): `at`
    holds the time of each reading, `present` whether there was one (an entity that reported less often than others has
    its readings first), `values[f]` the readings of field f and `valid[f]` whether that field was reported: missing is
    not NaN, as a diverged loss is NaN and valid. Along a column, times ascend.
    """

    kind: Kind
    entities: IntArray
    at: IntArray
    present: BoolArray
    values: Mapping[str, FloatArray]
    valid: Mapping[str, BoolArray]
    sound: Mapping[str, FloatArray] = field(default_factory=dict)
    """`values` with NaN wherever there is no plausible quantity: not reported, negative, infinite, or so big that a
    float holds no counts any more. Made once for all detectors; without the fields that none of these rows reports."""
    _indices: dict[int, Any] = field(default_factory=dict, init=False, repr=False, compare=False)
    _ticks: list[tuple[int, Any]] = field(default_factory=list, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        if not self.sound and self.values:
            reported = [name for name, valid in self.valid.items() if np.count_nonzero(valid)]
            object.__setattr__(
                self, "sound", {name: plausible(self.values[name], self.valid[name]) for name in reported}
            )

    @property
    def reach(self) -> int:
        """For how many entities of the fleet there must be room: one more than the last of `entities`, which ascend."""
        return int(self.entities[-1]) + 1 if len(self.entities) else 0

    def ticks(self) -> Sequence[tuple[int, Any]]:
        """Return the number of each tick and, as an index, the places of the entities that have a reading in it."""
        if not self._ticks:
            self._ticks.extend(
                (tick, slice(None) if np.count_nonzero(present) == len(present) else present.nonzero()[0])
                for tick, present in enumerate(self.present)
            )
        return self._ticks

    def index(self, here: Any, count: int) -> Any:
        """Return `entities[here]` by `index_of`: what a slice picks out is a view, and changes with what is kept."""
        if not isinstance(here, slice):
            return index_of(self.entities[here], count)
        if count not in self._indices:
            self._indices[count] = index_of(self.entities[here], count)
        return self._indices[count]


def index_of(those: IntArray, count: int) -> Any:
    """Return `those` entities (n,), ascending, as an index of columns of `count` entities, of one axis.

    It is a slice where they follow one another; where few between them are left out a mask, by which NumPy copies
    stretches and not cells; else themselves.
    """
    if len(those) and int(those[-1] - those[0]) == len(those) - 1:
        return slice(int(those[0]), int(those[-1]) + 1)
    if 2 * len(those) < count or _CELLS_A_GAP * np.count_nonzero(np.diff(those) > 1) > len(those):
        return those
    mask = np.zeros(count, bool)
    mask[those] = True
    mask.setflags(write=False)
    return mask


def plausible(value: FloatArray, valid: BoolArray) -> FloatArray:
    """Return readings of a quantity, NaN where there is no plausible one; any shape. Where all are, `value` itself."""
    whole = np.count_nonzero(valid) == valid.size
    # In one pass: the bits of floats from 0 on, read as a number, ascend as they do; those below 0, and NaN, have more.
    if whole and np.maximum.reduce(value.view(np.uint64), None, initial=0) < _EXACT_BITS:
        return value
    with np.errstate(invalid="ignore"):
        return np.where(valid & (value >= 0.0) & (value < EXACT), value, np.nan)


@dataclass(frozen=True, slots=True)
class LogRecord:
    """One line of a log, as in events.jsonl."""

    at: Instant
    source: str
    message: str
    severity: str = "info"
    node: str | None = None
    job_id: str | None = None
    rank: int | None = None


@dataclass(frozen=True, slots=True)
class Finding:
    """What a detector says of one entity: that a fault began (firing) or is over (resolved).

    `started_at` is the best estimate of the onset, `detected_at` when the data sufficed to say so; `score` lies in
    [0, 1]; `evidence` gives numbers by name with their unit in the name, the peers' beside the culprit's.
    """

    id: str
    detector: str
    fault: Fault
    entity: Entity
    state: State
    started_at: Instant
    detected_at: Instant
    severity: Severity
    score: float
    summary: str
    recommended_action: str
    evidence: Evidence = field(default_factory=dict)

    def document(self) -> dict[str, Any]:
        """Return what JSON says of the finding: times as RFC 3339, figures rounded, names in order."""
        return {
            "id": self.id,
            "detector": self.detector,
            "fault": self.fault,
            "entity": dict(sorted(self.entity.items())),
            "state": self.state,
            "started_at": rfc3339(self.started_at),
            "detected_at": rfc3339(self.detected_at),
            "severity": self.severity,
            "score": round(self.score, 4),
            "summary": self.summary,
            "recommended_action": self.recommended_action,
            "evidence": {
                name: round(value, 6) if isinstance(value, float) else value
                for name, value in sorted(self.evidence.items())
            },
        }

    def to_json(self) -> str:
        """Return the finding as one line of canonical JSON: the same finding is the same bytes."""
        return json.dumps(self.document(), separators=(",", ":"), allow_nan=False)


def finding_id(detector: str, entity: Entity, started_at: Instant, *, bucket_ms: int = 1000) -> str:
    """Return the identity of a finding: a hash of detector, entity and onset bucket, the same on every run."""
    key = json.dumps([detector, dict(sorted(entity.items())), started_at // bucket_ms], separators=(",", ":"))
    return hashlib.sha256(key.encode()).hexdigest()[:16]


def rfc3339(at: Instant) -> str:
    """Return an instant as RFC 3339 UTC with milliseconds."""
    return datetime.fromtimestamp(at / 1000, tz=UTC).isoformat(timespec="milliseconds").replace("+00:00", "Z")


class DetectorConfig(BaseModel):
    """Base of every detector's configuration: frozen, unknown names refused; the defaults are detector.yaml's."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    shadow: bool = PydanticField(default=False, exclude=True)
    """A site's choice for any detector: its findings are recorded and marked, and nobody is alerted. It changes
    nothing of what is found, so it is left out of what the configuration says of itself."""

    false_alarms_per_100_node_days: float = PydanticField(default=0.05, gt=0)
    """What this detector may contribute of the budget: its `budget_share` of what detectors.yaml allows for all."""
    xid_overrides: XidOverrides = PydanticField(default_factory=dict)
    """What a site says of XIDs that signals/xid.yaml sees otherwise: one setting of detectors.yaml for all."""
    calibration: Mapping[str, Any] = PydanticField(default_factory=dict, repr=False)
    """What is usual at a site, from `hindcast calibrate`: `detectors.core.tails.Tails.document` of this detector."""


class Default(BaseModel):
    """One default of a detector's configuration, with where the figure comes from."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    value: float | int | str | bool
    fires: Literal["above", "below", "within", "after"] | None = None
    """How what is seen must compare with it: exceed it; fall below this share; come so near; last so long or often."""
    unit: str
    source: str


class Rung(BaseModel):
    """One rung of a ladder: what a detector can see of a fault from some of the telemetry."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    sees: str
    """What it can see, in a few words."""
    needs: tuple[str, ...]
    """All of: ``kind.FIELD`` (``kind.FIELD|kind.OTHER`` either), ``logs.SOURCE``, ``jobs``, ``steps.ranks`` (times of
    each rank), ``topology.links``, ``topology.nics``, ``topology.pcie`` (a GPU's link as it should be)."""
    within_s: float
    """How soon, from a sudden onset, at readings every 5 s."""


class StateSpec(BaseModel):
    """What detector.yaml declares of a detector's state; `engine/test_upgrade.py` holds it against the state."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    since: int
    """The version that has first had it as it is: from the state of that one on, any is gone on with."""
    layout: str
    """A hash of the names, types and rows of all that is kept."""


class DetectorSpec(BaseModel):
    """What detector.yaml declares."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    name: str
    version: int
    faults: tuple[Fault, ...]
    reads: tuple[Literal[Kind, "logs"], ...]
    fields: Mapping[Kind, tuple[str, ...]]
    """Which fields of each kind; the others are not even converted."""
    urgent: Mapping[Kind, Mapping[str, int]] = {}
    """Bits of a field at whose sight the detector is advanced at once, and not at the next point of the grid."""
    latency_s: float
    """Promised delay from the fault's beginning to `detected_at`, on readings every 5 s."""
    defaults: Mapping[str, Default]
    budget_share: float = PydanticField(default=0.0, ge=0, le=1)
    """The part of the false alarms allowed to all detectors that this one may use, less in proportion where the parts
    of all add up to more than 1 (`registry.allowances`); 0: it reports only what is stated."""
    state: StateSpec | None = None
    """None: no version goes on with the state of another."""
    ladders: Mapping[Fault, tuple[Rung, ...]] = {}
    """By fault: from the best evidence down to the least."""


class Detector(Protocol):
    """What every detector is.

    The engine calls `logs` and `observe` with stretches of event time that end anywhere, and `advance` on a fixed
    grid, data or none, and at the time of every reading that has a bit of `spec.urgent`. Findings must not depend on
    where the stretches were cut. The recipe: decide on *events* (a bit that is set, a line in a log) row by row in
    `observe` and `logs`, with nothing but the row and what was
    known at the last `advance`; compare with peers and with the past in `advance`.
    """

    spec: ClassVar[DetectorSpec]
    config_type: ClassVar[type[DetectorConfig]]

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None: ...

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Take log lines in order of time."""
        ...

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Score a batch against the past, then learn from it."""
        ...

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Take note that event time has come to `now`, a point of the grid; called whether data came or not."""
        ...

    def snapshot(self) -> bytes:
        """Return the whole state (`detectors.engine.state.pack`; never a pickle)."""
        ...

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        ...
