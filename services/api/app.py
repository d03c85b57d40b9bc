"""The application: the rooms beside it put together."""

import fcntl
import re
import sqlite3
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import IO, Any

from fastapi import FastAPI, Request
from prometheus_client import Counter, Gauge, Histogram
from starlette.middleware.gzip import GZipMiddleware
from starlette.responses import JSONResponse

import services.api.detectors.routes as detectors
import services.api.live.routes as live_actions
import services.api.recordings.routes as recordings
import services.api.replays.routes as replays
import services.api.review.routes as review
import services.api.runs.routes as runs
import services.api.tasks.backtest_routes as backtests
import services.api.tasks.routes as tasks
import services.api.tasks.scenario_routes as scenarios
from services.api.detectors.catalogue import Catalogue
from services.api.http import health
from services.api.http.console import serve_console
from services.api.live.live_run import LiveRun
from services.api.models import Me
from services.api.recordings.archive import discard_leftovers
from services.api.recordings.library import Library
from services.api.replays.follower import Follower
from services.api.replays.generations import Generations
from services.api.replays.replays import Replays
from services.api.replays.streams import ReplayStreams
from services.api.review.comparisons import Comparisons
from services.api.review.feedback import Feedback
from services.api.runs.runs import Runs
from services.api.runs.streams import Streams
from services.api.settings import ApiSettings
from services.api.store import Store, is_full
from services.api.tasks.tasks import Tasks
from services.kit.application import Asking, add_routes, application, full_disk, routes
from services.kit.counting import Counting
from services.kit.durable import watch_room
from services.kit.errors import UsageError
from services.kit.kafka import KafkaSettings
from services.kit.middleware import MIB, Middleware

_REQUESTS = Counter("hindcast_api_requests_total", "Requests answered.", ["method", "route", "status"])
_SECONDS = Histogram("hindcast_api_request_seconds", "Seconds until an answer began.", ["route"])
_RUNS = Gauge("hindcast_api_runs", "Runs, by state.", ["state"])
_STATES = ("queued", "running", "done", "failed", "cancelled")
_TICKETS = {"/api/v1/backtests": 16 * MIB}
"""Where a year of tickets is sent, which is more than what else is asked."""
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
    replays_.changed = follower.wake
    replay_streams = ReplayStreams(streams, lambda: follower.statuses, replays_.replay)

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
    health.add(app, lambda: store.one("SELECT 1 FROM runs LIMIT 1"), lambda: _count_runs(runs_))
    api = routes(app, "/api/v1")
    api.add_api_route("/me", _me, methods=["GET"], operation_id="me")
    recordings.add(api, library, runs_, settings)
    runs.add(api, runs_, streams, library)
    live_actions.add(api, runs_, live)
    review.add_labels(api, Feedback(store, runs_))
    detectors.add(api, Catalogue(store))
    review.add_comparisons(api, Comparisons(store, runs_))
    replays.add(api, replays_, streams, replay_streams)
    tasks.add(api, tasks_, library, runs_, settings)
    backtests.add(api, tasks_, library, settings)
    scenarios.add(api, tasks_, library, runs_)
    add_routes(app, api)
    serve_console(app, settings.console_dir)
    app.add_middleware(GZipMiddleware, minimum_size=1024, compresslevel=4)
    app.add_middleware(Middleware, settings=settings, page=_is_page, large=_is_upload, larger=_TICKETS)
    app.add_middleware(Counting, note=_count)
    return app


def _is_page(path: str) -> bool:
    return path == "/api/v1/openapi.json" or not path.startswith(("/api/", "/metrics"))


def _is_upload(path: str) -> bool:
    return _UPLOADS.fullmatch(path) is not None


def _count(method: str, route: str, status: int, seconds: float) -> None:
    _REQUESTS.labels(method, route, status).inc()
    _SECONDS.labels(route).observe(seconds)


def _count_runs(runs_: Runs) -> None:
    counts = runs_.by_state()
    for state in _STATES:
        _RUNS.labels(state).set(counts.get(state, 0))


def _store_error(_: Request, error: Any) -> JSONResponse:
    if is_full(error):
        return full_disk()
    raise error


def _me(me: Asking) -> Me:
    """Who is asking, and in which role."""
    return Me(name=me.name, role="operator" if me.may("operator") else "viewer", authentication=me.authenticated)


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
        raise UsageError(
            f"another hindcast api uses {settings.data_dir}",
            remedy="end that one, or name another HINDCAST_API_DATA_DIR",
        ) from None
    return lock
