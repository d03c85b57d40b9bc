"""Imports an MLPerf Training result that was submitted with power: node watts and the benchmark's own log.

Reads ``power/RESULT/node_N.txt`` (one ``:::MLLOG`` JSON record a line, key ``power_reading``, watts) and
``RESULT.txt`` (the job's output with ``:::MLLOG`` lines in it). Node files that are byte-for-byte copies of another
are not measurements of their own node: each distinct series is imported once, under the first of its names, and the
copies are listed in recording.yaml.
"""

import json
import re
from dataclasses import dataclass, field
from io import BytesIO
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import pyarrow.json
from numpy.typing import NDArray

from services.kit.errors import UsageError, UserError
from services.recording.importers.contract import Progress, Report, silent
from services.recording.importers.parts.moments import LATEST, plausible
from services.recording.model import Event, Gpu, Job, Node, Topology
from services.recording.schema import NAME, TIMESTAMP, name_column
from services.recording.writer import RecordingWriter, sha256_of

Ints = NDArray[np.int64]

_MARK = b":::MLLOG "
_JOB_LINE = re.compile(r"^:::DLPAL \S+ (?P<job>\d+) (?P<count>\d+) (?P<hosts>\S+)")
_RANK = re.compile(r"^\s*(?P<rank>\d{1,9}): ")
_STEP = "train_step_timing in s"
_NODE_FILE = re.compile(r"node_(\d+)\.txt")
_POWER_COLUMNS: list[tuple[str, pa.DataType]] = [
    ("time_ms", pa.int64()),
    ("key", pa.string()),
    ("value", pa.float64()),
]
_POWER_SCHEMA = pa.schema(_POWER_COLUMNS)
_LONGEST_STEP_S = 1e6
_MOST_TOKENS = 10**15
_MOST_GPUS = 256
_AS_SUBMITTED = "give the folder of one result as it was submitted to MLPerf"


@dataclass(frozen=True)
class _Series:
    """One node's readings: milliseconds since the epoch, watts."""

    node: str
    times: Ints
    watts: NDArray[np.float64]


@dataclass
class _JobLog:
    """What the job's output says."""

    job_id: str = ""
    system: dict[str, str] = field(default_factory=dict)
    gpus: int = 0
    facts: dict[str, Any] = field(default_factory=dict)
    steps: dict[int, float] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)
    first: int = 0
    last: int = 0
    status: str = ""


def convert(
    directory: Annotated[Path, "a results folder: result_*.txt and power/*/node_*.txt below it"],
    out: Path,
    *,
    progress: Progress = silent,
) -> Report:
    """Convert one MLPerf result with power into a recording at ``out``, whose name is the directory's.

    UserError: there is not exactly one result below ``directory``, a line is malformed (file and line are named),
    readings are out of order, or ``out`` exists.
    """
    log_path, node_paths = _find(directory)
    log = _read_log(log_path)
    distinct, copies = _distinct(node_paths)
    series = []
    for done, path in enumerate(distinct, start=1):
        series.append(_read_power(path))
        progress(done / len(distinct))
    names = [path.stem for path in node_paths]
    times, nodes, watts = _merged(series)
    first = int(min(times[0], log.first))
    last = int(max(times[-1], log.last))
    model, gpus = log.system.get("accelerator_model_name", "unknown"), range(log.gpus)
    topology = Topology(nodes=[Node(name=name, gpu_model=model, gpus=[Gpu(gpu=gpu) for gpu in gpus]) for name in names])
    with RecordingWriter(out) as writer:
        readings = pa.RecordBatch.from_pydict(
            {
                "timestamp": pa.array(times).cast(TIMESTAMP),
                "node": name_column(nodes, [one.node for one in series]),
                "sensor": name_column(np.zeros(len(times), dtype=np.int64), ["node_power"]),
                "reading": pa.array(watts),
                "unit": name_column(np.zeros(len(times), dtype=np.int64), ["W"]),
                "state": pa.nulls(len(times), pa.uint8()),
            }
        )
        apart = np.diff(series[0].times)
        writer.write("bmc", readings, interval_s=round(float(np.median(apart)) / 1000, 3) if len(apart) else None)
        if log.steps:
            writer.write("steps", _steps(log))
        writer.write_events(log.events)
        writer.write_jobs([_job(log, names)])
        writer.finish(_header(out, directory, log, (first, last), distinct, copies), topology)
    report = Report()
    report.read["node files"] = len(node_paths)
    report.made.update({"readings": len(times), "nodes": len(series), "steps": len(log.steps)})
    copied = sum(map(len, copies.values()))
    if copied:
        report.skip("the node file is a copy of another node's", str(node_paths[0].parent), copied)
    return report


def _find(directory: Path) -> tuple[Path, list[Path]]:
    """Return the job's output and the node files, in the nodes' order."""
    if not directory.is_dir():
        raise UsageError(f"{directory}: no such directory", remedy=_AS_SUBMITTED)
    found = [path for path in directory.rglob("node_*.txt") if _NODE_FILE.fullmatch(path.name)]
    folders = sorted({path.parent for path in found})
    if len(folders) != 1:
        there = ", ".join(str(folder.relative_to(directory)) for folder in folders) or "none"
        raise UserError(f"{directory}: needs one folder of node_N.txt files and has {there}", remedy=_AS_SUBMITTED)
    logs = sorted(directory.rglob(f"{folders[0].name}.txt"))
    if len(logs) != 1:
        raise UserError(
            f"{directory}: has no job output {folders[0].name}.txt for {folders[0].relative_to(directory)}",
            remedy=_AS_SUBMITTED,
        )
    return logs[0], sorted(found, key=_number)


def _number(path: Path) -> int:
    match = _NODE_FILE.fullmatch(path.name)
    return int(match[1]) if match else 0


def _distinct(paths: list[Path]) -> tuple[list[Path], dict[str, list[str]]]:
    """Return the first file of each content, and by its name the names of its copies."""
    first: dict[str, Path] = {}
    copies: dict[str, list[str]] = {}
    for path in paths:
        digest = sha256_of(path)
        if digest in first:
            copies.setdefault(first[digest].stem, []).append(path.stem)
        else:
            first[digest] = path
    return list(first.values()), copies


def _read_power(path: Path) -> _Series:
    content = path.read_bytes()
    if not content.startswith(_MARK) or content.count(b"\n" + _MARK) != content.rstrip(b"\n").count(b"\n"):
        raise _malformed(path, content)
    try:
        table = pyarrow.json.read_json(
            BytesIO(content.replace(_MARK, b"")),
            parse_options=pyarrow.json.ParseOptions(explicit_schema=_POWER_SCHEMA, unexpected_field_behavior="ignore"),
        )
    except pa.ArrowException:
        raise _malformed(path, content) from None
    keys: Any = table["key"].cast(pa.binary())  # the damaged may be no text
    rows = np.flatnonzero(np.array([key == b"power_reading" for key in keys.to_pylist()]))
    if not len(rows):
        raise UserError(f"{path}: holds no power_reading", remedy=_AS_SUBMITTED)
    times = np.asarray(table["time_ms"].to_numpy(), dtype=np.float64)[rows]
    watts = np.asarray(table["value"].to_numpy(), dtype=np.float64)[rows]
    for bad, problem in (
        (~((times >= 0) & (times < LATEST)), "a power_reading without time_ms"),
        (~np.isfinite(watts) | (watts < 0), "a power_reading whose value is no number of watts"),
        (np.r_[False, np.diff(times) <= 0], "a power_reading that is not later than the one before"),
    ):
        if bad.any():
            raise _wrong_line(path, rows[np.argmax(bad)] + 1, problem)
    return _Series(path.stem, times.astype(np.int64), watts)


def _malformed(path: Path, content: bytes) -> UserError:
    """Find the first line that is no power record; only called once the fast way has failed."""
    for number, line in enumerate(content.splitlines(), start=1):
        problem = "is no :::MLLOG record"
        if line.startswith(_MARK):
            try:
                record = json.loads(line[len(_MARK) :])
            except (ValueError, RecursionError) as error:
                problem = f"holds broken JSON: {error}"
            else:
                value = record.get("value") if isinstance(record, dict) else "none"
                fine = isinstance(record, dict) and isinstance(record.get("time_ms"), int)
                if fine and (value is None or (isinstance(value, int | float) and not isinstance(value, bool))):
                    continue
                problem = "has no numeric time_ms and value"
        return _wrong_line(path, number, problem)
    return UserError(f"{path}: holds no records", remedy=_AS_SUBMITTED)


def _wrong_line(path: Path, number: int, problem: str) -> UserError:
    return UserError(f"{path}: line {number}: {problem}", remedy="correct or drop the line")


def _merged(series: list[_Series]) -> tuple[Ints, Ints, NDArray[np.float64]]:
    times = np.concatenate([one.times for one in series])
    nodes = np.repeat(np.arange(len(series)), [len(one.times) for one in series])
    watts = np.concatenate([one.watts for one in series])
    order = np.lexsort((nodes, times))
    return times[order], nodes[order], watts[order]


def _read_log(path: Path) -> _JobLog:
    log = _JobLog()
    stamps: list[int] = []
    with path.open(encoding="utf-8", errors="replace") as lines:
        for number, line in enumerate(lines, start=1):
            if line.startswith(":::DLPAL "):
                match = _JOB_LINE.match(line)
                log.job_id = match["job"] if match else log.job_id
            elif line.startswith(":::SYSJSON "):
                found = _json(path, number, line.removeprefix(":::SYSJSON "))
                log.system = {key: _text(value) for key, value in found.items()}
                log.gpus = _gpus(log, path, number)
            elif ":::MLLOG " in line and not line.startswith("+"):
                stamps.append(_record(log, path, number, line))
    if not log.job_id or not stamps:
        missing = ":::MLLOG records" if log.job_id else "the :::DLPAL line that names the job"
        raise UserError(f"{path}: has not {missing}", remedy=_AS_SUBMITTED)
    log.first, log.last = min(stamps), max(stamps)
    return log


def _json(path: Path, number: int, text: str) -> dict[str, Any]:
    try:
        record = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _wrong_line(path, number, f"broken JSON: {error}") from None
    if not isinstance(record, dict):
        raise _wrong_line(path, number, "JSON that is no object")
    return record


def _text(value: object) -> str:
    """Return what can be written of a value, on a line."""
    return "".join(filter(str.isprintable, str(value)))[:200]


def _gpus(log: _JobLog, path: Path, number: int) -> int:
    text = log.system.get("accelerators_per_node", "0")
    if not (text.isascii() and text.isdecimal() and int(text) <= _MOST_GPUS):
        raise _wrong_line(path, number, f"accelerators_per_node {text!r} is no number of GPUs")
    return int(text)


def _record(log: _JobLog, path: Path, number: int, line: str) -> int:
    """Take one :::MLLOG line into ``log`` and return its time."""
    head, _, text = line.partition(":::MLLOG ")
    record = _json(path, number, text)
    at, key, value = record.get("time_ms"), record.get("key"), record.get("value")
    if not isinstance(at, int) or not plausible(at) or not isinstance(key, str):
        raise _wrong_line(path, number, "a record without time_ms and key")
    if isinstance(value, dict) and _STEP in value:
        seconds = value[_STEP]
        if not isinstance(seconds, float | int) or not 0 < seconds < _LONGEST_STEP_S:
            raise _wrong_line(path, number, f"step time {_text(repr(seconds))} is no number of seconds")
        log.steps[at] = float(seconds)
        return at
    log.facts.setdefault(key, value)
    if key == "run_stop":
        metadata = record.get("metadata")
        log.status = _text(metadata.get("status", "")) if isinstance(metadata, dict) else ""
    rank = _RANK.match(head)
    fields: dict[str, Any] = {"timestamp": at, "source": "job", "job_id": log.job_id}
    if rank:
        fields["rank"] = int(rank["rank"])
    severity = "error" if key == "run_stop" and log.status != "success" else "info"
    message = line[len(rank[0]) if rank else 0 :].rstrip("\n")
    log.events.append(Event(**fields, severity=severity, message=message))
    return at


def _steps(log: _JobLog) -> pa.RecordBatch:
    steps = sorted(log.steps.items())
    count = len(steps)
    seconds = np.array([time for _, time in steps])
    columns = {
        "timestamp": pa.array([at for at, _ in steps], pa.int64()).cast(TIMESTAMP),
        "job_id": name_column(np.zeros(count, dtype=np.int64), [log.job_id]),
        "rank": pa.array(np.full(count, -1, dtype=np.int32)),
        "node": pa.nulls(count, NAME),
        "iteration": pa.array(np.arange(1, count + 1, dtype=np.int64)),
        "step_time_s": pa.array(seconds.astype(np.float32)),
    }
    batch, length = log.facts.get("global_batch_size"), log.facts.get("max_sequence_length")
    if isinstance(batch, int) and isinstance(length, int) and 0 <= batch * length < _MOST_TOKENS:
        columns["tokens_per_s"] = pa.array((batch * length / seconds).astype(np.float32))
    return pa.RecordBatch.from_pydict(columns)


def _job(log: _JobLog, nodes: list[str]) -> Job:
    return Job(
        job_id=log.job_id,
        name=_text(log.facts.get("submission_benchmark", "mlperf")),
        user="",
        nodes=nodes,
        gpus_per_node=log.gpus or None,
        start=log.first,
        end=log.last,
        state="COMPLETED" if log.status == "success" else "FAILED",
    )


def _header(
    out: Path, directory: Path, log: _JobLog, span: tuple[int, int], distinct: list[Path], copies: dict[str, list[str]]
) -> dict[str, Any]:
    name, system = out.resolve().name, log.system
    benchmark = _text(log.facts.get("submission_benchmark", "a benchmark"))
    notes = ["the power files number the nodes; which host each is, they do not say"]
    if copies:
        notes.append("a node file that is a byte-for-byte copy of another says nothing of its own node: left out")
    others = sorted(path.name for path in distinct[0].parent.iterdir() if not _NODE_FILE.fullmatch(path.name))
    notes.extend(f"{name} is not imported: it is no node's series" for name in others)
    machines = f"{system.get('submitter', 'unknown')} {system.get('system_name', 'unknown')}"
    return {
        "name": name,
        "title": f"MLPerf Training {benchmark} on {machines}, with power per node",
        "summary": (
            f"A benchmark run of {benchmark} with {len(log.steps)} training steps. Power was read on every node about "
            f"every two seconds; {len(distinct)} distinct series are here. Nothing is known to have failed."
        ),
        "origin": "imported",
        "source": {
            "document": "MLPerf Training results, as submitted (MLCommons training_results repositories)",
            "section": str(distinct[0].parent.relative_to(directory)),
            "licence": "Apache-2.0",
            "notes": notes,
            "copies_left_out": copies,
        },
        "start": span[0],
        "end": span[1],
        "cluster": {"name": re.sub(r"[^a-z0-9]+", "-", system.get("system_name", "").lower()).strip("-") or "mlperf"},
    }


def recognise(_name: str, head: str) -> str | None:
    """Return why a file is taken for a part of an MLPerf result, None where it is none."""
    return "lines of MLPerf's log (:::MLLOG)" if _MARK.decode() in head and '"power_reading"' in head else None
