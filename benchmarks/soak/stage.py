"""What the soak runs on: the real native stack with all services and a gateway, and the recordings it plays."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import yaml

from benchmarks.soak.judged import Played, Round
from benchmarks.soak.live import Feed
from services.cli.pipeline import Pipeline
from services.kit.kafka import KafkaSettings
from services.recording.reader import Recording
from services.stack.configs import WEBHOOK_URL_FILE
from services.stack.hindcast_services import ServiceContext, python_service, services
from services.stack.runner import Stack
from services.stack.settings import load_settings
from services.stack.spec import ProcessSpec
from tests.small import Brake, small_recording

SPAN_S = 60
"""How long a round is played before all that is left is to settle: blows fall in this time."""
NEVER_STRUCK = ("topics", "receiver")
"""A task that is over, and the webhook receiver: what it took is what the soak judges by."""


@dataclass
class Stage:
    """A running stack, and a recording for each of the three kinds of feed."""

    stack: Stack
    folder: Path

    def __post_init__(self) -> None:
        at = self.stack.addresses
        self.pipeline = Pipeline(KafkaSettings(bootstrap=at.kafka), at.services)
        brakes = [Brake("v004", 150, 280), Brake("v002", 400, 900)]
        self._now = small_recording(self.folder, "soak-now", nodes=8, minutes=20, brakes=brakes)
        self._kept = small_recording(self.folder, "soak-kept", nodes=6, minutes=12, brakes=[Brake("v003", 150, 280)])
        live = small_recording(self.folder, "soak-live", nodes=4, minutes=10, brakes=[Brake("v001", 20, 45)])
        self._live = Recording.open(live)

    @property
    def victims(self) -> list[str]:
        """The processes that blows may fall on."""
        return [process.name for process in self.stack.processes if process.name not in NEVER_STRUCK]

    @contextmanager
    def round(self, name: str) -> Iterator[Round]:
        """Prepare a round: a gateway for its live cluster is started, and ended with the block."""
        port = self.stack.service_context().ports.take()
        env = {
            "HINDCAST_KAFKA_BOOTSTRAP": self.stack.addresses.kafka,
            "HINDCAST_GATEWAY_CLUSTER": name,
            "HINDCAST_GATEWAY_PORT": str(port),
            "HINDCAST_GATEWAY_TOPOLOGY": str(self._live.path / "topology.json"),
        }
        gateway = self.stack.add_process(python_service("gateway", "services.gateway", port=port, env=env))
        replays = [
            Played(self._now, f"{name}-now", 20.0, "prometheus"),
            Played(self._kept, f"{name}-kept", 12.0, "receive"),
        ]
        try:
            yield Round(self.stack, self.pipeline, replays, Feed(self._live, gateway.spec.url, name))
        finally:
            self.stack.remove(gateway.name)


@contextmanager
def staged(folder: Path) -> Iterator[Stage]:
    """Start everything, with live alerts told as soon as those of replays, and end it with the block."""
    config: dict[str, Any] = yaml.safe_load(load_settings().alertmanager_config.read_text(encoding="utf-8"))
    _hurry(config["route"])
    for receiver in config["receivers"]:
        if receiver["name"].startswith(("page", "ticket")):
            receiver["webhook_configs"] = [{"url_file": WEBHOOK_URL_FILE, "send_resolved": True}]
    (folder / "alertmanager.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    settings = load_settings(alertmanager_config=folder / "alertmanager.yaml")
    with Stack.start(folder / "state", settings, services=_services) as stack:
        yield Stage(stack, folder)


def _hurry(route: dict[str, Any]) -> None:
    if "group_wait" in route:
        route |= {"group_wait": "0s", "group_interval": "5s"}
    for below in route.get("routes", ()):
        _hurry(below)


def _services(context: ServiceContext) -> Sequence[ProcessSpec]:
    hold = {"HINDCAST_NOTIFY_LIVE_RESOLVE_HOLD_S": "6"}
    return [replace(spec, env={**spec.env, **hold}) if spec.name == "notify" else spec for spec in services(context)]
