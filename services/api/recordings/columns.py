"""A stream's column by entity and bucket of time: read batch by batch, with memory for entities times buckets only."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from services.api.recordings.library import Window
from services.api.recordings.models import Values
from services.kit.entities import Entities
from services.kit.errors import UsageError
from services.recording.reader import Recording, times_of
from services.recording.schema import STREAMS
from services.recording.stream_file import open_stream

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

SMOOTH_MS = (1000, 2000, 5000, 10_000, 15_000, 30_000, 60_000, 120_000, 300_000, 600_000, 900_000, 1_800_000, 3_600_000)
_DAY_MS = 86_400_000


@dataclass(frozen=True)
class Buckets:
    """Equal stretches that cover a window; they begin at multiples of their length."""

    start: int
    ms: int
    count: int

    @classmethod
    def over(cls, window: Window, points: int) -> "Buckets":
        """Return at most `points` + 1 buckets of a length that people find on a clock."""
        least = max(1, -(-(window.end - window.start + 1) // points))
        ms = next((ms for ms in SMOOTH_MS if ms >= least), -(-least // _DAY_MS) * _DAY_MS)
        start = window.start // ms * ms
        return cls(start, ms, (window.end - start) // ms + 1)

    @property
    def times(self) -> list[int]:
        """When each begins."""
        return [self.start + self.ms * number for number in range(self.count)]

    def of(self, times: Ints) -> Ints:
        """Return the bucket of each time."""
        return (times - self.start) // self.ms


@dataclass(frozen=True)
class Chunk:
    """Rows of a stream: their times, the index of their entity in the table, and what they read (NaN: nothing)."""

    times: Ints
    entities: Ints
    values: Floats


KEYS: Mapping[str, tuple[str, ...]] = {
    kind: tuple(key for key in schema.key_names if key != "iteration" and (kind, key) != ("steps", "node"))
    for kind, schema in STREAMS.items()
}
"""What names a line on a chart, by kind: of steps, a rank of a job."""


def chunks(recording: Recording, kind: str, field: str, window: Window, entities: Entities) -> Iterator[Chunk]:
    """Yield a column's rows within a window; UserError where there is no such stream or column of numbers."""
    if kind not in recording.streams():
        there = ", ".join(recording.streams())
        raise UsageError(f"{recording.manifest.name} has no stream {kind}", remedy=f"ask for one of {there}")
    if field in ("timestamp", *STREAMS[kind].key_names, *STREAMS[kind].text_values):
        raise UsageError(f"{field} of {kind} is no reading", remedy=_FIELDS)
    with open_stream(recording.path / STREAMS[kind].file) as file:
        if field not in file.schema_arrow.names:
            raise UsageError(f"{kind} has no field {field}", remedy=_FIELDS)
    for batch in recording.batches(kind, window.start, window.end + 1, columns=[field]):
        column: Any = batch.column(field)
        try:
            values = column.cast("float64", safe=False).to_numpy(zero_copy_only=False)
        except (ValueError, NotImplementedError):  # Arrow's errors are of these kinds
            raise UsageError(f"{field} of {kind} is {column.type}, no number", remedy=_FIELDS) from None
        values = np.where(np.isfinite(values), values, np.nan)
        yield Chunk(times_of(batch), entities.of(batch), values)


_FIELDS = "GET /api/v1/recordings/{name} lists each stream's fields"


class Grid:
    """Lowest, highest, sum and count by entity and bucket; grows as entities come up."""

    def __init__(self, buckets: Buckets) -> None:
        self.buckets = buckets
        self._low = np.empty((0, buckets.count))
        self._high = np.empty((0, buckets.count))
        self._sum = np.empty((0, buckets.count))
        self._count = np.empty((0, buckets.count))

    def add(self, rows: Ints, times: Ints, values: Floats) -> None:
        """Take readings of the entities with these rows in the grid."""
        there = ~np.isnan(values)
        rows, times, values = rows[there], times[there], values[there]
        if not len(rows):
            return
        self._grow(int(rows.max()) + 1)
        flat = rows * self.buckets.count + self.buckets.of(times)
        np.minimum.at(self._low.reshape(-1), flat, values)
        np.maximum.at(self._high.reshape(-1), flat, values)
        size = self._sum.size
        self._sum += np.bincount(flat, values, size).reshape(self._sum.shape)
        self._count += np.bincount(flat, minlength=size).reshape(self._count.shape)

    def _grow(self, rows: int) -> None:
        more = rows - len(self._low)
        if more > 0:
            shape = (more, self.buckets.count)
            self._low = np.concatenate([self._low, np.full(shape, np.inf)])
            self._high = np.concatenate([self._high, np.full(shape, -np.inf)])
            self._sum = np.concatenate([self._sum, np.zeros(shape)])
            self._count = np.concatenate([self._count, np.zeros(shape)])

    def row(self, number: int) -> tuple[Floats, Floats, Floats]:
        """Return an entity's lowest, highest and mean value by bucket, NaN without any."""
        self._grow(number + 1)
        empty = self._count[number] == 0
        low, high = (np.where(empty, np.nan, values[number]) for values in (self._low, self._high))
        return low, high, self.means()[number]

    def means(self) -> Floats:
        """Return the mean by entity and bucket, NaN without any reading."""
        with np.errstate(invalid="ignore"):
            return np.where(self._count > 0, self._sum / np.maximum(self._count, 1), np.nan)


class Rates:
    """Readings of counters become increases per second; a step down is a reset, of which nothing is known."""

    def __init__(self) -> None:
        self._times = np.empty(0, dtype=np.int64)
        self._values = np.empty(0)

    def of(self, chunk: Chunk) -> Chunk:
        """Return the rates, each at the later of the two readings it is made of."""
        there = ~np.isnan(chunk.values)
        order = np.argsort(chunk.entities[there], kind="stable")
        times, entities = chunk.times[there][order], chunk.entities[there][order]
        values = chunk.values[there][order]
        if not len(entities):
            return Chunk(times, entities, values)
        more = int(entities[-1]) + 1 - len(self._times)
        if more > 0:
            self._times = np.concatenate([self._times, np.zeros(more, dtype=np.int64)])
            self._values = np.concatenate([self._values, np.full(more, np.nan)])
        first = np.flatnonzero(np.diff(entities, prepend=-1))
        last = np.append(first[1:], len(entities)) - 1
        before_times, before_values = np.roll(times, 1), np.roll(values, 1)
        before_times[first], before_values[first] = self._times[entities[first]], self._values[entities[first]]
        self._times[entities[last]], self._values[entities[last]] = times[last], values[last]
        gone, risen = (times - before_times) / 1000, values - before_values
        with np.errstate(invalid="ignore", divide="ignore"):
            rates = np.where((gone > 0) & (risen >= 0), risen / gone, np.nan)
        return Chunk(times, entities, rates)


def plain(values: Floats) -> Values:
    """Return values as JSON can say them: seven digits, null for none."""
    return [None if value != value else float(f"{value:.7g}") for value in values.tolist()]  # noqa: PLR0124 - NaN
