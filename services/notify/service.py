"""The loop: Kafka in, Alertmanager out, offsets committed when Alertmanager has what they stand for."""

import logging
import threading
import time
from collections import deque

from kafka import KafkaConsumer, KafkaProducer, OffsetAndMetadata, TopicPartition
from kafka.errors import KafkaError
from prometheus_client import Counter, Gauge

from services.kit import topics
from services.kit.deadletter import DeadLetter
from services.kit.errors import ServerError
from services.kit.findings import Position, finding_record_of, placed
from services.kit.kafka import KafkaSettings, Record, consumer, producer, reached
from services.kit.replay_directory import ReplayDirectory
from services.kit.times import wall_ms
from services.kit.wire import WireError
from services.notify.alert_store import AlertStore
from services.notify.alertmanager import Alertmanager
from services.notify.delivery import Delivery
from services.notify.ledger import Ledger, Offsets
from services.notify.settings import NotifySettings

_log = logging.getLogger(__name__)
GROUP = "hindcast-notify"
RECORDS = Counter("hindcast_notify_records_total", "Records read of the findings topic.", ["state"])
ALERTS = Gauge("hindcast_notify_alerts", "Alerts known, by state.", ["state"])

_POLL_MS = 100
_KAFKA_PAUSE_S = 1.0
_DEAD_LETTER_S = 5.0


class Notify:
    """Follows the findings topic from its start: what is firing is known from it, after a crash too.

    All partitions are assigned, without a group's rebalancing: the state of a unit is small, one notify carries all,
    and a second one beside it sends what Alertmanager has already.
    """

    def __init__(self, settings: NotifySettings, kafka: KafkaSettings) -> None:
        self._consumer: KafkaConsumer = consumer(kafka, group=GROUP)
        self._producer: KafkaProducer = producer(kafka, to=(topics.DEAD_LETTER,))
        self._dead = DeadLetter(self._producer, "notify")
        self._replays = ReplayDirectory(kafka)
        numbers = self._consumer.partitions_for_topic(topics.FINDINGS)
        if not numbers:
            raise ServerError("there is no topic findings", remedy="create it: hindcast topics create")
        self._partitions = [TopicPartition(topics.FINDINGS, number) for number in sorted(numbers)]
        self._consumer.assign(self._partitions)
        self._ends: dict[TopicPartition, int] = self._consumer.end_offsets(self._partitions)
        offsets = {partition.partition: self._committed(partition) for partition in self._partitions}
        self._ledger = Ledger(offsets)
        base = settings.runbook_base_url
        self._alerts = AlertStore(settings.policy(), self._ledger, runbook_base_url=str(base) if base else None)
        self._server = Alertmanager(settings)
        # Read, and not taken yet: a failure of Kafka between the two must not lose them.
        self._inbox: deque[Record] = deque()
        self._delivery = Delivery(
            self._alerts,
            self._server,
            refused=lambda one, reason: self._dead.send(one.record, reason),
            monotonic=time.monotonic,
            wall_ms=wall_ms,
            longest_pause_s=settings.backoff_max_s,
        )

    def rebuild(self) -> None:
        """Read the topic from its start to its present end, and send nothing before that."""
        self._consumer.seek_to_beginning(*self._partitions)
        while any(reached(self._consumer, partition) < end for partition, end in self._ends.items()):
            self._read()
        counts = self._alerts.counts()
        _log.info("rebuilt from topic=%s firing=%d held=%d", topics.FINDINGS, counts["firing"], counts["held"])

    def run(self, stop: threading.Event) -> None:
        """Deliver until `stop` is set. While Kafka is away, what is firing is still resent."""
        while not stop.is_set():
            try:
                self._read()
                self._delivery.deliver()
                self._commit()
            except KafkaError as error:
                _log.warning("kafka cannot be used, trying again error=%s", type(error).__name__)
                self._delivery.deliver()
                stop.wait(_KAFKA_PAUSE_S)
            for state, count in self._alerts.counts().items():
                ALERTS.labels(state).set(count)

    def close(self) -> None:
        """Close all connections; what is not committed is done again by the next run."""
        self._server.close()
        self._replays.close()
        self._producer.close()
        self._consumer.close()

    def _read(self) -> None:
        for records in self._consumer.poll(timeout_ms=_POLL_MS).values():
            self._inbox.extend(records)
        # After the findings: a stream's state is announced before its first record, so that it is known by now.
        self._replays.refresh()
        self._alerts.follow(self._replays.states, wall_ms=wall_ms())
        while self._inbox:
            self._take(self._inbox[0])
            self._inbox.popleft()

    def _take(self, record: Record) -> None:
        position = Position(record.partition, record.offset)
        if record.value is None:  # a finding that was deleted with its replay
            self._ledger.read(position)
            return
        try:
            one = placed(finding_record_of(record), self._replays.topologies)
        except WireError as error:
            self._ledger.read(position)
            RECORDS.labels("unreadable").inc()
            if not self._ledger.was_delivered(position, firing=False):
                self._dead.send(record, str(error))
            return
        RECORDS.labels(one.finding.state).inc()
        self._alerts.take(one, now=time.monotonic(), wall_ms=wall_ms())

    def _commit(self) -> None:
        offsets = self._ledger.to_commit()
        if not offsets:
            return
        if not self._dead.flush(_DEAD_LETTER_S):  # it must be in the topic before its record counts as done
            return
        self._consumer.commit(
            {
                TopicPartition(topics.FINDINGS, number): OffsetAndMetadata(at.done, at.metadata, -1)
                for number, at in offsets.items()
            }
        )
        self._ledger.committed(offsets)

    def _committed(self, partition: TopicPartition) -> Offsets:
        found = self._consumer.committed(partition, metadata=True)
        if found is None:
            return Offsets(0, 0)
        offsets = Offsets.of_commit(found.offset, found.metadata)
        if offsets.fired > self._ends[partition]:
            _log.warning("the topic is shorter than what was committed: made anew partition=%d", partition.partition)
            return Offsets(0, 0)
        return offsets
