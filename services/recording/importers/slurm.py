"""Imports Slurm accounting: `sacct -P` (any fields, with their header) or `sacct --json`.

Jobs become jobs.jsonl, their nodes the topology, and what ended a job other than its own success a scheduler event.
Steps (``123.batch``) are folded into their job. The fields JobID, State, Start, End, NodeList are needed;
AllocTRES tells the GPUs. Which GPUs of a node a job had, accounting does not say.
"""

import re
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, replace
from datetime import tzinfo
from pathlib import Path
from typing import Annotated

from services.kit.errors import UserError
from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.hostlist import HostListError, expand
from services.recording.importers.parts.moments import parse_stamp, zone_of
from services.recording.importers.parts.slurm_json import read_json
from services.recording.importers.parts.slurm_record import Record, is_step
from services.recording.model import Event, Gpu, Job, Node, Topology

_HOW = "sacct -a -P --noconvert -o JobID,JobName,User,State,ExitCode,Submit,Start,End,NodeList,AllocTRES > jobs.txt"
_NEEDED = ("JobID", "State", "Start", "End", "NodeList")
_RUNNING = {"RUNNING", "COMPLETING", "SUSPENDED"}
_WAITING = {"PENDING", "REVOKED"}
# sacct.1, JOB STATE CODES: the short forms
_CODES = {
    "BF": "BOOT_FAIL",
    "CA": "CANCELLED",
    "CD": "COMPLETED",
    "CG": "COMPLETING",
    "DL": "DEADLINE",
    "F": "FAILED",
    "NF": "NODE_FAIL",
    "OOM": "OUT_OF_MEMORY",
    "PD": "PENDING",
    "PR": "PREEMPTED",
    "R": "RUNNING",
    "RQ": "REQUEUED",
    "RV": "REVOKED",
    "S": "SUSPENDED",
    "TO": "TIMEOUT",
}
_SEVERITIES = {
    "NODE_FAIL": "error",
    "BOOT_FAIL": "error",
    "FAILED": "warning",
    "OUT_OF_MEMORY": "warning",
    "TIMEOUT": "info",
    "DEADLINE": "info",
    "PREEMPTED": "info",
    "CANCELLED": "info",
}
_STATE = re.compile(r"[A-Z_]{1,40}")
_GPUS = re.compile(r"(?:^|,)gres/gpu(?::(?P<model>[^=,]+))?=(?P<count>\d{1,9})(?=,|$)")


@dataclass
class _Allocation:
    """A job of the accounting and what its times and nodes came out as."""

    record: Record
    job: Job
    gpus_per_node: int
    gpu_model: str | None


def convert(
    source: Annotated[Path, "a file made by sacct -P or sacct --json, or a folder of them"],
    out: Path,
    *,
    zone: Annotated[str, "time zone of times that name none: UTC, Europe/Zurich, +02:00"] = "UTC",
    cluster: Annotated[str, "name of the cluster"] = "imported",
    progress: Progress = silent,
) -> Report:
    """Convert accounting into a recording of jobs, nodes and scheduler events at ``out``.

    UserError: nothing there, a header without the needed fields, no job that ever started, or ``out`` exists.
    """
    clock = zone_of(zone)
    report = Report()
    paths = _files(source)
    found: list[_Allocation] = []
    with Draft(out, report) as draft:
        for done, path in enumerate(paths):
            report.read["files"] += 1
            for where, record in _records(path, report, progress, done / len(paths), 1 / len(paths)):
                allocation = _allocation(record, where, clock, report)
                if allocation is not None:
                    found.append(allocation)
        progress(1.0)
        found = _distinct(found, report)
        topology, shared = _machines(found)
        draft.add_jobs(_with_parts(allocation, shared) for allocation in found)
        for allocation in found:
            draft.add_events(_ending(allocation))
        if shared:
            report.notes.append(
                "several jobs had parts of one node at the same time: `gpus` is empty for them on that node, because "
                "accounting does not tell which GPUs they had"
            )
        report.notes.append("nodes are those that jobs ran on, with as many GPUs as jobs had of them at once")
        report.notes.append(f"times without a zone were taken as {zone}")
        header = {
            "name": out.resolve().name,
            "title": f"Slurm accounting of {cluster}",
            "summary": f"{len(found)} jobs on {len(topology.nodes)} nodes, as Slurm's accounting has them.",
            "origin": "imported",
            "source": {"document": "Slurm accounting (sacct)", "section": source.name},
            "cluster": {"name": cluster},
        }
        draft.finish(header, topology)
    return report


def _files(source: Path) -> list[Path]:
    if source.is_dir():
        paths = sorted(path for path in source.iterdir() if path.is_file() and not path.name.startswith("."))
    else:
        paths = [source] if source.is_file() else []
    if not paths:
        raise UserError(f"{source}: no such file", remedy=f"make one with `{_HOW}`", exit_code=2)
    return paths


def _records(path: Path, report: Report, progress: Progress, base: float, share: float) -> Iterator[tuple[str, Record]]:
    """Yield the jobs of one file, whichever of the two forms it has, steps folded in."""
    try:
        with path.open("rb") as file:
            head = file.read(4096).lstrip(b"\xef\xbb\xbf \t\r\n")
        if head.startswith(b"{"):
            yield from read_json(path, report, lambda part: progress(base + share * part))
        else:
            yield from _folded(_table(path, report, lambda part: progress(base + share * part)), report)
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}", remedy="check the file", exit_code=2) from error


def _table(path: Path, report: Report, progress: Progress) -> Iterator[tuple[str, Record]]:
    size, done, names = max(path.stat().st_size, 1), 0, None
    with path.open("rb") as lines:
        for number, raw in enumerate(lines, start=1):
            done += len(raw)
            if number % 10_000 == 0:
                progress(done / size)
            line = raw.decode("utf-8", errors="replace").rstrip("\r\n").removeprefix("\ufeff")
            if not line.strip():
                continue
            cells = line.split("|")
            if names is None or cells[0] == names[0]:
                names = _header(path, number, cells)
                continue
            report.read["lines"] += 1
            where = f"{path.name}:{number}"
            # `sacct -p` ends each line with a further bar, `-P` does not.
            if len(cells) == len(names) + 1 and not cells[-1]:
                cells.pop()
            if len(cells) != len(names):
                report.skip("a line with more or fewer fields than its header", where)
                continue
            yield where, Record(dict(zip(names, cells, strict=True)))
    if names is None:
        raise UserError(f"{path}: empty", remedy=f"make it with `{_HOW}`")


def _header(path: Path, number: int, cells: list[str]) -> list[str]:
    names = [cell.strip() for cell in cells]
    if names and not names[-1]:
        names.pop()
    missing = [name for name in _NEEDED if name not in names]
    if missing:
        raise UserError(
            f"{path}: line {number}: no header of sacct -P with {', '.join(_NEEDED)} ({missing[0]} is missing)",
            remedy=f"make it with `{_HOW}`, without -n",
        )
    return names


def _folded(rows: Iterator[tuple[str, Record]], report: Report) -> Iterator[tuple[str, Record]]:
    """Yield jobs; what a job's own line leaves empty is taken from its steps, which follow it."""
    current: tuple[str, Record] | None = None
    for where, row in rows:
        if not is_step(row.text("JobID")):
            if current is not None:
                yield current
            current = where, row
            continue
        report.read["steps"] += 1
        job_id = row.text("JobID").partition(".")[0]
        if current is None or current[1].text("JobID") != job_id:
            report.skip("a step whose job does not stand before it", where)
            continue
        current = current[0], current[1].with_missing_from(row)
    if current is not None:
        yield current


def _allocation(record: Record, where: str, zone: tzinfo, report: Report) -> _Allocation | None:
    """Return what one job came to; None, with the reason counted, where it never held a node."""
    words = record.text("State").split()
    state = _CODES.get(words[0], words[0]) if words else ""
    job_id = record.text("JobID")
    start = parse_stamp(record.text("Start"), zone)
    if not job_id or len(job_id) > 100 or not _STATE.fullmatch(state):
        report.skip("no job: its id or its state cannot be read", where)
        return None
    if state in _WAITING or start is None:
        report.skip("the job never started", where)
        return None
    end = None if state in _RUNNING else parse_stamp(record.text("End"), zone)
    if (end is None) != (state in _RUNNING) or (end is not None and end < start):
        report.skip("the job is over, and its end is missing or before its start", where)
        return None
    try:
        nodes = expand(record.text("NodeList").replace("None assigned", ""))
    except HostListError:
        report.skip("the node list cannot be read", where)
        return None
    if not nodes:
        report.skip("the job was given no node", where)
        return None
    submit = parse_stamp(record.text("Submit"), zone)
    total, model = _gpus(record.text("AllocTRES"))
    job = Job(
        job_id=job_id,
        name=record.text("JobName"),
        user=record.text("User"),
        nodes=nodes,
        # Slurm counts the job's GPUs over all nodes; uneven jobs are rare, and then this is the least that fits
        gpus_per_node=-(-total // len(nodes)) if record.has("AllocTRES") else None,
        submit=min(submit, start) if submit is not None else None,
        start=start,
        end=end,
        state=state,
    )
    return _Allocation(record, job, -(-total // len(nodes)), model)


def _gpus(tres: str) -> tuple[int, str | None]:
    """Return how many GPUs an AllocTRES names and their type; by type where it gives no total."""
    total, typed, models = 0, 0, []
    for match in _GPUS.finditer(tres):
        if match["model"] is None:
            total = int(match["count"])
        else:
            typed += int(match["count"])
            models.append(match["model"])
    count = total or typed
    # A uint8 numbers the GPUs of a node; a count that no node can have is a damaged line.
    return (count, models[0] if len(models) == 1 else None) if count < 1_000_000 else (0, None)


def _distinct(found: list[_Allocation], report: Report) -> list[_Allocation]:
    """Give every run of a requeued job an id of its own, the last one keeping the plain id; drop repeats."""
    by_id: dict[str, dict[int, _Allocation]] = defaultdict(dict)
    for allocation in found:
        runs = by_id[allocation.job.job_id]
        if allocation.job.start in runs:
            report.skip("the job was there already", f"job {allocation.job.job_id}")
        runs[allocation.job.start] = allocation  # the later account knows more
    kept = []
    for job_id, runs in by_id.items():
        ordered = [runs[start] for start in sorted(runs)]
        for number, allocation in enumerate(ordered[:-1], start=1):
            renamed = allocation.job.model_copy(update={"job_id": f"{job_id}#run{number}"})
            kept.append(replace(allocation, job=renamed))
        kept.append(ordered[-1])
    return kept


def _machines(found: list[_Allocation]) -> tuple[Topology, dict[str, set[str]]]:
    """Return the nodes, and by node the jobs that had it together with others."""
    spans: dict[str, list[tuple[int, int, _Allocation]]] = defaultdict(list)
    models: dict[str, str] = {}
    for allocation in found:
        job = allocation.job
        for node in job.nodes:
            spans[node].append((job.start, 2**62 if job.end is None else job.end, allocation))
            if allocation.gpu_model is not None:
                models.setdefault(node, allocation.gpu_model)
    nodes, shared = [], {}
    for name in sorted(spans):
        together, gpus = _together(spans[name])
        if together:
            shared[name] = together
        nodes.append(
            Node(name=name, gpu_model=models.get(name), gpus=[Gpu(gpu=index) for index in range(min(gpus, 256))])
        )
    return Topology(nodes=nodes), shared


def _together(spans: list[tuple[int, int, _Allocation]]) -> tuple[set[str], int]:
    """Return the jobs of a node that were on it with others, and the most GPUs of it in use at once."""
    together: set[str] = set()
    running: list[tuple[int, _Allocation]] = []
    most = 0
    for start, end, allocation in sorted(spans, key=lambda span: (span[0], span[1], span[2].job.job_id)):
        running = [(until, other) for until, other in running if until > start]
        if running:
            together.add(allocation.job.job_id)
            together.update(other.job.job_id for _, other in running)
        running.append((end, allocation))
        most = max(most, sum(other.gpus_per_node for _, other in running))
    return together, most


def _with_parts(allocation: _Allocation, shared: dict[str, set[str]]) -> Job:
    """Return the job; on nodes that it shared, its GPUs are given as unknown."""
    job = allocation.job
    parts: dict[str, list[int]] = {node: [] for node in job.nodes if job.job_id in shared.get(node, ())}
    return job.model_copy(update={"gpus": parts}) if parts else job


def _ending(allocation: _Allocation) -> Iterator[Event]:
    """Yield the scheduler event of a job that did not end by its own success."""
    job, record = allocation.job, allocation.record
    severity = _SEVERITIES.get(job.state)
    if severity is None or job.end is None:
        return
    failed = record.text("FailedNode")
    node = failed if failed in job.nodes else job.nodes[0] if len(job.nodes) == 1 else None
    shown = ("JobID", "State", "ExitCode", "Reason", "FailedNode", "End", "NodeList")
    text = " ".join(f"{name}={record.text(name)[:400]}" for name in shown if record.text(name))
    yield Event(
        timestamp=job.end,
        source="scheduler",
        node=node if job.state in {"NODE_FAIL", "BOOT_FAIL"} else None,
        job_id=job.job_id,
        severity=severity,
        message=f"sacct {text}",
    )
