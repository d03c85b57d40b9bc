"""Which partitions are not read on for now, as what they bring would only wait in memory for other streams.

Kafka hands out so many bytes of each topic at a time: of DCGM those are minutes of event time, of a sparse stream
hours. Once what waits takes more than a bound, only the streams that the others wait for are read on. That cannot come
to a standstill: what is waited for is always read, and nothing is held back for what Kafka has no more of.
"""

from collections.abc import Callable, Collection, Mapping

from kafka import TopicPartition

from services.detect.unit import Unit


def held_back(
    units: Collection[Unit], topic_of: Mapping[str, str], most_bytes: int, lag: Callable[[TopicPartition], int | None]
) -> set[TopicPartition]:
    """Return the partitions not to read on while the rows that wait take more than `most_bytes` in all `units`.

    `topic_of` has the topic of each stream; `lag` returns how many records of a partition Kafka has that were not read,
    None where that is not known.
    """
    ahead: set[TopicPartition] = set()
    if sum(unit.engine.waiting_bytes for unit in units) <= most_bytes:
        return ahead
    awaited: set[TopicPartition] = set()
    for unit in units:
        place = {stream: TopicPartition(topic_of[stream], unit.partition) for stream in unit.engine.streams}
        mine = {place[stream] for stream in unit.engine.awaited}
        awaited |= mine
        if any(lag(one) for one in mine):
            ahead |= set(place.values())
    return ahead - awaited
