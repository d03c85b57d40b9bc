"""The application: what the modules beside it do, put together, and what is neither a recording nor a run."""

import fcntl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO

from fastapi import APIRouter, FastAPI, Response
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, Gauge, generate_latest
from starlette.exceptions import HTTPException
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import JSONResponse
from starlette.staticfiles import StaticFiles
from starlette.types import Scope

from services.api import problems
from services.api.access import Gate, Viewer, read_tokens
from services.api.archive import discard_leftovers
from services.api.catalogue import Catalogue, own_version
from services.api.comparisons import Comparisons
from services.api.generations import Generations
from services.api.library import Library
from services.api.live import Follower
from services.api.marks import Marks
from services.api.models import Health, Me, Problem
from services.api.replays import Replays
from services.api.routes import recordings, replays, runs, tasks, the_rest
from services.api.runs import Runs
from services.api.settings import ApiSettings
from services.api.shield import Shield
from services.api.store import Store
from services.api.stream import Streams
from services.api.tasks import Tasks
from services.kit.errors import UserError
from services.kit.kafka import KafkaSettings

_RUNS = Gauge("hindcast_api_runs", "Runs, by state.", ["state"])
_STATES = ("queued", "running", "done", "failed", "cancelled")
_LOOPBACK = ("localhost", "127.0.0.1", "::1")


def build(settings: ApiSettings, kafka: KafkaSettings | None = None) -> FastAPI:
    """Return the application; nothing is read or written before it starts, but the file of tokens."""
    tokens = read_tokens(settings)
    store, library = Store(settings.data_dir / "api.sqlite"), Library(settings)
    runs_ = Runs(store, library, settings)
    streams, generations = Streams(runs_, settings.viewers), Generations(store, library)
    replays_ = Replays(library, runs_, generations, settings.replay_url)
    follower = Follower(kafka or KafkaSettings(), generations, replays_, runs_, settings.alertmanager_url)
    folder, waiting = settings.data_dir / "tasks", settings.waiting
    tasks_ = Tasks(store, folder, workers=settings.task_workers, waiting=waiting)
    replays_.told, streams.statuses = follower.wake, lambda: follower.statuses

    @asynccontextmanager
    async def lifespan(_: FastAPI) -> AsyncIterator[None]:
        with _alone(settings):
            store.migrate()
            discard_leftovers(library.imported)
            runs_.begin()
            tasks_.begin()
            follower.begin()
            app.state.ready = True
            try:
                yield
            finally:
                app.state.ready, streams.closing = False, True
                follower.close()
                replays_.close()
                tasks_.close()
                runs_.close()

    problem = {"description": "What is wrong, and what to do.", "content": {problems.PROBLEM: {}}, "model": Problem}
    app = FastAPI(
        title="hindcast",
        version="1",
        lifespan=lifespan,
        docs_url=None,  # its page would load from elsewhere
        redoc_url=None,
        openapi_url="/api/v1/openapi.json",
        responses={"default": problem},
    )
    app.state.gate, app.state.streams, app.state.ready = Gate(tokens), streams, False
    problems.install(app)
    _about(app, store, runs_)
    api = APIRouter(prefix="/api/v1")
    api.add_api_route("/me", _me, methods=["GET"], operation_id="me")
    recordings.add(api, library, runs_, settings)
    runs.add(api, runs_, streams, library)
    the_rest.add(api, Marks(store, runs_), Catalogue(store), Comparisons(store, runs_))
    replays.add(api, replays_, streams)
    tasks.add(api, tasks_, library, runs_, settings)
    app.include_router(api)
    if settings.console_dir.is_dir():
        app.mount("/", _Console(directory=settings.console_dir, html=True), name="console")
    else:
        app.add_api_route("/", _no_console, include_in_schema=False)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=4)
    names = frozenset(name.lower() for name in (*_LOOPBACK, settings.host, *settings.host_names))
    app.add_middleware(Shield, names=names if tokens is None else None)
    return app


def _me(me: Viewer) -> Me:
    """Who is asking, and in which role."""
    return me


def _no_console() -> None:
    raise problems.RefusedError(
        404, "the console is not built here", remedy="install Node 20.19 or newer and run make console; /api/v1 works"
    )


def _about(app: FastAPI, store: Store, runs_: Runs) -> None:
    @app.get("/healthz", operation_id="health")
    async def healthz() -> Health:  # whatever all threads are busy with
        """Whether it lives."""
        return Health(status="ok", version=own_version())

    @app.get("/readyz", operation_id="ready", response_model=Health)
    def readyz() -> Response:
        """Whether it can work: its state can be read."""
        try:
            store.one("SELECT 1 FROM runs LIMIT 1")
            checks = {"store": "ok"}
        except Exception as error:  # noqa: BLE001 - whatever it is, that is the answer
            checks = {"store": type(error).__name__}
        ready = app.state.ready and checks["store"] == "ok"
        body = Health(status="ok" if ready else "not ready", version=own_version(), checks=checks)
        return JSONResponse(body.model_dump(), status_code=200 if ready else 503)

    text = {"description": "Counters and gauges.", "content": {"text/plain": {}}}

    @app.get("/metrics", operation_id="metrics", response_class=Response, responses={200: text})
    def metrics(_: Viewer) -> Response:
        """Prometheus' text format."""
        counts = runs_.by_state()
        for state in _STATES:
            _RUNS.labels(state).set(counts.get(state, 0))
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)


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
    """The console's files; its pages' addresses are all answered with the one page."""

    async def get_response(self, path: str, scope: Scope) -> Response:
        """Return a file, or the page."""
        try:
            return await super().get_response(path, scope)
        except HTTPException as error:
            if error.status_code != 404 or path.startswith("api/") or "." in path.rsplit("/", 1)[-1]:
                raise
            return await super().get_response("index.html", scope)
