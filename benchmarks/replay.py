"""Recording to Kafka at max: samples/s of the replay service, beside its bytes sent with no reading or encoding."""

import os
import statistics
import tempfile
import threading
import time
from pathlib import Path

import httpx
from kafka import TopicPartition

from benchmarks.measured import cpu_s
from services.kit import topics
from services.kit.kafka import KafkaSettings, consumer, producer
from services.kit.wait import until
from services.stack.hindcast_services import python_service
from services.stack.runner import Stack
from services.synth.library import cached_recording

ROUNDS = 3
BAR_SAMPLES_S = 1_500_000
BAR_MB = 400

Message = tuple[str, bytes | None, list[tuple[str, bytes]]]


def main() -> None:
    """Replay the three hours of vela-power-brake some times, send what came of it as often, and print the ratios."""
    recording = cached_recording("vela-power-brake")
    with tempfile.TemporaryDirectory() as scratch, Stack.start(Path(scratch), only=("kafka",)) as stack:
        kafka = KafkaSettings(bootstrap=stack.addresses.kafka)
        topics.create(kafka)
        port = stack.service_context().ports.take()
        env = {
            "HINDCAST_KAFKA_BOOTSTRAP": kafka.bootstrap,
            "HINDCAST_REPLAY_PORT": str(port),
            "HINDCAST_REPLAY_STATE_DIR": str(Path(scratch) / "replay"),
        }
        process = stack.add_process(python_service("replay", "services.replay", port=port, env=env, after=()))
        url, pid = f"http://127.0.0.1:{port}", process.pid or 0
        replays = [Round(url, pid, recording, 0)]
        messages = read_back(kafka, replays[0].unit)
        bare = [send_bare(kafka, messages, 0)]
        for number in range(1, ROUNDS):  # by turns, so that what else the machine does falls on both
            replays.append(Round(url, pid, recording, number))
            bare.append(send_bare(kafka, messages, number))
    samples = replays[0].samples
    megabytes = sum(len(value or b"") for _, value, _ in messages) / 1e6
    took_s = statistics.median(one.took_s for one in replays)
    cpu_s = statistics.median(one.cpu_s for one in replays)
    rate, ceiling = samples / took_s, samples / statistics.median(bare)
    print(f"{samples:,} samples, {sum(replays[0].rows.values()):,} rows, {len(messages):,} records, {megabytes:.0f} MB")
    print(f"replay at max   {rate:12,.0f} samples/s  {1e6 * cpu_s / samples:.3f} us of CPU a sample")
    print(f"bare producer   {ceiling:12,.0f} samples/s  (the same records, median of {ROUNDS})")
    print(f"ratio to bare   {rate / ceiling:.2f}")
    print(f"ratio to the bar of {BAR_SAMPLES_S:,} samples/s   {rate / BAR_SAMPLES_S:.2f}")
    for number, one in enumerate(replays, start=1):
        print(f"resident memory in round {number}: most {max(one.resident_mb):.0f} MB (bar {BAR_MB} MB)")


class Round:
    """One replay of the recording by the service, watched from outside."""

    def __init__(self, url: str, pid: int, recording: Path, number: int) -> None:
        self.resident_mb: list[float] = []
        over = threading.Event()
        watcher = threading.Thread(target=self._watch, args=(pid, over))
        watcher.start()
        api = f"{url}/api/v1/replays"
        used_s, began = cpu_s(pid), time.monotonic()
        started = httpx.post(api, json={"recording": str(recording), "speed": "max", "name": f"bench-{number}"})
        name = started.raise_for_status().json()["name"]
        status = until(lambda: _ended(f"{api}/{name}"), timeout_s=600, what="the replay to end", interval_s=0.1)
        self.took_s, self.cpu_s = time.monotonic() - began, cpu_s(pid) - used_s
        over.set()
        watcher.join()
        self.unit = f"{status['cluster']}/{name}"
        self.rows: dict[str, int] = status["rows"]
        self.samples: int = sum(status["samples"].values())

    def _watch(self, pid: int, over: threading.Event) -> None:
        while not over.wait(0.1):
            fields = Path(f"/proc/{pid}/statm").read_text(encoding="ascii").split()
            self.resident_mb.append(int(fields[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6)


def _ended(url: str) -> dict[str, dict[str, int]] | None:
    status: dict[str, dict[str, int]] = httpx.get(url).raise_for_status().json()
    if str(status["state"]) == "failed":
        raise SystemExit(f"the replay has failed: {status['error']}")
    return status if str(status["state"]) == "ended" else None


def read_back(kafka: KafkaSettings, unit: str) -> list[Message]:
    """Return all records of a unit, topic by topic."""
    plan = topics.declared()
    reader = consumer(kafka, group=None)
    partitions = [
        TopicPartition(topic, n) for topic in plan.streams() for n in sorted(reader.partitions_for_topic(topic) or ())
    ]
    reader.assign(partitions)
    reader.seek_to_beginning(*partitions)
    ends = reader.end_offsets(partitions)
    found: list[tuple[int, Message]] = []
    while any(reader.position(partition) < end for partition, end in ends.items()):
        for records in reader.poll(timeout_ms=500).values():
            mine = [record for record in records if record.key == unit.encode()]
            found += [(record.timestamp, (record.topic, record.value, record.headers)) for record in mine]
    reader.close()
    found.sort(key=lambda item: item[0])  # in the order of their appending: the topics mixed, as the replay sent them
    return [message for _, message in found]


def send_bare(kafka: KafkaSettings, messages: list[Message], number: int) -> float:
    """Return how long (s) it takes to send the records with the same producer and have them acknowledged."""
    client = producer(kafka)
    for topic in topics.declared().streams():
        client.partitions_for(topic)
    key = f"bench/bare-{number}".encode()
    began = time.monotonic()
    for topic, value, headers in messages:
        client.send(topic, key=key, value=value, headers=list(headers))
    client.flush()
    took_s = time.monotonic() - began
    client.close()
    return took_s


if __name__ == "__main__":
    main()
