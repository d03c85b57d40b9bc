"""The control API: replays are started, steered and looked at over HTTP; errors are problem+json with a remedy."""

from typing import Any

from fastapi import FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest
from pydantic import BaseModel, ConfigDict
from starlette.middleware.trustedhost import TrustedHostMiddleware

from services.kit.errors import UserError
from services.replay.manager import Manager
from services.replay.settings import ReplaySettings
from services.replay.spec import ReplayRequest, Speed
from services.replay.status import ReplayStatus, status_of

PROBLEM = "application/problem+json"
_STATUS_BY_EXIT_CODE = {1: 422, 2: 400, 3: 503}


class SeekRequest(BaseModel):
    """Where to go: RFC 3339, or ``+HH:MM:SS`` from the recording's start."""

    model_config = ConfigDict(extra="forbid")
    to: str


class SpeedRequest(BaseModel):
    """How fast to go on."""

    model_config = ConfigDict(extra="forbid")
    speed: Speed


class Problem(BaseModel):
    """An error as RFC 9457 has it; `exit_code` is what a command line should end with."""

    title: str
    status: int
    detail: str
    remedy: str
    exit_code: int


def build(manager: Manager, settings: ReplaySettings) -> FastAPI:
    """Return the application."""
    app = FastAPI(title="hindcast replay", version="1", responses={"default": {"model": Problem}})
    if settings.loopback:  # a page in a browser must not reach it under a name of its own
        names = ["localhost", "127.0.0.1", settings.host]
        app.add_middleware(TrustedHostMiddleware, allowed_hosts=names)
    app.add_exception_handler(UserError, _user_error)
    app.add_exception_handler(RequestValidationError, _bad_request)
    _collection(app, manager)
    _steering(app, manager)

    @app.get("/healthz")
    def healthz() -> dict[str, str]:
        return {"status": "ok"}

    @app.get("/metrics")
    def metrics() -> Response:
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)

    return app


def _collection(app: FastAPI, manager: Manager) -> None:
    @app.post("/api/v1/replays", status_code=201)
    def start(request: ReplayRequest) -> ReplayStatus:
        return status_of(manager.start(request))

    @app.get("/api/v1/replays")
    def listing() -> list[ReplayStatus]:
        return [status_of(replay) for replay in manager.all()]

    @app.get("/api/v1/replays/{name}")
    def one(name: str) -> ReplayStatus:
        return status_of(manager.get(name))

    @app.delete("/api/v1/replays/{name}", status_code=204)
    def remove(name: str) -> None:
        manager.remove(name)


def _steering(app: FastAPI, manager: Manager) -> None:
    @app.post("/api/v1/replays/{name}/pause")
    def pause(name: str) -> ReplayStatus:
        return status_of(manager.pause(name))

    @app.post("/api/v1/replays/{name}/resume")
    def resume(name: str) -> ReplayStatus:
        return status_of(manager.resume(name))

    @app.post("/api/v1/replays/{name}/stop")
    def stop(name: str) -> ReplayStatus:
        return status_of(manager.stop(name))

    @app.post("/api/v1/replays/{name}/seek")
    def seek(name: str, request: SeekRequest) -> ReplayStatus:
        return status_of(manager.seek(name, request.to))

    @app.post("/api/v1/replays/{name}/speed")
    def speed(name: str, request: SpeedRequest) -> ReplayStatus:
        return status_of(manager.set_speed(name, request.speed))


def _problem(title: str, status: int, detail: str, remedy: str, exit_code: int) -> JSONResponse:
    problem = Problem(title=title, status=status, detail=detail, remedy=remedy, exit_code=exit_code)
    return JSONResponse(problem.model_dump(), status_code=status, media_type=PROBLEM)


def _user_error(_: Request, error: Any) -> JSONResponse:
    status = _STATUS_BY_EXIT_CODE.get(error.exit_code, 400)
    return _problem("The request cannot be carried out", status, error.message, error.remedy, error.exit_code)


def _bad_request(_: Request, error: Any) -> JSONResponse:
    wrong = "; ".join(f"{'.'.join(str(part) for part in item['loc'][1:])}: {item['msg']}" for item in error.errors())
    return _problem("The request is not valid", 400, wrong, "mend the fields named", 2)
