"""A recording as windows of a minute or more: by GPU the means of gauges, the growth of counters, its rank's times.

Streams are read batch by batch, and one window is held at a time, whatever the recording's length.
"""

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Final

import numpy as np

from detectors.contract import FloatArray, Instant, IntArray
from detectors.engine.rows import Rows
from detectors.fleet.fleet import KEYS
from services.kit.columns import rows_of
from services.model.fields import FIELDS, NAMES, columns
from services.recording.model import Job
from services.recording.reader import Recording
from services.recording.schema import STREAMS
from services.recording.stream_file import open_stream

WINDOW_MS: Final = 60_000
"""Several steps of a job."""
_READINGS: Final = 8
"""Where fewer fall into a minute windows are longer: a mean of three readings depends on where in a step they fell."""
_ROWS = 32_768

Gpu = tuple[str, int]


@dataclass
class Gpus:
    """The GPUs of a recording, by number: those of the topology, then others as they are seen."""

    keys: list[Gpu] = field(default_factory=list)
    _number: dict[Gpu, int] = field(default_factory=dict)

    def number(self, gpu: Gpu) -> int:
        """Return a GPU's number, a new one if it was not known."""
        if gpu not in self._number:
            self._number[gpu] = len(self.keys)
            self.keys.append(gpu)
        return self._number[gpu]

    def by_node(self) -> dict[str, list[int]]:
        """Return the indices of every node's GPUs, ascending."""
        found: dict[str, list[int]] = {}
        for node, index in sorted(self.keys):
            found.setdefault(node, []).append(index)
        return found

    @classmethod
    def of(cls, recording: Recording) -> "Gpus":
        """Return the GPUs of a recording's topology."""
        gpus = cls()
        for node in recording.topology.nodes:
            for gpu in node.gpus:
                gpus.number((node.name, gpu.gpu))
        return gpus


@dataclass(frozen=True)
class Window:
    """`start` to `end` (ms): `values` (gpus, fields) in the order of `FIELDS`, NaN where nothing was read."""

    start: Instant
    end: Instant
    values: FloatArray


@dataclass(frozen=True)
class _Segment:
    """Rows of one stream that lie in one window: GPU numbers (rows,), and values (fields, rows), NaN: not reported."""

    start: Instant
    gpus: IntArray
    values: FloatArray


def length_of(recording: Recording) -> int:
    """Return how long the windows of a recording are (ms): a minute, or `_READINGS` where it is read less often."""
    stream = recording.manifest.streams.get("dcgm")
    interval_s = stream.interval_s if stream is not None and stream.interval_s is not None else 0.0
    return max(WINDOW_MS, round(_READINGS * interval_s * 1000))


def windows(recording: Recording, gpus: Gpus, *, max_rows: int = _ROWS) -> Iterator[Window]:
    """Yield the windows in which any GPU reported, in order of time; `gpus` grows as GPUs are seen.

    Raises UserError where the recording cannot be read. `max_rows` at a time are read; it changes nothing in what
    is yielded.
    """
    gauges, counters, steps = columns("gauge"), columns("counter"), columns("step")
    length = length_of(recording)
    times = _Merged(_step_segments(recording, gpus, steps, max_rows, length), len(steps))
    sums, last = _Sums(len(gauges)), _Last(len(counters))
    start: Instant | None = None
    for segment in _gpu_segments(recording, gpus, (*gauges, *counters), max_rows, length):
        if start is not None and segment.start != start:
            yield _window(start, length, len(gpus.keys), sums, last, times)
        start = segment.start
        sums.add(segment.gpus, segment.values[: len(gauges)])
        last.add(segment.gpus, segment.values[len(gauges) :])
    if start is not None:
        yield _window(start, length, len(gpus.keys), sums, last, times)


def _window(start: Instant, length: int, count: int, sums: "_Sums", last: "_Last", times: "_Merged") -> Window:
    values = np.full((count, len(FIELDS)), np.nan)
    values[:, columns("gauge")] = sums.take(count)
    values[:, columns("counter")] = np.log1p(last.growth(count))
    values[:, columns("step")] = times.take(start, count)
    return Window(start, start + length, values)


class _Sums:
    """Means of what is reported, by GPU."""

    def __init__(self, fields: int) -> None:
        self._fields = fields
        self._sum, self._count = np.zeros((0, fields)), np.zeros((0, fields))

    def add(self, gpus: IntArray, values: FloatArray) -> None:
        known = int(gpus.max(initial=-1)) + 1
        more = known - len(self._sum)
        if more > 0:
            self._sum = np.concatenate([self._sum, np.zeros((more, self._fields))])
            self._count = np.concatenate([self._count, np.zeros((more, self._fields))])
        for place, column in enumerate(values):
            here = np.isfinite(column)
            self._sum[:, place] += np.bincount(gpus[here], column[here], len(self._sum))
            self._count[:, place] += np.bincount(gpus[here], minlength=len(self._sum))

    def take(self, count: int) -> FloatArray:
        """Return the means (count, fields), NaN where nothing was reported, and begin anew."""
        means = np.full((count, self._fields), np.nan)
        np.divide(self._sum, self._count, out=means[: len(self._sum)], where=self._count > 0)
        self._sum[:], self._count[:] = 0, 0
        return means


class _Last:
    """Growth of counters between the last readings of windows; NaN where one was reset or not read."""

    def __init__(self, fields: int) -> None:
        self._now, self._before = np.full((0, fields), np.nan), np.full((0, fields), np.nan)

    def add(self, gpus: IntArray, values: FloatArray) -> None:
        self._grow(int(gpus.max(initial=-1)) + 1)
        for place, column in enumerate(values):
            here = np.isfinite(column)
            self._now[gpus[here], place] = column[here]  # rows ascend in time: the last one stays

    def growth(self, count: int) -> FloatArray:
        self._grow(count)
        grown = self._now - self._before
        seen = np.isfinite(self._now)
        self._before[seen] = self._now[seen]
        self._now[:] = np.nan
        return np.where(grown >= 0, grown, np.nan)

    def _grow(self, count: int) -> None:
        more = count - len(self._now)
        if more > 0:
            room = np.full((more, self._now.shape[1]), np.nan)
            self._now, self._before = np.concatenate([self._now, room]), np.concatenate([self._before, room])


class _Merged:
    """The means of another stream, window by window, in step with the first."""

    def __init__(self, segments: Iterator[_Segment], fields: int) -> None:
        self._segments, self._sums = segments, _Sums(fields)
        self._next = next(segments, None)

    def take(self, start: Instant, count: int) -> FloatArray:
        """Return the means (count, fields) of the window at `start`; what lies before it is skipped."""
        while self._next is not None and self._next.start <= start:
            if self._next.start == start:
                self._sums.add(self._next.gpus, self._next.values)
            self._next = next(self._segments, None)
        return self._sums.take(count)


def _gpu_segments(
    recording: Recording, gpus: Gpus, places: Iterable[int], max_rows: int, length: int
) -> Iterator[_Segment]:
    wanted = [NAMES[place] for place in places]
    for rows in _read(recording, "dcgm", wanted, max_rows):
        nodes, indices = (rows.keys[name] for name in KEYS["dcgm"])
        pairs = nodes.codes * 256 + np.array(indices.categories, np.int64)[indices.codes]
        seen, inverse = np.unique(pairs, return_inverse=True)
        numbers = np.array(
            [gpus.number((str(nodes.categories[pair // 256]), pair % 256)) for pair in seen.tolist()], np.int64
        )
        yield from _cut(rows, numbers[inverse], wanted, length)


def _step_segments(
    recording: Recording, gpus: Gpus, places: Iterable[int], max_rows: int, length: int
) -> Iterator[_Segment]:
    wanted = [NAMES[place] for place in places]
    by_node = gpus.by_node()
    ranks = {
        (job.job_id, rank): gpus.number(gpu)
        for job in recording.jobs()
        for rank, gpu in enumerate(gpus_of(job, by_node))
    }
    for rows in _read(recording, "steps", wanted, max_rows):
        jobs, of_job = (rows.keys[name] for name in KEYS["steps"])
        pairs = np.stack([jobs.codes, of_job.codes])
        seen, inverse = np.unique(pairs, axis=1, return_inverse=True)
        numbers = np.array(
            [ranks.get((str(jobs.categories[j]), int(of_job.categories[r])), -1) for j, r in seen.T.tolist()], np.int64
        )[inverse]
        yield from _cut(rows, numbers, wanted, length)


def _read(recording: Recording, kind: str, wanted: list[str], max_rows: int) -> Iterator[Rows]:
    if kind not in recording.streams():
        return
    with open_stream(recording.path / STREAMS[kind].file) as file:
        there = [name for name in file.schema_arrow.names if name in wanted]
    for batch in recording.batches(kind, max_rows=max_rows, columns=there):
        yield rows_of(kind, batch, wanted)  # type: ignore[arg-type]  # one of the kinds


def _cut(rows: Rows, gpus: IntArray, wanted: list[str], length: int) -> Iterator[_Segment]:
    """Yield the rows window by window, without those of no GPU."""
    none = np.full(len(rows.times), np.nan)
    values = np.stack(
        [np.where(rows.valid[name], rows.values[name], np.nan) if name in rows.values else none for name in wanted]
    )
    starts = rows.times // length * length
    edges = [0, *(np.flatnonzero(np.diff(starts)) + 1).tolist(), len(starts)]
    for low, high in pairwise(edges):
        here = gpus[low:high] >= 0
        if here.any():
            yield _Segment(int(starts[low]), gpus[low:high][here], values[:, low:high][:, here])


def gpus_of(job: Job, by_node: Mapping[str, list[int]]) -> list[Gpu]:
    """Return a job's GPUs, rank by rank where it has one a GPU: node after node, and within a node by index."""
    held = job.gpus or {}
    return [
        (node, index)
        for node in job.nodes
        for index in sorted(held.get(node, by_node.get(node, [])[: job.gpus_per_node]))
    ]
