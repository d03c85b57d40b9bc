"""Reads what ``bhist -l``, ``bjobs -l``, ``bjobs -UF`` and ``bjobs -o ... -json`` print of jobs."""

import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from datetime import datetime, tzinfo
from typing import Any

from services.kit.times import epoch_ms
from services.recording.importers.parts.moments import MONTH, MONTHS
from services.recording.importers.parts.schedulers.allocations import Allocation
from services.recording.importers.parts.schedulers.lsf_job import MALFORMED, allocation, gpus_a_host, hosts_of

_TIME = re.compile(
    rf"(?:[A-Z][a-z]{{2}} )?{MONTH} +(?P<day>\d{{1,2}}) "
    r"(?P<h>\d\d):(?P<m>\d\d)(?::(?P<s>\d\d))?(?: (?P<year>\d{4}))?"
)
_EVENT = re.compile(rf"(?P<time>[A-Z][a-z]{{2}} {MONTH} +\d{{1,2}} \d\d:\d\d:\d\d(?: \d{{4}})?): (?P<text>.*)")
_JOB = re.compile(r"\s*Job <(?P<id>\d{1,12}(?:\[\d{1,9}\])?)>, (?P<text>.*)")
_STARTED = re.compile(
    r"(?:Dispatched|Started)\b[^<]*? (?:on|to) (?:\d+ )?(?:Host\(s\) |Hosts/Processors )?(?P<hosts>(?:<[^<>]*>,? ?)+)"
)
_NAMED = re.compile(r"(?P<name>Job Name|User|Status) <(?P<value>[^<>]*)>")
_CONTINUED = re.compile(r" {10,}(?=\S)|\t+")
_ENDS: tuple[tuple[str, str], ...] = (
    ("TERM_RUNLIMIT|TERM_CPULIMIT", "TIMEOUT"),
    ("TERM_MEMLIMIT|TERM_SWAP", "OUT_OF_MEMORY"),
    ("TERM_PREEMPT", "PREEMPTED"),
    ("TERM_DEADLINE", "DEADLINE"),
    ("TERM_(?:OWNER|ADMIN|FORCE_OWNER|FORCE_ADMIN|BUCKET_KILL)", "CANCELLED"),
    ("TERM_HOST_UNREACH|execution host.{0,40}(?:unreach|unavail)", "NODE_FAIL"),
    ("^Exited|<exit>|^Termination", "FAILED"),
    ("^Done successfully|Completed <done>", "COMPLETED"),
)
_STATES = {
    "RUN": "RUNNING", "DONE": "COMPLETED", "EXIT": "FAILED", "SSUSP": "SUSPENDED", "USUSP": "SUSPENDED",
    "PROV": "RUNNING", "ZOMBI": "FAILED", "UNKWN": "RUNNING",
}  # fmt: skip


@dataclass
class _Job:
    """What was read of one job so far."""

    line: int
    id: str
    facts: dict[str, str]
    text: str
    submit: int | None = None
    start: int | None = None
    end: int | None = None
    hosts: list[str] = field(default_factory=list)
    state: str = "RUNNING"
    last: str = ""


def reported(
    lines: Iterable[tuple[int, str]], zone: tzinfo, year: int | None
) -> Iterator[tuple[int, Allocation | str]]:
    """Yield with its line each job of a ``-l`` report, or why it is none; ``year`` for times without one."""
    job: _Job | None = None
    for number, line in _whole(lines):
        begin = _JOB.match(line)
        if begin is not None:
            if job is not None:
                yield job.line, _settled(job)
            facts = {match["name"]: match["value"] for match in _NAMED.finditer(begin["text"])}
            job = _Job(number, begin["id"], facts, begin["text"])
            continue
        event = _EVENT.match(line)
        if job is None or event is None:
            continue
        at = moment(event["time"], zone, year)
        if at is None:
            yield number, "a time without its year (give --year)"
            continue
        _take(job, at, event["text"])
    if job is not None:
        yield job.line, _settled(job)


def _whole(lines: Iterable[tuple[int, str]]) -> Iterator[tuple[int, str]]:
    """Yield lines with those put behind them that the report broke, in the middle of words, to go on indented."""
    held: tuple[int, str] | None = None
    for number, line in lines:
        indent = _CONTINUED.match(line)
        if indent is not None and held is not None:
            held = held[0], (held[1] + line[indent.end() :])[:100_000]
            continue
        if held is not None:
            yield held
        held = number, line
    if held is not None:
        yield held


def _take(job: _Job, at: int, text: str) -> None:
    if text.startswith("Submitted"):
        job.submit = at
        job.text += text
        return
    started = _STARTED.match(text)
    if started is not None:
        try:
            hosts = hosts_of(re.findall(r"<([^<>]*)>", started["hosts"]))
        except ValueError:
            return
        if hosts:  # a later start is that of a run after a requeue
            job.start, job.hosts, job.end, job.state = at, hosts, None, "RUNNING"
        job.text += text
        return
    state = next((state for pattern, state in _ENDS if re.search(pattern, text)), None)
    # "Exited with exit code 130." may be followed by a line of its own with LSF's reason.
    if state is not None and job.start is not None and (job.end is None or job.state == "FAILED"):
        job.end = job.end or at
        job.state, job.last = state, text[:400]


def _settled(job: _Job) -> Allocation | str:
    status = job.facts.get("Status", "")
    if status in {"PEND", "PSUSP", "WAIT"}:
        return "the job never started"
    words = f"LSF JobID={job.id} State={job.state} {job.last}".strip()
    return allocation(
        job.id,
        name=job.facts.get("Job Name", ""),
        user=job.facts.get("User", ""),
        hosts=job.hosts,
        times=(job.submit, job.start, job.end),
        state=job.state,
        gpus=gpus_a_host(job.text),
        words=words,
    )


def moment(text: str, zone: tzinfo, year: int | None) -> int | None:
    """Return a time in ms as LSF prints it, with or without weekday, seconds and year; None where it is none."""
    found = _TIME.match(text.strip())
    number = None if found is None else int(found["year"]) if found["year"] else year
    if found is None or number is None:
        return None
    parts = (int(found["day"]), int(found["h"]), int(found["m"]), int(found["s"] or 0))
    try:
        return epoch_ms(datetime(number, MONTHS[found["month"]], *parts, tzinfo=zone))
    except (ValueError, OverflowError):
        return None


def listed(record: Any, zone: tzinfo, year: int | None) -> Allocation | str:
    """Return the job of a record of ``bjobs -o "jobid stat ..." -json``, or why it is none."""
    if not isinstance(record, dict):
        return MALFORMED
    fields = {str(name).upper(): str(value) for name, value in record.items()}
    status = fields.get("STAT", "")
    if status not in _STATES:
        return "the job never started"
    try:
        hosts = hosts_of(host for host in re.split(r"[:\s]+", fields.get("EXEC_HOST", "")) if host not in {"", "-"})
    except ValueError:
        return MALFORMED
    state = _STATES[status]
    reason = fields.get("EXIT_REASON", "")
    if state == "FAILED":
        state = next((ending for pattern, ending in _ENDS[:-2] if re.search(pattern, reason)), state)
    start = moment(fields.get("START_TIME", ""), zone, year)
    if start is None and fields.get("START_TIME", "-") not in {"", "-"}:
        return "a time without its year (give --year)"
    end = moment(fields.get("FINISH_TIME", ""), zone, year) if status in {"DONE", "EXIT"} else None
    gpus = fields.get("GPU_NUM", fields.get("NGPUS", ""))
    held = f"ngpus_physical={gpus}" if gpus.isdecimal() else fields.get("EFFECTIVE_RESREQ", "")
    number = fields.get("JOBID", "")
    if not re.fullmatch(r"\d{1,12}(?:\[\d{1,9}\])?", number):
        return MALFORMED
    return allocation(
        number,
        name=fields.get("JOB_NAME", ""),
        user=fields.get("USER", ""),
        hosts=hosts,
        times=(moment(fields.get("SUBMIT_TIME", ""), zone, year), start, end),
        state=state,
        gpus=gpus_a_host(held),
        words=f"bjobs JobID={number} State={state} EXIT_CODE={fields.get('EXIT_CODE', '-')} {reason}".strip(),
    )
