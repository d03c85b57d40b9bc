"""The state of the replays that are being written: per unit its series, per stream its rows, watermarks and scrapes."""

import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np
from kafka import TopicPartition

from services.kit.findings import finding_record_of
from services.kit.kafka import Record
from services.kit.replays import ReplayState, Topology
from services.kit.series import table
from services.kit.wire import Origin
from services.sink.encode import STALE, Samples
from services.sink.findings import FindingWriter
from services.sink.naming import Naming
from services.sink.pages import Catalogue, Ints
from services.sink.rows import Entities, Reader, Rows
from services.sink.scrapes import Scrapes, Verdict
from services.sink.series import SeriesTable, grouped, in_order

IDLE_S = 600.0
"""A replay paused for longer no longer keeps offsets from being committed."""


@dataclass(slots=True)
class Outcome:
    """What a stretch of a stream gives: samples of its rows, and of what was made up for them."""

    blocks: list[Samples] = field(default_factory=list)
    rows: int = 0
    made: int = 0

    def add(self, blocks: Iterable[Samples]) -> None:
        """Add samples that no row holds."""
        for block in blocks:
            if len(block.series):
                self.blocks.append(block)
                self.made += block.count

    def merge(self, other: "Outcome") -> None:
        """Add another stretch's."""
        self.blocks += other.blocks
        self.rows += other.rows
        self.made += other.made

    def in_order(self) -> list[Samples]:
        """Return all blocks, each series in one of them."""
        return in_order(self.blocks) if len(self.blocks) > 1 else self.blocks


class Stream:
    """One stream (topic) of one unit, in one partition."""

    def __init__(
        self, name: str, origin: Origin, topology: Topology, catalogue: Catalogue, place: TopicPartition
    ) -> None:
        self.place = place
        self.origin = origin
        self._name = name
        self._catalogue = catalogue
        self._naming = Naming(table().streams[name], origin.cluster, origin.replay, topology)
        self.entities = Entities(self._naming.stream.entity)
        self.reader = Reader(self.entities)
        self._table = SeriesTable(self._naming, self.entities, catalogue)
        self._up: dict[str, int] = {}
        self._scrapes: Scrapes | None = None
        self._last_ms = 0
        self._heard = False
        self._used_s = time.monotonic()

    @property
    def hold(self) -> int | None:
        """Return the offset from which all must be read again after a crash; None if nothing is pending."""
        if self._scrapes is None or not self._heard or time.monotonic() - self._used_s > IDLE_S:
            return None
        return self._scrapes.hold

    @property
    def ended(self) -> bool:
        """Return whether its last generation has ended."""
        return self._scrapes is None

    def begin(self, origin: Origin, state: ReplayState | None, offset: int) -> None:
        """Begin or go on with a generation; `offset` is where its first record lies."""
        known = state if state is not None and state.generation == origin.generation else None
        interval_s = known.intervals_s.get(self._name) if known else None
        self.origin = origin
        self._used_s = time.monotonic()
        self._scrapes = Scrapes(
            self._naming,
            self.entities,
            interval_ms=round(interval_s * 1000) if interval_s else None,
            begin_ms=known.warm_from_ms if known else None,
            offset=offset,
        )

    def continues(self, origin: Origin) -> bool:
        """Return whether `origin` is that of the generation under way."""
        live = self._scrapes is not None and time.monotonic() - self._used_s <= IDLE_S
        return live and origin == self.origin

    def take(self, rows: Rows | None, watermarks: Iterable[tuple[int, int]]) -> Outcome:
        """Return the samples of rows, and of what the watermarks (ms, offset) that came with them settle."""
        outcome = Outcome()
        watermarks = list(watermarks)
        self._used_s = time.monotonic()
        if self._scrapes is None:
            return outcome
        # Nothing but dead letters keeps no offset from being committed.
        self._heard = self._heard or rows is not None or bool(watermarks)
        # A watermark that came before any row says from where on all rows are seen.
        if rows is not None and len(rows.times):
            self._last_ms = max(self._last_ms, int(rows.times.max()))
            self._scrapes.rows(rows.times, rows.entities)
            outcome.merge(self.beside(rows))
        for at_ms, offset in watermarks:
            self._scrapes.watermark(at_ms, offset)
        for verdict in self._scrapes.settle():
            outcome.add(self._judged(verdict))
        return outcome

    def beside(self, rows: Rows) -> Outcome:
        """Return the samples of rows of which note was taken, or of further columns of such."""
        blocks = [block for block in self._table.take(self._landed(rows), parts=self.origin.parts) if len(block.series)]
        count = rows.values.size if rows.valid is None else int(rows.valid.sum())
        return Outcome(blocks, count, sum(block.count for block in blocks) - count)

    def end(self, at_ms: int | None = None) -> Outcome:
        """Return the staleness markers of everything that reported last; `at_ms` None: the last row's time."""
        outcome = Outcome()
        if self._scrapes is None:
            return outcome
        at_ms = self._last_ms if at_ms is None else max(at_ms, self._last_ms)
        verdicts, alive = self._scrapes.end(at_ms)
        for verdict in verdicts:
            outcome.add(self._judged(verdict))
        over = at_ms + 1 + self.origin.shift_ms
        outcome.add(self._table.ended(alive, np.full(len(alive), over)))
        ups = np.array(list(self._up.values()), np.int64)
        outcome.add([Samples(ups, np.full((len(ups), 1), over), np.full((len(ups), 1), STALE))])
        self._scrapes = None
        return outcome

    def _landed(self, rows: Rows) -> Rows:
        """Return the rows by entity and time, at the times at which they shall land."""
        order = np.lexsort((rows.times, rows.entities))
        return Rows(
            rows.times[order] + self.origin.shift_ms,
            rows.entities[order],
            rows.columns,
            rows.values[order],
            None if rows.valid is None else rows.valid[order],
        )

    def _judged(self, verdict: Verdict) -> Iterator[Samples]:
        shift = self.origin.shift_ms
        if len(verdict.targets):
            series = self._ups()[verdict.targets]
            yield from grouped(series, verdict.up_times + shift, verdict.up.astype(np.float64))
        yield from self._table.ended(verdict.ended, verdict.ended_times + shift)

    def _ups(self) -> Ints:
        targets = self._scrapes.targets if self._scrapes else []
        for target in targets:
            if target not in self._up:
                self._up[target] = self._catalogue.add(self._naming.of_target(target))
        return np.array([self._up[target] for target in targets], np.int64)


class Unit:
    """One (cluster, replay): its series, and its streams by topic."""

    def __init__(self, origin: Origin, topology: Topology, catalogue: Catalogue) -> None:
        self.name = origin.unit
        self.replay = origin.replay
        self.catalogue = catalogue
        self.streams: dict[str, Stream] = {}
        self._topology = topology
        self._findings = FindingWriter(table().findings, catalogue)

    def found(self, record: Record) -> Outcome:
        """Return the samples of a record of the findings topic. Raises WireError with the reason if it is none."""
        outcome = Outcome()
        outcome.add(self._findings.samples(finding_record_of(record)))
        return outcome

    def stream(self, name: str, origin: Origin, place: TopicPartition) -> Stream:
        """Return the stream `name` of this unit, which lies in `place`."""
        if place.topic not in self.streams:
            self.streams[place.topic] = Stream(name, origin, self._topology, self.catalogue, place)
        return self.streams[place.topic]
