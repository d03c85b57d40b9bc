"""Which partition each unit lies in: assigned once, where the fewest are, and recorded in the topic `units`.

A unit never moves: what was sent of it is there, and how far it was read is known by partition. Several may ask at the
same time, so a record says up to where its writer had read the topic. It counts only if no other that counts came
between; its writer sees that, and asks again.
"""

import logging
from collections import Counter
from collections.abc import Collection, Mapping
from contextlib import closing
from typing import Literal

from kafka import KafkaConsumer, TopicPartition
from kafka.errors import KafkaError
from pydantic import BaseModel, ConfigDict, Field

from services.kit import topics
from services.kit.errors import ServerError
from services.kit.kafka import KafkaSettings, consumer, producer, reached
from services.kit.replay_directory import ReplayDirectory

_log = logging.getLogger(__name__)
_SEND_S = 30.0


class Assignment(BaseModel):
    """A record of the topic `units`; `read`: the offset up to which its writer had read the topic."""

    model_config = ConfigDict(extra="ignore", frozen=True)
    format: Literal["hindcast.unit/v1"] = "hindcast.unit/v1"
    unit: str
    partition: int = Field(ge=0)
    read: int = Field(ge=0)


class Assignments:
    """The partition of each unit, as the topic's records assign it."""

    def __init__(self) -> None:
        self.partitions: dict[str, int] = {}
        self._counted = -1

    def take(self, offset: int, assignment: Assignment) -> None:
        """Take the record at `offset`, in the topic's order; it counts if its writer knew of all before that count."""
        if self._counted < assignment.read <= offset and assignment.unit not in self.partitions:
            self.partitions[assignment.unit] = assignment.partition
            self._counted = offset


def least(partitions: Mapping[str, int], count: int, over: Collection[str]) -> int:
    """Return which of `count` partitions has the fewest units that are not over; of those, the fewest units at all."""
    all_units = Counter(partitions.values())
    running = Counter(partition for unit, partition in partitions.items() if unit not in over)
    return min(range(count), key=lambda number: (running[number], all_units[number], number))


def assigned(settings: KafkaSettings) -> dict[str, int]:
    """Return the partition of each unit. Raises UserError (exit code 3) if Kafka does not answer or lacks the topic."""
    with closing(_Topic(settings)) as topic:
        return topic.read_on()


def partition_of(settings: KafkaSettings, unit: str) -> int:
    """Return the partition of a unit; one that has none gets one.

    Raises UserError (exit code 3) if Kafka does not answer or lacks hindcast's topics.
    """
    try:
        with closing(_Topic(settings)) as topic:
            partitions = topic.read_on()
            return partitions[unit] if unit in partitions else _assign(settings, topic, unit)
    except KafkaError as error:
        raise ServerError(
            f"no partition could be assigned to {unit} ({type(error).__name__})",
            remedy="see to Kafka, and start it again",
        ) from error


def _assign(settings: KafkaSettings, topic: "_Topic", unit: str) -> int:
    with closing(ReplayDirectory(settings)) as directory:
        over = {name for name, state in directory.states.items() if state.over}
    with closing(producer(settings)) as client:
        while unit not in (partitions := topic.read_on()):
            wanted = Assignment(unit=unit, partition=least(partitions, topic.count, over), read=topic.read)
            value = wanted.model_dump_json().encode()
            client.send(topics.UNITS, key=unit.encode(), value=value).get(timeout=_SEND_S)
    _log.info("assigned unit=%s partition=%d", unit, partitions[unit])
    return partitions[unit]


class _Topic:
    """The topic `units`, from its start. `read`: up to which offset it was read; `count`: partitions to choose from."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._consumer: KafkaConsumer = consumer(settings, group=None)
        self._place = TopicPartition(topics.UNITS, 0)
        self._assignments = Assignments()
        self.read = 0
        known = self._consumer.topics()
        self.count = len(self._consumer.partitions_for_topic(topics.FINDINGS) or ())
        if not {topics.UNITS, topics.FINDINGS} <= known:
            self.close()
            raise ServerError("Kafka lacks hindcast's topics", remedy="create them: hindcast topics create")
        self._consumer.assign([self._place])
        self._consumer.seek_to_beginning(self._place)

    def read_on(self) -> dict[str, int]:
        """Read to the topic's present end; return the partition of each unit."""
        end = self._consumer.end_offsets([self._place])[self._place]
        while (at := reached(self._consumer, self._place)) < end:
            for record in self._consumer.poll(timeout_ms=200).get(self._place, []):
                try:
                    self._assignments.take(record.offset, Assignment.model_validate_json(record.value or b""))
                except ValueError as error:
                    _log.warning("unreadable topic=%s offset=%d error=%s", topics.UNITS, record.offset, error)
        self.read = at
        return self._assignments.partitions

    def close(self) -> None:
        self._consumer.close()
