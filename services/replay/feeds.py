"""The streams of a recording as feeds: each hands out, in order and once, what is due up to an event time."""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import numpy as np
import pyarrow as pa

from detectors.fleet.fleet import KEYS
from services.kit.errors import UserError
from services.kit.wire import ARROW, NDJSON, encode_batch
from services.recording.reader import Recording, times_of
from services.recording.schema import STREAMS
from services.replay.compact import compact, samples_in
from services.replay.lines import Line, job_lines, log_lines

MESSAGE_ROWS = 8192
MESSAGE_BYTES = 1024 * 1024
READ_ROWS = 32_768


@dataclass(frozen=True, slots=True)
class Parcel:
    """The value of one Kafka message, and what is in it."""

    value: bytes
    content_type: bytes
    rows: int
    samples: int


class Feed(Protocol):
    """One stream of one generation, from its first row on."""

    stream: str

    def next_ms(self) -> int | None:
        """Return the event time of the next row; None when there is none."""

    def take(self, upto_ms: int) -> Iterator[Parcel]:
        """Yield all rows with a time up to `upto_ms` that were not yielded before, in order."""


class ColumnFeed:
    """A telemetry stream: slices of its record batches. Raises UserError where its rows are not sorted by time."""

    def __init__(self, stream: str, batches: Iterator[pa.RecordBatch]) -> None:
        self.stream = stream
        # What names an entity is no reading; a training step's iteration, a key of the format, is one.
        self._keys = ("timestamp", *KEYS[stream])
        self._batches = batches
        self._batch: pa.RecordBatch | None = None
        self._times = np.empty(0, np.int64)
        self._row = 0
        self._last_ms: int | None = None

    def next_ms(self) -> int | None:
        """Return the event time of the next row; None when there is none."""
        return int(self._times[self._row]) if self._loaded() is not None else None

    def take(self, upto_ms: int) -> Iterator[Parcel]:
        """Yield the rows up to `upto_ms` as Arrow messages of bounded size."""
        while (batch := self._loaded()) is not None:
            stop = int(np.searchsorted(self._times, upto_ms, side="right"))
            if stop <= self._row:
                return
            row_bytes = max(1, batch.nbytes // batch.num_rows)
            limit = max(1, min(MESSAGE_ROWS, MESSAGE_BYTES // row_bytes))
            due = stop - self._row
            even = math.ceil(due / math.ceil(due / limit))  # no small rest behind full messages
            while self._row < stop:
                piece = compact(batch.slice(self._row, min(even, stop - self._row)))
                self._row += piece.num_rows
                yield Parcel(encode_batch(piece), ARROW, piece.num_rows, samples_in(piece, self._keys))

    def _loaded(self) -> pa.RecordBatch | None:
        while self._batch is None or self._row >= self._batch.num_rows:
            self._batch = next(self._batches, None)
            self._row = 0
            if self._batch is None:
                self._times = self._times[:0]
                return None
            self._times = times_of(self._batch)
            self._check_order()
        return self._batch

    def _check_order(self) -> None:
        if not len(self._times):
            return
        if (self._last_ms is not None and self._times[0] < self._last_ms) or bool(np.any(np.diff(self._times) < 0)):
            raise UserError(
                f"{STREAMS[self.stream].file}: rows are not sorted by timestamp, so they cannot be replayed in order",
                remedy="run `hindcast validate` to see where, then make or import the recording again",
            )
        self._last_ms = int(self._times[-1])


class LineFeed:
    """Jobs or logs: JSON lines."""

    def __init__(self, stream: str, lines: Iterator[Line]) -> None:
        self.stream = stream
        self._lines = lines
        self._next = next(lines, None)

    def next_ms(self) -> int | None:
        """Return the event time of the next line; None when there is none."""
        return None if self._next is None else self._next[0]

    def take(self, upto_ms: int) -> Iterator[Parcel]:
        """Yield the lines up to `upto_ms` as messages of bounded size."""
        held: list[bytes] = []
        size = 0
        while self._next is not None and self._next[0] <= upto_ms:
            at_ms, line = self._next
            held.append(line)
            size += len(line)
            self._next = next(self._lines, None)
            if self._next is not None and self._next[0] < at_ms:
                raise UserError(
                    f"{self.stream}: lines are not sorted by timestamp, so they cannot be replayed in order",
                    remedy="run `hindcast validate` to see where, then make or import the recording again",
                )
            if size >= MESSAGE_BYTES or len(held) >= MESSAGE_ROWS:
                yield _lines_parcel(held)
                held, size = [], 0
        if held:
            yield _lines_parcel(held)


def _lines_parcel(lines: list[bytes]) -> Parcel:
    return Parcel(b"\n".join(lines), NDJSON, len(lines), 0)


def open_feeds(recording: Recording, warm_from_ms: int, to_ms: int, after_ms: int | None = None) -> list[Feed]:
    """Return the feeds of the window [warm_from_ms, to_ms], jobs and logs always among them.

    With `after_ms` they begin behind that time: what a replay does that goes on after a crash. The jobs that
    run at the window's start are revealed at `warm_from_ms` in either case.
    """
    begin = warm_from_ms if after_ms is None else max(warm_from_ms, after_ms + 1)
    feeds: list[Feed] = [
        ColumnFeed(stream, recording.batches(stream, begin, to_ms + 1, max_rows=READ_ROWS))
        for stream in recording.streams()
    ]
    jobs = job_lines(recording.jobs(), warm_from_ms, to_ms)
    feeds.append(LineFeed("jobs", iter([line for line in jobs if line[0] >= begin])))
    feeds.append(LineFeed("logs", log_lines(recording.events(begin, to_ms + 1))))
    return feeds
