"""What the services behind Kafka say of replays: findings, incidents, which there are, and how far detect has come."""

from collections.abc import Iterator, Mapping

from kafka import KafkaConsumer, TopicPartition

from services.api.replays.generations import Generation
from services.kit import topics
from services.kit.errors import ServerError
from services.kit.kafka import KafkaSettings, Record, admin, consumer, reached
from services.kit.replay_directory import ReplayDirectory
from services.kit.replays import ReplayState, Topology
from services.kit.wire import Origin, WireError, origin_of

_DETECT_GROUP = "hindcast-detect"
_FOUND = (topics.FINDINGS, topics.INCIDENTS)
Offsets = dict[TopicPartition, int]


class Topics:
    """The topics, read from their start: they are compacted. Raises UserError (exit code 3) where Kafka is away."""

    def __init__(self, settings: KafkaSettings) -> None:
        self._settings = settings
        self._consumer: KafkaConsumer = consumer(settings, group=None)
        try:
            self._directory = ReplayDirectory(settings)
            self._partitions = self._all(_FOUND)
        except BaseException:
            self._consumer.close()
            raise
        self._consumer.assign(self._partitions)
        self._consumer.seek_to_beginning(*self._partitions)

    def _all(self, names: tuple[str, ...]) -> list[TopicPartition]:
        there = {name: sorted(self._consumer.partitions_for_topic(name) or ()) for name in names}
        found = [TopicPartition(name, number) for name, numbers in there.items() for number in numbers]
        if {place.topic for place in found} != set(names):
            raise ServerError("Kafka lacks hindcast's topics", remedy="hindcast topics create")
        return found

    def replays(self) -> dict[str, ReplayState]:
        """Return the replays there are, by unit; a live feed is none."""
        self._directory.refresh()
        return {unit: state for unit, state in self._directory.states.items() if state.replay != "live"}

    @property
    def topologies(self) -> Mapping[str, Topology]:
        """Return the topologies of the replays, as of the last look at them, by unit."""
        return self._directory.topologies

    def poll(self, wait_ms: int) -> list[Record]:
        """Return the records that came, after at most so long."""
        return [record for records in self._consumer.poll(timeout_ms=wait_ms).values() for record in records]

    def ends(self) -> Offsets:
        """Return where the topics of findings and incidents end now."""
        return dict(self._consumer.end_offsets(self._partitions))

    def have_read(self, ends: Offsets) -> bool:
        """Return whether everything before `ends` was polled."""
        return all(reached(self._consumer, place) >= end for place, end in ends.items())

    def fed(self) -> Offsets:
        """Return where the topics that detect reads end now."""
        return dict(self._consumer.end_offsets(self._all(tuple(topics.declared().streams()))))

    def detected(self, ends: Offsets) -> bool:
        """Return whether detect has made sure of everything before `ends`."""
        begins = self._consumer.beginning_offsets(list(ends))
        with admin(self._settings) as client:
            committed = client.list_group_offsets([_DETECT_GROUP]).get(_DETECT_GROUP, {})
        return all(
            max(begins[place], committed[place].offset if place in committed else 0) >= end
            for place, end in ends.items()
        )

    def close(self) -> None:
        """Close the connections."""
        self._consumer.close()
        self._directory.close()


def owned(records: list[Record]) -> Iterator[tuple[Record, Generation, Origin]]:
    """Yield the records that say whose they are; no tombstones, and not what notify sends to dead-letter for it."""
    for record in records:
        if not record.value:
            continue
        try:
            origin = origin_of(list(record.headers))
        except WireError:
            continue
        yield record, Generation(origin.unit, origin.generation, origin.shift_ms), origin
