"""Reads a trace of single operations of a training job and sums it up by step and rank, in columns.

An operation has a step, a rank, a kind, a start (seconds since the step began) and a duration (seconds). Operations
of one rank overlap: a receive waits while the forward pass computes. What counts is therefore not the sum of the
durations but the time that they cover.
"""

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
from numpy.typing import NDArray

from services.kit.errors import UserError
from services.recording.importers.contract import Progress, Report

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

FORWARD, BACKWARD, UPDATE, COMMUNICATION = range(4)
_CHUNK_ROWS = 8_000_000
"""Operations that are held in memory at once: some 300 MB of columns."""
_COLUMNS = ("step", "rank", "optype", "start_ts", "duration")
_LONGEST_S = 604_800.0  # no step lasts a week: beyond it a number is damaged
_REMEDY = "give the artifact's files as they are: trace-NAME.parquet beside meta-NAME.yaml"


@dataclass(frozen=True)
class Sums:
    """What ranks did in steps, one element for each (step, rank) that was traced, by step and then rank; seconds."""

    step: Ints
    rank: Ints
    begin: Floats
    end: Floats
    forward: Floats
    backward: Floats
    compute: Floats
    """Covered by computing: forward, backward, the optimizer's own arithmetic, garbage collection."""
    waiting: Floats
    """Covered by communication and not by computing."""


def kind_of(operation: str) -> int | None:
    """Return the kind of an operation by its name; None where the name says nothing.

    Clipping the gradients is communication: it reduces their norm over all ranks, and early ranks wait there for the
    last one.
    """
    known = {"forward-compute": FORWARD, "backward-compute": BACKWARD, "optimizer": UPDATE, "gc": UPDATE}
    if operation in known:
        return known[operation]
    words = ("send", "recv", "reduce", "gather", "comm", "clip")
    return COMMUNICATION if any(word in operation for word in words) else None


def read_trace(path: Path, ranks: int, report: Report, progress: Progress) -> Iterator[Sums]:
    """Yield the sums of some steps at a time, in order of step. UserError where the file cannot be read.

    Rows with a rank beyond ``ranks``, with no number where one belongs or of an unknown operation are skipped.
    """
    try:
        with pq.ParquetFile(path) as file:
            missing = [name for name in _COLUMNS if name not in file.schema_arrow.names]
            if missing:
                raise UserError(f"{path}: column {missing[0]!r} is missing", remedy=_REMEDY)
            stretches = _stretches(file)
            for done, (first, last) in enumerate(stretches):
                yield _summed(path, file, (first, last), ranks, report if done == 0 else Report())
                progress((done + 1) / len(stretches))
    except (pa.ArrowException, OSError, ValueError, OverflowError) as error:
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: not a readable Parquet file: {reason}", remedy=_REMEDY) from error


def _stretches(file: pq.ParquetFile) -> list[tuple[int, int]]:
    """Return ranges of steps, both ends included, none of many more than `_CHUNK_ROWS` operations."""
    counts: dict[int, int] = {}
    for batch in file.iter_batches(1 << 18, columns=["step"]):
        steps, times = np.unique(batch.column("step").drop_null().cast(pa.int64()).to_numpy(), return_counts=True)
        for step, count in zip(steps.tolist(), times.tolist(), strict=True):
            counts[step] = counts.get(step, 0) + count
    stretches: list[tuple[int, int]] = []
    held = 0
    for step in sorted(counts):
        if stretches and held + counts[step] <= _CHUNK_ROWS:
            stretches[-1] = stretches[-1][0], step
            held += counts[step]
        else:
            stretches.append((step, step))
            held = counts[step]
    return stretches


def _summed(path: Path, file: pq.ParquetFile, steps: tuple[int, int], ranks: int, report: Report) -> Sums:
    parts: list[list[NDArray[Any]]] = []
    for batch in file.iter_batches(1 << 18, columns=list(_COLUMNS)):
        batch.validate(full=True)  # else an operation may be beyond the names of operations
        step = _numbers(batch, "step", pa.int64(), -1).astype(np.int64)
        rank = _numbers(batch, "rank", pa.int64(), -1).astype(np.int64)
        start = _numbers(batch, "start_ts", pa.float64(), np.nan)
        duration = _numbers(batch, "duration", pa.float64(), np.nan)
        kind = _kinds(batch)
        with np.errstate(invalid="ignore"):
            sound = (np.abs(start) < _LONGEST_S) & (duration >= 0) & (duration < _LONGEST_S) & (step >= 0)
        for reason, bad in (
            ("an operation without a step, a start or a duration", ~sound),
            ("an operation of no rank of this job", sound & ((rank < 0) | (rank >= ranks))),
            ("an operation of unknown kind", sound & (kind < 0)),
        ):
            if bad.any():
                report.skip(reason, path.name, int(bad.sum()))
        report.read["operations"] += batch.num_rows
        keep = sound & (rank >= 0) & (rank < ranks) & (kind >= 0) & (step >= steps[0]) & (step <= steps[1])
        parts.append([column[keep] for column in (step, rank, kind, start, duration)])
    step, rank, kind, start, duration = (np.concatenate(column) for column in zip(*parts, strict=True))
    return _sums(step, rank, kind, start, start + duration)


def _numbers(batch: pa.RecordBatch, name: str, kind: pa.DataType, missing: float) -> NDArray[Any]:
    column: Any = batch.column(name).cast(kind)
    return np.asarray(column.fill_null(missing).to_numpy(zero_copy_only=False))


def _kinds(batch: pa.RecordBatch) -> NDArray[np.int8]:
    column: Any = batch.column("optype")
    encoded = column if pa.types.is_dictionary(column.type) else pc.dictionary_encode(column)
    names = encoded.dictionary.to_pylist()
    kinds = [kind_of(name) if isinstance(name, str) else None for name in names]
    table = np.array([*(-1 if kind is None else kind for kind in kinds), -1], dtype=np.int8)
    return np.asarray(table[encoded.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)], dtype=np.int8)


def _sums(step: Ints, rank: Ints, kind: NDArray[np.int8], start: Floats, end: Floats) -> Sums:
    order = np.lexsort((start, rank, step))
    step, rank, kind = step[order], rank[order], kind[order]
    start, end = start[order], end[order]
    new = (np.diff(step, prepend=step[:1]) != 0) | (np.diff(rank, prepend=rank[:1]) != 0)
    group = np.cumsum(new)
    first = np.flatnonzero(np.r_[True, new[1:]]) if len(step) else np.empty(0, np.int64)
    count = len(first)
    computing = kind != COMMUNICATION
    compute = _covered(group[computing], start[computing], end[computing], count)

    def total(of: int) -> Floats:
        rows = kind == of
        return _by_group(group[rows], end[rows] - start[rows], count)

    return Sums(
        step=step[first],
        rank=rank[first],
        begin=start[first],
        end=np.maximum.reduceat(end, first) if count else end,
        forward=total(FORWARD),
        backward=total(BACKWARD),
        compute=compute,
        waiting=np.maximum(_covered(group, start, end, count) - compute, 0.0),
    )


def _covered(group: Ints, start: Floats, end: Floats, count: int) -> Floats:
    """Return for each group how much time its intervals cover; they are sorted by group and start."""
    if not len(group):
        return np.zeros(count)
    # Groups are laid one behind the other on one axis, so that one running maximum serves them all.
    apart = float(end.max() - start.min()) + 1.0
    begins, ends = start + group * apart, end + group * apart
    reached = np.r_[-np.inf, np.maximum.accumulate(ends)[:-1]]
    return _by_group(group, np.clip(ends - np.maximum(begins, reached), 0.0, None), count)


def _by_group(group: Ints, seconds: Floats, count: int) -> Floats:
    return np.asarray(np.bincount(group, seconds, minlength=count)[:count], dtype=np.float64)
