"""Imports Slurm's jobs: `sacct` (any fields, best with -P), `scontrol show job`, and `--json` of them and of squeue.

Jobs become jobs.jsonl, their nodes the topology, and what ended a job other than its own success a scheduler event.
Steps (``123.batch``) are folded into their job. The fields JobID, State, Start, End, NodeList are needed;
AllocTRES gives the GPUs. Which GPUs of a node a job had, only `scontrol show job -d` and squeue's JSON say.
"""

import re
from collections.abc import Iterator
from datetime import tzinfo
from pathlib import Path
from typing import Annotated

from services.kit.errors import UsageError, UserError
from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.moments import parse_stamp
from services.recording.importers.parts.schedulers.allocations import RUNNING, Allocation, fill, jobs_of
from services.recording.importers.parts.schedulers.hostlist import HostListError, expand
from services.recording.importers.parts.schedulers.slurm_fixed import (
    NEEDED,
    FixedTable,
    heading_names,
    is_dashes,
    whole_state,
)
from services.recording.importers.parts.schedulers.slurm_json import read_json
from services.recording.importers.parts.schedulers.slurm_record import Record, is_step
from services.recording.importers.parts.schedulers.slurm_table import delimiter_of, row_of, shown_jobs
from services.recording.importers.parts.source_files import BROKEN, clean, opened
from services.recording.importers.parts.zones import assumed_zone, zone_of
from services.recording.model import Job

_HOW = "sacct -a -P --noconvert -o JobID,JobName,User,State,ExitCode,Submit,Start,End,NodeList,AllocTRES > jobs.txt"
_NEEDED = ("JobID", "State", "Start", "End", "NodeList")
NEVER_STARTED = "the job never started"
_NO_ZONE = re.compile(r"[\d-]+T[\d:.]+")
"""A time as Slurm prints it; a user's SLURM_TIME_FORMAT, and JSON, may say which zone it is."""
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
_SHOWN = ("JobID", "State", "ExitCode", "Reason", "FailedNode", "End", "NodeList")
_STATE = re.compile(r"[A-Z_]{1,40}")
_GPUS = re.compile(r"(?:^|,)gres/gpu(?::(?P<model>[^=,]+))?=(?P<count>\d{1,9})(?=,|$)")


def convert(
    source: Annotated[Path, "what sacct, scontrol show job or --json of these or squeue printed, or a folder of it"],
    out: Path,
    *,
    timezone: Annotated[str, "time zone of times that name none: UTC, Europe/Zurich, +02:00"] = "UTC",
    cluster: Annotated[str, "name of the cluster"] = "imported",
    progress: Progress = silent,
) -> Report:
    """Convert accounting into a recording of jobs, nodes and scheduler events at ``out``.

    UserError: nothing there, a header without the needed fields, no job that ever started, or ``out`` exists.
    """
    clock = zone_of(timezone)
    report = Report()
    paths = _files(source)
    found: list[Allocation] = []
    zoneless = 0
    with Draft(out, report) as draft:
        for done, path in enumerate(paths):
            report.read["files"] += 1
            for where, record in _records(path, report, progress, done / len(paths), 1 / len(paths)):
                allocation = _allocation(record, where, clock, report)
                if allocation is not None:
                    found.append(allocation)
                    zoneless += _NO_ZONE.fullmatch(record.text("Start")) is not None
        progress(1.0)
        topology, jobs = fill(draft, found, report)
        report.notes += assumed_zone(zoneless, timezone)
        header = {
            "name": out.resolve().name,
            "title": f"Slurm accounting of {cluster}",
            "summary": f"{jobs} jobs on {len(topology.nodes)} nodes, as Slurm's accounting has them.",
            "origin": "imported",
            "source": {"document": "Slurm's jobs (sacct, scontrol, squeue)", "section": source.name},
            "cluster": {"name": cluster},
        }
        draft.finish(header, topology)
    return report


def jobs_in(path: Path, report: Report) -> list[Job]:
    """Return the jobs that a file of any of these forms names; UserError where it is none of them."""
    clock = zone_of("UTC")
    read = (_allocation(record, where, clock, report) for where, record in _records(path, report, silent, 0.0, 1.0))
    return jobs_of([allocation for allocation in read if allocation is not None], report)


def _files(source: Path) -> list[Path]:
    if source.is_dir():
        paths = sorted(path for path in source.rglob("*") if path.is_file() and not path.name.startswith("."))
    else:
        paths = [source] if source.is_file() else []
    if not paths:
        raise UsageError(f"{source}: no such file", remedy=f"make one with `{_HOW}`")
    return paths


def _records(path: Path, report: Report, progress: Progress, base: float, share: float) -> Iterator[tuple[str, Record]]:
    """Yield the jobs of one file, whichever form it has, steps folded in."""
    try:
        with path.open("rb") as raw, opened(raw, path) as file:
            head = file.read(4096).lstrip()
        if head.startswith(b"{"):
            yield from read_json(path, report, lambda part: progress(base + share * part))
        elif head.startswith(b"JobId="):
            for number, record in shown_jobs(_lines(path, lambda part: progress(base + share * part))):
                report.read["jobs"] += 1
                yield f"{path.name}:{number}", record
        else:
            fixed = bool(heading_names(head.decode("utf-8", "replace").split("\n", 2)[:2]))
            # sacct cuts values off within a letter, and what is left of it must keep its length.
            errors = "surrogateescape" if fixed else "replace"
            lines = _lines(path, lambda part: progress(base + share * part), errors)
            yield from _folded((_fixed_table if fixed else _table)(path, lines, report), report)
    except BROKEN as error:
        raise UsageError(
            f"{path}: cannot be read: {getattr(error, 'strerror', None) or error}", remedy="check the file"
        ) from error


def _lines(path: Path, progress: Progress, errors: str = "replace") -> Iterator[tuple[int, str]]:
    size = max(path.stat().st_size, 1)
    with path.open("rb") as raw, opened(raw, path) as lines:
        for number, line in enumerate(lines, start=1):
            if number % 10_000 == 0:
                progress(raw.tell() / size)
            yield number, line.decode("utf-8", errors).rstrip("\r\n")


def _fixed_table(path: Path, lines: Iterator[tuple[int, str]], report: Report) -> Iterator[tuple[str, Record]]:
    """Yield the rows of a table whose columns have widths; a part of a value is never taken for the whole."""
    table: FixedTable | None = None
    heading = ""
    for number, line in lines:
        where = f"{path.name}:{number}"
        if is_dashes(line):
            _header(path, number, heading.split())
            table, heading = FixedTable.of(heading, line), ""
        elif table is None or line.split() == list(table.names):
            heading = clean(line) or heading
        elif line.strip():
            report.read["lines"] += 1
            row = table.row(line)
            if row is None:
                report.skip("a line that does not fit the columns of its heading", where)
                continue
            cut = table.cut_off(row)
            if "State" in cut and (state := whole_state(row["State"])) is not None:
                row["State"] = state
                cut.remove("State")
            for name in cut:
                report.skip(f"a value that sacct cut off: {name} (print it with -P)", where)
            if not {*NEEDED, "State"} & set(cut):
                yield where, Record({name: value for name, value in row.items() if name not in cut})


def _table(path: Path, lines: Iterator[tuple[int, str]], report: Report) -> Iterator[tuple[str, Record]]:
    names, delimiter = None, "|"
    for number, line in lines:
        if not line.strip():
            continue
        if names is None:
            delimiter = delimiter_of(line)
        cells = line.split(delimiter)
        if names is None or cells[0] == names[0]:
            names = _header(path, number, cells)
            continue
        report.read["lines"] += 1
        where = f"{path.name}:{number}"
        row = row_of(names, line, delimiter)
        if row is None:
            report.skip("a line with more or fewer fields than its header", where)
        else:
            yield where, Record(row)
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


def _allocation(record: Record, where: str, zone: tzinfo, report: Report) -> Allocation | None:
    """Return what one job came to; None, with the reason counted, where it never held a node."""
    words = record.text("State").split()
    state = _CODES.get(words[0], words[0]) if words else ""
    job_id = record.text("JobID")
    start = parse_stamp(record.text("Start"), zone)
    if not job_id or len(job_id) > 100 or not _STATE.fullmatch(state):
        report.skip("no job: its id or its state cannot be read", where)
        return None
    if state in _WAITING or start is None:
        report.skip(NEVER_STARTED, where)
        return None
    end = None if state in RUNNING else parse_stamp(record.text("End"), zone, start)
    if (end is None) != (state in RUNNING) or (end is not None and end < start):
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
    # AllocTRES has GPUs only where AccountingStorageTRES names them; which ones a job has is known without it.
    per_node = -(-total // len(nodes)) or max(map(len, record.gpus.values()), default=0)
    job = Job(
        job_id=job_id,
        name=record.text("JobName"),
        user=record.text("User"),
        nodes=nodes,
        # Slurm counts the job's GPUs over all nodes; uneven jobs are rare, and then this is the least that fits
        gpus_per_node=per_node if record.gpus or record.has("AllocTRES") else None,
        submit=min(submit, start) if submit is not None else None,
        start=start,
        end=end,
        state=state,
        gpus={node: gpus for node, gpus in record.gpus.items() if node in nodes} or None,
    )
    shown = " ".join(f"{name}={record.text(name)[:400]}" for name in _SHOWN if record.text(name))
    return Allocation(job, per_node, model, f"sacct {shown}", record.text("FailedNode"))


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


def recognise(_name: str, head: str) -> str | None:
    """Return why a file is taken for Slurm's accounting, None where it is none."""
    first = head.lstrip().partition("\n")[0]
    names = first.strip().split(delimiter_of(first))
    if "JobID" in names and "State" in names:
        return "a table of sacct -P"
    if {"JobID", "State"} <= set(heading_names(head.lstrip().split("\n", 2)[:2])):
        return "a table of sacct"
    if re.match(r"JobId=\d+ ", first):
        return "what scontrol show job prints"
    jobs = head.lstrip().startswith("{") and '"jobs"' in head and '"slurm"' in head.lower()
    return "JSON of Slurm's jobs" if jobs else None
