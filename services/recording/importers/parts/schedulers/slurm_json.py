"""Reads `sacct --json`, `squeue --json` and `scontrol show jobs --json` job by job: the forms of Slurm 20.11 to 25.11.

Over the releases a number became ``{"set": true, "infinite": false, "number": 8}``, a state a list of states, and an
array task's id such a number too. All are read.
"""

import io
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from services.kit.errors import UserError
from services.recording.importers.contract import Progress, Report
from services.recording.importers.parts.schedulers.slurm_record import Record, gpus_of
from services.recording.importers.parts.source_files import clean, opened

_JOBS = re.compile(r'"jobs"\s*:\s*\[')
_PIECE = 1 << 20
_MOST = 32 << 20  # characters of one job with all its steps; a larger one is damage
_REMEDY = "make it again with `sacct -a --json`"


def read_json(path: Path, report: Report, progress: Progress) -> Iterator[tuple[str, Record]]:
    """Yield the jobs. UserError where the file has no list of jobs; what breaks off is counted as skipped."""
    for number, item in enumerate(_objects(path, report, progress), start=1):
        report.read["jobs"] += 1
        where = f"{path.name}: job {number}"
        if not isinstance(item, dict):
            report.skip("no job: its JSON is no object", where)
            continue
        steps = item.get("steps")
        report.read["steps"] += len(steps) if isinstance(steps, list) else 0
        yield where, _record(item)


def _objects(path: Path, report: Report, progress: Progress) -> Iterator[Any]:
    decoder, size = json.JSONDecoder(), max(path.stat().st_size, 1)
    with path.open("rb") as raw, io.TextIOWrapper(opened(raw, path), encoding="utf-8", errors="replace") as file:
        text, place = file.read(_PIECE), 0
        match = _JOBS.search(text)
        while match is None and (more := file.read(_PIECE)):
            text = text[-100:] + more  # the key may lie across two pieces
            match = _JOBS.search(text)
        if match is None:
            raise UserError(f"{path}: JSON without a list of jobs", remedy=_REMEDY)
        place = match.end()
        wanted, done = _PIECE, 0
        while True:
            while place < len(text) and text[place] in " \t\r\n,":
                place += 1
            if place < len(text) and text[place] == "]":
                return
            try:
                item, place = decoder.raw_decode(text, place)
            except RecursionError:
                report.skip("JSON that is nested too deeply: the file is left out from there on", path.name)
                return
            except ValueError:
                more = file.read(wanted)
                done += len(more)
                progress(min(done / size, 1.0))
                if not more or len(text) - place > _MOST:
                    report.skip("JSON that breaks off or is damaged: the file is left out from there on", path.name)
                    return
                text, place = text[place:] + more, 0
                wanted = max(_PIECE, len(text))  # a job that is cut is tried again only when there is twice as much
            else:
                wanted = _PIECE
                yield item


def _record(job: dict[str, Any]) -> Record:
    time = _dict(job.get("time"))
    states = _list(_dict(job.get("state")).get("current")) or _list(job.get("job_state"))
    state = _text(states[0]) if states else ""
    by = _text(job.get("kill_request_user"))
    if state == "CANCELLED" and by:
        state = f"CANCELLED by {by}"
    exit_code = _dict(job.get("exit_code"))
    signal = _dict(exit_code.get("signal"))
    signal_number = _number(signal.get("id", signal.get("signal_id"))) or 0
    code = _number(exit_code.get("return_code"))
    fields = {
        "JobID": _job_id(job),
        "JobName": _text(job.get("name")),
        "User": _text(job.get("user"))
        or _text(_dict(job.get("association")).get("user"))
        or _text(job.get("user_name")),
        "State": state,
        "Reason": _reason(_dict(job.get("state")).get("reason") or job.get("state_reason")),
        "ExitCode": "" if code is None else f"{code}:{signal_number}",
        "Submit": _stamp(time.get("submission", job.get("submit_time"))),
        "Start": _stamp(time.get("start", job.get("start_time"))),
        "End": _stamp(time.get("end", job.get("end_time"))),
        "NodeList": _text(job.get("nodes")),
        "FailedNode": _text(job.get("failed_node")),
    }
    allocated = _dict(job.get("tres")).get("allocated")
    if isinstance(allocated, list):
        fields["AllocTRES"] = ",".join(filter(None, map(_tres, allocated)))
    elif isinstance(job.get("tres_alloc_str"), str):
        fields["AllocTRES"] = _text(job["tres_alloc_str"])
    details = [text for text in _list(job.get("gres_detail")) if isinstance(text, str)]
    return Record(fields, gpus_of(fields["NodeList"], details) if details else {})


def _job_id(job: dict[str, Any]) -> str:
    """Return the id as `sacct -P` prints it: ``123``, ``123_4`` for an array's task, ``123+1`` for a part."""
    array, het = _dict(job.get("array")), _dict(job.get("het"))
    whole = _number(array.get("job_id", job.get("array_job_id")))
    task = _number(array.get("task_id", job.get("array_task_id")))
    if whole and task is not None:
        return f"{whole}_{task}"
    whole = _number(het.get("job_id", job.get("het_job_id")))
    offset = _number(het.get("job_offset", job.get("het_job_offset")))
    if whole and offset is not None:
        return f"{whole}+{offset}"
    own = _number(job.get("job_id"))
    return "" if own is None else str(own)


def _tres(item: Any) -> str:
    entry = _dict(item)
    count, name = _number(entry.get("count")), _text(entry.get("name"))
    kind = _text(entry.get("type"))
    return f"{kind}/{name}={count}" if name and count is not None else f"{kind}={count}" if count is not None else ""


def _number(value: Any) -> int | None:
    """Return a number in either form; None where it is not set, infinite, or none."""
    if isinstance(value, dict):
        if not value.get("set") or value.get("infinite"):
            return None
        value = value.get("number")
    if isinstance(value, bool) or not isinstance(value, int | float):
        return None
    return int(value) if abs(value) < 1e15 else None


def _stamp(value: Any) -> str:
    number = _number(value)
    return str(number) if number else ""


def _reason(value: Any) -> str:
    text = _text(value)
    return "" if text == "None" else text


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else [value] if isinstance(value, str) else []


def _text(value: Any) -> str:
    return clean(value) if isinstance(value, str) else ""
