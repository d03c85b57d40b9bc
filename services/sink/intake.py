"""Records of one partition to samples, unit by unit and stretch by stretch."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

from kafka import TopicPartition

from services.kit import topics
from services.kit.columns import batch_of
from services.kit.deadletter import DeadLetter
from services.kit.errors import UserError
from services.kit.kafka import Record
from services.kit.replay_directory import ReplayDirectory
from services.kit.series import table
from services.kit.wait import until
from services.kit.wire import ARROW, WATERMARK, Origin, Watermark, WireError, origin_of, payload_of
from services.sink import metrics
from services.sink.pages import Catalogue
from services.sink.rows import Rows, together
from services.sink.settings import SinkSettings
from services.sink.units import Outcome, Stream, Unit

ORIGINS = 4096
"""Headers remembered with what they say."""

Headers = tuple[tuple[str, bytes], ...]


def telemetry_topics() -> dict[str, str]:
    """Return stream by topic, for the topics that carry samples."""
    return {topic: stream for topic, stream in topics.declared().streams().items() if stream in table().streams}


def topics_read() -> list[str]:
    """Return every topic that a sink reads."""
    return [*telemetry_topics(), topics.FINDINGS]


@dataclass(slots=True)
class _Stretch:
    """Consecutive records of one stream that are worked on together."""

    unit: Unit
    stream: Stream
    arrow: list[Record] = field(default_factory=list)
    other: list[Record] = field(default_factory=list)
    watermarks: list[tuple[int, int]] = field(default_factory=list)


class Intake:
    """The units that are being written, and the way of their records into them."""

    def __init__(self, settings: SinkSettings, directory: ReplayDirectory, dead: DeadLetter) -> None:
        self._settings = settings
        self._directory = directory
        self._dead = dead
        self._topics = telemetry_topics()
        self.units: dict[str, Unit] = {}
        self._heads: dict[Headers, tuple[Origin, bytes | None] | WireError] = {}
        self.last: dict[str, Record] = {}
        """The last record of each unit: what a refused sample is reported with."""

    def take(self, place: TopicPartition, records: Sequence[Record]) -> list[tuple[Unit, Outcome]]:
        """Return what one partition's records give; what can't be decoded goes to dead-letter."""
        outcomes: list[tuple[Unit, Outcome]] = []
        stretches: dict[str, _Stretch] = {}
        skipped = 0
        for record in records:
            head = self._head(record)
            if isinstance(head, WireError):
                if place.topic != topics.FINDINGS:
                    self._dead.send(record, str(head))
                continue
            origin, content = head
            if origin.target != self._settings.target:
                skipped += 1
                continue
            if place.topic == topics.FINDINGS:
                outcomes.extend(self._found(origin, record))
                continue
            stretch = stretches.get(origin.unit)
            if stretch is None or not stretch.stream.continues(origin):
                if stretch is not None:
                    outcomes.append(self._finish(stretches.pop(origin.unit)))
                unit = self._unit(origin)
                stretch = _Stretch(unit, unit.stream(self._topics[place.topic], origin, place))
                if not stretch.stream.continues(origin):
                    outcomes.append((unit, stretch.stream.end()))
                    stretch.stream.begin(origin, self._directory.states.get(origin.unit), record.offset)
                stretches[origin.unit] = stretch
            if content == ARROW and record.value:
                stretch.arrow.append(record)
            elif content != WATERMARK:
                stretch.other.append(record)
            elif (watermark := self._watermark(record)) is not None:
                stretch.watermarks.append((watermark.at_ms, record.offset))
                if watermark.end:
                    outcomes.append(self._finish(stretches.pop(origin.unit)))
                    outcomes.append((stretch.unit, stretch.stream.end(watermark.at_ms)))
        outcomes.extend(self._finish(stretch) for stretch in stretches.values())
        metrics.RECORDS.labels(self._settings.server).inc(len(records) - skipped)
        metrics.SKIPPED.labels(self._settings.server).inc(skipped)
        return outcomes

    def safe_offset(self, place: TopicPartition, reached: int) -> int:
        """Return the offset of `place` before which nothing is needed any more."""
        holds = [s.hold for unit in self.units.values() for s in unit.streams.values() if s.place == place]
        return min([reached, *(hold for hold in holds if hold is not None)])

    def forget_ended(self) -> None:
        """Drop the units of which every stream has ended."""
        for name in [name for name, unit in self.units.items() if all(s.ended for s in unit.streams.values())]:
            del self.units[name]

    def forget(self, places: Iterable[TopicPartition]) -> None:
        """Drop all streams of partitions that another sink has now."""
        gone = set(places)
        for unit in self.units.values():
            for topic in [topic for topic, stream in unit.streams.items() if stream.place in gone]:
                del unit.streams[topic]
        self.forget_ended()

    def _head(self, record: Record) -> tuple[Origin, bytes | None] | WireError:
        key = tuple(record.headers)
        head = self._heads.get(key)
        if head is None:
            try:
                head = origin_of(key), dict(key).get("content-type")
            except WireError as error:
                head = error
            if len(self._heads) >= ORIGINS:
                # Watermarks: no two have the same headers.
                self._heads.clear()
            self._heads[key] = head
        return head

    def _unit(self, origin: Origin) -> Unit:
        unit = self.units.get(origin.unit)
        state = self._directory.states.get(origin.unit)
        if unit is None or state is None or state.generation < origin.generation:
            self._find(origin)
        if unit is None:
            topology = self._directory.topologies.get(origin.unit, {})
            unit = self.units[origin.unit] = Unit(origin, topology, Catalogue(self._settings.protocol))
        return unit

    def _find(self, origin: Origin) -> None:
        """Read on in the `replays` topic until it names this generation; without that, go on after a while."""

        def announced() -> bool:
            state = self._directory.states.get(origin.unit)
            if state is not None and state.generation >= origin.generation:
                return True
            self._directory.follow()
            state = self._directory.states.get(origin.unit)
            return state is not None and state.generation >= origin.generation

        try:
            until(announced, timeout_s=self._settings.topology_wait_s, what=f"the state of {origin.unit}")
        except UserError:
            metrics.UNANNOUNCED.labels(self._settings.server).inc()

    def _found(self, origin: Origin, record: Record) -> list[tuple[Unit, Outcome]]:
        """Return the samples of a finding; none of one that can't be read, which notify sends to dead-letter."""
        unit = self._unit(origin)
        self.last[unit.name] = record
        try:
            return [(unit, unit.found(record))]
        except WireError:
            return []

    def _watermark(self, record: Record) -> Watermark | None:
        try:
            payload = payload_of(record)
        except WireError as error:
            self._dead.send(record, str(error))
            return None
        return payload if isinstance(payload, Watermark) else None

    def _finish(self, stretch: _Stretch) -> tuple[Unit, Outcome]:
        """Decode a stretch's records and return what they and its watermarks give."""
        reader = stretch.stream.reader
        parts, unknown = reader.known([record.value or b"" for record in stretch.arrow])
        learnt: list[Record] = []
        for record in [stretch.arrow[i] for i in unknown]:
            # The first message of a layout teaches it, those behind it are read with the others.
            if reader.knows(record.value or b""):
                learnt.append(record)
            else:
                parts.extend(self._decoded(stretch, record))
        more, unreadable = reader.known([record.value or b"" for record in learnt])
        parts.extend(more)
        for record in [*(learnt[i] for i in unreadable), *stretch.other]:
            parts.extend(self._decoded(stretch, record))
        records = stretch.arrow or stretch.other
        if records:
            self.last[stretch.unit.name] = records[-1]
        return stretch.unit, stretch.stream.take(together(parts) if parts else None, stretch.watermarks)

    def _decoded(self, stretch: _Stretch, record: Record) -> list[Rows]:
        """Return the rows of one record; none if it can't be decoded, and then it goes to dead-letter."""
        reader = stretch.stream.reader
        try:
            payload = payload_of(record)
            if isinstance(payload, list):
                return [reader.decoded(batch_of(self._topics[record.topic], payload))]  # type: ignore[arg-type] # one of KINDS
            if isinstance(payload, Watermark):
                raise WireError("a watermark that carries rows")  # noqa: TRY301 - answered like all that is wrong here
            return [reader.decoded(payload, record.value)]
        except WireError as error:
            self._dead.send(record, str(error))
            return []
