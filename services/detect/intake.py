"""What Kafka records carry, as the engine takes it."""

from collections.abc import Mapping
from typing import Any, cast

import pyarrow as pa

from detectors.contract import Kind, LogRecord
from detectors.engine.engine import Engine
from detectors.fleet.fleet import Job, JobEvent
from detectors.fleet.scheduling import is_maintenance
from services.kit.columns import batch_of, rows_of
from services.kit.errors import UserError
from services.kit.printable import printable
from services.kit.times import parse_time
from services.kit.wire import Row, WireError

_WHOLE_NUMBERS = ("gpu", "rank")


def feed(engine: Engine, stream: str, payload: pa.RecordBatch | list[Row]) -> int:
    """Feed the rows of one record to an engine; return the latest time among them.

    Raises WireError, and feeds nothing, if anything in the record is not what its stream carries.
    """
    if stream == "logs":
        records = [_numbered(number, row, log_record) for number, row in enumerate(_lines(payload), start=1)]
        engine.feed_logs(records)
        return max((record.at for record in records), default=0)
    if stream == "jobs":
        events = [_numbered(number, row, job_event) for number, row in enumerate(_lines(payload), start=1)]
        engine.feed_jobs(events)
        return max((event.at for event in events), default=0)
    kind = cast("Kind", stream)
    batch = batch_of(kind, payload) if isinstance(payload, list) else payload
    try:
        rows = rows_of(kind, batch, engine.fields[kind])
    except pa.ArrowException as error:
        raise WireError(f"columns cannot be read: {str(error).splitlines()[0]}") from None
    for name, column in rows.keys.items():
        wanted: type = int if name in _WHOLE_NUMBERS else str
        if not all(isinstance(category, wanted) for category in column.categories):
            raise WireError(f"key column {name} does not hold {'whole numbers' if wanted is int else 'text'}")
    engine.feed(rows)
    return int(rows.times.max(initial=0))


def _lines(payload: pa.RecordBatch | list[Row]) -> list[Row]:
    if not isinstance(payload, list):
        raise WireError("an Arrow stream, where JSON lines are expected")
    return payload


def _numbered(number: int, row: Row, convert: Any) -> Any:
    try:
        return convert(row)
    except KeyError as missing:
        raise WireError(f"line {number}: {missing} is missing") from None
    except (UserError, TypeError, ValueError, AttributeError) as error:
        raise WireError(f"line {number}: {str(error).splitlines()[0]}") from None


def log_record(row: Mapping[str, Any]) -> LogRecord:
    """Return a line of events.jsonl as a log record."""
    rank = row.get("rank")
    return LogRecord(
        at=_time(row["timestamp"]),
        source=str(row["source"]),
        message=printable(str(row["message"])),
        severity=str(row.get("severity") or "info"),
        node=_text(row.get("node")),
        job_id=_text(row.get("job_id")),
        rank=None if rank is None else int(rank),
    )


def job_event(row: Mapping[str, Any]) -> JobEvent:
    """Return a line of the jobs topic as the start or the end of a job."""
    event, job = row["event"], row["job"]
    if event not in ("start", "end"):
        raise ValueError(f"event {event!r} is neither start nor end")
    state = str(job.get("state") or "").upper() if event == "end" else ""
    return JobEvent(_time(row["timestamp"]), event, job_of(job), state)


def job_of(job: Mapping[str, Any]) -> Job:
    """Return a line of jobs.jsonl as a job."""
    keeps = bool(job.get("maintenance"))  # `hindcast live` sends what it is, and no name
    gpus_per_node = None if job.get("gpus_per_node") is None else int(job["gpus_per_node"])
    return Job(
        job_id=str(job["job_id"]),
        nodes=tuple(str(node) for node in job["nodes"]),
        start=_time(job["start"]),
        gpus_per_node=gpus_per_node,
        gpus={str(node): tuple(int(gpu) for gpu in gpus) for node, gpus in (job.get("gpus") or {}).items()},
        maintenance=keeps or is_maintenance(str(job.get("name") or ""), str(job.get("user") or ""), gpus_per_node),
    )


def _text(value: Any) -> str | None:
    return None if value is None else str(value)


def _time(value: Any) -> int:
    return value if isinstance(value, int) else parse_time(value)
