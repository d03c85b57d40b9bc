"""`python -m services.gateway`: a live cluster's Prometheus, log shippers and scheduler to Kafka."""

import logging
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from services.gateway.announced import announce, withdraw
from services.gateway.api import Gateway, build
from services.gateway.outlet import KafkaOutlet
from services.gateway.settings import GatewaySettings
from services.kit.errors import UsageError
from services.kit.kafka import KafkaSettings, producer
from services.kit.service import run, stop_on_signals
from services.kit.serving import Server
from services.kit.settings import check, load
from services.kit.units import partition_of
from services.recording.model import Topology

_log = logging.getLogger(__name__)


def topology_of(path: Path) -> dict[str, Any]:
    """Return a topology.json; raise UserError (exit code 2) where it is none."""
    try:
        return Topology.model_validate_json(_text(path, "HINDCAST_GATEWAY_TOPOLOGY")).model_dump(
            mode="json", exclude_unset=True
        )
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise UsageError(f"{path}: {where}: {first['msg']}", remedy="give the topology.json of a recording") from None


def _text(path: Path, setting: str) -> str:
    try:
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path}: cannot be read: {error}", remedy=f"correct {setting}") from None


def main() -> None:
    """Take what is sent until SIGTERM or SIGINT."""
    check(GatewaySettings, KafkaSettings)
    settings, kafka = load(GatewaySettings), load(KafkaSettings)
    topology = topology_of(settings.topology) if settings.topology is not None else None
    origin = settings.origin()
    # uvicorn handles signals itself and raises them again when it has ended: they must not kill the process then.
    stop = stop_on_signals()
    with settings.listen() as server_socket:
        withdraw(kafka, origin.unit)
        if topology is not None:
            announce(kafka, origin.unit, topology)
        within_ms = int(settings.ack_timeout_s * 1000)

        def make() -> Any:
            return producer(kafka, max_block_ms=within_ms)

        outlet = KafkaOutlet(make, origin, partition_of(kafka, origin.unit), timeout_s=settings.ack_timeout_s)
        _log.info("listening address=%s unit=%s", settings.address(server_socket), origin.unit)
        app = build(Gateway(settings, outlet), settings)
        try:
            Server(app, settings, stop).run(sockets=[server_socket])
        finally:
            outlet.close()
            _log.info("stopped")


if __name__ == "__main__":
    run("gateway", main)
