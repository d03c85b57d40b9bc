"""Run the servers and services that a live replay needs, and `hindcast live` on a cluster, until standard input ends.

Prints one line of JSON: where Kafka, Alertmanager, the replay service and the cluster's console are; or, exit code 77,
nothing, where the servers have not been built yet (a test builds none: that takes minutes).
"""  # noqa: INP001 - a folder of TypeScript, of which this is the one part that is not

import json
import sys
import tempfile
from pathlib import Path

import httpx

from services.kit.times import wall_ms
from services.recording.reader import Recording
from services.stack.build import cached
from services.stack.health import HttpHealth
from services.stack.hindcast_services import ServiceContext, services
from services.stack.runner import Stack
from services.stack.settings import load_settings
from services.stack.spec import ProcessSpec
from tests.remote_written import HEADERS_V2, requests_of
from tests.small import Brake, small_recording

_SERVERS = ("kafka", "prometheus", "alertmanager")
_SERVICES = ("topics", "receiver", "detect", "notify", "replay")
_NOT_BUILT = 77


def _needed(context: ServiceContext) -> list[ProcessSpec]:
    """Return the services without those that write to Prometheus and Thanos, which nobody here looks at."""
    return [spec for spec in services(context) if spec.name in _SERVICES]


def _watch(stack: Stack, folder: Path) -> str:
    """Have `hindcast live` watch a cluster of which a node has its brake pulled; return its console."""
    recording = Recording.open(small_recording(folder, "brake", nodes=4, minutes=10, brakes=[Brake("v002", 240, 600)]))
    at, shift = stack.addresses, wall_ms() - recording.manifest.end
    for _, body in requests_of(recording, "v2", shift_ms=shift):
        httpx.post(f"{at.prometheus}/api/v1/write", content=body, headers=HEADERS_V2).raise_for_status()
    port = stack.service_context().ports.take()
    url = f"http://127.0.0.1:{port}"
    options = {"prometheus": at.prometheus, "alertmanager": at.alertmanager, "lookback": "12m", "lateness": "5"}
    given = (f"--{name}={value}" for name, value in options.items())
    argv = (sys.executable, "-m", "services.cli", "live", *given, f"--port={port}")
    stack.add_process(ProcessSpec("live", argv, HttpHealth(f"{url}/readyz"), ports=(port,)))
    return f"{url}/"


def main() -> int:
    """Run until standard input ends."""
    settings = load_settings()
    if any(cached(name, settings.cache_dir) is None for name in _SERVERS):
        return _NOT_BUILT
    with (
        tempfile.TemporaryDirectory(prefix="hindcast-browser-") as folder,
        Stack.start(Path(folder), settings, only=_SERVERS, services=_needed) as stack,
    ):
        at = stack.addresses
        printed = {"kafka": at.kafka, "alertmanager": at.alertmanager, "replay": at.services["replay"]}
        printed |= {"cluster": _watch(stack, Path(folder))}
        sys.stdout.write(f"{json.dumps(printed)}\n")
        sys.stdout.flush()
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
