"""Delay at speed 1: from the append of the sample that completes a decision, to the finding, and to the webhook.

96 nodes, a brake every 2.4 s of event time, replayed in real time through all servers (about five minutes). Both ends
of the first delay are the broker's own append times; the webhook's is the receiver's clock on the same machine.
"""

import json
import tempfile
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from services.cli.pipeline import DETECT_GROUP, Pipeline
from services.kit import topics, wire
from services.kit.columns import rows_of
from services.kit.kafka import KafkaSettings
from services.kit.times import parse_time
from services.kit.wait import until
from services.stack.hindcast_services import services
from services.stack.runner import Stack
from tests.small import Brake, small_recording

NODES = 96
EVERY_S = 2.4
BRAKED_S = 40.0
FIRST_S = 45.0
BAR_MS = {"finding": 250, "webhook": 1000}


def main() -> None:
    """Run it and print the percentiles beside the bar."""
    brakes = [
        Brake(f"v{1 + (37 * n) % NODES:03d}", FIRST_S + EVERY_S * n, FIRST_S + EVERY_S * n + BRAKED_S)
        for n in range(NODES)
    ]
    minutes = (brakes[-1].until_s + 15) / 60
    with tempfile.TemporaryDirectory() as scratch, Stack.start(Path(scratch) / "stack", services=services) as stack:
        recording = small_recording(Path(scratch), "brakes", nodes=NODES, minutes=minutes, brakes=brakes)
        pipeline = Pipeline(KafkaSettings(bootstrap=stack.addresses.kafka), stack.addresses.services)
        print(f"replaying {minutes:.1f} minutes at speed 1 ...", flush=True)
        pipeline.start_replay(str(recording), speed=1, shift="start-now", name="latency")
        pipeline.wait_over("latency", timeout_s=minutes * 60 + 60)
        pipeline.wait_caught_up(DETECT_GROUP, timeout_s=60)
        firing = [record for record in pipeline.records(topics.FINDINGS) if _of_a_brake(record)]
        for node in sorted({json.loads(record.value)["entity"]["node"] for record in firing}):
            until(partial(_notified, pipeline, node), timeout_s=60, what=f"the webhook of {node}")
        _report(pipeline, firing)


def _of_a_brake(record: Any) -> bool:
    """Return whether a record is a brake that alerts somebody: what alerts nobody has no webhook to wait for."""
    finding = json.loads(record.value) if record.value else {}
    known = finding.get("state"), finding.get("fault")
    return known == ("firing", "power_throttle") and finding["severity"] != "info"


def _report(pipeline: Pipeline, firing: list[object]) -> None:
    appended = _appends(pipeline)
    received = _webhooks(pipeline)
    to_finding, to_webhook = [], []
    for record in firing:
        finding = json.loads(record.value)  # type: ignore[attr-defined]  # kafka-python is untyped
        node, at = finding["entity"]["node"], parse_time(finding["detected_at"])
        samples, walls = appended[node]
        completed = int(walls[int(np.searchsorted(samples, at, side="right")) - 1])
        to_finding.append(record.timestamp - completed)  # type: ignore[attr-defined]  # kafka-python is untyped
        to_webhook.append(received[node] - completed)
    print(f"{len(firing)} findings of {NODES} brakes")
    for what, delays in (("finding", to_finding), ("webhook", to_webhook)):
        p50, p99 = np.percentile(delays, [50, 99])
        print(
            f"to the {what}: p50 {p50:.0f} ms, p99 {p99:.0f} ms, most {max(delays)} ms "
            f"(bar: p99 {BAR_MS[what]} ms, ratio {p99 / BAR_MS[what]:.2f})"
        )


def _appends(pipeline: Pipeline) -> dict[str, tuple[NDArray[np.int64], NDArray[np.int64]]]:
    """Return by node the times of its samples and when the broker appended them, both ascending."""
    found: dict[str, list[tuple[int, int]]] = {}
    for record in pipeline.records("telemetry.dcgm"):
        payload = wire.payload_of(record)
        if isinstance(payload, pa.RecordBatch):
            rows = rows_of("dcgm", payload, fields=())
            node = rows.keys["node"]
            for code, at in set(zip(node.codes.tolist(), rows.times.tolist(), strict=True)):
                found.setdefault(str(node.categories[code]), []).append((at, record.timestamp))
    columns = {node: np.array(sorted(pairs), dtype=np.int64) for node, pairs in found.items()}
    return {node: (pairs[:, 0], pairs[:, 1]) for node, pairs in columns.items()}


def _notified(pipeline: Pipeline, node: str) -> bool:
    return node in _webhooks(pipeline)


def _webhooks(pipeline: Pipeline) -> dict[str, int]:
    """Return by node when its first firing webhook was received (epoch ms)."""
    first: dict[str, int] = {}
    for hook in pipeline.webhooks("latency"):
        if hook["body"]["status"] == "firing":
            for alert in hook["body"]["alerts"]:
                if alert["labels"]["fault"] == "power_throttle":
                    first.setdefault(alert["labels"]["node"], parse_time(hook["received_at"]))
    return first


if __name__ == "__main__":
    main()
