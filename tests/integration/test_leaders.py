"""Partitions of three brokers get other leaders: what was acknowledged is there afterwards, once and in order."""

import os
import signal
from collections.abc import Callable, Collection, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka import TopicPartition
from kafka.admin import NewTopic
from kafka.errors import KafkaError, RetriableError

from benchmarks.soak.brokers import AMONG, THREE, Brokers, furnish
from benchmarks.soak.network import Network
from benchmarks.soak.stage import Wiring
from services.cli.pipeline import NOTIFY_GROUP, Pipeline
from services.kit import topics
from services.kit.errors import UserError
from services.kit.kafka import KafkaSettings, admin, consumer, producer, subscribe
from services.kit.wait import until
from services.recording.embedded import findings_of
from services.recording.reader import Recording
from services.stack.hindcast_services import python_service
from services.stack.process import ManagedProcess
from services.stack.runner import Stack
from services.stack.settings import load_settings
from tests.integration.recorded_feed import RecordedFeed, all_records
from tests.small import Brake, small_recording

_WAIT_S = 300.0
_PLACE = TopicPartition(topics.DEAD_LETTER, 0)


@dataclass
class Cluster:
    """Three brokers, and how services reach them by links."""

    stack: Stack
    wiring: Wiring
    brokers: Brokers

    @property
    def kafka(self) -> KafkaSettings:
        """How the brokers are reached by no link."""
        return self.brokers.kafka

    def leader(self) -> ManagedProcess:
        """Return who leads the partition that these tests send to."""
        return self.stack.process(THREE[self._led()["leader_id"] - 1])

    def until_led_by_another(self, than: ManagedProcess) -> None:
        """Wait for another leader of that partition."""

        def led_by_another() -> bool:
            with suppress(KafkaError, UserError):  # the one who is asked may be the one that is away
                return self.leader() is not than
            return False

        until(led_by_another, what=f"another leader than {than.name}")

    def until_all_follow(self) -> None:
        """Wait until each broker has a copy of all that was acknowledged."""
        until(lambda: len(self._led()["isr_nodes"]) == len(THREE), what="all to follow")

    def _led(self) -> dict[str, Any]:
        with admin(self.kafka) as client:
            client.wait_for_topics([_PLACE.topic])  # a broker that has just started does not know it yet
            return dict(client.describe_topics([_PLACE.topic])[0]["partitions"][0])


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    if os.environ.get("HINDCAST_STACK", "native") != "native":
        pytest.skip("the servers run in containers: there is one broker")
    folder = tmp_path_factory.mktemp("leaders")
    with Network() as network, Stack(folder, load_settings(), only=("kafka",)) as stack:
        wiring = Wiring(network, len(THREE))
        for name in ("detect", AMONG):
            wiring.door(name, stack.service_context())
        brokers = furnish(stack, wiring.doors)
        stack.start_all()
        topics.create(brokers.kafka)
        yield Cluster(stack, wiring, brokers)
        for name in THREE:  # the last would wait for the others, to hand over what it leads
            stack.process(name).kill()


def _killed(cluster: Cluster, led: ManagedProcess) -> Callable[[], None]:
    led.kill()
    return led.start


def _restarted(cluster: Cluster, led: ManagedProcess) -> Callable[[], None]:
    led.stop()
    return led.start


def _frozen(cluster: Cluster, led: ManagedProcess) -> Callable[[], None]:
    """Freeze it until it is deposed: when it goes on, it takes itself for the leader."""
    pid = led.pid
    assert pid is not None
    os.killpg(pid, signal.SIGSTOP)
    cluster.until_led_by_another(led)
    return lambda: os.killpg(pid, signal.SIGCONT)


def _outvoted(cluster: Cluster, led: ManagedProcess) -> Callable[[], None]:
    cluster.brokers.change_leaders()
    return lambda: None


@pytest.mark.parametrize("strike", [_killed, _restarted, _frozen, _outvoted])
def test_what_is_sent_while_the_leader_changes_is_there_once_and_in_order(
    cluster: Cluster, strike: Callable[[Cluster, ManagedProcess], Callable[[], None]]
) -> None:
    cluster.until_all_follow()
    client, led, changes = producer(cluster.kafka, to=[_PLACE.topic]), cluster.leader(), cluster.brokers.changes()
    sent = [f"{strike.__name__} {number}".encode() for number in range(900)]
    acknowledged = [client.send(_PLACE.topic, value=value) for value in sent[:300]]
    back = strike(cluster, led)
    acknowledged += [client.send(_PLACE.topic, value=value) for value in sent[300:600]]
    cluster.until_led_by_another(led)
    back()
    acknowledged += [client.send(_PLACE.topic, value=value) for value in sent[600:]]
    offsets = [one.get(timeout=_WAIT_S).offset for one in acknowledged]
    client.close()
    with closing(consumer(cluster.kafka, group=None)) as reader:
        # Who led before, and was frozen meanwhile, may answer with the end that it knows.
        until(lambda: reader.end_offsets([_PLACE])[_PLACE] > offsets[-1], what="the new end")
        found = {record.offset: record.value for record in all_records(reader, _PLACE.topic)}
    ours = [value for value in found.values() if value and value.startswith(strike.__name__.encode())]
    assert ours == sent
    assert [found[offset] for offset in offsets] == sent
    assert cluster.brokers.changes() > changes


def test_who_only_asks_where_a_partition_ends_finds_its_new_leader(cluster: Cluster) -> None:
    """As notify does of the topic replays, minutes after anything came."""
    cluster.until_all_follow()
    with closing(consumer(cluster.kafka, group=None)) as reader, closing(producer(cluster.kafka)) as client:
        ends, led = reader.end_offsets([_PLACE])[_PLACE], cluster.leader()
        cluster.brokers.change_leaders()
        cluster.until_led_by_another(led)
        client.send(_PLACE.topic, value=b"by the new one").get(timeout=_WAIT_S)
        # Who led before may take a moment to hear that it leads no more.
        until(lambda: reader.end_offsets([_PLACE])[_PLACE] != ends, what="the new end")
        assert reader.end_offsets([_PLACE])[_PLACE] == ends + 1
        assert reader.beginning_offsets([_PLACE])[_PLACE] == 0


class _Nobody:
    """A member of a group that has nothing to finish."""

    def release(self, places: Collection[TopicPartition]) -> Mapping[TopicPartition, int]:
        return {}

    def lose(self, places: Collection[TopicPartition]) -> None:
        pass


def test_who_joins_before_kafka_knows_the_topic_waits_and_is_given_its_partitions(cluster: Cluster) -> None:
    """Of a topic that was just made not every broker knows at once."""
    with (
        closing(consumer(cluster.kafka, group="early")) as client,
        ThreadPoolExecutor(1) as pool,
        admin(cluster.kafka) as owner,
    ):
        joined = pool.submit(subscribe, client, ["made-late"], _Nobody())
        with pytest.raises(TimeoutError):
            joined.result(timeout=2)
        owner.create_topics([NewTopic("made-late", 2, -1)])
        joined.result(timeout=_WAIT_S)
        until(lambda: client.poll(100) or len(client.assignment()) == 2, what="both partitions")


def test_a_group_whose_coordinator_is_away_has_not_caught_up_yet(cluster: Cluster) -> None:
    """Two of three are away: nobody may take the place of who leads."""
    cluster.until_all_follow()
    pipeline = Pipeline(cluster.kafka, {})
    until(lambda: pipeline.caught_up(NOTIFY_GROUP), what="a coordinator of a group without members")
    away = [cluster.stack.process(name) for name in THREE[1:]]
    for one in away:
        one.kill()
    with pytest.raises(RetriableError):
        pipeline.lag(NOTIFY_GROUP)
    assert not pipeline.caught_up(NOTIFY_GROUP)
    for one in away:
        one.begin()
    for one in away:
        one.start()
    pipeline.wait_caught_up(NOTIFY_GROUP)


def test_detect_finds_the_same_while_each_broker_is_killed_in_turn(cluster: Cluster, tmp_path: Path) -> None:
    recording = Recording.open(small_recording(tmp_path, "led", nodes=2, minutes=6, brakes=[Brake("v001", 60, 200)]))
    expected = [finding.to_json() for finding in findings_of(recording)]
    assert expected
    port = cluster.stack.service_context().ports.take()
    env = {
        "HINDCAST_KAFKA_BOOTSTRAP": cluster.wiring.kafka("detect"),
        "HINDCAST_STATUS_PORT": str(port),
        "HINDCAST_DETECT_STATE_DIR": str(tmp_path / "state"),
        "HINDCAST_DETECT_INSTANCE": "detect",
        "HINDCAST_DETECT_SNAPSHOT_INTERVAL_S": "0.5",
    }
    detect = cluster.stack.add_process(python_service("detect", "services.detect", port=port, env=env, after=()))
    pid, sender = detect.pid, producer(cluster.kafka)
    with closing(consumer(cluster.kafka, group=None)) as reader:
        feed = RecordedFeed(recording, sender, reader, "led")
        messages = feed.messages(200)
        share = -(-len(messages) // len(THREE))
        for number, name in enumerate(THREE):
            cluster.until_all_follow()
            cluster.stack.process(name).kill()
            feed.send(messages[number * share : (number + 1) * share])
            cluster.stack.process(name).start()
        assert feed.wait_for(len(expected)) == expected
    assert detect.pid == pid
    sender.close()
    cluster.stack.remove("detect")
