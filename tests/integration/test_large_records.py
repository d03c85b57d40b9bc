"""A record may be larger than what a consumer asks for at a time: it comes all the same."""

from kafka import KafkaConsumer

from services.kit.kafka import KafkaSettings, producer
from tests.integration.recorded_feed import all_records

LARGE, SMALL = 7 * 1024 * 1024, 10


def test_large_and_small_records_of_several_partitions_come_in_order(
    kafka: KafkaSettings, reader: KafkaConsumer
) -> None:
    to_kafka = producer(kafka)
    sizes = [SMALL, LARGE, SMALL, LARGE, SMALL]
    for size in sizes:
        for partition in range(3):
            to_kafka.send("logs", value=bytes(size), partition=partition)
    to_kafka.flush()
    to_kafka.close()
    came = all_records(reader, "logs")
    for partition in range(3):
        assert [len(r.value or b"") for r in came if r.partition == partition] == sizes
