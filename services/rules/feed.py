"""A recording as frames for the evaluator: the very series that a sink would have written, in order of event time.

The sink's own state of a stream names the series, makes `up`, and ends what fell silent with staleness markers; what
the rules do not read, or not yet, is not even taken from the disk.
"""

import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import chain
from typing import Any

import numpy as np
import pyarrow as pa
from kafka import TopicPartition

from services.kit.replays import ReplayState
from services.kit.series import Stream as StreamTable
from services.kit.series import table
from services.kit.wire import Origin
from services.recording.reader import Recording, times_of
from services.recording.schema import STREAMS
from services.recording.stream_file import open_stream
from services.sink.encode import Samples
from services.sink.pages import Catalogue
from services.sink.scrapes import UNKNOWN_INTERVAL_MS
from services.sink.units import Stream

WINDOW_MS = 300_000
"""Event time fed at once. The evaluator's head takes samples up to an hour behind its newest, so no stream may run
further ahead of the others than that."""
_SETTLES_MS = 2 * UNKNOWN_INTERVAL_MS
"""So long before and after a stretch of time rows are fed so that in it `up` and the ends of series are what they are
in the whole."""
_EVER = -(1 << 62)
_ROWS = 65_536
_LIVE = "live"


@dataclass(frozen=True)
class Reads:
    """Which metrics rules read, by name or pattern, each from a time on (ms); or all. None after `end`."""

    names: Mapping[str, int]
    patterns: Mapping[str, int]
    all: bool
    end: int

    @classmethod
    def of(cls, found: Mapping[str, Any]) -> "Reads":
        """Read what the evaluator says of rule files."""
        return cls(found["names"], found["patterns"], bool(found["all"]), found["end"])

    def since(self, metrics: Iterable[str]) -> int | None:
        """Return from when on rules read one of some metrics; None where they never do."""
        if self.all:
            return _EVER
        found = [self.names[metric] for metric in metrics if metric in self.names]
        found += [since for pattern, since in self.patterns.items() if any(_matches(pattern, one) for one in metrics)]
        return min(found, default=None)


def _matches(pattern: str, metric: str) -> bool:
    try:
        return re.fullmatch(pattern, metric) is not None
    except re.error:
        return True  # a pattern of RE2's that Python does not know: rather one series too many


def frames(recording: Recording, reads: Reads, *, replay: str = _LIVE) -> Iterator[tuple[int, bytes]]:
    """Yield (event time, bytes) window by window: new series, their samples, and up to when all have been sent."""
    catalogue = Catalogue("v2")
    feeds = [
        _Feed(recording, stream, columns, catalogue, replay)
        for stream in recording.streams()
        if (columns := _columns(recording, stream, reads))
    ]
    start = min((feed.start for feed in feeds), default=recording.manifest.start)
    # Series are ended where feeding ends: behind all that is evaluated.
    end = min(recording.manifest.end, reads.end + _SETTLES_MS)
    declared = 0
    for begin in range(start, end + 1, WINDOW_MS):
        until = min(begin + WINDOW_MS, end + 1)
        last = until > end
        blocks = [block for feed in feeds for block in feed.take(until, last=last)]
        parts = [
            _frame(b"L", json.dumps([dict(catalogue.labels(n)) for n in range(declared, catalogue.size)]).encode())
        ]
        declared = catalogue.size
        parts += [_samples(block) for block in blocks]
        sent = end if last else min([until - 1, *(feed.settled(until) for feed in feeds)])
        parts.append(_frame(b"W", struct.pack("<q", sent)))
        if last:
            parts.append(_frame(b"E", b""))
        yield until - 1, b"".join(parts)


def _columns(recording: Recording, stream: str, reads: Reads) -> dict[int, tuple[str, ...]]:
    """Return the columns of a stream that are fed from some times on (ms), in order; none where rules read nothing."""
    rules = table().streams[stream]
    with open_stream(recording.path / STREAMS[stream].file) as file:
        schema = file.schema_arrow
    wanted: dict[str, int] = {}
    for name, kind in zip(schema.names, schema.types, strict=True):
        number = pa.types.is_integer(kind) or pa.types.is_floating(kind)
        key = name == "timestamp" or name in STREAMS[stream].key_names or name in rules.entity
        since = None if not number or key else reads.since(_metrics(rules, name))
        if since is not None:
            wanted[name] = since
    begin = recording.manifest.start

    def window(since: int) -> int:
        return max(begin, begin + (since - _SETTLES_MS - begin) // WINDOW_MS * WINDOW_MS)

    up = reads.since({"up"}) if rules.target else None  # which needs no column
    starts = {window(since) for since in (*wanted.values(), *([] if up is None else [up]))}
    entity = [name for name in rules.entity if name in schema.names and name not in STREAMS[stream].key_names]
    return {
        start: (*(name for name, since in wanted.items() if window(since) <= start), *entity)
        for start in sorted(starts)
    }


def _metrics(rules: StreamTable, column: str) -> set[str]:
    by_unit = {metrics[column] for metrics in rules.by_unit.values() if column in metrics}
    return {rules.column(column)[0].metric, *by_unit}


class _Feed:
    """One stream: its rows, cut into windows; the `columns` that are fed from each of some times on."""

    def __init__(
        self, recording: Recording, name: str, columns: Mapping[int, tuple[str, ...]], catalogue: Catalogue, replay: str
    ) -> None:
        self.start = next(iter(columns))
        manifest = recording.manifest
        origin = Origin(manifest.cluster.name, replay)
        entry = manifest.streams[name]
        self._interval_ms = round(entry.interval_s * 1000) if entry.interval_s else 1
        state = ReplayState(
            cluster=origin.cluster,
            replay=replay,
            generation=origin.generation,
            shift_ms=0,
            target=origin.target,
            recording=str(recording.path),
            from_ms=self.start,
            to_ms=manifest.end,
            warm_from_ms=self.start,
            speed=0,
            state="running",
            streams=recording.streams(),
            intervals_s={name: entry.interval_s} if entry.interval_s else {},
        )
        topology = recording.topology.model_dump(mode="json", exclude_unset=True)
        self._stream = Stream(name, origin, topology, catalogue, TopicPartition(name, 0))
        self._stream.begin(origin, state, 0)
        spans = zip(columns.items(), [*list(columns)[1:], None], strict=True)
        self._batches = chain.from_iterable(
            recording.batches(name, start, end, max_rows=_ROWS, columns=some) for (start, some), end in spans
        )
        self._rest: pa.RecordBatch | None = next(self._batches, None)
        self._windows = 0

    def take(self, until: int, *, last: bool) -> list[Samples]:
        """Return the samples of all rows before `until` (ms) that were not returned before, and what they settle."""
        self._windows += 1
        outcome = self._stream.take(None, [])
        for batch in self._before(until):
            outcome.merge(self._stream.take(self._stream.reader.decoded(batch), []))
        outcome.merge(self._stream.take(None, [(until - 1, self._windows)]))
        if last:
            outcome.merge(self._stream.end(until - 1))
        return outcome.in_order() if outcome.blocks else []

    def settled(self, until: int) -> int:
        """Return up to when nothing more is made up for rows before `until`: a scrape is judged when it is over."""
        return until // self._interval_ms * self._interval_ms - 1

    def _before(self, until: int) -> Iterator[pa.RecordBatch]:
        while self._rest is not None:
            cut = int(np.searchsorted(times_of(self._rest), until))
            if cut:
                yield self._rest.slice(0, cut)
            if cut < self._rest.num_rows:
                self._rest = self._rest.slice(cut)
                return
            self._rest = next(self._batches, None)


def _samples(block: Samples) -> bytes:
    count, width = block.values.shape
    body = b"".join(
        (
            struct.pack("<II", count, width),
            np.ascontiguousarray(block.series, "<u4").tobytes(),
            np.ascontiguousarray(block.times, "<i8").tobytes(),
            # Copied as bits: a staleness marker is one NaN among many.
            np.ascontiguousarray(block.values, "<f8").tobytes(),
        )
    )
    return _frame(b"S", body)


def _frame(kind: bytes, payload: bytes) -> bytes:
    return kind + struct.pack("<I", len(payload)) + payload
