"""services/detect against a real broker: the findings are those of the embedded engine, whatever happens on the way."""

import json
import os
import random
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
from kafka import KafkaConsumer, TopicPartition

from detectors.registry import choose
from services.detect import service
from services.detect.configured import Configured
from services.detect.service import GROUP
from services.detect.settings import DetectSettings
from services.detect.unit import Unit
from services.detect.warmup import Line
from services.kit import topics, wire
from services.kit.kafka import KafkaSettings, consumer, producer
from services.kit.wait import until
from services.recording.embedded import findings_of, latest, steps
from services.recording.reader import Recording
from tests.integration.recorded_feed import WAIT_S, Message, RecordedFeed, all_records
from tests.small import Brake, small_recording

Start = Callable[..., "Detect"]
FeedOf = Callable[[str], RecordedFeed]


@pytest.fixture(scope="module")
def recording(tmp_path_factory: pytest.TempPathFactory) -> Recording:
    """Four nodes, ten minutes, two brakes, one of which is over before the end."""
    brakes = [Brake("v002", 240, 330), Brake("v003", 420, 599)]
    folder = tmp_path_factory.mktemp("recordings")
    return Recording.open(small_recording(folder, "two-brakes", nodes=4, minutes=10, brakes=brakes))


@pytest.fixture(scope="module")
def expected(recording: Recording) -> list[str]:
    """What the embedded engine says, canonically sorted: two firing, one resolved."""
    lines = [finding.to_json() for finding in findings_of(recording)]
    assert [json.loads(line)["state"] for line in lines] == ["firing", "resolved", "firing"]
    return lines


@pytest.fixture(scope="module")
def expected_incidents(recording: Recording) -> list[str]:
    """The incidents at the end, as the embedded engine sees them: a node each, of which one is closed."""
    incidents = latest(incident for step in steps(recording, choose()) for incident in step.incidents)
    assert [(incident.state, incident.causes[0].entity) for incident in incidents] == [
        ("closed", {"node": "v002"}),
        ("open", {"node": "v003"}),
    ]
    return sorted(incident.to_json() for incident in incidents)


@pytest.fixture(scope="module")
def feed_of(kafka: KafkaSettings, reader: KafkaConsumer, recording: Recording) -> Iterator[FeedOf]:
    """Return the recording as the replay of a name."""
    to_kafka = producer(kafka)
    yield lambda replay: RecordedFeed(recording, to_kafka, reader, replay)
    to_kafka.close()


@dataclass
class Detect:
    """`python -m services.detect` as a process of its own."""

    kafka: KafkaSettings
    folder: Path
    name: str = "detect"
    env: dict[str, str] = field(default_factory=dict)
    instance: str | None = "detect"
    """As which Kafka knows it: what another test left of the group is taken over, and not waited for."""
    process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        env = os.environ | {
            "HINDCAST_KAFKA_BOOTSTRAP": self.kafka.bootstrap,
            "HINDCAST_DETECT_STATE_DIR": str(self.folder / "state"),
        }
        if self.instance is not None:
            env["HINDCAST_DETECT_INSTANCE"] = self.instance
        with self.log.open("ab") as log:
            self.process = subprocess.Popen([sys.executable, "-m", "services.detect"], env=env | self.env, stderr=log)

    @property
    def log(self) -> Path:
        return self.folder / f"{self.name}.log"

    def end(self, signum: int = signal.SIGTERM) -> int | None:
        if self.process is None:
            return None
        self.process.send_signal(signum)
        code = self.process.wait(timeout=WAIT_S)
        self.process = None
        return code


@pytest.fixture
def start(kafka: KafkaSettings, tmp_path: Path) -> Iterator[Start]:
    """Start detect; whatever was started is ended."""
    started: list[Detect] = []

    def begin(**options: object) -> Detect:
        detect = Detect(kafka, tmp_path, **options)  # type: ignore[arg-type]  # the fields of Detect
        detect.start()
        started.append(detect)
        return detect

    yield begin
    for detect in started:
        code = detect.end()
        sys.stdout.write(detect.log.read_text())  # shown where the test failed
        assert code in (0, None)


def _shuffled_across_topics(messages: list[Message], seed: int) -> list[Message]:
    """Keep the order within each stream, as Kafka does, and none between them; send every third message twice."""
    lanes: dict[str, list[Message]] = {}
    for number, message in enumerate(messages):
        lanes.setdefault(message[1], []).extend([message] * (2 if number % 3 == 0 else 1))
    order = [stream for stream, lane in lanes.items() for _ in lane]
    random.Random(seed).shuffle(order)  # noqa: S311 - a reproducible shuffle, no secret
    heads = {stream: iter(lane) for stream, lane in lanes.items()}
    return [next(heads[stream]) for stream in order]


@pytest.mark.parametrize(("rows", "shuffled"), [(50, False), (8192, False), (500, True)])
def test_findings_and_incidents_through_kafka_are_those_of_the_embedded_engine(
    feed_of: FeedOf, expected: list[str], expected_incidents: list[str], start: Start, rows: int, shuffled: bool
) -> None:
    feed = feed_of(f"same-{rows}-{shuffled}")
    messages = feed.messages(rows)
    start()
    feed.send(_shuffled_across_topics(messages, rows) if shuffled else messages)
    assert feed.wait_for(len(expected)) == expected
    feed.wait_for_incidents(expected_incidents)


def test_all_streams_one_after_the_other(feed_of: FeedOf, expected: list[str], start: Start) -> None:
    feed = feed_of("one-by-one")
    feed.send(sorted(feed.messages(1000), key=lambda message: message[1], reverse=True))
    start()
    assert feed.wait_for(len(expected)) == expected


def test_what_would_wait_is_not_read_and_the_findings_are_the_same(
    recording: Recording,
    kafka: KafkaSettings,
    reader: KafkaConsumer,
    expected: list[str],
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """Of DCGM Kafka has a quarter of the bytes that it has of steps, each of which comes three times."""
    few: dict[str, Any] = {"fetch_max_bytes": 131_072, "max_partition_fetch_bytes": 32_768}
    monkeypatch.setattr(service, "consumer", partial(consumer, **few))
    to_kafka = producer(kafka, batch_size=16_384)
    waited: dict[str, int] = {}
    process = Unit.process

    def noted(unit: Unit, **at: Any) -> list[Line]:
        lines = process(unit, **at)
        waited[unit.origin.replay] = max(unit.engine.waiting_bytes, waited.get(unit.origin.replay, 0))
        return lines

    monkeypatch.setattr(Unit, "process", noted)
    for replay, most_bytes in (("unbounded", 10**12), ("bounded", 1)):
        feed = RecordedFeed(recording, to_kafka, reader, replay)
        feed.send([message for message in feed.messages(100) for _ in range(3 if message[1] == "steps" else 1)])
        settings = DetectSettings(state_dir=tmp_path / replay, instance="detect", waiting_bytes=most_bytes)
        stop, detect = threading.Event(), service.Detect(settings, kafka, Configured({}, None))
        running = threading.Thread(target=detect.run, args=(stop, threading.Event()))
        running.start()
        try:
            assert feed.wait_for(len(expected)) == expected
        finally:
            stop.set()
            running.join()
            detect.close()
    to_kafka.close()
    assert waited["bounded"] < waited["unbounded"] / 4, waited


def test_killed_in_the_middle_it_says_the_same(
    feed_of: FeedOf, expected: list[str], expected_incidents: list[str], start: Start
) -> None:
    feed = feed_of("killed")
    messages = feed.messages(100)
    middle = _braked(feed, messages)
    detect = start(env={"HINDCAST_DETECT_SNAPSHOT_INTERVAL_S": "0.2"})
    feed.send(messages[:middle])
    assert feed.wait_for(1) == expected[:1]
    until(lambda: _stored(detect.folder), timeout_s=WAIT_S, what="a snapshot")
    detect.end(signal.SIGKILL)
    feed.send(messages[middle : middle + 40])
    detect.start()
    feed.wait_for(1)
    detect.end(signal.SIGKILL)  # and once more, wherever it is by now
    detect.start()
    feed.send(messages[middle + 40 :])
    assert feed.wait_for(len(expected)) == expected
    feed.wait_for_incidents(expected_incidents)
    assert "going on with unit" in detect.log.read_text()


def test_killed_before_any_snapshot_it_reads_again(feed_of: FeedOf, expected: list[str], start: Start) -> None:
    feed = feed_of("killed-early")
    feed.send(feed.messages(50))
    detect = start(env={"HINDCAST_DETECT_SNAPSHOT_INTERVAL_S": "3600"})
    until(lambda: "new unit" in detect.log.read_text(), timeout_s=WAIT_S, what="the unit", interval_s=0.005)
    detect.end(signal.SIGKILL)
    assert not _stored(detect.folder)
    detect.start()
    assert feed.wait_for(len(expected)) == expected


def test_detection_goes_on_beside_a_snapshot_and_offsets_wait_for_it(
    feed_of: FeedOf, expected: list[str], start: Start, kafka: KafkaSettings, tmp_path: Path
) -> None:
    feed = feed_of("beside")
    messages = feed.messages(100)
    over = sum(message[0] <= feed.start_ms + 400_000 for message in messages)
    draft = tmp_path / "state" / f"{quote(feed.origin.unit, safe='')}.draft"
    draft.parent.mkdir()
    os.mkfifo(draft)  # the snapshot's writer waits for a reader that never comes
    detect = start(env={"HINDCAST_DETECT_SNAPSHOT_INTERVAL_S": "0.01"})
    feed.send(messages[: _braked(feed, messages)])
    assert feed.wait_for(1) == expected[:1]
    feed.send(messages[_braked(feed, messages) : over])
    assert feed.wait_for(2) == expected[:2]
    assert not _stored(tmp_path)
    assert _uncommitted(kafka)
    detect.end(signal.SIGKILL)
    draft.unlink()
    feed.send(messages[over:])
    detect.start()
    assert feed.wait_for(len(expected)) == expected
    until(lambda: not _uncommitted(kafka), timeout_s=WAIT_S, what="all offsets to be committed")


def test_a_poison_record_goes_to_dead_letter_and_the_rest_flows(
    feed_of: FeedOf, reader: KafkaConsumer, expected: list[str], start: Start
) -> None:
    feed = feed_of("poisoned")
    messages = feed.messages(500)
    headers = feed.origin.headers
    no_gpu = b'{"timestamp":"2024-04-01T08:00:00Z","node":"v001"}'
    text_gpu = b'{"timestamp":"2024-04-01T08:00:00Z","node":"v001","gpu":"first"}'
    poison: list[tuple[Message, str]] = [
        ((0, "dcgm", headers(wire.ARROW), b"garbage"), "not an Arrow stream"),
        ((0, "dcgm", headers(wire.NDJSON), no_gpu), "column(s) gpu missing"),
        ((0, "dcgm", headers(wire.NDJSON), text_gpu), "key column gpu"),
        ((0, "bmc", [], b"no headers"), "unknown schema"),
        ((0, "logs", headers(wire.NDJSON), b'{"timestamp":"yesterday"}'), "line 1"),
        ((0, "jobs", headers(wire.NDJSON), b'{"timestamp":"2024-04-01T08:00:00Z"}\n{'), "line 2 is not JSON"),
        ((0, "steps", headers(b"text/plain")[:-4], b"x"), "header"),
    ]
    for number, (message, _) in enumerate(poison):
        messages.insert(20 * number, message)
    start()
    feed.send(messages)
    assert feed.wait_for(len(expected)) == expected
    wanted = {(topics.declared().of_stream(message[1]), message[3] or b""): reason for message, reason in poison}

    def reasons() -> dict[tuple[str, bytes], str] | None:
        found = {}
        for record in all_records(reader, topics.DEAD_LETTER):
            headers = dict(record.headers)
            if headers["dead-letter-service"] == b"detect":
                topic, reason = (headers[f"dead-letter-{name}"].decode() for name in ("topic", "reason"))
                found[topic, record.value or b""] = reason
        return found if wanted.keys() <= found.keys() else None

    found = until(reasons, timeout_s=WAIT_S, what="dead letters")
    for key, reason in wanted.items():
        assert reason in found[key]


def test_partitions_move_to_a_second_instance_with_their_state(
    feed_of: FeedOf, expected: list[str], start: Start
) -> None:
    feeds = [feed_of(f"moved-{number}") for number in range(6)]
    halves = [feed.messages(100) for feed in feeds]
    first = start(name="first")
    for feed, messages in zip(feeds, halves, strict=True):
        feed.send(messages[: _braked(feed, messages)])
    for feed in feeds:
        feed.wait_for(1)
    second = start(name="second", instance=None)
    until(lambda: "partitions assigned count=" in second.log.read_text(), timeout_s=WAIT_S, what="partitions to move")
    for feed, messages in zip(feeds, halves, strict=True):
        feed.send(messages[_braked(feed, messages) :])
    for feed in feeds:
        assert feed.wait_for(len(expected)) == expected
    assert "partitions released" in first.log.read_text()
    assert "going on with unit" in second.log.read_text()


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("power_throttle: {clock_ratio: 7, colour: red}\npower_throttel: {}\n", ("clock_ratio", "colour", "throttel")),
        ("[", ("not YAML",)),
        ("- power_throttle\n", ("not a mapping",)),
    ],
)
def test_a_bad_configuration_is_reported_whole_and_before_anything_is_connected(
    tmp_path: Path, text: str, named: tuple[str, ...]
) -> None:
    config = tmp_path / "detectors.yaml"
    config.write_text(text)
    env = os.environ | {
        "HINDCAST_KAFKA_BOOTSTRAP": "127.0.0.1:1",
        "HINDCAST_DETECT_STATE_DIR": str(tmp_path / "state"),
        "HINDCAST_DETECT_CONFIG": str(config),
    }
    done = subprocess.run(
        [sys.executable, "-m", "services.detect"], env=env, capture_output=True, text=True, check=False
    )
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    for word in (*named, "detectors.yaml", "remedy"):
        assert word in done.stderr


def _braked(feed: RecordedFeed, messages: list[Message]) -> int:
    """Return how many messages come before the middle of the first brake."""
    return sum(message[0] <= feed.start_ms + 290_000 for message in messages)


def _uncommitted(kafka: KafkaSettings) -> dict[TopicPartition, int]:
    """Return how many records of GPUs detect's group would read again, by partition that has such."""
    client = consumer(kafka, group=GROUP)
    try:
        topic = topics.declared().of_stream("dcgm")
        parts = [TopicPartition(topic, number) for number in sorted(client.partitions_for_topic(topic) or ())]
        begins, ends = client.beginning_offsets(parts), client.end_offsets(parts)
        left = {part: ends[part] - max(client.committed(part) or 0, begins[part]) for part in parts}
        return {part: count for part, count in left.items() if count}
    finally:
        client.close()


def _stored(folder: Path) -> list[Path]:
    return list((folder / "state").glob("*.state"))
