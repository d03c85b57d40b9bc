"""Two detects and two sinks share units: when one of each is killed, all is as if there had been one, undisturbed."""

import time
from collections.abc import Sequence
from functools import partial
from pathlib import Path
from typing import Any
from uuid import uuid4

from kafka import KafkaConsumer

from services.cli.pipeline import Pipeline, sink_group
from services.kit import topics
from services.kit.kafka import KafkaSettings, producer
from services.kit.wait import until
from services.recording.embedded import findings_of
from services.recording.reader import Recording
from services.sink.intake import topics_read
from services.stack.process import ManagedProcess
from services.stack.runner import Stack
from tests.integration.conftest import StartService
from tests.integration.held import query
from tests.integration.recorded_feed import WAIT_S, RecordedFeed
from tests.small import Brake, small_recording

PARTITIONS = (0, 1, 4, 5)
"""Of four units: Kafka's range assignor gives the lower half of the partitions to one instance."""
BRAKED_MS = 150_000


def test_one_of_each_killed_and_findings_and_samples_are_those_of_one(
    stack: Stack, kafka: KafkaSettings, reader: KafkaConsumer, start_service: StartService, tmp_path: Path
) -> None:
    brakes = [Brake("v001", 90, 200), Brake("v002", 240, 299)]
    recording = Recording.open(small_recording(tmp_path, "shared", nodes=2, minutes=5, brakes=brakes))
    expected = [finding.to_json() for finding in findings_of(recording)]
    assert len(expected) == 3
    target = f"shared-{uuid4().hex[:8]}"
    stored = tmp_path / "state"
    state = {"HINDCAST_DETECT_STATE_DIR": str(stored), "HINDCAST_DETECT_SNAPSHOT_INTERVAL_S": "0.2"}
    detects = [start_service(f"detect-{name}", "detect", **state) for name in "ab"]
    sink = {"HINDCAST_SINK_TARGET": target, "HINDCAST_SINK_URL": stack.addresses.prometheus_write}
    sinks = [start_service(f"sink-{name}", "sink", **sink) for name in "ab"]
    other = {"HINDCAST_SINK_REPLICA": "alone", "HINDCAST_SINK_URL": stack.addresses.prometheus_1_write}
    start_service("sink-alone", "sink", **sink | other)
    for processes, read in ((detects, list(topics.declared().streams())), (sinks, topics_read())):
        half = f"partitions assigned count={len(read) * kafka.unit_partitions // 2}\n"
        shared = partial(_all_say, processes, half)
        until(shared, timeout_s=WAIT_S, what="each to have half of the partitions")
    shift_ms = time.time_ns() // 1_000_000 - recording.manifest.end
    to_kafka = producer(kafka)
    feeds = [
        RecordedFeed(
            recording, to_kafka, reader, f"{target}-{number}", partition=number, target=target, shift_ms=shift_ms
        )
        for number in PARTITIONS
    ]
    messages = [feed.messages(100) for feed in feeds]
    middle = sum(message[0] <= feeds[0].start_ms + BRAKED_MS for message in messages[0])
    for feed, those in zip(feeds, messages, strict=True):
        feed.send(those[:middle])
    for feed in feeds:
        feed.wait_for(1)
    until(lambda: len(list(stored.glob("*.state"))) == len(feeds), timeout_s=WAIT_S, what="a snapshot of each unit")
    detects[0].kill()
    sinks[0].kill()
    for feed, those in zip(feeds, messages, strict=True):
        feed.send(those[middle:])
    for feed in feeds:
        assert feed.wait_for(len(expected)) == expected
    to_kafka.close()
    groups = (sink_group(target), sink_group(f"{target}-alone"))
    Pipeline(kafka, {}).wait_caught_up(*groups, timeout_s=WAIT_S)
    both, alone = (
        [_samples(base, feed.origin.replay, recording.manifest.end + shift_ms) for feed in feeds]
        for base in (stack.addresses.prometheus, stack.addresses.prometheus_1)
    )
    assert all(sum(len(series["values"]) for series in unit) > 50_000 for unit in alone)
    assert both == alone
    assert "going on with unit" in detects[1].log.read_text()


def _all_say(processes: Sequence[ManagedProcess], words: str) -> bool:
    return all(words in process.log.read_text() for process in processes)


def _samples(base: str, replay: str, end_ms: int) -> list[dict[str, Any]]:
    """Return every series of a replay with all its samples; what is stale from when on shows at a minute's distance."""
    found = query(base, f'{{replay="{replay}"}}[10m]', end_ms + 60_000)
    found += [
        {"values": [at_ms, one["value"]], **one}
        for at_ms in range(end_ms - 240_000, end_ms + 60_001, 60_000)
        for one in query(base, f'{{replay="{replay}"}}', at_ms)
    ]
    return sorted(found, key=lambda one: sorted(one["metric"].items()))
