"""A recording as Kafka messages, and what detect says of it."""

import json
from collections.abc import Sequence

from kafka import KafkaConsumer, KafkaProducer, TopicPartition

from services.kit import replays, topics, wire
from services.kit.kafka import Record
from services.kit.replays import ReplayState
from services.kit.wait import until
from services.kit.wire import Origin, Watermark
from services.recording.reader import Recording, times_of
from services.replay.lines import job_lines, log_lines

WAIT_S = 300.0
NO_SINK = "nowhere"
"""A target that no sink has: a recording at its own time, of years ago, is not what a Prometheus beside it takes."""
Message = tuple[int, str, wire.Headers, bytes | None]
"""Time by which it is due, stream, headers, value."""


class RecordedFeed:
    """A recording as Kafka messages, in whatever sizes and order; `partition`: else that of its key."""

    def __init__(
        self,
        recording: Recording,
        to_kafka: KafkaProducer,
        from_kafka: KafkaConsumer,
        replay: str,
        *,
        partition: int | None = None,
        target: str = NO_SINK,
        shift_ms: int = 0,
    ) -> None:
        self.origin = Origin(recording.manifest.cluster.name, replay, target=target, shift_ms=shift_ms)
        self._partition = partition
        self._recording = recording
        self._reader = from_kafka
        self._producer = to_kafka
        manifest = recording.manifest
        self.start_ms = manifest.start
        state = ReplayState(
            cluster=self.origin.cluster,
            replay=replay,
            generation=0,
            shift_ms=shift_ms,
            target=target,
            recording=manifest.name,
            from_ms=manifest.start,
            to_ms=manifest.end,
            warm_from_ms=manifest.start,
            speed=0,
            state="running",
            streams=("jobs", "logs", *recording.streams()),
        )
        topology = recording.topology.model_dump(mode="json", exclude_unset=True)
        replays.announce_topology(self._producer, state.unit, topology).get(timeout=WAIT_S)
        replays.announce(self._producer, state).get(timeout=WAIT_S)

    def messages(self, rows: int) -> list[Message]:
        """Return all messages, of at most `rows` rows of dcgm and fewer of what is sparse, and watermarks, by time."""
        start, end = self._recording.manifest.start, self._recording.manifest.end
        data: dict[str, list[tuple[int, Message]]] = {}
        sparse, lines_each = max(1, rows // 20), max(1, rows // 200)
        for stream in self._recording.streams():
            lane = data.setdefault(stream, [])
            size = rows if stream == "dcgm" else sparse
            for batch in self._recording.batches(stream, start, end + 1, max_rows=size):
                times = times_of(batch)
                headers = self.origin.headers(wire.ARROW)
                lane.append((int(times[0]), (int(times[-1]), stream, headers, wire.encode_batch(batch))))
        lines = {
            "jobs": job_lines(self._recording.jobs(), start, end),
            "logs": list(log_lines(self._recording.events(start, end + 1))),
        }
        for stream, all_lines in lines.items():
            lane = data.setdefault(stream, [])
            for first in range(0, len(all_lines), lines_each):
                some = all_lines[first : first + lines_each]
                value = b"\n".join(line for _, line in some)
                lane.append((some[0][0], (some[-1][0], stream, self.origin.headers(wire.NDJSON), value)))
        return [*self._in_order(data, start, end), *(self._watermark(stream, end, end, end=True) for stream in data)]

    def _in_order(self, data: dict[str, list[tuple[int, Message]]], start: int, end: int) -> list[Message]:
        found = [message for lane in data.values() for _, message in lane]
        for stream, lane in data.items():
            for due in range(start, end, 5000):
                first_unsent = min((first for first, message in lane if message[0] > due), default=end)
                found.append(self._watermark(stream, due, min(due, first_unsent - 1)))
        return sorted(found, key=lambda message: (message[0], message[3] is None))

    def _watermark(self, stream: str, due: int, at_ms: int, *, end: bool = False) -> Message:
        return (due, stream, [*self.origin.headers(wire.WATERMARK), *Watermark(at_ms, end).headers()], None)

    def send(self, messages: Sequence[Message]) -> None:
        for _, stream, headers, value in messages:
            topic = topics.declared().of_stream(stream)
            key = self.origin.unit.encode()
            self._producer.send(topic, key=key, value=value, headers=headers, partition=self._partition)
        self._producer.flush(timeout=WAIT_S)

    def findings(self) -> list[bytes]:
        """Return the findings as they stand in Kafka, without those that were published again after a crash."""
        records = records_of(self._reader, topics.FINDINGS, f"{self.origin.unit}/0/")
        published = [(record.key, record.value) for record in records]
        bodies = dict(published)
        assert all(bodies[key] == value for key, value in published), "a finding was published again in other bytes"
        return [body for body in bodies.values() if body is not None]

    def incidents(self) -> list[str]:
        """Return the last revision of each incident, as compaction leaves it."""
        records = records_of(self._reader, topics.INCIDENTS, f"{self.origin.unit}/0/")
        last = {record.key: record.value for record in records}
        return sorted(body.decode() for body in last.values() if body is not None)

    def wait_for_incidents(self, expected: list[str]) -> None:
        until(lambda: self.incidents() == expected, timeout_s=WAIT_S, what="the incidents")

    def wait_for(self, count: int) -> list[str]:
        lines = until(lambda: f if len(f := self.findings()) >= count else None, timeout_s=WAIT_S, what="findings")
        return sorted((line.decode() for line in lines), key=_canonical)


def _canonical(line: str) -> tuple[str, str, str, str]:
    finding = json.loads(line)
    return finding["detected_at"], finding["detector"], json.dumps(finding["entity"]), finding["state"]


def records_of(reader: KafkaConsumer, topic: str, unit: str) -> list[Record]:
    return [record for record in all_records(reader, topic) if (record.key or b"").startswith(unit.encode())]


def all_records(reader: KafkaConsumer, topic: str) -> list[Record]:
    parts = [TopicPartition(topic, number) for number in sorted(reader.partitions_for_topic(topic) or ())]
    ends = reader.end_offsets(parts)
    reader.assign(parts)
    reader.seek_to_beginning(*parts)
    found: list[Record] = []
    while any(reader.position(part) < ends[part] for part in parts):
        for records in reader.poll(timeout_ms=200).values():
            found += records
    return found
