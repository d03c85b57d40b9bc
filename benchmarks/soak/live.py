"""A live cluster for the soak: its telemetry sent to the gateway as it happens, and sent again until it is taken."""

import json
import threading
import time
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import httpx

from detectors.contract import Finding
from services.kit.times import parse_time
from services.recording.embedded import findings_of
from services.recording.reader import Recording
from tests.remote_written import lines_of, requests_of

_HEADERS = {
    "Content-Encoding": "snappy",
    "Content-Type": "application/x-protobuf;proto=io.prometheus.write.v2.Request",
    "X-Prometheus-Remote-Write-Version": "2.0.0",
}
_EACH_MS = 5000
_AHEAD_S = 5.0


@cache
def found_in(recording: Path) -> Sequence[Finding]:
    """Return the findings of a recording: it is played in many rounds."""
    return tuple(findings_of(Recording.open(recording)))


@dataclass
class Feed:
    """A recording sent as the cluster `cluster`, a second a second, from `begin` until `end`."""

    recording: Recording
    gateway: str
    cluster: str
    sent_ms: int = 0
    refusals: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self._over = threading.Event()
        self._thread = threading.Thread(target=self._run, name=f"feed {self.cluster}")
        begins_ms = int((time.time() + _AHEAD_S) * 1000)
        # On the recording's own grid of five seconds: detectors then decide at the same moments of it.
        self.shift_ms = (begins_ms - self.recording.manifest.start) // _EACH_MS * _EACH_MS

    def begin(self) -> None:
        """Send what happens from now on."""
        self._thread.start()

    def end(self) -> None:
        """Send no more; what was begun is sent to its end."""
        self._over.set()
        self._thread.join()

    def _run(self) -> None:
        jobs, logs = lines_of(self.recording, shift_ms=self.shift_ms)
        with httpx.Client(base_url=self.gateway, timeout=30) as client:
            self._post(client, "/api/v1/jobs", jobs, {})
            self._post(client, "/api/v1/logs", logs, {})
            own = requests_of(self.recording, "v2", cluster=self.cluster, shift_ms=self.shift_ms, each_ms=_EACH_MS)
            at_ms = 0
            for until_ms, body in own:
                if until_ms != at_ms:
                    self.sent_ms, at_ms = at_ms, until_ms
                    wait_s = (until_ms + self.shift_ms) / 1000 - time.time()
                    if self._over.wait(max(0.0, wait_s)):
                        return
                self._post(client, "/api/v1/write", body, _HEADERS)

    def _post(self, client: httpx.Client, path: str, body: bytes, headers: dict[str, str]) -> None:
        """Send one request until it is taken, as a Prometheus does: it drops only what is refused for good."""
        while True:
            try:
                answer = client.post(path, content=body, headers=headers)
                if answer.is_success:
                    return
                word = f"{answer.status_code}"
                if answer.is_client_error:
                    raise RuntimeError(f"{path} of the gateway: {answer.status_code} {answer.text}")
            except httpx.TransportError as error:
                word = type(error).__name__
            self.refusals[word] += 1
            threading.Event().wait(0.5)

    def violations(self, found: list[str]) -> list[str]:
        """Return what was not found, or twice. Its telemetry is in the Prometheus that sends it, in no sink's."""
        due = Counter(_short(f.to_json()) for f in found_in(self.recording.path) if f.detected_at <= self.sent_ms)
        in_time = [
            line for line in found if parse_time(json.loads(line)["detected_at"]) <= self.sent_ms + self.shift_ms
        ]
        seen = Counter(_short(line) for line in in_time)
        wrong = [f"live: not found: {line}" for line in due - seen]
        return wrong + [f"live: found, and not in an undisturbed run: {line}" for line in seen - due]


def _short(line: str) -> str:
    finding = json.loads(line)
    return " ".join([finding["fault"], json.dumps(finding["entity"], sort_keys=True), finding["state"]])
