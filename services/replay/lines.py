"""Jobs and log records as the lines that are replayed, revealed when event time has reached them and not before."""

import json
from collections.abc import Iterable, Iterator
from typing import Any

from services.kit.times import format_time
from services.recording.model import Event, Job
from services.recording.reader import to_json_line

Line = tuple[int, bytes]
"""Event time in ms, and one line of JSON."""

_OUTCOME = {"end": None, "state": "RUNNING"}
_ENDS, _STARTS, _ENDS_AT_ONCE = range(3)


def job_lines(jobs: Iterable[Job], from_ms: int, to_ms: int) -> list[Line]:
    """Return the starts and ends of jobs that a window [from_ms, to_ms] reveals, by time.

    A job that runs already at `from_ms` starts there. At its start a job has no end and is RUNNING, and keys that the
    format does not name are left out, as they may show how it ended (an exit code, an elapsed time); its end has the
    whole line. Where one job ends as another starts, the end comes first: they may use the same nodes.
    """
    found: list[tuple[int, int, bytes]] = []
    for job in jobs:
        if job.start > to_ms or (job.end is not None and job.end < from_ms):
            continue
        whole = job.model_dump(mode="json", exclude_unset=True)
        known = {key: value for key, value in whole.items() if key in Job.model_fields}
        start = max(job.start, from_ms)
        found.append((start, _STARTS, _job_line(start, "start", known | _OUTCOME)))
        if job.end is not None and job.end <= to_ms:
            order = _ENDS_AT_ONCE if job.end == start else _ENDS
            found.append((job.end, order, _job_line(job.end, "end", whole)))
    found.sort(key=lambda item: item[:2])
    return [(at_ms, line) for at_ms, _, line in found]


def _job_line(at_ms: int, event: str, job: dict[str, Any]) -> bytes:
    row = {"timestamp": format_time(at_ms), "event": event, "job": job}
    return json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode()


def log_lines(events: Iterable[Event]) -> Iterator[Line]:
    """Yield log records as lines of events.jsonl, one by one."""
    for event in events:
        yield event.timestamp, to_json_line(event).encode()
