"""Whether the service lives, whether it can work, and its metrics."""

from collections.abc import Callable

from fastapi import FastAPI, Response
from starlette.responses import JSONResponse

from services import __version__
from services.api.models import Health
from services.kit.application import add_metrics


def add(app: FastAPI, read_state: Callable[[], object], count: Callable[[], None]) -> None:
    """Add the routes.

    `read_state` reads something of the state and raises where that cannot be; `count` sets gauges before they are read.
    """

    @app.get("/healthz", operation_id="health")
    async def healthz() -> Health:  # whatever all threads are busy with
        """Whether it lives."""
        return Health(status="ok", version=__version__)

    @app.get("/readyz", operation_id="ready", response_model=Health)
    def readyz() -> Response:
        """Whether it can work: its state can be read."""
        try:
            read_state()
            checks = {"store": "ok"}
        except Exception as error:  # noqa: BLE001 - whatever it is, that is the answer
            checks = {"store": type(error).__name__}
        ready = app.state.ready and checks["store"] == "ok"
        body = Health(status="ok" if ready else "not ready", version=__version__, checks=checks)
        return JSONResponse(body.model_dump(), status_code=200 if ready else 503)

    add_metrics(app, count)
