"""Log lines and job events as people's tools send them, to the lines of hindcast's topics.

Logs come as JSON lines or a JSON array (Vector's http sink), or in the shape of Loki's push API. Jobs come as JSON
lines: events of the topic ``jobs`` (`services.kit.wire`), or lines of jobs.jsonl, which start a job that has no end and
end one that has.
"""

import json
import re
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from pydantic import ValidationError

from services.kit.errors import UserError
from services.kit.times import format_time, parse_time
from services.recording.model import Event, Job
from services.recording.reader import to_json_line

SOURCES = ("kernel", "sel", "fabricmanager", "scheduler", "job")
NO_SOURCE = "no source that hindcast reads"
_BY_PROGRAM = {
    "kernel": "kernel",
    "nv-fabricmanager": "fabricmanager",
    "fabricmanager": "fabricmanager",
    "slurmctld": "scheduler",
    "slurmd": "scheduler",
    "slurmstepd": "scheduler",
    "ipmiseld": "sel",
    "ipmitool": "sel",
}
"""Which source a program's lines are, as syslog and the journal name it."""
_SEVERITY = {
    **dict.fromkeys(("0", "1", "2", "emerg", "alert", "crit", "critical", "fatal", "panic", "emergency"), "critical"),
    **dict.fromkeys(("3", "err", "error"), "error"),
    **dict.fromkeys(("4", "warn", "warning"), "warning"),
}
"""syslog's numbers and the usual words; everything else is info."""
_NODE = ("node", "hostname", "host", "_HOSTNAME", "nodename", "instance")
_PROGRAM = ("appname", "SYSLOG_IDENTIFIER", "_TRANSPORT", "ident", "program", "service_name", "unit", "source_type")
_LEVEL = ("severity", "level", "PRIORITY", "detected_level")
_PORT = re.compile(r":\d+$")


class UnreadableError(ValueError):
    """A body of which nothing can be read; its text says why."""


@dataclass
class Lines:
    """What a request comes to: lines of a topic, how many by outcome, and (line, reason) of those that are bad."""

    taken: list[bytes] = field(default_factory=list)
    outcomes: Counter[str] = field(default_factory=Counter)
    bad: list[tuple[bytes, str]] = field(default_factory=list)

    def refuse(self, line: object, reason: str) -> None:
        """Count a line that is of no use, to be kept with the reason."""
        text = line if isinstance(line, bytes) else json.dumps(line).encode()
        self.bad.append((text, reason))
        self.outcomes["bad"] += 1


def gunzip(body: bytes, most: int) -> bytes:
    """Return a gzip body; raise UnreadableError where it is none, or has more than `most` bytes unpacked."""
    unpacker = zlib.decompressobj(zlib.MAX_WBITS | 16)
    try:
        data = unpacker.decompress(body, most + 1)
    except zlib.error as error:
        raise UnreadableError(f"the body is not compressed with gzip: {error}") from None
    if len(data) > most or not unpacker.eof:
        raise UnreadableError(f"the body is cut off, or has more than {most} bytes unpacked")
    return data


def logs(body: bytes) -> Lines:
    """Return the log records of a body as lines of events.jsonl.

    A record without a source that hindcast reads is passed over. UnreadableError where the body is no JSON at all.
    """
    found = Lines()
    for row, raw in _rows(body, found):
        for record in _loki(row) if "streams" in row else (row,):
            _take(found, raw if record is row else record, partial(_event, record))
    return found


def jobs(body: bytes) -> Lines:
    """Return the events of a body as lines of the topic ``jobs``; UnreadableError where the body is no JSON at all."""
    found = Lines()
    for row, raw in _rows(body, found):
        _take(found, raw, partial(_job, row))
    return found


def _take(found: Lines, raw: object, convert: Callable[[], bytes | None]) -> None:
    try:
        line = convert()
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        found.refuse(raw, f"{'.'.join(map(str, first['loc']))}: {first['msg']}")
    except UserError as error:
        found.refuse(raw, error.message)
    except (ValueError, TypeError, OverflowError) as error:
        found.refuse(raw, str(error))
    else:
        if line is None:
            found.outcomes[NO_SOURCE] += 1
        else:
            found.taken.append(line)
            found.outcomes["taken"] += 1


def _rows(body: bytes, found: Lines) -> Iterator[tuple[dict[str, Any], bytes]]:
    """Yield the objects of JSON lines, or of an array of objects, with what stood there."""
    if body.lstrip()[:1] == b"[":
        try:
            whole = json.loads(body)
        except (ValueError, RecursionError) as error:
            raise UnreadableError(f"the body is not JSON: {error}") from None
        parts = [(row, b"") for row in whole]
    else:
        parts = []
        for line in body.split(b"\n"):
            if line.strip():
                try:
                    parts.append((json.loads(line), line))
                except (ValueError, RecursionError) as error:
                    found.refuse(line, f"not JSON: {error}")
        if found.bad and not parts:
            raise UnreadableError(found.bad[0][1])
    for row, raw in parts:
        if isinstance(row, dict):
            yield row, raw or json.dumps(row).encode()
        else:
            found.refuse(row, "not a JSON object")


def _loki(push: Mapping[str, Any]) -> Iterator[dict[str, Any]]:
    """Yield the records of a push: labels as fields, times from nanoseconds."""
    streams = push["streams"]
    for stream in streams if isinstance(streams, list) else ():
        labels = stream.get("stream") if isinstance(stream, dict) else None
        values = stream.get("values") if isinstance(stream, dict) else None
        for value in values if isinstance(values, list) else ():
            at, message, *more = value if isinstance(value, list) and len(value) > 1 else (None, None)
            own = more[0] if more and isinstance(more[0], dict) else {}
            stamp = int(at) // 1_000_000 if isinstance(at, str) and re.fullmatch(r"\d{1,20}", at) else None
            yield {**(labels if isinstance(labels, dict) else {}), **own, "timestamp": stamp, "message": message}


def _event(row: Mapping[str, Any]) -> bytes | None:
    source = _source(row)
    if source is None:
        return None
    node = _first(row, _NODE)
    record: dict[str, Any] = {
        "timestamp": _time(row),
        "source": source,
        "node": _PORT.sub("", node) if node else None,
        "job_id": _text(row.get("job_id")),
        "rank": row.get("rank"),
        "severity": _SEVERITY.get((_first(row, _LEVEL) or "").lower(), "info"),
        "message": row.get("message", row.get("MESSAGE", row.get("log"))),
    }
    return to_json_line(
        Event.model_validate({name: value for name, value in record.items() if value is not None})
    ).encode()


def _source(row: Mapping[str, Any]) -> str | None:
    source = row.get("source")
    if source in SOURCES:
        return str(source)
    for name in _PROGRAM:
        program = row.get(name)
        if isinstance(program, str) and program.removesuffix(".service") in _BY_PROGRAM:
            return _BY_PROGRAM[program.removesuffix(".service")]
    return "job" if row.get("job_id") else None


def _time(row: Mapping[str, Any]) -> str:
    at = row.get("timestamp", row.get("time"))
    if isinstance(at, bool) or at is None:
        raise ValueError("timestamp is missing, or no time")
    if isinstance(at, int | float):
        return format_time(round(at if at > 1e11 else at * 1000))  # seconds, or milliseconds since 1973
    return format_time(parse_time(at))


def _job(row: Mapping[str, Any]) -> bytes:
    event, given, at = row.get("event"), row.get("job"), row.get("timestamp")
    if event is None and "job_id" in row:
        job = Job.model_validate(row)
        event, at = ("start", job.start) if job.end is None else ("end", job.end)
    elif event in ("start", "end"):
        job = Job.model_validate(given)
        at = parse_time(at) if isinstance(at, str) else (job.start if event == "start" else job.end)
    else:
        raise ValueError(f"event {event!r} is neither start nor end")
    if at is None:
        raise ValueError("the end of a job needs a timestamp, or the job its end")
    if not job.nodes:
        raise ValueError("the job has no nodes")
    known = job.model_dump(mode="json", exclude_unset=True)
    if event == "start":
        # What is not known at a start is not written at one, as in a replay.
        known |= {"end": None, "state": "RUNNING"}
    return json.dumps({"timestamp": format_time(at), "event": event, "job": known}, separators=(",", ":")).encode()


def _first(row: Mapping[str, Any], names: tuple[str, ...]) -> str | None:
    return next((text for name in names if (text := _text(row.get(name)))), None)


def _text(value: object) -> str | None:
    return str(value) if isinstance(value, str | int) and not isinstance(value, bool) and value != "" else None
