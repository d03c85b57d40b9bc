"""docker-compose.yml and services/stack describe one topology: same servers, versions, flags and files."""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.stack import configs, monitor
from services.stack.hindcast_services import ServiceContext, services
from services.stack.ports import PortBook
from services.stack.recipes import RECIPES
from services.stack.settings import StackSettings
from services.stack.spec import ProcessSpec
from services.stack.topology import PAIR, Topology, describe, servers
from tests.compose.images import named

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
# The compose file has the pair, behind a profile.
SETTINGS = StackSettings(prometheus_pair=True)
SERVERS = servers(SETTINGS)
# Containers only: they prepare what the native runner does by itself, cannot be had natively, or are started by whoever
# wants them.
ONLY_CONTAINERS = {"volumes", "tokens", "reach", "grafana", "gateway", "api"}
# hindcast's services that are always there, and where in its container a process answers if not where its kind does.
OWN = ("receiver", "sink-prometheus", "sink-receive", "detect", "notify", "replay")
PORTS = {"alertmanager": 9093, "prometheus": 9090, "prometheus-monitor": 9090, "receiver": 9099, "replay": 8480}
LISTENING = ("STATUS", "RECEIVER", "REPLAY", "GATEWAY", "API")
# Flags whose values are addresses or paths, and so differ.
PLACES = re.compile(r"address|listen|config[.-]?file|config-file|path|dir|url|endpoint")
IMAGES = {"kafka": "apache/kafka:{}", "alertmanager": "prom/alertmanager:v{}", "thanos": "quay.io/thanos/thanos:v{}"}


@pytest.fixture(scope="module")
def native(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Topology, list[ProcessSpec]]]:
    book = PortBook()
    folder = tmp_path_factory.mktemp("stack")
    topology = describe(SETTINGS, folder, {}, book)
    own = services(ServiceContext(topology.addresses, folder / "services", book, lambda _url: None))
    yield topology, list(own)
    book.close()


def flags_of(argv: list[str]) -> dict[str, list[str]]:
    found: dict[str, list[str]] = {}
    for word in argv:
        name, _, value = word.partition("=")
        if name.startswith("--"):
            found.setdefault(name, []).append("" if PLACES.search(name) else value)
    return found


def properties_of(text: str) -> dict[str, str]:
    lines = (line for line in text.splitlines() if line and not line.startswith("#"))
    return dict(line.split("=", 1) for line in lines)


def test_both_run_the_same_processes(native: tuple[Topology, list[ProcessSpec]]) -> None:
    topology, own = native
    assert set(COMPOSE["services"]) - ONLY_CONTAINERS == {spec.name for spec in [*topology.processes, *own]}


def test_a_new_prometheus_reaches_as_far_back(native: tuple[Topology, list[ProcessSpec]]) -> None:
    (spec,) = (spec for spec in native[0].processes if spec.name == "prometheus")
    (task,) = COMPOSE["services"]["reach"]["command"]
    assert f"sh /reach.sh promtool $$folder {spec.prepare[-1]};" in task
    assert "./services/stack/reach.sh:/reach.sh:ro" in COMPOSE["services"]["reach"]["volumes"]
    for name in ("prometheus", "prometheus-1"):
        assert COMPOSE["services"][name]["depends_on"] == {"reach": {"condition": "service_completed_successfully"}}


@pytest.mark.parametrize("name", list(SERVERS))
def test_each_server_has_the_same_version(name: str) -> None:
    image = named(COMPOSE["services"][name]["image"])
    if name in {"prometheus", "prometheus-1", "prometheus-monitor"}:
        # Prometheus' Go module counts v0.<3 digits> for 3.<2 digits>.
        major, minor, patch = RECIPES["prometheus"].version.split(".")
        assert image == f"prom/prometheus:v{int(minor) // 100}.{int(minor) % 100}.{patch}"
        assert major == "0"
    else:
        server = name if name in IMAGES else "thanos"
        assert image == IMAGES[server].format(RECIPES[server].version)


def test_images_are_pinned_by_digest() -> None:
    images = {service["image"] for service in COMPOSE["services"].values()}
    recipe = (ROOT / "docker/Dockerfile").read_text(encoding="utf-8")
    images |= set(re.findall(r"^ARG \w+=(\S+:\S+)$", recipe, re.MULTILINE))
    unpinned = {image for image in images if not re.fullmatch(r"[^@]+:[^@]+@sha256:[0-9a-f]{64}", image)}
    # hindcast's own is built here; of Kafka 4.4 no digest is known here yet.
    assert {image.partition(":")[0] for image in unpinned} == {"hindcast", "apache/kafka"}


@pytest.mark.parametrize("name", [name for name in SERVERS if name != "kafka"])
def test_each_server_has_the_same_flags(name: str, native: tuple[Topology, list[ProcessSpec]]) -> None:
    spec = next(spec for spec in native[0].processes if spec.name == name)
    assert flags_of(COMPOSE["services"][name]["command"]) == flags_of(list(spec.argv))


def test_the_brokers_properties_are_the_same_but_for_where_it_listens() -> None:
    contained = properties_of((ROOT / "docker/config/server.properties").read_text(encoding="utf-8"))
    native = properties_of(configs.kafka(port=9092, controller_port=9093, data=Path("/var/lib/kafka/data")))
    assert contained.keys() == native.keys()
    where = {"listeners", "advertised.listeners", "listener.security.protocol.map", "inter.broker.listener.name"}
    assert {k: v for k, v in contained.items() if k not in where} == {k: v for k, v in native.items() if k not in where}


@pytest.mark.parametrize(
    ("file", "text"),
    [
        (
            "prometheus.yml",
            configs.prometheus(
                alertmanager="alertmanager:9093", out_of_order_window="12h", rule_files=["/etc/prometheus/rules/*.yaml"]
            ),
        ),
        (
            "prometheus-1.yml",
            configs.prometheus(
                alertmanager="alertmanager:9093",
                out_of_order_window="12h",
                rule_files=["/etc/prometheus/rules/*.yaml"],
                replica=1,
            ),
        ),
        (
            "monitor.yml",
            monitor.config(
                alertmanager="alertmanager:9093",
                servers={name: f"{name}:{PORTS.get(name, 10902)}" for name in SERVERS if name not in {"kafka", *PAIR}},
                services={name: f"{name}:{PORTS.get(name, 8080)}" for name in OWN},
                rule_files=["/etc/prometheus/rules/pipeline.yaml"],
                credentials=Path("/watching/token"),
            ),
        ),
        ("bucket.yml", configs.object_store("/bucket")),
        ("compact-selector.yml", configs.compact_selector()),
    ],
)
def test_configuration_files_say_the_same(file: str, text: str) -> None:
    assert yaml.safe_load((ROOT / "docker/config" / file).read_text(encoding="utf-8")) == yaml.safe_load(text)


def test_hindcasts_services_get_the_same_settings(native: tuple[Topology, list[ProcessSpec]]) -> None:
    listening = {f"HINDCAST_{name}_{what}" for name in LISTENING for what in ("HOST", "TOKENS_FILE")}
    outside = listening | {"HINDCAST_REPLAY_RECORDINGS"}
    for spec in native[1]:
        contained = COMPOSE["services"][spec.name]
        assert contained["command"][0] == spec.argv[2], spec.name
        assert set(contained["environment"]) - outside - {"HINDCAST_STATUS_PORT"} == set(spec.env) - {
            "HINDCAST_STATUS_PORT"
        }, spec.name


def test_everything_is_published_on_loopback_only() -> None:
    published = [port for entry in COMPOSE["services"].values() for port in entry.get("ports", ())]
    assert published
    assert all(port.startswith("127.0.0.1:") for port in published)


def test_every_container_is_confined() -> None:
    for name, entry in COMPOSE["services"].items():
        assert entry["cap_drop"] == ["ALL"], name
        assert entry["security_opt"] == ["no-new-privileges:true"], name
        assert entry["init"] is True, name
        assert "healthcheck" in entry, name
        # Kafka's and Grafana's images write their configuration into themselves as they start.
        assert entry.get("read_only") or name in {"kafka", "grafana"}, name


def test_whatever_listens_beyond_loopback_asks_for_tokens() -> None:
    for name, entry in COMPOSE["services"].items():
        given = entry.get("environment", {})
        for kind in LISTENING:
            if given.get(f"HINDCAST_{kind}_HOST") is not None:
                assert given[f"HINDCAST_{kind}_TOKENS_FILE"] in ("/tokens/tokens.yaml", "/run/secrets/tokens"), name


def test_each_container_has_its_own_secrets_only() -> None:
    own = {
        "steering": {"api", "tokens", "volumes"},
        "watching": {"prometheus-monitor", "tokens", "volumes"},
        "alerting": {"alertmanager", "tokens", "volumes"},
    }
    for name, entry in COMPOSE["services"].items():
        mounted = {volume.partition(":")[0] for volume in entry.get("volumes", ())}
        assert {secret for secret, who in own.items() if name in who} == mounted & set(own), name
        files = {file["path"] for file in entry.get("env_file", ())}
        allowed = {"docker/notify.env", "docker/kafka.env"} if name == "notify" else {"docker/kafka.env"}
        if name in {"sidecar", "sidecar-1", "receive", "store", "compact"}:
            allowed = {"docker/bucket.env"}
        in_kafka = "HINDCAST_KAFKA_BOOTSTRAP" in entry.get("environment", {})
        assert files == (allowed if in_kafka or "docker/bucket.env" in allowed else set()), name
