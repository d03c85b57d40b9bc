"""A finding on the wire: the one reader of what `detectors.contract.Finding.to_json` writes, and whose a record is."""

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, Annotated, NamedTuple

from pydantic import AfterValidator, BeforeValidator, TypeAdapter, ValidationError, WithJsonSchema

from detectors.contract import Finding
from detectors.faults import faults
from services.kit.times import parse_instant
from services.kit.wire import CLOSED, INCIDENT, SHADOW, Origin, WireError, origin_of

if TYPE_CHECKING:  # whose client takes long to load, and most who read findings have no Kafka
    from services.kit.kafka import Record
    from services.kit.replays import Topology


def _known(name: str) -> str:
    if name not in faults():
        raise ValueError(f"no such fault: {name}; there are {', '.join(faults())}")
    return name


FaultName = Annotated[str, AfterValidator(_known), WithJsonSchema({"type": "string", "enum": list(faults())})]
"""A fault where it comes in from outside: only names that some detector has."""
_Time = Annotated[int, BeforeValidator(parse_instant)]


@dataclass(frozen=True, slots=True)
class _Line(Finding):
    """A finding as a line has it: its times are text, and its fault is one that this version knows."""

    fault: FaultName
    started_at: _Time
    detected_at: _Time


_LINE = TypeAdapter(_Line)


def finding_in(line: str | bytes) -> Finding:
    """Return the finding that a line of JSON is; raise WireError with all that is wrong if it is none."""
    try:
        read = _LINE.validate_json(line)
    except ValidationError as error:
        wrong = [
            f"{'.'.join(str(part) for part in item['loc']) or 'value'}: {item['msg']}"
            for item in error.errors(include_input=False, include_url=False)
        ]
        raise WireError(f"not a finding: {'; '.join(wrong)}") from None
    if read.detected_at < read.started_at:
        raise WireError("not a finding: detected_at lies before started_at")
    return Finding(*(getattr(read, one.name) for one in fields(Finding)))


class Position(NamedTuple):
    """Where a record lies in the findings topic."""

    partition: int
    offset: int


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
    finding: Finding
    record: "Record"
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


def placed(one: FindingRecord, topologies: Mapping[str, "Topology"]) -> FindingRecord:
    """Return it with its node's rack; `topologies` by unit: a stream's is announced before its first record."""
    node = one.finding.entity.get("node")
    nodes = topologies.get(one.origin.unit, {}).get("nodes", ())
    rack = next((entry.get("rack") for entry in nodes if entry["name"] == node), None) if node else None
    return one._replace(rack=rack or "")


def finding_record_of(record: "Record") -> FindingRecord:
    """Return what a record of the findings topic says; raise WireError with the reason if it cannot be read."""
    origin = origin_of(list(record.headers))
    if not record.value:
        raise WireError("the record has no value")
    return FindingRecord(origin, finding_in(record.value), record)
