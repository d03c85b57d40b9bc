"""The application: what the modules beside it do, put together, and what is neither a recording nor a run."""

import fcntl
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO, Any

from fastapi import APIRouter, FastAPI, Request, Response
from prometheus_client import Counter, Gauge, Histogram
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import JSONResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from services import __version__
from services.api.archive import discard_leftovers
from services.api.catalogue import Catalogue
from services.api.clusters import LiveRun
from services.api.comparisons import Comparisons
from services.api.feedback import Feedback
from services.api.generations import Generations
from services.api.library import Library
from services.api.live import Follower
from services.api.models import Health, Me
from services.api.replays import Replays
from services.api.routes import actions, comparisons, detectors, labels, recordings, replays, runs, tasks
from services.api.runs import Runs
from services.api.settings import ApiSettings
from services.api.store import Store
from services.api.stream import Streams
from services.api.tasks import Tasks
from services.kit.application import WITH_TOKEN, Asking, add_metrics, application, full_disk
from services.kit.counting import Counting
from services.kit.durable import watch_room
from services.kit.errors import UserError
from services.kit.kafka import KafkaSettings
from services.kit.middleware import Middleware
from services.kit.problems import missing

_REQUESTS = Counter("hindcast_api_requests_total", "Requests answered.", ["method", "route", "status"])
_SECONDS = Histogram("hindcast_api_request_seconds", "Seconds until an answer began.", ["route"])
_RUNS = Gauge("hindcast_api_runs", "Runs, by state.", ["state"])
_STATES = ("queued", "running", "done", "failed", "cancelled")
_UPLOADS = re.compile(r"/api/v1/(recordings|imports/[a-z-]+)")


def build(settings: ApiSettings, kafka: KafkaSettings | None = None, live: LiveRun | None = None) -> FastAPI:
    """Return the application; nothing is read or written before it starts, but the file of tokens.

    `live`: the live cluster that this process watches.
    """
    store, library = Store(settings.data_dir / "api.sqlite"), Library(settings)
    runs_ = Runs(store, library, settings)
    streams, generations = Streams(runs_, settings.viewers), Generations(store, library)
    replays_ = Replays(library, runs_, generations, settings)
    follower = Follower(kafka or KafkaSettings(), generations, replays_, runs_, settings.alertmanager_url)
    folder, waiting = settings.data_dir / "tasks", settings.waiting
    tasks_ = Tasks(store, folder, workers=settings.task_workers, waiting=waiting)
    replays_.told, streams.statuses = follower.wake, lambda: follower.statuses

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with _alone(settings), store.migrated():
            watch_room(settings.data_dir)
            discard_leftovers(library.imported)
            runs_.begin()
            tasks_.begin()
            follower.begin()
            app.state.ready = True
            try:
                yield
            finally:
                app.state.ready = False
                streams.close()
                follower.close()
                replays_.close()
                tasks_.close()
                runs_.close()

    app = application("hindcast", lifespan=lifespan, openapi_url="/api/v1/openapi.json")
    app.add_exception_handler(sqlite3.OperationalError, _store_error)
    app.state.streams, app.state.ready = streams, False
    _about(app, store, runs_)
    api = APIRouter(prefix="/api/v1", dependencies=WITH_TOKEN)
    api.add_api_route("/me", _me, methods=["GET"], operation_id="me")
    recordings.add(api, library, runs_, settings)
    runs.add(api, runs_, streams, library)
    actions.add(api, runs_, live)
    labels.add(api, Feedback(store, runs_))
    detectors.add(api, Catalogue(store))
    comparisons.add(api, Comparisons(store, runs_))
    replays.add(api, replays_, streams)
    tasks.add(api, tasks_, library, runs_, settings)
    app.include_router(api)
    if settings.console_dir.is_dir():
        app.router.default = _Console(directory=settings.console_dir, html=True)
    else:
        app.add_api_route("/", _no_console, include_in_schema=False)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=4)
    app.add_middleware(Middleware, settings=settings, page=_is_page, large=_is_upload)
    app.add_middleware(Counting, note=_count)
    return app


def _is_page(path: str) -> bool:
    return path == "/api/v1/openapi.json" or not path.startswith(("/api/", "/metrics"))


def _is_upload(path: str) -> bool:
    return _UPLOADS.fullmatch(path) is not None


def _count(method: str, route: str, status: int, seconds: float) -> None:
    _REQUESTS.labels(method, route, status).inc()
    _SECONDS.labels(route).observe(seconds)


def _store_error(_: Request, error: Any) -> JSONResponse:
    if error.sqlite_errorcode in (sqlite3.SQLITE_FULL, sqlite3.SQLITE_IOERR_SHMSIZE):
        return full_disk()
    raise error


def _me(me: Asking) -> Me:
    """Who is asking, and in which role."""
    return Me(name=me.name, role="operator" if me.may("operator") else "viewer", authentication=me.authenticated)


def _no_console() -> None:
    raise missing("console", "here", "install Node 20.19 or newer and run make console; /api/v1 works")


def _about(app: FastAPI, store: Store, runs_: Runs) -> None:
    @app.get("/healthz", operation_id="health")
    async def healthz() -> Health:  # whatever all threads are busy with
        """Whether it lives."""
        return Health(status="ok", version=__version__)

    @app.get("/readyz", operation_id="ready", response_model=Health)
    def readyz() -> Response:
        """Whether it can work: its state can be read."""
        try:
            store.one("SELECT 1 FROM runs LIMIT 1")
            checks = {"store": "ok"}
        except Exception as error:  # noqa: BLE001 - whatever it is, that is the answer
            checks = {"store": type(error).__name__}
        ready = app.state.ready and checks["store"] == "ok"
        body = Health(status="ok" if ready else "not ready", version=__version__, checks=checks)
        return JSONResponse(body.model_dump(), status_code=200 if ready else 503)

    def count() -> None:
        counts = runs_.by_state()
        for state in _STATES:
            _RUNS.labels(state).set(counts.get(state, 0))

    add_metrics(app, count)


def check(settings: ApiSettings) -> None:
    """Raise UserError where the data cannot be used: before anything listens, and in words, not from within."""
    with _alone(settings):
        Store(settings.data_dir / "api.sqlite").migrate()


def _alone(settings: ApiSettings) -> IO[bytes]:
    """Return what is held while this process has the data to itself; UserError where another has them."""
    settings.data_dir.mkdir(parents=True, exist_ok=True)
    lock = (settings.data_dir / "api.lock").open("wb")
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        lock.close()
        raise UserError(
            f"another hindcast api uses {settings.data_dir}",
            remedy="end that one, or name another HINDCAST_API_DATA_DIR",
            exit_code=2,
        ) from None
    return lock


class _Console(StaticFiles):
    """The console's files, where no route is; its pages' addresses are all answered with the one page."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file, or the page."""
        if path.startswith("api/"):
            raise HTTPException(404)
        if scope["method"] not in ("GET", "HEAD"):
            raise HTTPException(405, headers={"Allow": "GET, HEAD"})
        try:
            return await super().get_response(path, scope)
        except HTTPException as error:
            if error.status_code != 404 or "." in path.rsplit("/", 1)[-1]:
                raise
            return await super().get_response("index.html", scope)
