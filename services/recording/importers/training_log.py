"""Imports training logs: Megatron-LM (DeepSpeed, Primus), DeepSpeed's pipelines, NeMo, torchtitan, modded-nanoGPT.

Each report of a step becomes a row for the job as a whole (rank -1), or for the rank where several ranks report.
Checkpoints, validation, errors, Slurm's cancellation and Megatron's straggler lines become job events. Files whose
names differ only by rank or part, or that name the same Slurm job, are one job.
"""

import re
from collections import Counter, defaultdict
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

from services.kit.errors import UsageError, UserError
from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.logs.training_facts import LogFile, facts_of
from services.recording.importers.parts.logs.training_lines import (
    LONGEST_STEP_S,
    Line,
    Step,
    cancelled,
    happening_of,
    lines_of,
    lowest_throughput,
    slow_ranks,
    stamp_of,
    step_of,
    unprefixed,
)
from services.recording.importers.parts.moments import LATEST, instant_option
from services.recording.importers.parts.zones import zone_of
from services.recording.model import Event, Gpu, Job, Node, Topology
from services.recording.schema import NAME, TIMESTAMP, name_column

_BATCH_ROWS = 20_000
_MOST_EVENTS = 20_000  # of one job: a crash that every rank prints says nothing new after that
_REMEDY = (
    "give the log of a training job that reports its steps: Megatron, DeepSpeed, NeMo, torchtitan or modded-nanoGPT"
)
_GAP_MS = 1
_OF_SLURM = re.compile(r"slurm-(\d{1,12}(?:_\d{1,9})?)")


@dataclass
class _JobLog:
    """The files of one job, its machines, and where its clock stands."""

    job_id: str
    files: list[LogFile]
    nodes: list[Node] = field(default_factory=list)
    gpus_per_node: int | None = None
    by_rank: bool = False
    sequence: int | None = None
    host_of: dict[int, str] = field(default_factory=dict)
    now: int | None = None
    first: int | None = None
    last_iteration: int | None = None
    total: int | None = None
    state: str | None = None
    events: int = 0
    placed: Counter[str] = field(default_factory=Counter)
    """How the steps' times were found."""


def convert(
    source: Annotated[Path, "a log, or a folder of logs"],
    out: Path,
    *,
    start: Annotated[str, "when the job began, for a log without wall time (RFC 3339)"] = "",
    timezone: Annotated[str, "time zone of the log's own times: UTC, Europe/Zurich, +02:00"] = "UTC",
    job_id: Annotated[str | None, "take all files as parts of this one job"] = None,
    gpus_per_node: Annotated[int, "GPUs of a node, where the log does not say it"] = 8,
    cluster: Annotated[str, "name of the cluster"] = "imported",
    progress: Progress = silent,
) -> Report:
    """Convert logs into a recording of steps, jobs and job events at ``out``.

    UserError: no log there, no line of a step in any, no time to begin from, or ``out`` exists.
    """
    begin, clock = instant_option(start, "--start"), zone_of(timezone)
    if not 1 <= gpus_per_node <= 64:
        raise UsageError(f"--gpus-per-node {gpus_per_node}: not 1 to 64", remedy="correct the number")
    report = Report()
    jobs = _jobs(_paths(source), job_id, report, progress)
    for job in jobs:
        _lay_out(job, gpus_per_node, alone=len(jobs) == 1, report=report)
    with Draft(out, report) as draft:
        files = sum(len(job.files) for job in jobs)
        done = 0
        for job in jobs:
            for file in job.files:
                _Reader(job, file, draft, report, clock, begin).read()
                done += 1
                progress(0.5 + 0.5 * done / files)
            if job.now is None:
                report.skip("the job's log has no time and --start is not given", str(job.files[0].path))
        timed = [job for job in jobs if job.now is not None]
        if not timed:
            raise UserError(
                f"{source}: the log has no wall time", remedy="give --start, such as --start 2024-04-01T08:00:00Z"
            )
        draft.add_jobs(_records(timed))
        report.notes += _notes(timed, timezone)
        dialects = sorted({name for job in timed for file in job.files for name in file.dialects})
        header = {
            "name": out.resolve().name,
            "title": f"Steps of {len(timed)} training job(s), from {', '.join(dialects)} logs",
            "summary": f"What the training loop itself reported: {report.read['steps']} reports of steps.",
            "origin": "imported",
            "source": {"document": f"training log ({', '.join(dialects)})", "section": source.name},
            "cluster": {"name": cluster},
        }
        nodes = {node.name: node for job in timed for node in job.nodes}
        draft.finish(header, Topology(nodes=list(nodes.values())))
    return report


def _paths(source: Path) -> list[Path]:
    if source.is_dir():
        found = (path for path in source.rglob("*") if path.is_file() and not path.name.startswith("."))
        paths = sorted(path for path in found if path.suffix.lower() in {".log", ".txt", ".out", ".err", ""})
    else:
        paths = [source] if source.is_file() else []
    if not paths:
        raise UsageError(f"{source}: no log there", remedy=_REMEDY)
    return paths


def _jobs(paths: list[Path], job_id: str | None, report: Report, progress: Progress) -> list[_JobLog]:
    """Return the jobs that the files are of; files without any step that belong to no such job are skipped."""
    files = []
    for done, path in enumerate(paths):
        try:
            files.append(facts_of(path))
        except OSError as error:
            raise UserError(f"{path}: cannot be read: {error.strerror}", remedy="check the file") from error
        report.read["files"] += 1
        progress(0.5 * (done + 1) / len(paths))
    ids = {file.key: file.job_id for file in files if file.job_id is not None}
    groups: dict[str, list[LogFile]] = defaultdict(list)
    for file in files:
        slurms = _OF_SLURM.fullmatch(file.key)  # what sbatch calls a job's output, unless it is given another name
        groups[job_id or file.job_id or ids.get(file.key) or (slurms[1] if slurms else file.key)].append(file)
    jobs = []
    for name, group in groups.items():
        if any(file.steps for file in group):
            jobs.append(_JobLog(name, group))
        else:
            report.skip("the file reports no step", str(group[0].path), len(group))
    if not jobs:
        raise UserError(f"{paths[0]}: no line that reports a step", remedy=_REMEDY)
    return jobs


def _lay_out(job: _JobLog, gpus_per_node: int, *, alone: bool, report: Report) -> None:
    """Work out the job's machines, and whether its rows are of ranks."""
    ranks = {rank for file in job.files for rank in file.step_ranks}
    job.by_rank = len(ranks - {None}) > 1
    hosts = list(dict.fromkeys(host for file in job.files for host in file.hosts))
    gpus = {number: gpu for file in job.files for number, gpu in file.gpus.items()}
    model = next((file.gpu_model for file in job.files if file.gpu_model), None)
    world = max((file.world or 0 for file in job.files), default=0)
    world = max(world, *(file.ranks for file in job.files), len(gpus) if not hosts else 0)
    job.sequence = next((file.sequence for file in job.files if file.sequence), None)
    for file in job.files:
        job.host_of.update(file.host_of)
    width = len(gpus) or gpus_per_node
    if hosts and world and world % len(hosts) == 0:
        width = len(gpus) or min(world // len(hosts), 64)
    count = max(len(hosts), -(-world // width))
    if not hosts and world:
        report.notes.append(f"job {job.job_id}: the log names no hosts; its {world} ranks were laid on {count} node(s)")
    prefix = "" if alone else f"{job.job_id}-"
    digits = len(str(max(count - 1, 0)))
    names = hosts + [f"{prefix}node-{number:0{digits}d}" for number in range(len(hosts), count)]
    job.gpus_per_node = min(width, world) if world else len(gpus) or None
    cards = list(gpus.values()) or [Gpu(gpu=number) for number in range(job.gpus_per_node or 0)]
    job.nodes = [Node(name=name, gpu_model=model, gpus=cards) for name in names]
    for rank in range(min(world, len(names) * width)):
        job.host_of.setdefault(rank, names[rank // width])


class _Reader:
    """Reads one file of a job, line by line, and hands on rows and events."""

    def __init__(
        self, job: _JobLog, file: LogFile, draft: Draft, report: Report, zone: tzinfo, begin: int | None
    ) -> None:
        self._job, self._file, self._draft, self._report, self._zone = job, file, draft, report, zone
        self._rows: list[dict[str, Any]] = []
        self._running_ms: float | None = None
        self._last: dict[int, int] = {}
        self._leader = min((rank for rank in file.step_ranks if rank is not None), default=None)
        self._step_at: int | None = None
        """When the last step ended, or training began."""
        self._stamp: int | None = None
        self._reported: tuple[int | None, int] = None, 0
        self._names = {node.name for node in job.nodes}
        self._begun = "nanoGPT" not in file.dialects
        if begin is not None and job.now is None:
            job.now = job.first = begin
        self._given = begin is not None
        # Files of several ranks run side by side, parts of a log one after the other.
        self._now = job.first if file.rank is not None and job.first is not None else job.now

    def read(self) -> None:
        """Read the file to its end."""
        for number, text in enumerate(lines_of(self._file.path), start=1):
            line = unprefixed(text)
            stamp = stamp_of(line.text, self._zone, self._stamp)
            self._stamp = stamp or self._stamp
            # With --start given, the date that nvidia-smi prints before the program runs says less.
            if stamp is not None and not (self._given and "nanoGPT" in self._file.dialects):
                self._see(stamp)
            step = step_of(line.text)
            if step is not None:
                self._begun = True
                self._step(step, line, stamp, f"{self._file.path.name}:{number}")
            elif self._begun:
                self._happening(line)
        self._flush()
        self._report.read["lines"] += number if self._file.steps else 0

    def _see(self, stamp: int) -> None:
        """Move the clock to a time the log names; it never goes back."""
        self._now = stamp if self._now is None else max(self._now, stamp)
        job = self._job
        job.first = self._now if job.first is None else min(job.first, self._now)
        job.now = self._now if job.now is None else max(job.now, self._now)

    def _step(self, step: Step, line: Line, stamp: int | None, where: str) -> None:
        rank = line.rank if line.rank is not None else self._file.rank
        row_rank = rank if self._job.by_rank and rank is not None and rank in self._job.host_of else -1
        before = self._last.get(row_rank)
        if step.dialect == "NeMo" and before == step.iteration:
            return  # a progress bar drawn again
        self._report.read["steps"] += 1
        seconds = self._seconds(step, stamp)
        if seconds is None or not 0 < seconds < LONGEST_STEP_S:
            self._report.skip("a step whose time is no time", where)
            return
        if self._now is None:
            self._report.skip("a step before the log's first time", where)
            return
        self._last[row_rank] = step.iteration
        since = step.iteration - before if before is not None and step.iteration > before else 1
        if stamp is not None:
            self._job.placed["stamped"] += 1
        elif row_rank == -1 or rank == self._leader:
            # One report stands for all steps since the last one; restarts begin anew.
            lasted = max(round(seconds * 1000) * min(since, 100_000), _GAP_MS)
            self._see((self._now if self._step_at is None else self._step_at) + lasted)
            self._job.placed["added up"] += 1
        self._step_at = self._now
        if self._job.state == "FAILED":
            self._job.state = None  # it went on
        if self._now >= LATEST:
            self._report.skip("a step that would lie beyond the year 2100", where)
            return
        if row_rank == -1:
            self._job.last_iteration, self._job.total = step.iteration, step.total
        values = dict(step.values)
        batch, samples = values.pop("global_batch_size", None), values.get("samples_per_s")
        if self._job.sequence and (samples or batch):
            values["tokens_per_s"] = (samples or (batch or 0) / seconds) * self._job.sequence
        self._row(row_rank, step.iteration, {"step_time_s": seconds, **values})

    def _seconds(self, step: Step, stamp: int | None) -> float | None:
        """Return the step's own time, or the mean since the report before; a running total that falls was set to 0."""
        last, self._reported = self._reported, (stamp, step.iteration)
        if step.running_ms is None:
            if step.seconds is None and None not in (stamp, last[0]) and last[1] < step.iteration:
                return ((stamp or 0) - (last[0] or 0)) / 1000 / (step.iteration - last[1])
            return step.seconds
        before, self._running_ms = self._running_ms, step.running_ms
        own = step.running_ms - before if before is not None and step.running_ms >= before else step.running_ms
        return max(own, _GAP_MS) / 1000

    def _row(self, rank: int, iteration: int, values: dict[str, float]) -> None:
        self._rows.append({"at": self._now, "rank": rank, "iteration": iteration, "values": values})
        if len(self._rows) >= _BATCH_ROWS:
            self._flush()

    def _happening(self, line: Line) -> None:
        severity = happening_of(line.text)
        if severity is None or self._now is None:
            return
        job = self._job
        job.state = cancelled(line.text) or job.state
        if "[before the start of training step]" in line.text:
            self._step_at = self._now
        if "[after training is done]" in line.text:
            job.state = "COMPLETED"
        elif severity in {"error", "critical"} and job.state is None:
            job.state = "FAILED"
        rank = line.rank if line.rank is not None else self._file.rank
        slowest = lowest_throughput(line.text)
        if slowest is not None:
            rank = slowest
            for named, seconds in slow_ranks(line.text).items():
                if seconds is not None and named in job.host_of:
                    self._row(named, self._last.get(-1, 0), {"compute_s": seconds})
        job.events += 1
        if job.events > _MOST_EVENTS:
            self._report.skip(f"more than {_MOST_EVENTS} events of one job", self._file.path.name)
            return
        host = line.host if line.host in self._names else job.host_of.get(-1 if rank is None else rank)
        scheduler = "slurmstepd:" in line.text or "srun: error:" in line.text
        event: dict[str, Any] = {"timestamp": self._now, "source": "scheduler" if scheduler else "job"}
        if host is not None:
            event["node"] = host
        if rank is not None:
            event["rank"] = rank
        self._draft.add_events([Event(**event, job_id=job.job_id, severity=severity, message=line.text.strip()[:4000])])

    def _flush(self) -> None:
        rows, self._rows = self._rows, []
        if not rows:
            return
        ranks = np.array([row["rank"] for row in rows], dtype=np.int32)
        hosts = [self._job.host_of.get(row["rank"], "") for row in rows]
        names, codes = np.unique(hosts, return_inverse=True)
        columns: dict[str, Any] = {
            "timestamp": pa.array([row["at"] for row in rows], pa.int64()).cast(TIMESTAMP),
            "job_id": name_column(np.zeros(len(rows), np.int64), [self._job.job_id]),
            "rank": pa.array(ranks),
            "node": name_column(codes, names.tolist(), ranks == -1)
            if (ranks >= 0).any()
            else pa.nulls(len(rows), NAME),
            "iteration": pa.array([row["iteration"] for row in rows], pa.int64()),
        }
        for name in sorted({"step_time_s", *(name for row in rows for name in row["values"])}):
            missing = np.array([name not in row["values"] for row in rows])
            numbers = np.array([row["values"].get(name, 0.0) for row in rows])
            with np.errstate(over="ignore"):
                # a loss that is NaN stays NaN: only what was not reported is null
                columns[name] = pa.array(numbers.astype(np.float32), mask=missing, from_pandas=False)
        self._draft.add("steps", pa.RecordBatch.from_pydict(columns))


def _records(jobs: list[_JobLog]) -> list[Job]:
    records = []
    for job in jobs:
        first, last = job.first or 0, job.now or 0
        state = job.state
        if state is None and job.total is not None and job.last_iteration == job.total:
            state = "COMPLETED"
        nodes = [node.name for node in job.nodes]
        shared = {
            name: list[int]()
            for other in jobs
            if other is not job and (other.first or 0) <= last and first <= (other.now or 0)
            for name in nodes
            if name in {node.name for node in other.nodes}
        }
        record: dict[str, Any] = {"gpus_per_node": job.gpus_per_node} if job.gpus_per_node else {}
        if shared:
            record["gpus"] = shared
        if job.host_of and state != "RUNNING":
            record["ranks"] = {"layout": "node-major"}
        end = {"end": last, "state": state} if state else {"state": "RUNNING"}
        records.append(Job(job_id=job.job_id, name=job.files[0].key, nodes=nodes, start=first, **end, **record))
    return records


def _notes(jobs: list[_JobLog], timezone: str) -> list[str]:
    placed = sum((job.placed for job in jobs), Counter[str]())
    notes = []
    if placed["stamped"]:
        notes.append(f"{placed['stamped']:,} step reports carry a time of their own")
        notes.append(f"times of the log that name no zone were taken as {timezone}")
    if placed["added up"]:
        notes.append(
            f"{placed['added up']:,} step reports carry no time: they were placed by adding up step times from the "
            f"job's start (--start, or the first time in the log, taken as {timezone}), and moved on where a later "
            "line names a time; pauses that the log does not count (validation, checkpoints) are missing from it"
        )
    if any("Megatron" in file.dialects for job in jobs for file in job.files):
        notes.append("a Megatron report is the average since the last one, printed by one rank for the job")
    if any(job.state is None and job.last_iteration != job.total for job in jobs):
        notes.append("a log that ends before its last step, without saying why, leaves its job RUNNING")
    return notes


_LOOKED_AT = 400  # lines


def recognise(_name: str, head: str) -> str | None:
    """Return why a file is taken for a training job's log, None where it is none."""
    lines = head.splitlines()[:_LOOKED_AT]
    steps = sum(step_of(unprefixed(line).text) is not None for line in lines)
    return f"{steps} of its first {len(lines)} lines report steps" if steps else None
