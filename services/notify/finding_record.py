"""A finding as it was read from the topic: what it says, whose it is, and where in the topic it lies."""

from collections.abc import Mapping
from typing import NamedTuple

from pydantic import BaseModel, ConfigDict, ValidationError, field_validator

from detectors.contract import Severity, State
from services.kit.errors import UserError
from services.kit.kafka import Record
from services.kit.replays import Topology
from services.kit.times import parse_time
from services.kit.wire import CLOSED, INCIDENT, SHADOW, Origin, WireError, origin_of
from services.recording.faults import FaultName


class Position(NamedTuple):
    """Where a record lies in the findings topic."""

    partition: int
    offset: int


class FindingLine(BaseModel):
    """One line as `detectors.contract.Finding.to_json` writes it; times are epoch milliseconds of recording time."""

    model_config = ConfigDict(extra="ignore", frozen=True)

    id: str
    detector: str
    fault: FaultName
    entity: dict[str, str | int]
    state: State
    started_at: int
    detected_at: int
    severity: Severity
    score: float
    summary: str
    recommended_action: str
    evidence: dict[str, float | int | str]

    @field_validator("started_at", "detected_at", mode="before")
    @classmethod
    def _time(cls, value: object) -> int:
        if not isinstance(value, str):
            raise ValueError("not a time as text")  # noqa: TRY004 - pydantic turns ValueError into its own
        try:
            return parse_time(value)
        except UserError as error:
            raise ValueError(error.message) from None


class FindingKey(NamedTuple):
    """What makes two records of the topic the same finding.

    The shift is part of it: a replay that was removed and is made again under its old name runs at another one.
    """

    unit: str
    generation: int
    shift_ms: int
    id: str


class FindingRecord(NamedTuple):
    """One readable record of the findings topic."""

    origin: Origin
    finding: FindingLine
    record: Record
    rack: str = ""
    """That of its node, where the topology says one."""

    @property
    def at(self) -> Position:
        """Return where it lies."""
        return Position(self.record.partition, self.record.offset)

    @property
    def key(self) -> FindingKey:
        """Return which finding it is."""
        return FindingKey(self.origin.unit, self.origin.generation, self.origin.shift_ms, self.finding.id)

    @property
    def incident(self) -> str | None:
        """Return the incident it was put into when it was found."""
        return self._header(INCIDENT)

    @property
    def shadow(self) -> bool:
        """Return whether it is recorded only: nobody is to be alerted."""
        return self._header(SHADOW) == "1"

    @property
    def closed(self) -> str | None:
        """Return who closed it by hand, and why; None of one that is open, or over by itself."""
        return self._header(CLOSED)

    def _header(self, name: str) -> str | None:
        return next((value.decode(errors="replace") for key, value in self.record.headers if key == name), None)

    @property
    def onset_ms(self) -> int:
        """Return when the fault began, shifted: what the outside gets to see."""
        return self.finding.started_at + self.origin.shift_ms

    @property
    def reported_ms(self) -> int:
        """Return when the detector reported it, shifted; for a resolved finding, when the fault was over."""
        return self.finding.detected_at + self.origin.shift_ms


def placed(one: FindingRecord, topologies: Mapping[str, Topology]) -> FindingRecord:
    """Return it with its node's rack; `topologies` by unit: a stream's is announced before its first record."""
    node = one.finding.entity.get("node")
    nodes = topologies.get(one.origin.unit, {}).get("nodes", ())
    rack = next((entry.get("rack") for entry in nodes if entry["name"] == node), None) if node else None
    return one._replace(rack=rack or "")


def finding_record_of(record: Record) -> FindingRecord:
    """Return what a record of the findings topic says; raise WireError with the reason if it cannot be read."""
    origin = origin_of(list(record.headers))
    if not record.value:
        raise WireError("the record has no value")
    try:
        finding = FindingLine.model_validate_json(record.value)
    except ValidationError as error:
        wrong = [
            f"{'.'.join(str(part) for part in item['loc']) or 'value'}: {item['msg']}"
            for item in error.errors(include_input=False, include_url=False)
        ]
        raise WireError(f"not a finding: {'; '.join(wrong)}") from None
    if finding.detected_at < finding.started_at:
        raise WireError("not a finding: detected_at lies before started_at")
    return FindingRecord(origin, finding, record)
