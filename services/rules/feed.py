"""A recording as frames for the evaluator: the very series that a sink would have written, in order of event time.

The sink's own state of a stream names the series, makes `up`, and ends what fell silent with staleness markers; what
the rules do not read, or not yet, is not even taken from the disk.
"""

import json
import re
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import Any, NamedTuple

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
from services.sink.rows import Mask, Rows, together
from services.sink.scrapes import UNKNOWN_INTERVAL_MS
from services.sink.units import Stream

WINDOW_MS = 300_000
"""Event time fed at once. The evaluator's head takes samples up to an hour behind its newest, so no stream may run
further ahead of the others than that."""
_EVER = -(1 << 62)
_ROWS = 65_536
_LIVE = "live"

Places = Mapping[str, Sequence[str]]
"""What alerts are asked about: names of a node, a switch or a mount, and of jobs (`job_id`)."""


@dataclass(frozen=True)
class Metrics:
    """Some metrics, by name or pattern, each from a time on (ms); or all."""

    names: Mapping[str, int]
    patterns: Mapping[str, int]
    all: bool

    def since(self, metrics: Iterable[str]) -> int | None:
        """Return from when on one of some metrics is among them; None where none ever is."""
        if self.all:
            return _EVER
        found = [self.names[metric] for metric in metrics if metric in self.names]
        found += [since for pattern, since in self.patterns.items() if any(_matches(pattern, one) for one in metrics)]
        return min(found, default=None)


@dataclass(frozen=True)
class Reads(Metrics):
    """Which metrics rules read of all series, and, as `local`, of those about `places` alone. None after `end`."""

    end: int
    local: Metrics
    places: Places

    @classmethod
    def of(cls, found: Mapping[str, Any], places: Places) -> "Reads":
        """Read what the evaluator says of rule files."""
        whole, local = ((one["names"], one["patterns"], bool(one["all"])) for one in (found, found["places"]))
        return cls(*whole, found["end"], Metrics(*local), places)


def _matches(pattern: str, metric: str) -> bool:
    try:
        return re.fullmatch(pattern, metric) is not None
    except re.error:
        return True  # a pattern of RE2's that Python does not know: rather one series too many


def frames(recording: Recording, reads: Reads, *, replay: str = _LIVE) -> Iterator[tuple[int, bytes]]:
    """Yield (event time, bytes) window by window: new series, their samples, and up to when all have been sent."""
    catalogue = Catalogue("v2")
    feeds = [
        _Feed(recording, stream, columns, reads, catalogue, replay)
        for stream in recording.streams()
        if (columns := _columns(recording, stream, reads))
    ]
    start = min((feed.start for feed in feeds), default=recording.manifest.start)
    # Series are ended where feeding ends: behind all that is evaluated.
    end = max((feed.end for feed in feeds), default=min(recording.manifest.end, reads.end))
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


class _Columns(NamedTuple):
    """Which of a stream's columns are fed, in order: of all rows, and of those about the places alone."""

    whole: tuple[str, ...]
    local: tuple[str, ...]


def _columns(recording: Recording, stream: str, reads: Reads) -> dict[int, _Columns]:
    """Return the columns of a stream that are fed from some times on (ms), in order; none where rules read nothing."""
    rules = table().streams[stream]
    with open_stream(recording.path / STREAMS[stream].file) as file:
        schema = file.schema_arrow
    keys = {"timestamp", *STREAMS[stream].key_names, *rules.entity}
    numbers = [
        name
        for name, kind in zip(schema.names, schema.types, strict=True)
        if name not in keys and (pa.types.is_integer(kind) or pa.types.is_floating(kind))
    ]
    begin, settles_ms = recording.manifest.start, _settles_ms(recording, stream)

    def window(since: int) -> int:
        return max(begin, begin + (since - settles_ms - begin) // WINDOW_MS * WINDOW_MS)

    def wanted(metrics: Metrics) -> dict[str, int]:
        found = {name: metrics.since(_metrics(rules, name)) for name in numbers}
        return {name: window(since) for name, since in found.items() if since is not None}

    whole = wanted(reads)
    local = wanted(reads.local) if reads.places.keys() & set(rules.entity) else {}
    ups = (reads.since({"up"}), reads.local.since({"up"})) if rules.target else ()  # which need no column
    names = [name for name in rules.entity if name in schema.names and name not in STREAMS[stream].key_names]
    starts = {*whole.values(), *local.values(), *(window(since) for since in ups if since is not None)}
    return {
        start: _Columns(
            (*(name for name in whole if whole[name] <= start), *names),
            tuple(name for name in local if local[name] <= start < whole.get(name, start + 1)),
        )
        for start in sorted(starts)
    }


def _settles_ms(recording: Recording, stream: str) -> int:
    """Return how long before and after a stretch of time rows are fed so that in it `up`, and the ends of series, are
    what they are in the whole: they follow from what reported in a scrape and in the one before it.
    """
    interval_s = recording.manifest.streams[stream].interval_s
    return 2 * (round(interval_s * 1000) if interval_s and table().streams[stream].target else UNKNOWN_INTERVAL_MS)


def _metrics(rules: StreamTable, column: str) -> set[str]:
    by_unit = {metrics[column] for metrics in rules.by_unit.values() if column in metrics}
    return {rules.column(column)[0].metric, *by_unit}


class _Feed:
    """One stream: its rows, cut into windows; the `columns` that are fed from each of some times on."""

    def __init__(
        self,
        recording: Recording,
        name: str,
        columns: Mapping[int, _Columns],
        reads: Reads,
        catalogue: Catalogue,
        replay: str,
    ) -> None:
        manifest = recording.manifest
        self.start, self.end = next(iter(columns)), min(manifest.end, reads.end + _settles_ms(recording, name))
        self._asked = [frozenset(reads.places.get(key, ())) for key in table().streams[name].entity]
        self._local: Mask = np.zeros(0, np.bool_)
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
        spans = zip(columns.items(), [*list(columns)[1:], self.end + 1], strict=True)
        self._batches = chain.from_iterable(
            ((batch, some) for batch in recording.batches(name, start, end, max_rows=_ROWS, columns=sum(some, ())))
            for (start, some), end in spans
        )
        self._rest = next(self._batches, None)
        self._windows = 0

    def take(self, until: int, *, last: bool) -> list[Samples]:
        """Return the samples of all rows before `until` (ms) that were not returned before, and what they settle."""
        self._windows += 1
        outcome = self._stream.take(None, [])
        # Those of a window at once, so that each series is in one block.
        parts = [self._decoded(*one) for one in self._before(until)]
        if parts:
            outcome.merge(self._stream.take(together([whole for whole, _ in parts]), []))
        if here := [local for _, local in parts if local is not None]:
            outcome.merge(self._stream.beside(together(here)))
        outcome.merge(self._stream.take(None, [(until - 1, self._windows)]))
        if last:
            outcome.merge(self._stream.end(until - 1))
        return outcome.in_order() if outcome.blocks else []

    def settled(self, until: int) -> int:
        """Return up to when nothing more is made up for rows before `until`: a scrape is judged when it is over."""
        return until // self._interval_ms * self._interval_ms - 1

    def _before(self, until: int) -> Iterator[tuple[pa.RecordBatch, _Columns]]:
        while self._rest is not None:
            batch, columns = self._rest
            cut = int(np.searchsorted(times_of(batch), until))
            if cut:
                yield batch.slice(0, cut), columns
            if cut < batch.num_rows:
                self._rest = batch.slice(cut), columns
                return
            self._rest = next(self._batches, None)

    def _decoded(self, batch: pa.RecordBatch, columns: _Columns) -> tuple[Rows, Rows | None]:
        """Return all rows, and those about the places with the columns of which only these are fed."""
        reader, entities = self._stream.reader, self._stream.entities
        whole = reader.decoded(batch.drop_columns(list(columns.local)))
        new = entities.keys[len(self._local) :]
        asked = [any(part in names for part, names in zip(key, self._asked, strict=True)) for key in new]
        self._local = np.concatenate([self._local, np.array(asked, np.bool_)])
        here = self._local[whole.entities] if columns.local else np.zeros(0, np.bool_)
        if not here.any():
            return whole, None
        others = [name for name in columns.whole if name not in entities.columns]
        return whole, reader.decoded(batch.filter(pa.array(here)).drop_columns(others))


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
