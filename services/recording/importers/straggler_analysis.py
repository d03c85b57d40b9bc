"""Imports per-operation traces as ByteDance's StragglerAnalysis artifact has them: steps per rank.

Reads ``trace-NAME.parquet`` (one operation a row) with ``meta-NAME.yaml`` (how the job was laid out) and, where it is
there, ``result-NAME.json`` (the what-if analysis), which says whether one worker was slow: the label. Only one rank
of each tensor-parallel group was traced; rows are of that rank.
"""

import json
import math
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa
import yaml

from services.kit.documents import NOT_YAML
from services.kit.errors import UsageError, UserError
from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.moments import LATEST, instant_option
from services.recording.importers.parts.series.operation_trace import Floats, Ints, Sums, read_trace
from services.recording.instants import format_instant
from services.recording.model import Gpu, Job, Label, Node, Topology
from services.recording.schema import TIMESTAMP, name_column

_REMEDY = "give the artifact's data folder, or one trace-NAME.parquet with meta-NAME.yaml beside it"
_NAME = re.compile(r"trace-(.+)\.parquet")
_MOST_RANKS = 200_000
_SLOW_JOB = 1.1
"""Slowdown from which the artifact's paper calls a job straggling."""
_ONE_PART = 0.5
_OTHER_PARTS = 0.1
"""A part (worker, stage) is the cause where it alone explains half of the slowdown and no other a tenth: ours."""
_DUE_STEPS = 10


@dataclass(frozen=True)
class _Layout:
    """How ranks lie: tensor-parallel ranks next to each other, then data-parallel ones, then pipeline stages."""

    name: str
    ranks: int
    data: int
    stages: int
    tensor: int
    gpus_per_node: int

    def node(self, rank: int) -> str:
        width = len(str((self.ranks - 1) // self.gpus_per_node))
        return f"node-{rank // self.gpus_per_node:0{width}d}"

    def gpu(self, rank: int) -> dict[str, str | int]:
        return {"node": self.node(rank), "gpu": rank % self.gpus_per_node}

    def group(self, data: int, stage: int) -> range:
        """Return the ranks of a worker: its tensor-parallel group, of which the first was traced."""
        first = (stage * self.data + data) * self.tensor
        return range(first, first + self.tensor)


def convert(
    source: Annotated[Path, "the artifact's data folder, or one trace-NAME.parquet"],
    out: Path,
    *,
    trial: Annotated[str | None, "NAME of the trace, where the folder has several"] = None,
    start: Annotated[str, "when the first step began; the traces carry no wall time"] = "2025-01-01T00:00:00Z",
    gpus_per_node: Annotated[int, "GPUs of a node; the traces do not say it"] = 8,
    keep_gaps: Annotated[bool, "leave the time that the steps between the traced ones took"] = False,
    progress: Progress = silent,
) -> Report:
    """Convert one trace into a recording of steps per rank at ``out``.

    UserError: the files are not there or malformed, no operation is usable, or ``out`` exists.
    """
    path = _trace(source, trial)
    begin = instant_option(start, "--start") or 0
    if not 1 <= gpus_per_node <= 64:
        raise UsageError(f"--gpus-per-node {gpus_per_node}: not 1 to 64", remedy="correct the number")
    name = path.stem.removeprefix("trace-")
    layout = _layout(path.with_name(f"meta-{name}.yaml"), gpus_per_node)
    report = Report()
    report.read["files"] = 2
    report.notes += _notes(layout, keep_gaps, format_instant(begin))
    clock = _Clock(begin, keep_gaps)
    with Draft(out, report) as draft:
        traced = 0
        for sums in read_trace(path, layout.ranks, report, progress):
            for batch in _rows(sums, layout, clock, path):
                draft.add("steps", batch)
            traced = max(traced, len(np.unique(sums.rank)))
        end = clock.at
        draft.add_jobs([_job(layout, begin)] if clock.steps else [])
        analysis = path.with_name(f"result-{name}.json")
        if clock.steps and analysis.is_file():
            report.read["files"] += 1
            draft.add_labels(_labels(analysis, layout, (begin, end), clock.typical_s, report))
        header = {
            "name": out.resolve().name,
            "title": f"Per-operation trace {layout.name}: {clock.steps} steps of {layout.ranks} GPUs",
            "summary": (
                f"Steps of {traced} traced ranks of a job on {layout.ranks} GPUs ({layout.data} data-parallel times "
                f"{layout.stages} stages times {layout.tensor} tensor-parallel), with the time each rank computed and "
                "waited."
            ),
            "origin": "imported",
            "source": {
                "document": "ByteDance-Seed/StragglerAnalysis, artifact of a what-if analysis of stragglers",
                "section": path.name,
                "licence": "Apache-2.0",
            },
            "start": begin,
            "end": end,
            "cluster": {"name": "bytedance"},
        }
        draft.finish(header, _topology(layout))
    return report


def _trace(source: Path, trial: str | None) -> Path:
    if source.is_file() and _NAME.fullmatch(source.name):
        return source
    paths = sorted(source.glob("trace-*.parquet")) if source.is_dir() else []
    names = [path.stem.removeprefix("trace-") for path in paths]
    if trial is not None and trial in names:
        return paths[names.index(trial)]
    if trial is None and len(paths) == 1:
        return paths[0]
    if not paths:
        raise UsageError(f"{source}: no trace-NAME.parquet there", remedy=_REMEDY)
    problem = "more than one trace there" if trial is None else f"no trace {trial!r} there"
    raise UsageError(f"{source}: {problem}", remedy=f"give --trial, one of {', '.join(names)}")


def _layout(path: Path, gpus_per_node: int) -> _Layout:
    content = _document(path, yaml.safe_load)
    sizes = {}
    for key in ("world_size", "dp_size", "pp_size", "tp_size"):
        value = content.get(key)
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= _MOST_RANKS:
            raise UserError(f"{path}: {key} is {str(value)[:40]!r}, not a number of ranks", remedy=_REMEDY)
        sizes[key] = value
    world, data, stages, tensor = sizes.values()
    if data * stages * tensor != world:
        problem = f"{data} data-parallel times {stages} stages times {tensor} tensor-parallel ranks is not {world}"
        raise UserError(f"{path}: {problem}", remedy="only these three kinds of parallelism are read")
    trial = str(content.get("trial_name") or path.stem.removeprefix("meta-"))
    return _Layout("".join(filter(str.isprintable, trial))[:60] or "job", world, data, stages, tensor, gpus_per_node)


def _document(path: Path, load: Any) -> dict[str, Any]:
    try:
        content = load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UsageError(f"{path}: missing", remedy=_REMEDY) from None
    except (OSError, *NOT_YAML) as error:
        reason = " ".join(str(error).split())[:160]
        raise UserError(f"{path}: cannot be read: {reason}", remedy=_REMEDY) from error
    if not isinstance(content, dict):
        raise UserError(f"{path}: not a mapping", remedy=_REMEDY)
    return content


class _Clock:
    """Lays steps one after the other in time, each as long as its slowest rank says."""

    def __init__(self, start: int, keep_gaps: bool) -> None:
        self.at = start
        self.steps = 0
        self.typical_s = 0.0
        self._keep_gaps = keep_gaps
        self._last: int | None = None

    def begins(self, steps: Ints, lengths_s: Floats, path: Path) -> Ints:
        """Return when each step begins (ms) and move on to the end of the last."""
        self.typical_s = self.typical_s or float(np.median(lengths_s))
        lengths = np.maximum(np.rint(lengths_s * 1000), 1.0)
        previous = np.r_[steps[0] - 1 if self._last is None else self._last, steps[:-1]]
        untraced = (steps - previous - 1).astype(np.float64) if self._keep_gaps else np.zeros(len(steps))
        ends = self.at + np.cumsum(lengths + untraced * round(self.typical_s * 1000))
        if not ends[-1] < LATEST:
            raise UserError(f"{path}: the steps reach beyond the year 2100", remedy="leave out --keep-gaps")
        self.at, self._last = int(ends[-1]), int(steps[-1])
        self.steps += len(steps)
        return (ends - lengths).astype(np.int64)


def _rows(sums: Sums, layout: _Layout, clock: _Clock, path: Path) -> Iterator[pa.RecordBatch]:
    """Yield the rows of the ranks, and those of the job as a whole."""
    if not len(sums.step):
        return
    steps, first, where = np.unique(sums.step, return_index=True, return_inverse=True)
    earliest = np.minimum.reduceat(sums.begin, first)
    lengths = np.maximum.reduceat(sums.end, first) - earliest
    begins = clock.begins(steps, lengths, path)
    after = sums.end - earliest[where]
    nodes = [layout.node(rank) for rank in range(0, layout.ranks, layout.gpus_per_node)]
    rank_of = sums.rank
    yield pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array(begins[where] + np.rint(after * 1000).astype(np.int64)).cast(TIMESTAMP),
            "job_id": name_column(np.zeros(len(rank_of), np.int64), [layout.name]),
            "rank": pa.array(rank_of.astype(np.int32)),
            "node": name_column(rank_of // layout.gpus_per_node, nodes),
            "iteration": pa.array(sums.step),
            "step_time_s": pa.array((sums.end - sums.begin).astype(np.float32)),
            "compute_s": pa.array(sums.compute.astype(np.float32)),
            "comm_wait_s": pa.array(sums.waiting.astype(np.float32)),
            "forward_compute_s": pa.array(sums.forward.astype(np.float32)),
            "backward_compute_s": pa.array(sums.backward.astype(np.float32)),
        }
    )
    yield pa.RecordBatch.from_pydict(
        {
            "timestamp": pa.array(begins + np.rint(lengths * 1000).astype(np.int64)).cast(TIMESTAMP),
            "job_id": name_column(np.zeros(len(steps), np.int64), [layout.name]),
            "rank": pa.array(np.full(len(steps), -1, np.int32)),
            "node": name_column(np.zeros(len(steps), np.int64), [""], np.ones(len(steps), np.bool_)),
            "iteration": pa.array(steps),
            "step_time_s": pa.array(lengths.astype(np.float32)),
        }
    )


def _topology(layout: _Layout) -> Topology:
    names = [layout.node(rank) for rank in range(0, layout.ranks, layout.gpus_per_node)]
    counts = [min(layout.gpus_per_node, layout.ranks - number * layout.gpus_per_node) for number in range(len(names))]
    return Topology(
        nodes=[
            Node(name=name, gpus=[Gpu(gpu=gpu) for gpu in range(count)])
            for name, count in zip(names, counts, strict=True)
        ]
    )


def _job(layout: _Layout, start: int) -> Job:
    return Job(
        job_id=layout.name,
        name=layout.name,
        nodes=[node.name for node in _topology(layout).nodes],
        gpus_per_node=min(layout.gpus_per_node, layout.ranks),
        start=start,
        state="RUNNING",
        ranks={
            "layout": "node-major",
            "order": "tensor, data, pipeline",
            "tensor_parallel": layout.tensor,
            "data_parallel": layout.data,
            "pipeline_stages": layout.stages,
        },
    )


def _notes(layout: _Layout, keep_gaps: bool, start: str) -> Iterator[str]:
    yield f"the trace carries no wall time: its first step was put at {start} (--start)"
    if keep_gaps:
        yield "the steps between the traced ones were taken to last as long as the median step"
    else:
        yield "not every step was traced; the traced ones lie back to back, and `iteration` says which they are"
    yield (
        f"the trace names no hosts: ranks were laid on nodes of {layout.gpus_per_node} in their order, and rank to "
        "stage and replica follows the meta file (tensor-parallel ranks next to each other, then data, then stages)"
    )
    if layout.tensor > 1:
        yield f"one rank of each {layout.tensor} tensor-parallel ones was traced; the others have no rows"
    yield (
        "compute_s is the time covered by forward, backward, optimizer and gc; comm_wait_s that covered by sends, "
        "receives and collectives (gradient clipping among them: it reduces the norm over all ranks) and not by "
        "computing; forward_compute_s and backward_compute_s are sums of durations"
    )


def _labels(path: Path, layout: _Layout, span: tuple[int, int], step_s: float, report: Report) -> Iterator[Label]:
    """Yield what the analysis says the truth is: one slow worker is a fault, one slow stage is how the model is cut."""
    try:
        analysis = _document(path, json.loads)
    except UserError as error:
        report.skip("the analysis cannot be read", f"{path.name}: {error.message}")
        return
    slowdown = _share(analysis.get("blocking_slowdown"))
    if slowdown is None or slowdown < _SLOW_JOB:
        return
    data = _only(analysis.get("blocking_decompose_by_dp_rank"), slowdown, layout.data)
    stage = _only(analysis.get("blocking_decompose_by_stage"), slowdown, layout.stages)
    if data is not None and stage is not None:
        ranks = layout.group(data, stage)
        yield Label(
            id="f1",
            fault="straggler",
            entity=layout.gpu(ranks[0]),
            also=[layout.gpu(rank) for rank in ranks[1:]],
            onset=span[0],
            end=span[1],
            within_s=math.ceil(step_s * _DUE_STEPS),
            job_id=layout.name,
            cause="slow_worker",
            note=(
                f"replica {data} of stage {stage} alone makes the job {slowdown:.2f} times slower, by the artifact's "
                f"{path.name}; which GPU of its tensor-parallel group, it does not say"
            ),
        )
    elif stage is not None:
        yield Label(
            id="d1",
            fault="none",
            entity={"job_id": layout.name},
            onset=span[0],
            end=span[1],
            within_s=0,
            job_id=layout.name,
            distractor=True,
            note=(
                f"stage {stage} has more to compute than the others, on every replica, and makes the job "
                f"{slowdown:.2f} times slower, by the artifact's {path.name}: the model's cut, no machine's fault"
            ),
        )


def _only(parts: Any, slowdown: float, count: int) -> int | None:
    """Return the one part that explains the slowdown; None where several do or none does."""
    if not isinstance(parts, dict):
        return None
    excess = {}
    for key, value in parts.items():
        number = _share(value)
        if number is None or not (key.isascii() and key.isdecimal() and len(key) < 8 and int(key) < count):
            return None
        excess[int(key)] = (number - 1) / (slowdown - 1)
    causes = [part for part, share in excess.items() if share >= _ONE_PART]
    others = [share for part, share in excess.items() if part not in causes]
    return causes[0] if len(causes) == 1 and all(share < _OTHER_PARTS for share in others) else None


def _share(value: Any) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 < value < 1e6:
        return None
    return float(value)
