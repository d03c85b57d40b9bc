"""Kafka to remote-write: what is read becomes requests, and offsets are committed when those are through."""

import json
import logging
import math
import threading
import time
import zlib
from collections.abc import Collection, Mapping, Sequence

from kafka import KafkaConsumer, KafkaProducer, TopicPartition
from kafka.errors import KafkaError, RebalanceInProgressError

from services.kit.deadletter import DeadLetter
from services.kit.kafka import Record, offsets_of, reached, subscribe
from services.kit.replay_directory import ReplayDirectory
from services.kit.times import format_time
from services.sink import metrics
from services.sink.delivery import Delivery, Parcel
from services.sink.encode import Samples, by_page
from services.sink.intake import Intake, topics_read
from services.sink.offsets import Ledger, Ticket
from services.sink.pages import PAGE_SERIES
from services.sink.settings import SinkSettings
from services.sink.units import Outcome, Unit

_log = logging.getLogger(__name__)

POLL_RECORDS = 1000
SCHEMA_BYTES = 3_900
"""What a message of DCGM takes beside its readings (schema, names): from which follows about how many it holds."""
SAMPLE_BYTES = 4
COMMIT_EVERY_S = 0.5
GATHER_MS = 10
"""How long Kafka is waited for at a time while requests are on their way."""
_DEAD_LETTER_BYTES = 500_000
"""Of one message: a whole refused request, with the labels of every sample, is more than Kafka takes."""
_DEAD_LETTER_S = 2.0
"""How long Kafka is waited for at a time until it has what was refused."""
HANDOVER_S = 20.0
"""How long requests on their way are waited for when another sink takes a partition over."""


class Sink:
    """One consumer, one target."""

    def __init__(
        self, settings: SinkSettings, consumer: KafkaConsumer, producer: KafkaProducer, directory: ReplayDirectory
    ) -> None:
        self._settings = settings
        self._consumer = consumer
        self._dead = DeadLetter(producer, settings.group)
        self._intake = Intake(settings, directory, self._dead)
        self._delivery = Delivery(settings, self._refused)
        self._ledger = Ledger()
        self._committed: dict[TopicPartition, int] = {}
        self._uncommitted: dict[TopicPartition, int] = {}
        """What is safe, and could not be committed yet."""
        self._gathered: dict[TopicPartition, list[Record]] = {}
        self._commit_due_s = 0.0
        self._record_samples = 1.0
        """What a record of the last poll held, about: large messages are not to be taken by the thousand."""
        subscribe(consumer, topics_read(), self)

    def run(self, stop: threading.Event) -> None:
        """Work until `stop` is set. Raises UserError if the target can't be used at all."""
        try:
            while not stop.is_set():
                polled = self._gather()
                if polled:
                    self._take(polled)
                if time.monotonic() >= self._commit_due_s:
                    self._commit()
                if self._delivery.failure is not None:
                    raise self._delivery.failure
        finally:
            self._delivery.drained(COMMIT_EVERY_S)
            self._commit()
            self._delivery.close()

    def release(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        """Finish what was read of partitions that may be taken away; return what is safe of all."""
        del places  # whatever goes, all that is under way is finished
        self._delivery.drained(HANDOVER_S)
        safe = self._safe()  # before the flush: what is refused meanwhile is not safe yet
        return safe if self._dead.flush(_DEAD_LETTER_S) else {}

    def lose(self, places: Collection[TopicPartition]) -> None:
        """Forget partitions that were taken away, and what was gathered of them: whoever has them reads it again."""
        self._intake.forget(places)
        for place in places:
            self._committed.pop(place, None)
            self._uncommitted.pop(place, None)
            self._gathered.pop(place, None)

    def _gather(self) -> Mapping[TopicPartition, Sequence[Record]]:
        """Return a batch of records; hardly any, but still a member of the group, while the target keeps us waiting."""
        self._gathered = {}
        if not self._delivery.has_room(COMMIT_EVERY_S):
            self._consumer.pause(*self._consumer.assignment())
            # A partition that is assigned in this poll is not paused: its records count, for they come only once.
            self._gathered.update(self._consumer.poll(timeout_ms=0))
            self._consumer.resume(*self._consumer.assignment())
            return self._gathered
        # What is there is taken together, and what comes until the lanes are free: nothing could be sent sooner.
        room, wait_ms, due_s = self._settings.batch_samples, 100, time.monotonic() + COMMIT_EVERY_S
        while room > 0:
            most = max(1, min(POLL_RECORDS, int(room / self._record_samples)))
            polled = self._consumer.poll(timeout_ms=wait_ms, max_records=most)
            waits = not self._delivery.drained(0.0) and time.monotonic() < due_s
            if not polled and not waits:
                break
            wait_ms = GATHER_MS if waits else 0
            for place, records in polled.items():
                self._gathered.setdefault(place, []).extend(records)
                samples = sum(max(1, (len(r.value or b"") - SCHEMA_BYTES) // SAMPLE_BYTES) for r in records)
                self._record_samples = samples / len(records)
                room -= samples
        return self._gathered

    def _take(self, polled: Mapping[TopicPartition, Sequence[Record]]) -> None:
        by_unit: dict[str, tuple[Unit, Outcome]] = {}
        for place, records in polled.items():
            for unit, outcome in self._intake.take(place, records):
                _, whole = by_unit.setdefault(unit.name, (unit, Outcome()))
                whole.merge(outcome)
        ticket = Ticket(
            {place: self._intake.safe_offset(place, records[-1].offset + 1) for place, records in polled.items()}
        )
        parcels: list[Parcel] = []
        for unit, outcome in by_unit.values():
            metrics.SENT.labels(self._settings.server).inc(outcome.rows)
            metrics.MADE.labels(self._settings.server).inc(outcome.made)
            parcels.extend(self._parcels(unit, outcome.in_order(), ticket))
        ticket.expect(len(parcels))
        self._ledger.add(ticket)
        for parcel in parcels:
            self._delivery.submit(parcel)
        metrics.SERIES.labels(self._settings.server).set(sum(u.catalogue.size for u in self._intake.units.values()))
        self._intake.forget_ended()

    def _parcels(self, unit: Unit, blocks: Sequence[Samples], ticket: Ticket) -> list[Parcel]:
        """Return the requests: a page and so many timestamps of each series in one, the earlier ones first."""
        parts: dict[tuple[int, int], list[Samples]] = {}
        most = self._settings.samples_per_series
        for block in blocks:
            for page, samples in by_page(block):
                for turn in range(math.ceil(samples.times.shape[1] / most)):
                    cut = slice(turn * most, (turn + 1) * most)
                    piece = Samples(samples.series, samples.times[:, cut], samples.values[:, cut])
                    parts.setdefault((turn, page), []).append(piece)
        start = zlib.crc32(unit.name.encode())
        return [
            Parcel(unit.catalogue.pages[page], found, unit.name, unit.replay, start + page, ticket)
            for (_, page), found in sorted(parts.items(), key=lambda item: item[0])
        ]

    def _refused(self, parcel: Parcel, samples: Samples, words: str) -> None:
        """Send refused samples to dead-letter, one JSON line each, in messages of bounded size; called by a lane."""
        last = self._intake.last[parcel.unit]
        lines: list[str] = []
        size = 0
        for series, times, values in zip(samples.series, samples.times, samples.values, strict=True):
            labels = parcel.page.names[int(series) % PAGE_SERIES]
            for at_ms, value in zip(times.tolist(), values.tolist(), strict=True):
                line = {"labels": labels, "timestamp": format_time(at_ms), "value": value}
                lines.append(json.dumps(line, sort_keys=True))
                size += len(lines[-1])
                if size >= _DEAD_LETTER_BYTES:
                    self._dead.send(last, words, "\n".join(lines).encode())
                    lines, size = [], 0
        if lines:
            self._dead.send(last, words, "\n".join(lines).encode())

    def _safe(self) -> dict[TopicPartition, int]:
        """Return the offsets that have become safe and are not committed."""
        assigned = self._consumer.assignment()
        self._uncommitted = {
            place: offset
            for place, offset in (self._uncommitted | self._ledger.safe()).items()
            if place in assigned and offset > self._committed.get(place, -1)
        }
        return dict(self._uncommitted)

    def _commit(self) -> None:
        """Commit what has become safe; what is in dead-letter must be there before."""
        self._commit_due_s = time.monotonic() + COMMIT_EVERY_S
        safe = self._safe()
        if not safe:
            return
        if not self._dead.flush(_DEAD_LETTER_S):
            _log.warning("waiting for Kafka, which has not acknowledged what was refused")
            return
        try:
            self._consumer.commit(offsets_of(safe))
        except RebalanceInProgressError:
            # Partitions that go are committed as they are released, those that stay at the next turn.
            return
        except KafkaError as error:
            # At the next turn again; should this sink end before, it is read, and written, again.
            _log.warning("commit failed error=%s", type(error).__name__)
            return
        self._committed.update(safe)
        self._measure()

    def _measure(self) -> None:
        try:
            ends = self._consumer.end_offsets(list(self._consumer.assignment()))
            at = {place: reached(self._consumer, place) for place in ends}
        except KafkaError as error:
            _log.warning("lag unknown error=%s", type(error).__name__)
            return
        if min(at.values(), default=0) >= 0:
            metrics.LAG.labels(self._settings.server).set(sum(end - at[place] for place, end in ends.items()))
