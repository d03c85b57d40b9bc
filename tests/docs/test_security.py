"""docs/security.md has every port there is: of docker-compose.yml, chart and settings, and of the native stack."""

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from services.api.settings import ApiSettings
from services.exporters.settings import ExportersSettings
from services.gateway.settings import GatewaySettings
from services.kit.listening import Listening
from services.kit.service import StatusSettings
from services.notify.receiver.settings import ReceiverSettings
from services.replay.settings import ReplaySettings
from services.stack.hindcast_services import ServiceContext, services
from services.stack.ports import LOOPBACK, PortBook
from services.stack.settings import StackSettings
from services.stack.topology import describe

ROOT = Path(__file__).parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))["services"]
CHART = ROOT / "deploy" / "chart" / "templates" / "_helpers.tpl"
TEXT = (ROOT / "docs" / "security.md").read_text(encoding="utf-8")
ROWS = [
    [cell.strip() for cell in row.split("|")[1:-1]]
    for row in TEXT.partition("## Ports")[2].splitlines()
    if row.startswith("| ")
]
LISTENING: tuple[type[Listening], ...] = (
    ApiSettings,
    ExportersSettings,
    ReplaySettings,
    GatewaySettings,
    ReceiverSettings,
    StatusSettings,
)


def ports_of(name: str) -> set[int]:
    """Return the ports in the rows that name a service of compose, or a setting."""
    rows = [row for row in ROWS if re.search(rf"(^|[ ,`(]){re.escape(name)}($|[ ,:`)])", row[0], re.IGNORECASE)]
    assert rows, f"docs/security.md: no row of the ports names {name}"
    return {int(port) for row in rows for port in re.findall(r"\d{4,5}", row[1] + row[2])}


@pytest.mark.parametrize("name", sorted(COMPOSE))
def test_every_port_of_compose_is_in_the_table(name: str) -> None:
    entry = COMPOSE[name]
    published = {int(part) for port in entry.get("ports", ()) for part in port.split(":")[1:]}
    flags = " ".join(str(word) for word in entry.get("command", ()))
    listens = {int(port) for port in re.findall(r"--\S*(?:address|listen\S*)=\S*?:(\d+)", flags)}
    own = re.compile(r"HINDCAST_(API|REPLAY|GATEWAY|RECEIVER)_PORT")
    listens |= {int(value) for key, value in entry.get("environment", {}).items() if own.fullmatch(key)}
    if name == "kafka":
        properties = (ROOT / "docker/config/server.properties").read_text(encoding="utf-8")
        listens |= {int(port) for port in re.findall(r":(\d+)", re.findall(r"(?m)^listeners=(.*)", properties)[0])}
    assert published | listens <= (ports_of(name) if published | listens else set())


def test_every_port_of_the_chart_is_in_the_table() -> None:
    services = re.findall(r'"listens" "(\w+)" "port" (\d+)', CHART.read_text(encoding="utf-8"))
    assert {name for name, _ in services} == {"STATUS", "REPLAY", "API", "GATEWAY"}
    for name, port in services:
        assert int(port) in ports_of(f"HINDCAST_{name}_PORT")


@pytest.mark.parametrize("kind", LISTENING)
def test_every_setting_of_a_port_is_in_the_table_and_listens_here(kind: type[Listening]) -> None:
    setting = f"{kind.model_config['env_prefix']}PORT"
    default = kind.model_fields["port"].default
    assert default in ports_of(setting) or default == 0
    assert kind.model_fields["host"].default == LOOPBACK


def test_there_is_no_other_setting_of_where_to_listen() -> None:
    def below(kind: type[Listening]) -> set[type[Listening]]:
        return {kind for sub in kind.__subclasses__() for kind in (sub, *below(sub))}

    assert below(Listening) == set(LISTENING)


def test_natively_every_port_is_on_loopback(tmp_path: Path) -> None:
    book = PortBook()
    topology = describe(StackSettings(prometheus_pair=True), tmp_path, {}, book)
    own = services(ServiceContext(topology.addresses, tmp_path / "services", book, lambda _url: None))
    book.close()
    listens = re.compile(r"address=|listen|listeners=")
    words = [word for spec in topology.processes for word in spec.argv if listens.search(word)]
    words += [line for text in topology.files.values() for line in text.splitlines() if line.startswith("listeners=")]
    found = [place for word in words for place in re.findall(r"([\w.\[\]]*):\d+", word.partition("=")[2])]
    assert len(found) > 20
    assert {place.removeprefix("//") for place in found} == {LOOPBACK}
    assert not [name for spec in own for name in spec.env if name.endswith("_HOST")]


def test_nothing_listens_but_by_what_asks_for_tokens() -> None:
    listens = re.compile(r"http\.server|socketserver|uvicorn\.(run|Server)\(|create_server\(|\.bind\(")
    # `ports` holds free ports for the servers, and answers nobody.
    own = {"services/kit/serving.py", "services/kit/listening.py", "services/stack/ports.py"}
    found = {
        str(path.relative_to(ROOT))
        for path in (ROOT / "services").rglob("*.py")
        if not path.name.startswith(("test_", "conftest")) and listens.search(path.read_text(encoding="utf-8"))
    }
    assert found <= own
