"""Run the servers and services that a live replay needs, until standard input ends.

Prints one line of JSON: where Kafka, Alertmanager and the replay service are; or, exit code 77, nothing, where the
servers have not been built yet (a test builds none: that takes minutes).
"""  # noqa: INP001 - a folder of TypeScript, of which this is the one part that is not

import json
import sys
import tempfile
from pathlib import Path

from services.stack.build import cached
from services.stack.hindcast_services import ServiceContext, services
from services.stack.runner import Stack
from services.stack.settings import load_settings
from services.stack.spec import ProcessSpec

_SERVERS = ("kafka", "alertmanager")
_SERVICES = ("topics", "receiver", "detect", "notify", "replay")
_NOT_BUILT = 77


def _needed(context: ServiceContext) -> list[ProcessSpec]:
    """Return the services without those that write to Prometheus and Thanos, which nobody here looks at."""
    return [spec for spec in services(context) if spec.name in _SERVICES]


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
        told = {"kafka": at.kafka, "alertmanager": at.alertmanager, "replay": at.services["replay"]}
        sys.stdout.write(f"{json.dumps(told)}\n")
        sys.stdout.flush()
        sys.stdin.read()
    return 0


if __name__ == "__main__":
    sys.exit(main())
