"""The network between a service and its server is cut: what was accepted is there afterwards, once."""

import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from kafka import KafkaConsumer

from benchmarks.soak.brokers import furnish
from benchmarks.soak.network import Network
from benchmarks.soak.stage import Wiring
from services.cli.pipeline import Pipeline, sink_group
from services.kit import topics, wire
from services.kit.deadletter import DeadLetter
from services.kit.errors import UserError
from services.kit.kafka import KafkaSettings, consumer, producer
from services.kit.units import partition_of
from services.kit.wait import until
from services.recording.embedded import findings_of
from services.recording.reader import Recording
from services.replay.conftest import write_recording
from services.replay.journal import Entry, Journal
from services.replay.replay import Replay
from services.replay.spec import ReplayRequest, plan
from services.stack.hindcast_services import python_service
from services.stack.process import ManagedProcess
from services.stack.runner import Stack
from services.stack.settings import load_settings
from tests import web
from tests.integration.recorded_feed import NO_SINK, RecordedFeed, all_records
from tests.small import Brake, small_recording

_WAIT_S = 300.0
_DOORS = ("tests", "sink", "detect", "gateway")


@dataclass
class Wired:
    """A broker and a Prometheus that are reached through links; `kafka` is the broker without one."""

    stack: Stack
    wiring: Wiring
    kafka: KafkaSettings

    def through(self, name: str, **given: Any) -> KafkaSettings:
        """Return how a client reaches the broker by the link of that name."""
        return KafkaSettings(bootstrap=self.wiring.kafka(name), **given)

    def slow(self, name: str) -> None:
        """Have a link be slow enough, where it is slow, to see a question and cut off its answer."""
        self.wiring.network.links[name].slow_s = 1.0

    def cut(self, name: str, kind: Any) -> Any:
        """Have a link cut while a block runs."""
        return self.wiring.network.cut(name, kind)


@pytest.fixture(scope="module")
def wired(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Wired]:
    if os.environ.get("HINDCAST_STACK", "native") != "native":
        pytest.skip("the servers run in containers: there is no broker to give listeners of its own")
    folder = tmp_path_factory.mktemp("wired")
    with Network() as network, Stack(folder, load_settings(), only=("kafka", "prometheus")) as stack:
        wiring = Wiring(network)
        for name in _DOORS:
            wiring.door(name, stack.service_context())
        furnish(stack, wiring.doors)
        stack.start_all()
        kafka = KafkaSettings(bootstrap=stack.addresses.kafka)
        topics.create(kafka)
        yield Wired(stack, wiring, kafka)


@pytest.fixture
def reader(wired: Wired) -> Iterator[KafkaConsumer]:
    client = consumer(wired.kafka, group=None)
    yield client
    client.close()


@pytest.fixture
def start(wired: Wired) -> Iterator[Callable[..., ManagedProcess]]:
    """Start a service of hindcast behind its link; whatever was started is ended."""
    with ExitStack() as ended:

        def begin(name: str, *, port_setting: str = "HINDCAST_STATUS_PORT", **env: str) -> ManagedProcess:
            port = wired.stack.service_context().ports.take()
            own = {"HINDCAST_KAFKA_BOOTSTRAP": wired.wiring.kafka(name), port_setting: str(port)}
            process = wired.stack.add_process(python_service(name, f"services.{name}", port=port, env=own | env))
            ended.callback(wired.stack.remove, name)
            return process

        yield begin


def _until_logged(process: ManagedProcess, words: str) -> None:
    until(lambda: words in process.log.read_text(), what=f"{process.name} to say {words!r}")


@dataclass
class _Bad:
    """A record of no use."""

    value: bytes | None
    topic: str = "telemetry.dcgm"
    partition: int = 0
    offset: int = 7
    timestamp: int = 0
    key: bytes | None = b"vela/live"
    headers: Iterable[tuple[str, bytes]] = ()


def test_a_dead_letter_is_waited_for_and_not_done_with_before_kafka_has_it(wired: Wired, reader: KafkaConsumer) -> None:
    client = producer(wired.through("tests"))
    dead = DeadLetter(client, "tests")
    client.partitions_for(topics.DEAD_LETTER)
    with wired.cut("tests>kafka", "refuse"):
        dead.send(_Bad(b"waited for"), "no use")
        assert not dead.flush(0.2)
    until(lambda: dead.flush(1), what="the dead letter to be acknowledged")
    assert [record.value for record in all_records(reader, topics.DEAD_LETTER)].count(b"waited for") == 1
    client.close()


def test_a_dead_letter_that_is_given_up_is_an_error(wired: Wired) -> None:
    client = producer(wired.through("tests"), delivery_timeout_ms=400, request_timeout_ms=300)
    dead = DeadLetter(client, "tests")
    client.partitions_for(topics.DEAD_LETTER)
    with wired.cut("tests>kafka", "refuse"):
        dead.send(_Bad(b"given up"), "no use")
        with pytest.raises(UserError, match="dead-letter"):
            until(lambda: dead.flush(1), what="the dead letter to be given up")
    client.close()


def test_a_producer_that_is_closed_sends_nothing_any_more(wired: Wired, reader: KafkaConsumer) -> None:
    client = producer(wired.through("tests"))
    client.partitions_for(topics.DEAD_LETTER)
    with wired.cut("tests>kafka", "refuse"):
        sent = client.send(topics.DEAD_LETTER, value=b"given up by its sender", key=b"k")
        client.close(timeout=0.1)
        assert sent.failed()
    other = producer(wired.through("tests"))
    other.send(topics.DEAD_LETTER, value=b"sent again", key=b"k").get(timeout=_WAIT_S)
    other.close()
    values = [record.value for record in all_records(reader, topics.DEAD_LETTER)]
    assert b"given up by its sender" not in values
    assert b"sent again" in values


def test_a_member_of_a_group_whose_questions_are_cut_off_asks_again(wired: Wired) -> None:
    client = consumer(wired.through("tests"), group="cut-off")
    client.subscribe([topics.DEAD_LETTER])
    until(lambda: client.poll(100) or client.assignment(), what="the group to be joined")
    for _ in range(10):
        with wired.cut("tests>kafka", "drop"):  # it asks, and no answer comes
            client.poll(500)
        with wired.cut("tests>kafka", "refuse"):  # then the connection is reset
            client.poll(300)
    sender = producer(wired.kafka)
    sender.send(topics.DEAD_LETTER, value=b"after the cuts")
    sender.close()
    got: list[bytes] = []

    def came() -> bool:
        got.extend(record.value for records in client.poll(100).values() for record in records)
        return b"after the cuts" in got

    until(came, what="what was sent since")
    client.close()


def test_what_the_gateway_did_not_acknowledge_is_sent_by_its_sender_alone(
    wired: Wired, reader: KafkaConsumer, start: Callable[..., ManagedProcess]
) -> None:
    env = {"HINDCAST_GATEWAY_CLUSTER": "cut-off", "HINDCAST_GATEWAY_ACK_TIMEOUT_S": "0.5"}
    gateway = start("gateway", port_setting="HINDCAST_GATEWAY_PORT", **env)

    def post(message: str) -> int:
        line = {"timestamp": "2026-01-01T00:00:00Z", "source": "kernel", "node": "v001", "message": message}
        return web.post(f"{gateway.spec.url}/api/v1/logs", json=[line], timeout=300).status_code

    assert post("before") == 200
    with wired.cut("gateway>kafka", "refuse"):
        assert [post("once") for _ in range(3)] == [503] * 3
    until(lambda: post("once") == 200, what="the gateway to take it")

    def lines(message: str) -> int:
        records = all_records(reader, topics.declared().of_stream("logs"))
        return sum((record.value or b"").count(f'"{message}"'.encode()) for record in records)

    assert (lines("before"), lines("once")) == (1, 1)
    with pytest.raises(UserError, match="gave up"):  # and the producers of before do not come back
        until(lambda: lines("once") > 1, timeout_s=10, what="it to be sent again", interval_s=0.5)


def test_what_is_in_dead_letter_late_is_committed_late(
    wired: Wired, reader: KafkaConsumer, start: Callable[..., ManagedProcess]
) -> None:
    sink = start(
        "sink",
        HINDCAST_SINK_TARGET="cut-off",
        HINDCAST_SINK_INSTANCE="cut-off",
        HINDCAST_SINK_URL=wired.stack.addresses.prometheus_write,
    )
    topic = topics.declared().of_stream("dcgm")
    headers = [*wire.Origin("vela", "cut-off", target="cut-off").headers(wire.ARROW)]
    sender = producer(wired.kafka)
    _until_logged(sink, "partitions assigned")
    wired.slow("sink>kafka")
    with wired.cut("sink>kafka", "slow"):
        sender.send(topic, key=b"vela/cut-off", value=b"no arrow", headers=headers)
        sender.close()
        _until_logged(sink, "dead letter topic")
    with wired.cut("sink>kafka", "drop"):  # before that is acknowledged, which takes a while
        _until_logged(sink, "waiting for Kafka, which has not acknowledged")
    Pipeline(wired.kafka, {}).wait_caught_up(sink_group("cut-off"))
    assert [record.value for record in all_records(reader, topics.DEAD_LETTER)].count(b"no arrow") == 1


def test_detect_waits_for_kafka_to_have_what_was_found(
    wired: Wired, reader: KafkaConsumer, start: Callable[..., ManagedProcess], tmp_path: Path
) -> None:
    brake = [Brake("v001", 60, 150)]
    recording = Recording.open(small_recording(tmp_path, "cut", nodes=2, minutes=3, brakes=brake))
    expected = [finding.to_json() for finding in findings_of(recording)]
    state = {"HINDCAST_DETECT_STATE_DIR": str(tmp_path / "state"), "HINDCAST_DETECT_SNAPSHOT_INTERVAL_S": "0.1"}
    detect = start("detect", **state)
    pid = detect.pid
    sender = producer(wired.kafka)
    feed = RecordedFeed(recording, sender, reader, "cut", target=NO_SINK)

    wired.slow("detect>kafka")
    with wired.cut("detect>kafka", "slow"):
        feed.send(feed.messages(500))
        _until_logged(detect, "finding unit=")
        # Its acknowledgement takes a while, in which the network is cut.
    with wired.cut("detect>kafka", "refuse"):
        _until_logged(detect, "waiting for Kafka, which has not acknowledged")
    assert feed.wait_for(len(expected)) == expected
    assert detect.pid == pid
    sender.close()


def test_a_replay_whose_first_question_is_cut_off_waits(wired: Wired, tmp_path: Path) -> None:
    recording = Recording.open(write_recording(tmp_path / "asked"))
    spec = plan(ReplayRequest(recording=recording.path, speed="max"), recording, (), 0)
    entry = Entry(
        spec=spec,
        speed=0,
        state="running",
        generation=0,
        warm_from_ms=spec.from_ms,
        from_ms=spec.from_ms,
        position_ms=spec.from_ms - 1,
    )
    cuts = ExitStack()
    made: list[Any] = []

    def make() -> Any:
        made.append(None)
        client = producer(wired.through("tests", bootstrap_timeout_s=1.0), max_block_ms=300)
        if len(made) == 1:  # it is reached, and before it says what partitions there are it is cut off
            cuts.enter_context(wired.cut("tests>kafka", "refuse"))
        return client

    replay = Replay(
        entry,
        Journal(tmp_path / "journal"),
        make,
        lambda unit: partition_of(wired.kafka, unit),
        in_flight_bytes=1_000_000,
        warm_ms=0,
    )
    with cuts:
        replay.start()
        until(lambda: len(made) > 1 or replay.entry.over, what="it to be cut off")
        assert not replay.entry.over
    replay.join(_WAIT_S)
    assert replay.entry.state == "ended"
