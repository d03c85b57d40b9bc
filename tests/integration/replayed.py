"""What the replay tests share: the service as a process, and what of a replay has arrived in Kafka."""

import json
import os
import re
import signal
import subprocess
import sys
from collections import defaultdict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pyarrow as pa

from services.cli.pipeline import Pipeline
from services.kit import topics
from services.kit.kafka import KafkaSettings
from services.kit.times import parse_time
from services.kit.wait import until
from services.kit.wire import Origin, Watermark, origin_of, payload_of
from services.recording.reader import Recording
from services.replay.conftest import END, EVENTS, JOBS, START
from services.replay.lines import job_lines
from tests import web

STREAMS = ("dcgm", "bmc", "steps", "jobs", "logs")
REPO = Path(__file__).parents[2]


@dataclass
class Service:
    """`python -m services.replay` as a process of its own, on a port of the system's choice."""

    kafka: str
    folder: Path
    env: dict[str, str] = field(default_factory=dict)
    url: str = ""
    process: subprocess.Popen[bytes] | None = None
    starts: int = 0

    def start(self) -> None:
        self.starts += 1
        log = self.folder / f"service-{self.starts}.log"
        env = {
            **os.environ,
            "HINDCAST_KAFKA_BOOTSTRAP": self.kafka,
            "HINDCAST_REPLAY_PORT": "0",
            "HINDCAST_REPLAY_STATE_DIR": str(self.folder / "state"),
            **self.env,
        }
        with log.open("wb") as out:
            self.process = subprocess.Popen([sys.executable, "-m", "services.replay"], env=env, stderr=out, cwd=REPO)

        def listening() -> str | None:
            assert self.process is not None
            assert self.process.poll() is None, log.read_text()
            found = re.search(r"listening address=(\S+)", log.read_text())
            return found[1] if found else None

        self.url = until(listening, what="the replay service to listen")
        until(lambda: web.healthy(self.url), what="the replay service to answer")

    def end(self, number: signal.Signals) -> int:
        assert self.process is not None
        self.process.send_signal(number)
        return self.process.wait(30)

    def call(self, method: str, path: str = "", **body: Any) -> Any:
        answer = web.request(method, f"{self.url}/api/v1/replays{path}", json=body or None, timeout=300)
        assert answer.is_success, answer.text
        return answer.json() if answer.content else None

    def begin(self, recording: Path, **asked: Any) -> str:
        name: str = self.call("POST", recording=str(recording), **asked)["name"]
        return name

    def wait(self, name: str, state: str = "ended") -> dict[str, Any]:
        def reached() -> dict[str, Any] | None:
            status: dict[str, Any] = self.call("GET", f"/{name}")
            assert status["state"] in (state, "running", "paused"), status
            return status if status["state"] == state else None

        return until(reached, what=f"{name} to be {state}")

    def wait_progress(self, name: str, progress: float) -> None:
        what = f"{name} to have sent {progress:.0%}"
        until(lambda: self.call("GET", f"/{name}")["progress"] >= progress, what=what)


@dataclass
class Arrived:
    """What Kafka holds of one generation of a unit: by stream, in the order of the log."""

    origin: Origin
    payloads: dict[str, list[Any]] = field(default_factory=lambda: defaultdict(list))
    appended_ms: dict[str, list[int]] = field(default_factory=lambda: defaultdict(list))

    def rows(self, stream: str) -> list[dict[str, Any]]:
        """All rows in order, comparable: times in ms, a NaN as text."""
        rows: list[dict[str, Any]] = []
        for payload in self.payloads[stream]:
            if not isinstance(payload, Watermark):
                rows += payload.to_pylist() if isinstance(payload, pa.RecordBatch) else payload
        return [comparable(row) for row in rows]

    def watermarks(self, stream: str) -> list[Watermark]:
        return [payload for payload in self.payloads[stream] if isinstance(payload, Watermark)]


def comparable(row: dict[str, Any]) -> dict[str, Any]:
    at = row["timestamp"]
    at_ms = parse_time(at) if isinstance(at, str) else round(at.timestamp() * 1000)
    plain = {name: "NaN" if value != value else value for name, value in row.items()}
    return plain | {"timestamp": at_ms}


def arrived(settings: KafkaSettings, unit: str) -> dict[int, Arrived]:
    """Return all that Kafka holds of a unit, by generation."""
    found: dict[int, Arrived] = {}
    for topic, stream in topics.declared().streams().items():
        for record in Pipeline(settings, {}).records(topic):
            if record.key == unit.encode():
                origin = origin_of(record.headers)
                mine = found.setdefault(origin.generation, Arrived(origin))
                assert mine.origin == origin
                mine.payloads[stream].append(payload_of(record))
                mine.appended_ms[stream].append(record.timestamp)
    return found


def expected(recording: Path, stream: str, begin: int = START, end: int = END) -> list[dict[str, Any]]:
    """Return the rows of a window as the recording has them."""
    opened = Recording.open(recording)
    if stream == "jobs":
        rows = [json.loads(line) for _, line in job_lines(JOBS, begin, end)]
    elif stream == "logs":
        rows = [
            event.model_dump(mode="json", exclude_unset=True) for event in EVENTS if begin <= event.timestamp <= end
        ]
    else:
        rows = [row for batch in opened.batches(stream, begin, end + 1) for row in batch.to_pylist()]
    return [comparable(row) for row in rows]


def unique(rows: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Each row once, where it came first."""
    seen: dict[str, dict[str, Any]] = {}
    for row in rows:
        seen.setdefault(repr(row), row)
    return list(seen.values())


def check_marks(found: Arrived, end_ms: int) -> None:
    """Watermarks go forward, hold what they say, end once, and are on every fed topic."""
    for stream in STREAMS:
        watermarks = found.watermarks(stream)
        assert [watermark.at_ms for watermark in watermarks] == sorted(watermark.at_ms for watermark in watermarks)
        assert watermarks[-1] == Watermark(end_ms, end=True)
        assert isinstance(found.payloads[stream][-1], Watermark)
        assert [watermark.end for watermark in watermarks].count(True) == 1
        reached = -1
        for payload in found.payloads[stream]:
            if isinstance(payload, Watermark):
                reached = payload.at_ms
                continue
            rows = payload.to_pylist() if isinstance(payload, pa.RecordBatch) else payload
            assert all(comparable(row)["timestamp"] > reached for row in rows)
