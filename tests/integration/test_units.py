"""Where units lie in a real Kafka: assigned once, spread evenly whoever asks at the same time, and kept to."""

from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from uuid import uuid4

import pytest

from services.kit import topics, units
from services.kit.errors import UserError
from services.kit.kafka import KafkaSettings
from services.kit.replay_directory import ReplayDirectory


def test_units_that_ask_at_once_are_spread_over_the_partitions_and_stay(kafka: KafkaSettings) -> None:
    directory = ReplayDirectory(kafka)
    over = {unit for unit, state in directory.states.items() if state.over}
    directory.close()
    before = units.assigned(kafka)
    names = [f"spread-{uuid4()}/live" for _ in range(kafka.unit_partitions)]
    with ThreadPoolExecutor(len(names)) as pool:
        found = dict(zip(names, pool.map(lambda name: units.partition_of(kafka, name), names), strict=True))
    assert units.assigned(kafka) == before | found
    expected = dict(before)
    for name in names:
        expected[name] = units.least(expected, kafka.unit_partitions, over)
    assert Counter(found.values()) == Counter(expected[name] for name in names)
    assert {name: units.partition_of(kafka, name) for name in names} == found


def test_topics_of_another_number_of_partitions_are_refused(kafka: KafkaSettings) -> None:
    with pytest.raises(UserError, match="has 6 partitions, and is to have 7") as caught:
        topics.create(kafka.model_copy(update={"unit_partitions": 7}))
    assert "HINDCAST_KAFKA_UNIT_PARTITIONS" in (caught.value.remedy or "")
