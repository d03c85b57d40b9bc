"""The wire format: what a Kafka record of a unit topic looks like.

Key: ``cluster/replay``; the partition is the one that `services.kit.units` assigns to it. Headers say whose the record
is (`Origin`) and what the value is (`content-type`):

=====================================  =================================================================
``application/vnd.apache.arrow.stream``  one Arrow IPC stream: rows of one recording stream, by its columns
``application/x-ndjson``                 one JSON object a line: the same rows written by hand, or jobs and logs
``application/x-hindcast-mark``          no value: a watermark (`Watermark`)
=====================================  =================================================================

Times in values and watermarks are recording time, always; `Origin.shift_ms` is added only where data leaves hindcast.
A jobs line is ``{"timestamp": T, "event": "start"|"end", "job": {...a line of jobs.jsonl...}}``; at its start a job's
``end`` is null and its state RUNNING. A logs line is a line of events.jsonl.
"""

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import pyarrow as pa

if TYPE_CHECKING:  # whose client takes long to load, and most who read rows have no Kafka
    from services.kit.kafka import Record

SCHEMA = b"hindcast.telemetry/v1"
ARROW = b"application/vnd.apache.arrow.stream"
NDJSON = b"application/x-ndjson"
WATERMARK = b"application/x-hindcast-mark"

Headers = list[tuple[str, bytes]]
INCIDENT, SHADOW, CLOSED = "incident", "shadow", "closed"
"""Headers of a finding, beside its origin's: the incident it was put into, ``1`` where nobody is to be alerted, and
where a person closed it, who and why."""


class WireError(ValueError):
    """A record that cannot be decoded; its text is the reason given in dead-letter."""


def times_of(batch: pa.RecordBatch) -> Any:
    """Return the column of a batch's times, in ms as int64; raise WireError where it has none."""
    if "timestamp" not in batch.schema.names:
        raise WireError("column timestamp is missing")
    column: Any = batch.column("timestamp")
    if not pa.types.is_timestamp(column.type):
        raise WireError(f"column timestamp is {column.type}, not a timestamp")
    if column.null_count:
        raise WireError("column timestamp has nulls")
    return column.cast(pa.timestamp("ms", "UTC")).cast(pa.int64()).to_numpy()


@dataclass(frozen=True, slots=True)
class Origin:
    """Whose a record is: the (cluster, replay) unit, its generation, and where and when it shall land."""

    cluster: str
    replay: str
    generation: int = 0
    shift_ms: int = 0
    target: str = "prometheus"
    parts: bool = False
    """Rows may be parts of a scrape, as remote-write brings them: what is null may be in a record before or behind."""

    @property
    def unit(self) -> str:
        """Return the Kafka key, which all records of a unit share."""
        return f"{self.cluster}/{self.replay}"

    def headers(self, content_type: bytes) -> Headers:
        """Return the headers of a record of this origin."""
        return [
            ("schema", SCHEMA),
            ("content-type", content_type),
            ("cluster", self.cluster.encode()),
            ("replay", self.replay.encode()),
            ("generation", b"%d" % self.generation),
            ("shift-ms", b"%d" % self.shift_ms),
            ("target", self.target.encode()),
            *([("parts", b"1")] if self.parts else []),
        ]


@dataclass(frozen=True, slots=True)
class Watermark:
    """A watermark: every row of this topic with a time up to `at_ms` was sent before it; `end`: none will follow."""

    at_ms: int
    end: bool = False

    def headers(self) -> Headers:
        """Return the headers that carry the watermark, to be added to its origin's."""
        return [("mark-ms", b"%d" % self.at_ms), ("mark-end", b"1" if self.end else b"0")]


Row = dict[str, Any]
Payload = pa.RecordBatch | list[Row] | Watermark


def encode_batch(batch: pa.RecordBatch) -> bytes:
    """Return one Arrow IPC stream with this batch."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, batch.schema) as stream:
        stream.write_batch(batch)
    return sink.getvalue().to_pybytes()


def encode_rows(rows: Iterable[Row]) -> bytes:
    """Return JSON lines. NaN is written as NaN: a diverged loss is a value."""
    return "\n".join(json.dumps(row, separators=(",", ":")) for row in rows).encode()


def origin_of(headers: Sequence[tuple[str, bytes]]) -> Origin:
    """Return whose a record is; raise WireError if its headers do not say."""
    found = dict(headers)
    if found.get("schema") != SCHEMA:
        raise WireError(f"unknown schema {found.get('schema', b'(none)')!r}, this version reads {SCHEMA!r}")
    try:
        return Origin(
            cluster=found["cluster"].decode(),
            replay=found["replay"].decode(),
            generation=int(found["generation"]),
            shift_ms=int(found["shift-ms"]),
            target=found.get("target", b"prometheus").decode(),
            parts=found.get("parts") == b"1",
        )
    except KeyError as missing:
        raise WireError(f"header {missing} is missing") from None
    except ValueError as error:
        raise WireError(f"a header cannot be read: {error}") from None


def payload_of(record: "Record") -> Payload:
    """Return what a record carries; raise WireError, naming the reason, if it cannot be decoded."""
    headers = dict(record.headers)
    content = headers.get("content-type")
    if content == WATERMARK:
        try:
            return Watermark(int(headers["mark-ms"]), headers.get("mark-end") == b"1")
        except (KeyError, ValueError):
            raise WireError("a watermark without a readable mark-ms header") from None
    if not record.value:
        raise WireError("the record has no value")
    if content == ARROW:
        return _decode_arrow(record.value)
    if content == NDJSON:
        return _decode_rows(record.value)
    raise WireError(f"unknown content-type {content!r}")


def _decode_arrow(value: bytes) -> pa.RecordBatch:
    try:
        with pa.ipc.open_stream(value) as stream:
            batches = list(stream)
        for batch in batches:
            batch.validate(full=True)  # else a name, or its place among the names, may lie outside of the record
    except (pa.ArrowException, OSError, ValueError) as error:
        raise WireError(f"not an Arrow stream: {str(error).splitlines()[0]}") from None
    if len(batches) != 1:
        raise WireError(f"an Arrow stream of {len(batches)} batches, one is expected")
    return batches[0]


def _decode_rows(value: bytes) -> list[Row]:
    rows: list[Row] = []
    for number, line in enumerate(value.splitlines(), start=1):
        try:
            row = json.loads(line)
        except (ValueError, RecursionError) as error:
            raise WireError(f"line {number} is not JSON: {error}") from None
        if not isinstance(row, dict):
            raise WireError(f"line {number} is not a JSON object")
        rows.append(row)
    return rows
