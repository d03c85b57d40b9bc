"""Imports PBS accounting: the daily files of server_priv/accounting, of PBS Professional, OpenPBS and Torque.

Jobs become jobs.jsonl, their hosts the topology, and what ended a job other than its own success a scheduler event, as
with Slurm. A start (S) opens a job, an exit (E) or a rerun (R) ends it, a deletion (D) before its exit says why.
"""

import re
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Annotated

from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.moments import parse_stamp
from services.recording.importers.parts.schedulers.allocations import Allocation, fill
from services.recording.importers.parts.source_files import SourceFiles, number_of, where
from services.recording.model import Job

_LINE = re.compile(r"\d\d/\d\d/\d{4} \d\d:\d\d:\d\d;(?P<kind>[A-Z]);(?P<job>[^;]{1,200});(?P<text>.*)")
_PAIR = re.compile(r'(?P<name>[A-Za-z_][\w.]*)=(?P<value>"(?:[^"\\]|\\.)*"|\S*)')
_SERVER = re.compile(r"(?P<number>\d+(?:\[\d*\])?)(?:\..*)?")
_HOST = re.compile(r"(?P<name>[A-Za-z0-9][\w.-]{0,252})/[\d*,:-]+")
_VNODE = re.compile(r"\((?P<chunk>[^()]*)\)")
_TORQUE_GPUS = re.compile(r":gpus=(?P<count>\d{1,3})")
_MOST_GPUS = 256
_KILLED = {
    # pbs_job.h, JOB_EXEC_*: what an exit status below zero says
    -24: "CANCELLED", -25: "CANCELLED", -26: "OUT_OF_MEMORY", -27: "OUT_OF_MEMORY", -28: "TIMEOUT", -29: "TIMEOUT",
}  # fmt: skip
_WALLTIME = re.compile(r"walltime .* exceeded limit", re.IGNORECASE)
_TERMINATED = (256 + 15, 128 + 15)
"""Exit status of what was made to end: by qdel, or by Torque at the end of its wall time."""


@dataclass
class _Jobs:
    """The jobs of a server's accounting while its lines are read."""

    report: Report
    done: list[Allocation] = field(default_factory=list)
    running: dict[str, tuple[str, dict[str, str]]] = field(default_factory=dict)
    deleted: set[str] = field(default_factory=set)


def convert(
    source: Annotated[Path, "a file of server_priv/accounting, or the folder of them"],
    out: Path,
    *,
    cluster: Annotated[str, "name of the cluster"] = "imported",
    progress: Progress = silent,
) -> Report:
    """Convert accounting into a recording of jobs, hosts and scheduler events at ``out``.

    UserError: the source does not exist, no job that ever started, or ``out`` exists.
    """
    report = Report()
    files = SourceFiles(source, report, progress)
    jobs = _Jobs(report)
    with Draft(out, report) as draft:
        for path in files.paths:
            for number, line in files.lines(path):
                if line.strip():
                    _take(jobs, line, where(path, number))
        for job_id, (place, fields) in jobs.running.items():
            _add(jobs, job_id, fields, "RUNNING", place)
        topology, count = fill(draft, jobs.done, report)
        draft.imported(
            topology,
            cluster,
            title=f"PBS accounting of {cluster}",
            summary=f"{count} jobs on {len(topology.nodes)} hosts, as PBS' accounting has them.",
            document="PBS accounting (server_priv/accounting)",
            notes=["times are those in seconds since 1970 that the records give"],
        )
    return report


def recognise(_name: str, head: str) -> str | None:
    """Return why a file is taken for PBS' accounting, None where it is none."""
    first = next((line for line in head.splitlines() if line.strip()), "")
    return "records of PBS' accounting (time;kind;job;fields)" if _LINE.match(first) else None


def _take(jobs: _Jobs, line: str, place: str) -> None:
    match = _LINE.fullmatch(line)
    if match is None:
        jobs.report.skip("a line that is no record of PBS' accounting", place)
        return
    named = _SERVER.fullmatch(match["job"])
    if named is None:  # a licence's or a reservation's
        return
    job_id = named["number"]
    fields = {pair["name"]: pair["value"].strip('"') for pair in _PAIR.finditer(match["text"])}
    if match["kind"] == "S":
        jobs.running[job_id] = place, fields
        jobs.deleted.discard(job_id)
    elif match["kind"] == "D":
        jobs.deleted.add(job_id)
    elif match["kind"] in "ER":
        _, started = jobs.running.pop(job_id, (place, {}))
        _add(jobs, job_id, started | fields, _state(jobs, job_id, match["kind"], fields, match["text"]), place)


def _state(jobs: _Jobs, job_id: str, kind: str, fields: dict[str, str], text: str) -> str:
    """Return how a job ended, in Slurm's words."""
    code = number_of(fields.get("Exit_status", ""))
    if job_id in jobs.deleted:
        return "CANCELLED"
    if kind == "R":
        return "REQUEUED"
    if code is None or code == 0:
        return "COMPLETED"
    if _WALLTIME.search(text):
        return "TIMEOUT"
    if code in _TERMINATED:
        # Torque ends a job at its wall time by the same signal as qdel, which is written down before.
        limit = _seconds(fields.get("Resource_List.walltime")) or float("inf")
        return "TIMEOUT" if _seconds(fields.get("resources_used.walltime")) >= limit else "CANCELLED"
    return _KILLED.get(int(code), "FAILED")


def _seconds(text: str | None) -> float:
    """Return the seconds of ``[HH:]MM:SS``, 0 where it is none."""
    parts = (text or "").split(":")
    if not all(part.isascii() and part.isdecimal() and len(part) < 9 for part in parts):
        return 0.0
    return float(sum(int(part) * 60**place for place, part in enumerate(reversed(parts))))


def _add(jobs: _Jobs, job_id: str, fields: dict[str, str], state: str, place: str) -> None:
    start, end = (parse_stamp(fields.get(name, ""), UTC) for name in ("start", "end"))
    submit = parse_stamp(fields.get("ctime", fields.get("qtime", "")), UTC)
    hosts = list(dict.fromkeys(match["name"] for match in _HOST.finditer(fields.get("exec_host", ""))))
    if start is None or not hosts:
        jobs.report.skip("the job never started", place)
        return
    if (end is None) != (state == "RUNNING") or (end is not None and end < start):
        jobs.report.skip("the job is over, and its end is missing or before its start", place)
        return
    gpus, known = _gpus(fields, len(hosts))
    job = Job(
        job_id=job_id,
        name=fields.get("jobname", ""),
        user=fields.get("user", ""),
        nodes=hosts,
        gpus_per_node=gpus if known else None,
        submit=min(submit, start) if submit is not None else None,
        start=start,
        end=end,
        state=state,
    )
    words = f"PBS JobID={job_id} State={state} Exit_status={fields.get('Exit_status', '')} exec_host={'+'.join(hosts)}"
    jobs.done.append(Allocation(job, gpus, words=words[:2000]))


def _gpus(fields: dict[str, str], hosts: int) -> tuple[int, bool]:
    """Return how many GPUs of each host a job had, and whether anything says so."""
    chunks = [dict(_pairs(chunk["chunk"])) for chunk in _VNODE.finditer(fields.get("exec_vnode", ""))]
    total = sum(int(chunk.get("ngpus", 0)) for chunk in chunks) or number_of(fields.get("Resource_List.ngpus", ""))
    if total is None:
        asked = _TORQUE_GPUS.search(fields.get("Resource_List.nodes", "") + fields.get("Resource_List.neednodes", ""))
        return (min(int(asked["count"]), _MOST_GPUS), True) if asked is not None else (0, False)
    return min(-(-int(max(total, 0)) // hosts), _MOST_GPUS), True


def _pairs(chunk: str) -> list[tuple[str, str]]:
    parts = (part.partition("=") for part in chunk.split(":")[1:])
    return [(name, value) for name, _, value in parts if value.isascii() and value.isdecimal() and len(value) < 6]
