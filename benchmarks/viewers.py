"""Fifty browsers that follow a replay at speed 60: whether it falls behind, and how late they hear of a finding.

All servers, all services and the API, each a process; 45 minutes of vela-power-brake around its fault, once with nobody
looking and once with all browsers. The browsers are connections of this process.
"""

import asyncio
import json
import os
import tempfile
import threading
import time
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import httpx
import numpy as np

from benchmarks.measured import cpu_s
from services.cli.pipeline import Pipeline
from services.kit import topics
from services.kit.kafka import KafkaSettings
from services.kit.wait import until
from services.stack.hindcast_services import python_service, services
from services.stack.runner import Stack
from services.synth.library import cached_recording

VIEWERS = 50
SPEED = 60
WINDOW = {"from": "+01:15:00", "to": "+02:00:00"}
BAR_LAG_S = 1.0
"""More than the 250 ms in which a row is due at worst, and far less than a person notices on a tape deck."""


def main() -> None:
    """Replay twice and print what differs."""
    recording = cached_recording("vela-power-brake")
    print(f"{os.cpu_count()} cores, load before {os.getloadavg()[0]:.1f}", flush=True)
    with tempfile.TemporaryDirectory() as scratch, Stack.start(Path(scratch) / "stack", services=services) as stack:
        context = stack.service_context()
        port, at = context.ports.take(), stack.addresses
        env = {
            "HINDCAST_KAFKA_BOOTSTRAP": at.kafka,
            "HINDCAST_API_PORT": str(port),
            "HINDCAST_API_DATA_DIR": str(Path(scratch) / "api"),
            "HINDCAST_API_LIBRARY": json.dumps([str(recording)]),
            "HINDCAST_API_REPLAY_URL": at.services["replay"],
            "HINDCAST_API_ALERTMANAGER_URL": at.alertmanager,
        }
        process = stack.add_process(python_service("api", "services.api", port=port, env=env, after=()))
        pipeline = Pipeline(KafkaSettings(bootstrap=at.kafka), at.services)
        url, pid = f"http://127.0.0.1:{port}/api/v1", process.pid or 0
        for viewers in (0, VIEWERS):
            Round(url, pid, viewers, recording.name).report(pipeline)


@dataclass
class Browser:
    """What one browser heard of: its events by kind, and when findings came (wall ms)."""

    kinds: dict[str, int] = field(default_factory=dict)
    findings: dict[str, float] = field(default_factory=dict)

    async def follow(self, client: httpx.AsyncClient, path: str) -> None:
        """Follow a replay until it is removed."""
        kind = ""
        async with client.stream("GET", path, timeout=None) as answer:
            async for line in answer.aiter_lines():
                name, _, value = line.partition(": ")
                if name == "event":
                    kind = value
                elif name == "data":
                    self.kinds[kind] = self.kinds.get(kind, 0) + 1
                    if value == "null":
                        return
                    if kind == "finding" and '"state":"firing"' in value:
                        self.findings.setdefault(json.loads(value)["id"], time.time() * 1000)


class Round:
    """One replay with so many browsers."""

    def __init__(self, url: str, pid: int, viewers: int, recording: str) -> None:
        self.viewers = viewers
        self.browsers = [Browser() for _ in range(viewers)]
        asked: dict[str, Any] = {"recording": recording, "speed": SPEED, "name": f"viewers-{viewers}", **WINDOW}
        used_s, began = cpu_s(pid), time.monotonic()
        self.replay = httpx.post(f"{url}/replays", json=asked, timeout=60).raise_for_status().json()
        path = f"{url}/replays/{self.replay['name']}"
        thread = threading.Thread(target=lambda: asyncio.run(self._follow(f"{path}/events")))
        thread.start()
        most = 0.0

        def ended() -> bool:
            nonlocal most
            status = httpx.get(path, timeout=60).raise_for_status().json()
            most = max(most, status["max_lag_s"])
            return str(status["state"]) == "ended"

        until(ended, timeout_s=600, what="the replay to end", interval_s=0.5)
        self.took_s, self.max_lag_s = time.monotonic() - began, most
        run = f"{url}/runs/{self.replay['run']}"
        until(
            lambda: httpx.get(run, timeout=60).json()["state"] == "done", timeout_s=300, what="detect", interval_s=0.2
        )
        self.after_s = time.monotonic() - began - self.took_s
        self.cpu_s = cpu_s(pid) - used_s
        httpx.delete(path, timeout=60).raise_for_status()
        thread.join()

    async def _follow(self, path: str) -> None:
        limits = httpx.Limits(max_connections=None)
        async with httpx.AsyncClient(limits=limits) as client:
            await asyncio.gather(*(browser.follow(client, path) for browser in self.browsers))

    def report(self, pipeline: Pipeline) -> None:
        """Print the figures."""
        due_s = 45 * 60 / SPEED
        print(
            f"{self.viewers} browsers: {due_s:.0f} s were due and took {self.took_s:.1f} s, most lag "
            f"{self.max_lag_s:.3f} s (bar {BAR_LAG_S:g} s, ratio {self.max_lag_s / BAR_LAG_S:.2f}); all detected "
            f"{self.after_s:.1f} s later; API {self.cpu_s:.1f} s of CPU",
            flush=True,
        )
        if not self.browsers:
            return
        unit = f"{self.replay['cluster']}/{self.replay['name']}".encode()
        published = {
            json.loads(record.value)["id"]: record.timestamp
            for record in pipeline.records(topics.FINDINGS)
            if record.key.startswith(unit) and b'"state":"firing"' in record.value
        }
        delays = [at - published[name] for browser in self.browsers for name, at in browser.findings.items()]
        heard = {len(browser.findings) for browser in self.browsers}
        p50, p99 = np.percentile(delays, [50, 99])
        print(
            f"each of {self.viewers} heard of {sorted(heard)} of {len(published)} findings; from Kafka to the browser "
            f"p50 {p50:.0f} ms, p99 {p99:.0f} ms; events of one browser: {self.browsers[0].kinds}"
        )


if __name__ == "__main__":
    main()
