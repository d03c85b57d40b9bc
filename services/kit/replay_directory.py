"""Follows the `replays` topic: which replays there are, and what each needs to be understood with."""

import json
import logging

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaTimeoutError
from prometheus_client import Counter

from services.kit import topics
from services.kit.kafka import KafkaSettings, consumer, reached
from services.kit.replays import ReplayState, Topology

_log = logging.getLogger(__name__)
_UNREADABLE = Counter("hindcast_replays_unreadable_total", "Records of the topic replays that could not be read.")


class ReplayDirectory:
    """All replays and their topologies, followed from the start of the topic."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._consumer: KafkaConsumer = consumer(settings, group=None)
        self._partition = TopicPartition(topics.REPLAYS, 0)
        self._consumer.assign([self._partition])
        self._consumer.seek_to_beginning(self._partition)
        self.states: dict[str, ReplayState] = {}
        self.topologies: dict[str, Topology] = {}
        self.refresh()

    def refresh(self) -> list[ReplayState]:
        """Read on to the topic's present end; return the states that came, in order."""
        end = self._consumer.end_offsets([self._partition])[self._partition]
        came: list[ReplayState] = []
        while reached(self._consumer, self._partition) < end:
            for record in self._consumer.poll(timeout_ms=200).get(self._partition, []):
                try:
                    state = self._take(record.key.decode(), record.value)
                except (ValueError, AttributeError) as error:
                    # Every reader meets it at every start: counted, not sent to dead-letter again and again.
                    _UNREADABLE.inc()
                    _log.warning("unreadable topic=%s offset=%d error=%s", topics.REPLAYS, record.offset, error)
                    continue
                if state is not None:
                    came.append(state)
        return came

    def follow(self) -> None:
        """Read on as `refresh` does, and wait while Kafka is away: for those who can do nothing without it."""
        while True:
            try:
                self.refresh()
            except KafkaTimeoutError:
                _log.warning("waiting for Kafka topic=%s", topics.REPLAYS)
            else:
                return

    def _take(self, key: str, value: bytes | None) -> ReplayState | None:
        if value is None:
            self.states.pop(key, None)
            self.topologies.pop(key.removesuffix("/topology"), None)
            return None
        if key.endswith("/topology"):
            self.topologies[key.removesuffix("/topology")] = json.loads(value)
            return None
        state = ReplayState.model_validate_json(value)
        self.states[state.unit] = state
        return state

    def close(self) -> None:
        """Close the consumer."""
        self._consumer.close()
