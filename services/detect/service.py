"""The loop: telemetry from Kafka to engines, findings back to Kafka, snapshots to disk.

Order is what makes a crash harmless: findings are acknowledged before the snapshot that has made them is stored, and
the snapshot is stored before the offsets are committed. Snapshots are taken here and written by a thread beside: what
is detected meanwhile belongs to the next ones, and so do its offsets. After a crash records are read again from the
committed offsets; a unit passes over those that its snapshot knows, and writes again, in the same bytes, what it wrote
since.
"""

import logging
import sys
import threading
import time
from collections.abc import Collection, Mapping, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from typing import Any

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.coordinator.assignors.range import RangePartitionAssignor
from kafka.errors import KafkaError
from prometheus_client import Counter, Gauge

from detectors.engine.heard import DAY_MS, Forgetting
from detectors.engine.state import StateError
from services.detect.ahead import held_back
from services.detect.configured import Configured
from services.detect.settings import DetectSettings
from services.detect.store import SnapshotStore, Stored
from services.detect.unit import Plan, Unit
from services.detect.warmup import Line
from services.kit import topics
from services.kit.deadletter import DeadLetter
from services.kit.durable import Keeper
from services.kit.errors import ServerError
from services.kit.kafka import KafkaSettings, Record, consumer, offsets_of, producer, subscribe
from services.kit.replay_directory import ReplayDirectory
from services.kit.wire import Origin, WireError, origin_of

_log = logging.getLogger(__name__)
GROUP = "hindcast-detect"
_POLL_MS = 50
_FOLLOW_S = 1.0
_IDLE_STORE_S = 0.5
_FLUSH_S = 5.0
"""How long Kafka is waited for at a time until it has what was found: less than the group waits for a member."""

EVENT_TIME = Gauge("hindcast_detect_event_time_seconds", "Event time that a unit has come to.", ["unit"])
FINDINGS = Counter("hindcast_detect_findings_total", "Findings sent.", ["unit", "state"])
REVISIONS = Counter("hindcast_detect_incident_revisions_total", "Revisions of incidents sent.", ["unit", "state"])
LATE = Gauge("hindcast_detect_late_rows", "Rows that came when event time had passed them, and were dropped.", ["unit"])
PENDING = Gauge("hindcast_detect_pending_rows", "Rows that wait for the watermark.", ["unit"])
LAG = Gauge("hindcast_detect_lag_records", "Records in Kafka that are not taken yet.", ["topic", "partition"])


@dataclass(frozen=True)
class _Writing:
    """Snapshots of units that are being written, and where to go on in Kafka when they were taken."""

    units: Sequence[Unit]
    read: Mapping[TopicPartition, int]
    kept: Future[bool]


class Detect:
    """All units whose partitions this instance was given. Raises UserError (exit code 3) if Kafka does not answer."""

    def __init__(self, settings: DetectSettings, kafka: KafkaSettings, configured: Configured) -> None:
        self._settings = settings
        self._configured = configured
        self._streams = topics.declared().streams()
        self._topic_of = {stream: topic for topic, stream in self._streams.items()}
        self._store = SnapshotStore(settings.state_dir, topics.ids(kafka, (*self._streams, topics.UNITS)))
        self._keeper = Keeper(settings.state_dir)
        topics.ids(kafka, (topics.FINDINGS, topics.INCIDENTS))  # that they are there, before anything is read
        self._directory = ReplayDirectory(kafka)
        self._producer: KafkaProducer = producer(
            kafka, to=(topics.FINDINGS, topics.INCIDENTS, topics.DEAD_LETTER), linger_ms=0
        )
        self._dead = DeadLetter(self._producer, "detect")
        self._unacknowledged: list[Any] = []
        self._units: dict[str, Unit] = {}
        self._stored_s = self._followed_s = time.monotonic()
        self._writer = ThreadPoolExecutor(1, "snapshots")
        self._writing: _Writing | None = None
        self._read: dict[TopicPartition, int] = {}
        """Where to go on, of the partitions that were read since the last commit."""
        self._consumer: KafkaConsumer = consumer(
            kafka,
            group=GROUP,
            group_instance_id=settings.instance,
            partition_assignment_strategy=(RangePartitionAssignor,),
            session_timeout_ms=10_000,
            # All that was fetched at once. Of a partition that is held back when part of a fetch was handed out,
            # kafka-python 3.0 may hand out nothing more, nor fetch it again, once it is read on.
            max_poll_records=sys.maxsize,
            # A partition that is read on is fetched when the broker has answered the fetch before, of the others: where
            # nothing comes for them, after so long.
            fetch_max_wait_ms=100,
        )
        subscribe(self._consumer, list(self._streams), self)

    def run(self, stop: threading.Event, ready: threading.Event) -> None:
        """Detect until `stop` is set; `ready` is set once Kafka has given this instance its partitions."""
        self._forget_removed()
        while not stop.is_set():
            polled = self._consumer.poll(timeout_ms=_POLL_MS)
            if not ready.is_set() and self._consumer.assignment():
                ready.set()
            self._take(polled)
            self._hold_back()
            if self._writing is not None and self._writing.kept.done():
                self._commit()
            since_s = time.monotonic() - self._stored_s
            due = since_s >= self._settings.snapshot_interval_s or (not polled and since_s >= _IDLE_STORE_S)
            if due and self._writing is None:
                self._store_changed()
            if time.monotonic() - self._followed_s >= _FOLLOW_S:
                self._follow()
        self._commit()
        self._store_changed()
        self._commit()

    def close(self) -> None:
        """Leave the group and close all connections."""
        self._consumer.close()  # its partitions are released, which stores
        self._writer.shutdown()
        self._producer.close()
        self._directory.close()

    def _take(self, polled: dict[TopicPartition, list[Record]]) -> None:
        monotonic_s, wall_ms = time.monotonic(), time.time_ns() // 1_000_000
        for partition, records in polled.items():
            stream = self._streams[partition.topic]
            self._read[partition] = records[-1].offset + 1
            for record in records:
                try:
                    unit = self._unit_of(origin_of(list(record.headers)), record.partition)
                    if unit is not None:
                        unit.take(stream, record, monotonic_s=monotonic_s, wall_ms=wall_ms)
                except WireError as error:
                    self._dead.send(record, str(error))
        held = self._consumer.paused()
        for unit in self._units.values():
            unread = {self._streams[place.topic] for place in held if place.partition == unit.partition}
            lines = unit.process(monotonic_s=monotonic_s, held=unread)
            if lines:
                self._say(unit, lines)

    def _hold_back(self) -> None:
        """Read on only what is waited for while too much waits."""
        held = held_back(self._units.values(), self._topic_of, self._settings.waiting_bytes, self._lag)
        paused, held = self._consumer.paused(), held & self._consumer.assignment()
        self._consumer.resume(*paused - held)
        self._consumer.pause(*held - paused)

    def _lag(self, place: TopicPartition) -> int | None:
        """Return how many records of a partition Kafka has that were not taken; None while that is not known."""
        if place not in self._consumer.assignment():
            return None
        end, at = self._consumer.highwater(place), self._consumer.position(place, timeout_ms=0)
        return None if end is None or at is None else max(end - at, 0)

    def _say(self, unit: Unit, lines: Sequence[Line]) -> None:
        for line in lines:
            key = f"{unit.origin.unit}/{unit.origin.generation}/{line.id}"
            if line.topic == topics.FINDINGS:
                key = f"{key}/{line.state}"
            headers = unit.origin.headers(b"application/json") + [(name, text.encode()) for name, text in line.headers]
            sent = self._producer.send(
                line.topic, value=line.body, key=key.encode(), headers=headers, partition=unit.partition
            )
            self._unacknowledged.append(sent)
            counter = FINDINGS if line.topic == topics.FINDINGS else REVISIONS
            counter.labels(unit.origin.unit, line.state).inc()
            kind = line.topic.removesuffix("s")
            _log.info("%s unit=%s state=%s %s", kind, unit.origin.unit, line.state, line.body.decode())

    def _unit_of(self, origin: Origin, partition: int) -> Unit | None:
        """Return the unit a record is for; None if it is of a generation, or a replay, that is over and done with."""
        known = self._units.get(origin.unit)
        if known is not None and known.origin.generation == origin.generation:
            return known
        if known is not None and known.origin.generation > origin.generation:
            return None
        stored = known.stored() if known is not None else self._load(origin.unit)
        if stored is not None and stored.generation > origin.generation:
            return None
        self._directory.follow()
        state = self._directory.states.get(origin.unit)
        if state is not None and state.state == "removed":
            return None
        unit = self._make(origin, partition, stored)
        self._units[origin.unit] = unit
        return unit

    def _plan(self, name: str) -> Plan:
        state = self._directory.states.get(name)
        choices, incidents = self._configured.of(state)
        forget_ms = round(self._settings.forget_after_days * DAY_MS)
        return Plan(
            choices=choices,
            topology=self._directory.topologies.get(name),
            announced=state,
            streams=tuple(self._streams.values()),
            idle_timeout_s=self._settings.idle_timeout_s,
            lateness_ms=int(self._settings.lateness_s * 1000),
            incidents=incidents,
            forgetting=Forgetting(forget_ms, state.expected if state is not None else None),
        )

    def _make(self, origin: Origin, partition: int, stored: Stored | None) -> Unit:
        plan = self._plan(origin.unit)
        goes_on = stored is not None and stored.generation == origin.generation
        _log.info("%s unit=%s generation=%d", "going on with" if goes_on else "new", origin.unit, origin.generation)
        try:
            return Unit(origin, partition, plan, stored)
        except StateError as error:
            _log.warning("starting afresh unit=%s reason=%s", origin.unit, error)
            return Unit(origin, partition, plan)

    def _load(self, unit: str) -> Stored | None:
        try:
            return self._store.load(unit)
        except StateError as error:
            _log.warning("passing over a snapshot unit=%s reason=%s", unit, error)
            return None

    def _store_changed(self) -> None:
        """Begin to make sure of all that was taken: findings in Kafka, then snapshots on disk, then `_commit`."""
        self._stored_s = time.monotonic()
        self._measure()
        if self._read or any(unit.changed for unit in self._units.values()):
            self._write()

    def _write(self) -> None:
        """Begin to write snapshots; not before Kafka has what was found, or it would never be sent again."""
        if not self._flushed():
            _log.warning("waiting for Kafka, which has not acknowledged what was found")
            return
        units = [unit for unit in self._units.values() if unit.changed]
        taken = [unit.stored() for unit in units]
        for unit in units:
            unit.changed = False
        kept = self._writer.submit(self._keeper.kept, partial(self._save, taken))
        self._writing = _Writing(units, dict(self._read), kept)

    def _save(self, taken: Sequence[Stored]) -> None:
        for stored in taken:
            self._store.save(stored)

    def _written(self) -> _Writing | None:
        """Wait for what is being written and return it; None if nothing is, or if it could not be written."""
        writing, self._writing = self._writing, None
        if writing is None or writing.kept.result():
            return writing
        for unit in writing.units:
            unit.changed = True
        return None

    def _commit(self) -> None:
        """Commit the offsets of what is on disk; where it could not be written, offsets stay where they are too."""
        written = self._written()
        if written is None:
            return
        try:
            self._consumer.commit(offsets_of(written.read))
        except KafkaError as error:
            _log.warning("offsets not committed, trying again error=%s", type(error).__name__)
            return
        self._read = {place: offset for place, offset in self._read.items() if written.read.get(place) != offset}
        # One that has come to its end needs no memory; should more of it come, it is loaded again.
        for name in [name for name, unit in self._units.items() if unit.engine.ended and not unit.changed]:
            del self._units[name]

    def _flushed(self) -> bool:
        """Return whether Kafka has all that was found; wait a while for that.

        Raises UserError (exit code 3) where it refused any of it for good: it is found again from the last snapshot.
        """
        with suppress(KafkaError):  # each future has its own outcome
            self._producer.flush(timeout=_FLUSH_S)
        failed = next((sent for sent in self._unacknowledged if sent.is_done and sent.failed()), None)
        if failed is not None:
            raise ServerError(
                f"findings could not be handed to Kafka ({type(failed.exception).__name__})",
                remedy="see to Kafka and start detect again: it goes on from its last snapshot",
            )
        self._unacknowledged = [sent for sent in self._unacknowledged if not sent.is_done]
        return not self._unacknowledged and self._dead.flush(_FLUSH_S)

    def _measure(self) -> None:
        for name, unit in self._units.items():
            if unit.engine.event_time > 0:
                EVENT_TIME.labels(name).set(unit.engine.event_time / 1000)
            LATE.labels(name).set(unit.engine.late_rows)
            PENDING.labels(name).set(sum(unit.engine.pending(stream) for stream in unit.engine.streams))
        for partition in self._consumer.assignment():
            if (lag := self._lag(partition)) is not None:
                LAG.labels(partition.topic, partition.partition).set(lag)

    def _follow(self) -> None:
        self._followed_s = time.monotonic()
        self._directory.follow()
        self._forget_removed()
        self._take_grown()

    def _take_grown(self) -> None:
        """Go on with what is known of machines by now, where more was announced of a live cluster."""
        for name, unit in self._units.items():
            topology = self._directory.topologies.get(name)
            if topology is not None and topology is not unit.topology and topology != unit.topology:
                self._units[name] = self._make(unit.origin, unit.partition, unit.stored())
                self._units[name].changed = True

    def _forget_removed(self) -> None:
        """Forget what belongs to replays that were removed, in memory and on disk."""
        for name in {*self._store.units(), *self._units}:
            state = self._directory.states.get(name)
            unit = self._units.get(name)
            if state is not None and state.state != "removed":
                if unit is None or unit.origin.generation <= state.generation:
                    continue
            elif state is None and not (unit.announced if unit is not None else self._was_announced(name)):
                continue
            _log.info("forgetting unit=%s, its replay was removed", name)
            self._units.pop(name, None)
            self._written()  # or its file would come back
            self._store.forget(name)
            for gauge in (EVENT_TIME, LATE, PENDING):
                gauge.remove_by_labels({"unit": name})

    def _was_announced(self, name: str) -> bool:
        stored = self._load(name)
        return stored is None or stored.announced

    def release(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Store everything, as other instances may take partitions over.

        State moves with the partitions: stored before they go, loaded when the first record of a unit comes. What could
        not be stored, the other instance reads again.
        """
        del places  # the state of all is one
        self._written()
        self._write()
        written = self._written()
        return dict(written.read) if written is not None else {}

    def lose(self, places: Collection[TopicPartition]) -> None:
        """Let go of the units of partitions that were taken away: another instance goes on from its own reading.

        Nothing is being written any more then: it would replace what that instance writes.
        """
        self._written()
        numbers = {partition.partition for partition in places}
        for name in [name for name, unit in self._units.items() if unit.partition in numbers]:
            del self._units[name]
        for place in places:
            self._read.pop(place, None)
