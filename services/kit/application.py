"""An HTTP service of ours: its errors are problem+json, its callers are known, its health and counts can be asked."""

import logging
from collections.abc import Callable
from http import HTTPStatus
from typing import Annotated, Any

from fastapi import APIRouter, Depends, FastAPI, Request, Response
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from fastapi.security import HTTPBearer
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest
from starlette.exceptions import HTTPException
from starlette.routing import compile_path

from services.kit.access import Caller
from services.kit.durable import NO_ROOM
from services.kit.errors import TooMuchError, UserError
from services.kit.problems import PROBLEM, Problem, RefusedError, problem

_log = logging.getLogger(__name__)
_STATUS_BY_EXIT_CODE = {1: 422, 2: 400, 3: 503}
_REMEDIES = {
    404: "see the service's OpenAPI document for what there is",
    405: "see Allow for the methods there are",
    408: "send it again, over a better line",
    413: "send less",
}
_bearer = HTTPBearer(auto_error=False, description="A token of the tokens file; none where nobody is asked.")
WITH_TOKEN = [Depends(_bearer)]
"""Dependencies of routes that ask who it is, for the OpenAPI document: the shield does the asking."""


def application(title: str, **given: Any) -> FastAPI:
    """Return an application without routes, whose errors are problems; `given`: as FastAPI takes it."""
    problem = {"description": "What is wrong, and what to do.", "content": {PROBLEM: {}}, "model": Problem}
    # No documentation pages: they would load from elsewhere.
    app = FastAPI(title=title, version="1", docs_url=None, redoc_url=None, responses={"default": problem}, **given)
    app.add_exception_handler(UserError, _user_error)
    app.add_exception_handler(RequestValidationError, _bad_request)
    app.add_exception_handler(HTTPException, _http_error)
    app.add_exception_handler(OSError, _disk_error)
    app.add_exception_handler(Exception, _defect)
    return app


def routes(app: FastAPI, prefix: str) -> APIRouter:
    """Return a router for what asks who it is, below `prefix`; `add_routes` puts it into the application."""
    return APIRouter(prefix=prefix, dependencies=WITH_TOKEN, responses=app.router.responses)


def add_routes(app: FastAPI, router: APIRouter) -> None:
    """Add the routes as they are: `include_router` would work all of them out a second time, at the first request."""
    app.router.routes.extend(router.routes)


def add_health(app: FastAPI) -> None:
    """Add /healthz: whether it lives."""

    @app.get("/healthz", operation_id="health")
    async def healthz() -> dict[str, str]:  # whatever all threads are busy with
        """Whether it lives."""
        return {"status": "ok"}


def add_metrics(app: FastAPI, refresh: Callable[[], None] = lambda: None) -> None:
    """Add /metrics; `refresh` is called before the gauges are read."""
    text = {"description": "Counters and gauges.", "content": {"text/plain": {}}}
    shape: dict[str, Any] = {"response_class": Response, "responses": {200: text}, "dependencies": WITH_TOKEN}

    @app.get("/metrics", operation_id="metrics", **shape)
    def metrics() -> Response:
        """Prometheus' text format."""
        refresh()
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)


def _caller(request: Request) -> Caller:
    found: Caller = request.state.caller
    return found


Asking = Annotated[Caller, Depends(_caller)]


def _user_error(_: Request, error: Any) -> JSONResponse:
    if isinstance(error, RefusedError):
        return problem(error.status, error.message, error.remedy or "see the detail", error.headers)
    status = 413 if isinstance(error, TooMuchError) else _STATUS_BY_EXIT_CODE.get(error.exit_code, 400)
    return problem(status, error.message, error.remedy or "see the detail")


def _bad_request(_: Request, error: Any) -> JSONResponse:
    wrong = "; ".join(f"{'.'.join(str(part) for part in item['loc'])}: {item['msg']}" for item in error.errors())
    return problem(400, wrong, "mend what is named")


def _http_error(request: Request, error: Any) -> JSONResponse:
    headers = dict(error.headers or {})
    if error.status_code == HTTPStatus.METHOD_NOT_ALLOWED and (methods := _methods(request)):
        headers["Allow"] = ", ".join(methods)
    remedy = _REMEDIES.get(error.status_code, "see the service's OpenAPI document for what can be asked")
    return problem(error.status_code, str(error.detail), remedy, headers)


def _methods(request: Request) -> list[str]:
    """Return the methods of a path: the router knows those of the first route only."""
    paths = request.app.openapi()["paths"].items()
    fitting = [methods for path, methods in paths if compile_path(path)[0].match(request.url.path)]
    return sorted({method.upper() for methods in fitting for method in methods})


def _disk_error(_: Request, error: Any) -> JSONResponse:
    if error.errno in NO_ROOM:
        return full_disk()
    if isinstance(error, FileNotFoundError):
        _log.warning("gone while it was read path=%s", error.filename)
        return problem(404, "it was deleted while it was read", "see whether it is still there")
    raise error


def full_disk() -> JSONResponse:
    """Return the answer to what could not be written."""
    return problem(507, "the disk is full", "make room where the service keeps its data (DATA_DIR or STATE_DIR)")


def _defect(_: Request, __: Any) -> JSONResponse:
    return problem(500, "the request ended in a defect of hindcast", "see the service's log, and report it")
