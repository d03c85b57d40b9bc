"""The sink between a real broker and real targets: all lands, once, whatever is killed or poisoned on the way."""

import itertools
import json
import math
import time
from collections import Counter
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
from kafka import KafkaProducer, TopicPartition
from kafka.errors import CoordinatorLoadInProgressError

from services.cli.pipeline import Pipeline
from services.kit import topics, wire
from services.kit.kafka import KafkaSettings, admin, consumer
from services.kit.wait import until
from services.stack.hindcast_services import python_service
from services.stack.runner import Stack
from tests import web
from tests.integration.feed import FIELDS, INTERVAL_MS, START_MS, XID, Cluster, Feed
from tests.integration.held import check_landed, check_up, query

_NUMBERS = itertools.count(1)
DCGM = "telemetry.dcgm"


class Running:
    """A sink process with a target name, and so a consumer group, of its own."""

    def __init__(self, stack: Stack, kafka: KafkaSettings, sender: KafkaProducer, env: dict[str, str]) -> None:
        self.target = f"test-{next(_NUMBERS)}"
        self._stack = stack
        self._kafka = kafka
        self._sender = sender
        port = stack.service_context().ports.take()
        env = {
            "HINDCAST_KAFKA_BOOTSTRAP": kafka.bootstrap,
            "HINDCAST_STATUS_PORT": str(port),
            "HINDCAST_SINK_TARGET": self.target,
            "HINDCAST_SINK_INSTANCE": self.target,
            "HINDCAST_SINK_RETRY_MOST_S": "0.5",
        } | env
        self.url = f"http://127.0.0.1:{port}"
        self.process = stack.add_process(python_service(f"sink-{self.target}", "services.sink", port=port, env=env))

    def end(self) -> None:
        self._stack.remove(self.process.name)

    def feed(self, replay: str, cluster: Cluster, *, ago_s: float = 0.0) -> Feed:
        """Return a feed whose last tick lands now, or some time ago."""
        shift_ms = int((time.time() - ago_s) * 1000) - cluster.end_ms
        feed = Feed(self._sender, wire.Origin("vela", f"{replay}-{self.target}", 0, shift_ms, self.target))
        feed.announce(cluster)
        return feed

    def offsets(self) -> dict[TopicPartition, int]:
        """Return the offsets that the sink has committed in the topic, by partition."""
        group: dict[str, None] = {f"hindcast-sink-{self.target}": None}
        with admin(self._kafka) as client:
            try:
                offsets = client.list_group_offsets(group)
            except CoordinatorLoadInProgressError:  # a broker that has just begun knows of no group
                return {}
        found: dict[TopicPartition, Any] = next(iter(offsets.values()), {})
        return {place: max(0, entry.offset) for place, entry in found.items() if place.topic == DCGM}

    def committed(self) -> int:
        """Return the sum of the offsets that the sink has committed."""
        return sum(self.offsets().values())

    def ends(self) -> dict[TopicPartition, int]:
        """Return where those partitions of the topic end that hold anything."""
        reader = consumer(self._kafka, group=None)
        try:
            places = [TopicPartition(DCGM, number) for number in sorted(reader.partitions_for_topic(DCGM))]
            begins = reader.beginning_offsets(places)
            return {place: end for place, end in reader.end_offsets(places).items() if end > begins[place]}
        finally:
            reader.close()

    def moved_past(self, before: int) -> int:
        """Wait until more than `before` is committed; return how much is."""
        until(lambda: self.committed() > before, what=f"{self.target} to commit past {before}")
        return self.committed()

    def caught_up(self) -> None:
        """Wait until the sink has committed everything that is in the topic."""
        ends = self.ends()

        def reached() -> bool:
            offsets = self.offsets()
            return all(offsets.get(place, 0) >= end for place, end in ends.items())

        until(reached, what=f"{self.target} to reach {ends}")

    def finish(self, feed: Feed, cluster: Cluster) -> None:
        """Send the watermark that ends a feed, and wait until everything has been delivered."""
        feed.watermark(cluster.end_ms, end=True)
        feed.flush()
        self.caught_up()


@pytest.fixture
def sink(stack: Stack, kafka: KafkaSettings, sender: KafkaProducer) -> Iterator[Running]:
    """A sink into Prometheus."""
    running = Running(stack, kafka, sender, {"HINDCAST_SINK_URL": stack.addresses.prometheus_write})
    yield running
    running.end()


def test_all_samples_land_with_the_exporters_names(stack: Stack, sink: Running) -> None:
    cluster = Cluster(nodes=6, gpus=4, ticks=60, seed=1)
    cluster.there[20:23, 2] = False
    cluster.there[40, 4] = False
    feed = sink.feed("exact", cluster)
    feed.ticks(cluster, 0, cluster.ticks)
    sink.finish(feed, cluster)
    check_landed(stack.addresses.prometheus, cluster, feed)
    check_up(stack.addresses.prometheus, cluster, feed)
    # Query asks a sidecar whose Prometheus was away not at once again.
    served = f'{{replay="{feed.origin.replay}"}}'
    until(
        lambda: query(stack.addresses.thanos_query, served, cluster.end_ms + feed.origin.shift_ms - 1),
        what="Query to serve them",
    )
    check_landed(stack.addresses.thanos_query, cluster, feed)


def test_a_missed_scrape_ends_the_series_until_the_next(stack: Stack, sink: Running) -> None:
    cluster = Cluster(nodes=2, gpus=2, ticks=12, seed=2)
    cluster.there[6:8, 1] = False
    cluster.values[9:, 0, 1, XID] = 79
    feed = sink.feed("stale", cluster)
    feed.ticks(cluster, 0, cluster.ticks)
    sink.finish(feed, cluster)
    base, replay, shift = stack.addresses.prometheus, feed.origin.replay, feed.origin.shift_ms

    def alive(text: str, tick: float) -> int:
        return len(query(base, text.format(f'replay="{replay}"'), START_MS + int(tick * INTERVAL_MS) + shift))

    power = "DCGM_FI_DEV_POWER_USAGE{{{}}}"
    assert alive("up{{{}}} == 1", 11.99) == 2
    assert [alive(power, tick) for tick in (5.99, 6.01, 7.99, 8.99)] == [4, 2, 2, 4]
    assert alive("up{{{}}} == 0", 6.99) == 1
    xids = query(base, f'DCGM_FI_DEV_XID_ERRORS{{replay="{replay}",gpu="1",Hostname="v001"}}', cluster.end_ms + shift)
    labels = xids[0]["metric"]
    assert (len(xids), labels["err_code"], labels["err_msg"]) == (1, "79", "GPU has fallen off the bus")


def test_kill_9_in_the_middle_loses_and_repeats_nothing(stack: Stack, sink: Running) -> None:
    cluster = Cluster(nodes=4, gpus=4, ticks=400, seed=3)
    cluster.there[np.random.default_rng(3).random(cluster.there.shape) < 0.02] = False
    feed = sink.feed("killed", cluster)
    before = sink.committed()
    for first in range(0, 400, 100):
        feed.ticks(cluster, first, first + 100)
        feed.flush()
        before = sink.moved_past(before)
        sink.process.kill()
        sink.process.start()
    sink.finish(feed, cluster)
    check_landed(stack.addresses.prometheus, cluster, feed)
    check_up(stack.addresses.prometheus, cluster, feed)


def test_partitions_move_to_a_second_sink_while_data_come(
    stack: Stack, sink: Running, kafka: KafkaSettings, sender: KafkaProducer
) -> None:
    cluster = Cluster(nodes=3, gpus=4, ticks=120, seed=14)
    feeds = [sink.feed(f"moved-{number}", cluster) for number in range(6)]
    for feed in feeds:
        feed.ticks(cluster, 0, 60)
        # Of the next tick a part: who was up in it is decided after the partitions were dealt out anew.
        feed.nodes(cluster, 60, range(2))
        feed.flush()

    def begun(feed: Feed) -> bool:
        at_ms = START_MS + 61 * INTERVAL_MS - 1 + feed.origin.shift_ms
        power = f'DCGM_FI_DEV_POWER_USAGE{{replay="{feed.origin.replay}"}}[{INTERVAL_MS}ms]'
        return len(query(stack.addresses.prometheus, f"count_over_time({power})", at_ms)) == 8

    until(lambda: all(begun(feed) for feed in feeds), what="the part of a tick to land")
    env = {
        "HINDCAST_SINK_URL": stack.addresses.prometheus_write,
        "HINDCAST_SINK_TARGET": sink.target,
        "HINDCAST_SINK_INSTANCE": "the second",
    }
    second = Running(stack, kafka, sender, env)
    try:
        until(lambda: "released" in sink.process.tail(), what="partitions to be handed over")
        for feed in feeds:
            feed.nodes(cluster, 60, range(2, 3))
            feed.watermark(START_MS + 61 * INTERVAL_MS - 1)
            feed.ticks(cluster, 61, 120)
            feed.watermark(cluster.end_ms, end=True)
            feed.flush()
        sink.caught_up()
        for feed in feeds:
            check_landed(stack.addresses.prometheus, cluster, feed)
            check_up(stack.addresses.prometheus, cluster, feed)
        assert "commit failed" not in sink.process.tail()
        assert (sink.process.look(), second.process.look()) == (None, None)
    finally:
        second.end()


def test_a_stopped_prometheus_is_waited_for(stack: Stack, sink: Running) -> None:
    cluster = Cluster(nodes=4, gpus=4, ticks=120, seed=4)
    feed = sink.feed("outage", cluster)
    feed.ticks(cluster, 0, 40)
    feed.flush()
    stack.process("prometheus").stop()
    feed.ticks(cluster, 40, 120)
    feed.watermark(cluster.end_ms, end=True)
    feed.flush()

    def retried() -> bool:
        text = web.get(f"{sink.url}/metrics").text
        return any(
            line.startswith("hindcast_sink_retries_total{") and float(line.split()[-1]) > 3
            for line in text.splitlines()
        )

    until(retried, what="the sink to have retried")
    stack.process("prometheus").start()
    sink.caught_up()
    check_landed(stack.addresses.prometheus, cluster, feed)


def test_poison_goes_to_dead_letter_and_the_rest_lands(stack: Stack, sink: Running, kafka: KafkaSettings) -> None:
    cluster = Cluster(nodes=2, gpus=2, ticks=10, seed=5)
    feed = sink.feed("poison", cluster)
    feed.ticks(cluster, 0, 5)
    feed.send(b"not an Arrow stream", feed.origin.headers(wire.ARROW))
    feed.send(b'{"timestamp": "yesterday", "node": "v001", "gpu": 0}', feed.origin.headers(wire.NDJSON))
    feed.ticks(cluster, 5, 10)
    sink.finish(feed, cluster)
    check_landed(stack.addresses.prometheus, cluster, feed)
    reasons = [reason for reason, _ in dead_letters(kafka, feed.origin.unit)]
    assert len(reasons) == 2
    assert reasons[0].startswith("not an Arrow stream")
    assert reasons[1].startswith("row 1: timestamp: 'yesterday' is not an RFC 3339 time")


def test_what_the_target_refuses_is_found_by_bisection(stack: Stack, sink: Running, kafka: KafkaSettings) -> None:
    cluster = Cluster(nodes=2, gpus=2, ticks=10, seed=6)
    feed = sink.feed("refused", cluster)
    # One more row, two days ahead of the others: Prometheus refuses what is that far in the future.
    ahead = {"timestamp": "2024-04-03T08:00:00Z", "node": "v001", "gpu": 0, "DCGM_FI_DEV_GPU_TEMP": 41.5}
    feed.ticks(cluster, 0, 5)
    feed.send(wire.encode_rows([ahead]), feed.origin.headers(wire.NDJSON))
    feed.ticks(cluster, 5, 10)
    feed.flush()

    def refused() -> list[tuple[str, bytes]]:
        return dead_letters(kafka, feed.origin.unit)

    letters = until(refused, what="the refused sample in dead-letter")
    sample = json.loads(letters[0][1])
    assert (sample["value"], sample["labels"]["__name__"]) == (41.5, "DCGM_FI_DEV_GPU_TEMP")
    assert letters[0][0].startswith("400 ")
    assert "too far in the future" in letters[0][0]
    sink.finish(feed, cluster)
    check_landed(stack.addresses.prometheus, cluster, feed)


def test_a_replay_that_is_refused_whole_is_in_dead_letter_whole(
    stack: Stack, sink: Running, kafka: KafkaSettings
) -> None:
    """Two days old: beyond the out-of-order window. More than one message of Kafka's holds."""
    fresh = Cluster(nodes=1, gpus=1, ticks=2, seed=9)
    first = sink.feed("fresh", fresh)  # the head must have begun: an empty one takes any age
    first.ticks(fresh, 0, 2)
    first.watermark(fresh.end_ms, end=True)
    cluster = Cluster(nodes=8, gpus=8, ticks=60, seed=10)
    feed = sink.feed("old", cluster, ago_s=2 * 86_400)
    feed.ticks(cluster, 0, 60)
    sink.finish(feed, cluster)
    letters = dead_letters(kafka, feed.origin.unit)
    assert len(letters) > 4
    assert all(reason.startswith("400 ") and len(reason) <= 500 for reason, _ in letters)
    samples = [json.loads(line) for _, value in letters for line in value.splitlines()]
    # A staleness marker, which is a NaN, ends each series.
    counts = Counter(sample["labels"]["__name__"] for sample in samples if not math.isnan(sample["value"]))
    del counts["up"]
    assert counts == dict.fromkeys(counts, 8 * 8 * 60)
    assert len(counts) == len(FIELDS)


def dead_letters(kafka: KafkaSettings, unit: str) -> list[tuple[str, bytes]]:
    """Return reason and value of what a unit has in dead-letter."""
    records = [record for record in Pipeline(kafka, {}).records(topics.DEAD_LETTER) if record.key == unit.encode()]
    return [(dict(record.headers)["dead-letter-reason"].decode(), record.value) for record in records]


def test_a_tenant_of_thanos_receive(stack: Stack, kafka: KafkaSettings, sender: KafkaProducer) -> None:
    env = {
        "HINDCAST_SINK_URL": stack.addresses.thanos_write,
        "HINDCAST_SINK_PROTOCOL": "v1",
        "HINDCAST_SINK_TENANT_HEADER": "THANOS-TENANT",
    }
    running = Running(stack, kafka, sender, env)
    try:
        cluster = Cluster(nodes=3, gpus=4, ticks=60, seed=7)
        feed = running.feed("tenant", cluster)
        feed.ticks(cluster, 0, cluster.ticks)
        running.finish(feed, cluster)
        # Query looks every few seconds which tenants a Receive has.
        found = f'count({{replay="{feed.origin.replay}"}})'
        at = cluster.end_ms + feed.origin.shift_ms
        until(lambda: query(stack.addresses.thanos_query, found, at), what="Thanos Query to see the tenant")
        check_landed(stack.addresses.thanos_query, cluster, feed)
    finally:
        running.end()


def test_a_target_that_does_not_know_v2_ends_the_sink_before_anything_is_lost(
    stack: Stack, kafka: KafkaSettings, sender: KafkaProducer
) -> None:
    running = Running(stack, kafka, sender, {"HINDCAST_SINK_URL": stack.addresses.thanos_write})
    cluster = Cluster(nodes=1, gpus=1, ticks=2, seed=8)
    feed = running.feed("wrong", cluster)
    before = running.ends()
    feed.ticks(cluster, 0, 2)
    feed.flush()
    fed = {place: end for place, end in running.ends().items() if end > before.get(place, 0)}
    until(lambda: "HINDCAST_SINK_PROTOCOL=v1" in running.process.tail(), what="the sink to say why")
    assert fed
    # Records of other tests' replays lie before these and may be passed over; these must be read again.
    committed = running.offsets()
    assert all(committed.get(place, 0) <= before.get(place, 0) for place in fed)
    name = f"sink-{running.target}"
    (death,) = until(lambda: [death for death in stack.deaths if death.name == name], what="its end to be noticed")
    stack.deaths.remove(death)  # it was meant to die: the stack, which others use, is well
