"""Which partitions are held back: units with real engines, without Kafka."""

from collections.abc import Collection
from typing import Any

import pyarrow as pa
from kafka import TopicPartition

from detectors.engine.heard import AFTER_A_WEEK
from detectors.registry import choose
from services.detect.ahead import held_back
from services.detect.choices import load_incident_config
from services.detect.intake import feed
from services.detect.unit import Plan, Unit
from services.kit.wire import Origin

STREAMS = ("dcgm", "nic", "logs")
TOPIC_OF = {stream: f"t.{stream}" for stream in STREAMS}


def unit(replay: str, partition: int = 0, **marks: int) -> Unit:
    """Return a unit whose streams were fed up to `marks`, with a hundred rows of dcgm that wait."""
    plan = Plan(choose(), None, None, STREAMS, 10, 0, load_incident_config(None), AFTER_A_WEEK)
    made = Unit(Origin("vela", replay), partition, plan)
    for stream, at_ms in marks.items():
        made.engine.mark(stream, at_ms)
    times = pa.array([10**12 + number for number in range(100)], pa.timestamp("ms", "UTC"))
    rows: dict[str, pa.Array[Any]] = {"timestamp": times, "node": pa.array(["v1"] * 100), "gpu": pa.array([0] * 100)}
    feed(made.engine, "dcgm", pa.RecordBatch.from_pydict(rows))
    return made


def held(units: Collection[Unit], most_bytes: int = 1, *, read_out: Collection[str] = ()) -> set[tuple[str, int]]:
    """Return what is held back, Kafka having more of all topics but those `read_out`."""

    def lag(place: TopicPartition) -> int:
        return 0 if place.topic.removeprefix("t.") in read_out else 5

    return {(place.topic.removeprefix("t."), place.partition) for place in held_back(units, TOPIC_OF, most_bytes, lag)}


def test_nothing_is_held_back_before_much_waits() -> None:
    one = unit("a", dcgm=9000, nic=5000, logs=7000)
    assert one.engine.waiting_bytes == 100 * 2 * 8, "a time and a number of the GPU each, no readings"
    assert held([one], one.engine.waiting_bytes) == set()
    assert held([one, unit("b", 1)], one.engine.waiting_bytes) != set(), "what waits in all counts"


def test_what_the_others_wait_for_is_read_on() -> None:
    assert held([unit("a", dcgm=9000, nic=5000, logs=7000)]) == {("dcgm", 0), ("logs", 0)}
    assert held([unit("a", dcgm=9000, nic=5000, logs=5000)]) == {("dcgm", 0)}
    assert held([unit("a", dcgm=9000, nic=5000)]) == {("dcgm", 0), ("nic", 0)}, "nothing came of logs"


def test_what_has_ended_is_not_waited_for() -> None:
    one = unit("a", dcgm=9000, nic=5000, logs=7000)
    one.engine.mark("nic", 5000, end=True)
    assert held([one]) == {("dcgm", 0), ("nic", 0)}


def test_nothing_waits_for_what_kafka_has_no_more_of() -> None:
    one = unit("a", dcgm=9000, nic=5000, logs=5000)
    assert held([one], read_out=["nic"]) == {("dcgm", 0)}
    assert held([one], read_out=["nic", "logs"]) == set()


def test_a_partition_of_several_units_is_read_while_one_of_them_waits_for_it() -> None:
    ahead, behind = unit("a", dcgm=9000, nic=5000, logs=9000), unit("b", dcgm=5000, nic=9000, logs=9000)
    assert held([ahead, behind]) == {("logs", 0)}
    elsewhere = unit("b", 1, dcgm=5000, nic=9000, logs=9000)
    assert held([ahead, elsewhere]) == {("dcgm", 0), ("logs", 0), ("nic", 1), ("logs", 1)}
