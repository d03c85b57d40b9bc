"""What every hindcast service does alike: log, answer health checks, count, and stop when asked."""

import logging
import signal
import sys
import threading
from collections.abc import Callable

import pyarrow as pa
from prometheus_client import CONTENT_TYPE_LATEST, REGISTRY, generate_latest
from pydantic_settings import SettingsConfigDict
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route

from services.kit.errors import UserError
from services.kit.listening import Listening, Port
from services.kit.logs import LogSettings, configure
from services.kit.middleware import Middleware
from services.kit.serving import Server
from services.kit.settings import load

_log = logging.getLogger(__name__)


class StatusSettings(Listening):
    """Where a service answers /healthz and /metrics: HINDCAST_STATUS_*; port 0 lets the system choose."""

    model_config = SettingsConfigDict(env_prefix="HINDCAST_STATUS_", extra="forbid")
    port: Port = 0


def status_application(ready: Callable[[], bool], settings: StatusSettings) -> Starlette:
    """Return the application of a StatusServer."""

    async def health(_: Request) -> Response:
        return PlainTextResponse("ok\n") if ready() else PlainTextResponse("starting\n", 503)

    def metrics(_: Request) -> Response:
        return Response(generate_latest(REGISTRY), media_type=CONTENT_TYPE_LATEST)

    app = Starlette(routes=[Route("/healthz", health), Route("/readyz", health), Route("/metrics", metrics)])
    app.add_middleware(Middleware, settings=settings)
    return app


class StatusServer:
    """A small HTTP server: /metrics in Prometheus' text format, /healthz 200 once `ready` is set, else 503."""

    def __init__(self, settings: StatusSettings) -> None:
        """Answer at once. Raises UserError (exit code 2) where the port cannot be had."""
        self.ready = threading.Event()
        self._socket = settings.listen()
        self.port: int = self._socket.getsockname()[1]
        self._stop = threading.Event()
        self._server = Server(status_application(self.ready.is_set, settings), settings, self._stop)
        self._thread = threading.Thread(target=self._server.run, args=([self._socket],), name="status", daemon=True)
        self._thread.start()

    def close(self) -> None:
        """Stop answering."""
        self._stop.set()
        self._thread.join()
        self._socket.close()


def stop_on_signals() -> threading.Event:
    """Return an Event that SIGTERM and SIGINT set."""
    # While pyarrow reads a CSV it would take the signal itself: the read fails, or nobody hears of the signal.
    pa.enable_signal_handlers(False)
    stop = threading.Event()

    def handle(signum: int, _frame: object) -> None:
        _log.info("stopping signal=%s", signal.Signals(signum).name)
        stop.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    return stop


def run(name: str, body: Callable[[], None]) -> None:
    """Run a service's `body` as its main(): logging set up, a UserError printed plainly, the exit code kept."""
    try:
        configure(name, load(LogSettings))
        body()
    except UserError as error:
        sys.stderr.write(f"{name}: {error}\n")
        raise SystemExit(error.exit_code) from None
