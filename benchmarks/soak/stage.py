"""What the soak runs on: the real native stack with all services and a gateway, and the recordings it plays."""

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit, urlunsplit

import yaml

from benchmarks.soak.blows import CLOCK
from benchmarks.soak.brokers import AMONG, THREE, Brokers, furnish
from benchmarks.soak.clocks import Clocks
from benchmarks.soak.judged import Played, Round
from benchmarks.soak.live import Feed
from benchmarks.soak.network import Network, whole
from benchmarks.soak.releases import Releases
from services.cli.pipeline import Pipeline
from services.recording.reader import Recording
from services.stack.configs import WEBHOOK_URL_FILE
from services.stack.hindcast_services import ServiceContext, python_service, services
from services.stack.ports import LOOPBACK
from services.stack.runner import Stack
from services.stack.settings import load_settings
from services.stack.spec import ProcessSpec
from tests.small import Brake, small_recording

SPAN_S = 60
"""How long a round is played before all that is left is to settle: blows fall in this time."""
UPGRADED = "detect"
"""The process that upgrades fall on: what it has open, and has sent, must outlive its version."""
NEVER_STRUCK = ("topics", "receiver")
"""A task that is over, and the webhook receiver: what it took is what the soak judges by."""


@dataclass
class Wiring:
    """Puts a link between each of hindcast's services and every server that it talks to."""

    network: Network
    brokers: int = 1
    """How many there are: 1 or 3."""
    clocks: Clocks | None = None
    """Where each service is to have one of its own."""
    doors: dict[str, list[tuple[int, int]]] = field(default_factory=dict)
    """By who goes to Kafka, for each broker the port that it listens at for them, and that of the link to it."""

    def services(self, context: ServiceContext) -> Sequence[ProcessSpec]:
        """Return hindcast's services, with live alerts resolved soon, as they reach servers through links."""
        self.door("gateway", context)
        if self.brokers > 1:
            self.door(AMONG, context)
        return [self._wired(spec, context) for spec in services(context)]

    def door(self, name: str, context: ServiceContext) -> None:
        """Make the links of a service to Kafka: `name>kafka`, or `name>kafka/1` and so on where there are brokers."""
        links = [f"{name}>kafka/{one + 1}" if self.brokers > 1 else f"{name}>kafka" for one in range(self.brokers)]
        behind = [context.ports.take() for _ in links]
        self.doors[name] = [
            (port, self.network.link(link, port, context.ports)) for link, port in zip(links, behind, strict=True)
        ]

    def kafka(self, name: str) -> str:
        """Return where a service is to look for Kafka."""
        return ",".join(f"{LOOPBACK}:{link}" for _, link in self.doors[name])

    def _wired(self, spec: ProcessSpec, context: ServiceContext) -> ProcessSpec:
        if spec.name == "topics":  # it asks for as many copies as there are brokers
            return replace(spec, after=THREE[: self.brokers])
        if "HINDCAST_KAFKA_BOOTSTRAP" not in spec.env:
            return spec
        self.door(spec.name, context)
        env = dict(spec.env) | {"HINDCAST_KAFKA_BOOTSTRAP": self.kafka(spec.name)}
        for setting, server in _SERVERS.items():
            if setting in env:
                url = urlsplit(env[setting])
                target = spec.name.removeprefix("sink-") if server == "sink" else server
                port = self.network.link(f"{spec.name}>{target}", url.port or 0, context.ports)
                env[setting] = urlunsplit(url._replace(netloc=f"{LOOPBACK}:{port}"))
        if spec.name == "notify":
            env["HINDCAST_NOTIFY_LIVE_RESOLVE_HOLD_S"] = "6"
        return self.clocked(replace(spec, env=env))

    def clocked(self, spec: ProcessSpec) -> ProcessSpec:
        """Return a service with a clock of its own."""
        return spec if self.clocks is None else self.clocks.given(spec)


_SERVERS = {"HINDCAST_SINK_URL": "sink", "HINDCAST_NOTIFY_ALERTMANAGER_URL": "alertmanager"}


@dataclass
class Stage:
    """A running stack, and a recording for each of the three kinds of feed."""

    stack: Stack
    folder: Path
    wiring: Wiring
    brokers: Brokers

    def __post_init__(self) -> None:
        self.pipeline = Pipeline(self.brokers.kafka, self.stack.addresses.services)
        brakes = [Brake("v004", 150, 280), Brake("v002", 400, 900)]
        self._now = small_recording(self.folder, "soak-now", nodes=8, minutes=20, brakes=brakes)
        self._kept = small_recording(self.folder, "soak-kept", nodes=6, minutes=12, brakes=[Brake("v003", 150, 280)])
        live = small_recording(self.folder, "soak-live", nodes=4, minutes=10, brakes=[Brake("v001", 20, 45)])
        self._live = Recording.open(live)
        self._releases = Releases(self.folder)

    @property
    def victims(self) -> list[str]:
        """The processes that blows may fall on."""
        return [process.name for process in self.stack.processes if process.name not in NEVER_STRUCK]

    @property
    def clocks(self) -> list[str]:
        """The clocks that may be stepped: those of hindcast's services."""
        return [f"{name}{CLOCK}" for name in self.wiring.doors if name != AMONG]

    @property
    def links(self) -> list[str]:
        """The links that may be cut: each, and all of one to all brokers."""
        links = self.wiring.network.links
        return list(dict.fromkeys([*map(whole, links), *links]))

    @contextmanager
    def round(self, name: str) -> Iterator[Round]:
        """Prepare a round: a gateway for its live cluster is started, and ended with the block."""
        port = self.stack.service_context().ports.take()
        env = {
            "HINDCAST_KAFKA_BOOTSTRAP": self.wiring.kafka("gateway"),
            "HINDCAST_GATEWAY_CLUSTER": name,
            "HINDCAST_GATEWAY_PORT": str(port),
            "HINDCAST_GATEWAY_TOPOLOGY": str(self._live.path / "topology.json"),
        }
        spec = python_service("gateway", "services.gateway", port=port, env=env)
        gateway = self.stack.add_process(self.wiring.clocked(spec))
        replays = [
            Played(self._now, f"{name}-now", 20.0, "prometheus"),
            Played(self._kept, f"{name}-kept", 12.0, "receive"),
        ]
        try:
            feed = Feed(self._live, gateway.spec.url, name)
            beside = (self.wiring.network, self._releases, self.brokers, self.wiring.clocks)
            yield Round(self.stack, self.pipeline, replays, feed, *beside)
        finally:
            self.stack.remove(gateway.name)


@contextmanager
def staged(folder: Path, brokers: int = 3) -> Iterator[Stage]:
    """Start everything, on 1 or 3 brokers; live alerts are sent as soon as those of replays. End it with the block."""
    folder.mkdir(parents=True, exist_ok=True)
    config: dict[str, Any] = yaml.safe_load(load_settings().alertmanager_config.read_text(encoding="utf-8"))
    _hurry(config["route"])
    for receiver in config["receivers"]:
        if receiver["name"].startswith(("page", "ticket")):
            receiver["webhook_configs"] = [{"url_file": WEBHOOK_URL_FILE, "send_resolved": True}]
    (folder / "alertmanager.yaml").write_text(yaml.safe_dump(config), encoding="utf-8")
    settings = load_settings(alertmanager_config=folder / "alertmanager.yaml")
    with Network() as network:
        wiring = Wiring(network, brokers, Clocks(folder))
        with Stack(folder / "state", settings, services=wiring.services) as stack:
            reached = furnish(stack, wiring.doors)
            stack.start_all()
            yield Stage(stack, folder, wiring, reached)


def _hurry(route: dict[str, Any]) -> None:
    if "group_wait" in route:
        route |= {"group_wait": "0s", "group_interval": "5s"}
    for below in route.get("routes", ()):
        _hurry(below)
