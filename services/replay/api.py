"""The control API: replays are started, steered and looked at over HTTP; errors are problem+json with a remedy."""

from fastapi import APIRouter, FastAPI
from pydantic import BaseModel, ConfigDict

from services.kit.application import add_health, add_metrics, add_routes, application, routes
from services.kit.middleware import MIB, Middleware
from services.replay.manager import Manager
from services.replay.settings import ReplaySettings
from services.replay.spec import ReplayRequest, Speed
from services.replay.status import ReplayStatus, status_of

_LARGEST_BODY = 64 * MIB
"""A replay may bring a calibration of its own: some megabytes for a large cluster."""


class SeekRequest(BaseModel):
    """Where to go: RFC 3339, or ``+HH:MM:SS`` from the recording's start."""

    model_config = ConfigDict(extra="forbid")
    to: str


class SpeedRequest(BaseModel):
    """How fast to go on."""

    model_config = ConfigDict(extra="forbid")
    speed: Speed


def build(manager: Manager, settings: ReplaySettings) -> FastAPI:
    """Return the application."""
    app = application("hindcast replay")
    replays = routes(app, "/api/v1/replays")
    _collection(replays, manager)
    _steering(replays, manager)
    add_routes(app, replays)
    add_health(app)
    add_metrics(app)
    app.add_middleware(Middleware, settings=settings, largest_body=_LARGEST_BODY)
    return app


def _collection(replays: APIRouter, manager: Manager) -> None:
    @replays.post("", status_code=201)
    def start(request: ReplayRequest) -> ReplayStatus:
        return status_of(manager.start(request))

    @replays.get("")
    def listing() -> list[ReplayStatus]:
        return [status_of(replay) for replay in manager.all()]

    @replays.get("/{name}")
    def one(name: str) -> ReplayStatus:
        return status_of(manager.get(name))

    @replays.delete("/{name}", status_code=204)
    def remove(name: str) -> None:
        manager.remove(name)


def _steering(replays: APIRouter, manager: Manager) -> None:
    @replays.post("/{name}/pause")
    def pause(name: str) -> ReplayStatus:
        return status_of(manager.pause(name))

    @replays.post("/{name}/resume")
    def resume(name: str) -> ReplayStatus:
        return status_of(manager.resume(name))

    @replays.post("/{name}/stop")
    def stop(name: str) -> ReplayStatus:
        return status_of(manager.stop(name))

    @replays.post("/{name}/seek")
    def seek(name: str, request: SeekRequest) -> ReplayStatus:
        return status_of(manager.seek(name, request.to))

    @replays.post("/{name}/speed")
    def speed(name: str, request: SpeedRequest) -> ReplayStatus:
        return status_of(manager.set_speed(name, request.speed))
