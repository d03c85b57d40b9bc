"""Every route of every HTTP service of ours, and the role that it needs: docs/authorisation.md, from their OpenAPI."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from fastapi import FastAPI
from starlette.applications import Starlette
from starlette.routing import Route

from services.kit.access import Role
from services.kit.middleware import Middleware

_HEAD = """# Who may ask what

Made by `make generate` from each service's OpenAPI; `tests/security/test_authorisation.py` asks every service for every
route, as everybody there is. Without a file of tokens a service answers this machine only, and everybody there is an
operator. What no row names is refused: looking needs a viewer, all else an operator.

| service | method | path | needs |
|---|---|---|---|
"""


@contextmanager
def applications(folder: Path, tokens_file: Path | None = None) -> Iterator[dict[str, Starlette]]:
    """Give the application of each service, which keep what they have in `folder` and know the tokens of a file."""
    from services.api.app import build as build_api
    from services.api.settings import ApiSettings
    from services.exporters.app import build as build_exporters
    from services.exporters.settings import ExportersSettings
    from services.gateway.api import Gateway
    from services.gateway.api import build as build_gateway
    from services.gateway.settings import GatewaySettings
    from services.kit.kafka import KafkaSettings
    from services.kit.service import StatusSettings, status_application
    from services.notify.receiver.app import app as build_receiver
    from services.notify.receiver.settings import ReceiverSettings
    from services.notify.receiver.store import Store
    from services.replay.api import build as build_replay
    from services.replay.manager import Manager
    from services.replay.settings import ReplaySettings

    kafka = KafkaSettings(bootstrap="127.0.0.1:9", bootstrap_timeout_s=0.1)
    replay = ReplaySettings(state_dir=folder / "replay", tokens_file=tokens_file)
    gateway = GatewaySettings(cluster="live", tokens_file=tokens_file)
    api = ApiSettings(data_dir=folder / "api", console_dir=folder / "none", tokens_file=tokens_file)
    store = Store(folder / "receiver")
    yield {
        "API": build_api(api, kafka),
        "replay": build_replay(Manager(replay, kafka), replay),
        "gateway": build_gateway(Gateway(gateway, _NoKafka()), gateway),
        "receiver": build_receiver(store, ReceiverSettings(tokens_file=tokens_file)),
        "exporters": build_exporters(_NoExporters(), ExportersSettings(tokens_file=tokens_file)),
        "sink, detect, notify": status_application(lambda: True, StatusSettings(tokens_file=tokens_file)),
    }
    store.close()


class _NoExporters:
    """A recorded cluster without machines."""

    def targets(self, address: str) -> list[dict[str, object]]:
        return [{"targets": [address]}]

    def text(self, exporter: str, target: str) -> bytes | None:
        raise KeyError(f"{exporter}/{target}")


class _NoKafka:
    """An outlet of a gateway that is asked who may send, and sends nothing."""

    def deliver(self, parcels: Sequence[object]) -> None:
        from services.gateway.outlet import AwayError

        raise AwayError(f"{len(parcels)} messages have no Kafka to go to")

    def bury(self, stream: str, value: bytes, reason: str) -> None:
        """Keep nothing."""


def routes(app: Starlette) -> list[tuple[str, str]]:
    """Return the method and path of each route."""
    if isinstance(app, FastAPI):
        paths: Mapping[str, Mapping[str, object]] = app.openapi()["paths"]
        return [(method.upper(), path) for path, methods in paths.items() for method in methods]
    found = [route for route in app.routes if isinstance(route, Route)]
    return [("GET", route.path) for route in found]


def role(app: Starlette, method: str, path: str) -> Role | None:
    """Return which role a route needs, None: anybody may."""
    (layer,) = (layer for layer in app.user_middleware if getattr(layer, "cls", None) is Middleware)
    given: dict[str, Any] = layer.kwargs
    return Middleware(app, **given).role(method, path)


def page(applications: Mapping[str, Starlette]) -> str:
    """Return docs/authorisation.md."""
    rows: Sequence[str] = [
        f"| {service} | {method} | `{path}` | {role(app, method, path) or 'nothing'} |"
        for service, app in applications.items()
        for method, path in routes(app)
    ]
    return _HEAD + "\n".join(rows) + "\n"
