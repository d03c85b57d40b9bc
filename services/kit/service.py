"""What every hindcast service does alike: log, answer health checks, count, and stop when asked."""

import logging
import signal
import sys
import threading
from collections.abc import Callable
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

from prometheus_client import REGISTRY, generate_latest
from pydantic_settings import SettingsConfigDict

from services.kit.errors import UserError
from services.kit.settings import Settings

_log = logging.getLogger(__name__)


class StatusSettings(Settings):
    """Where a service answers /healthz and /metrics: HINDCAST_STATUS_*; port 0 lets the system choose."""

    model_config = SettingsConfigDict(env_prefix="HINDCAST_STATUS_", extra="forbid")
    host: str = "127.0.0.1"
    port: int = 0


class StatusServer:
    """A small HTTP server: /metrics in Prometheus' text format, /healthz 200 once `ready` is set, else 503."""

    def __init__(self, settings: StatusSettings) -> None:
        ready = self.ready = threading.Event()

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                if self.path == "/metrics":
                    self._answer(200, generate_latest(REGISTRY))
                elif self.path in ("/healthz", "/readyz"):
                    self._answer(200 if ready.is_set() else 503, b"ok\n" if ready.is_set() else b"starting\n")
                else:
                    self._answer(404, b"see /metrics and /healthz\n")

            def _answer(self, code: int, body: bytes) -> None:
                self.send_response(code)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(body)))
                self.end_headers()
                self.wfile.write(body)

            def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
                """Keep requests out of the log."""

        try:
            self._server = ThreadingHTTPServer((settings.host, settings.port), Handler)
        except OSError as error:
            raise UserError(
                f"cannot listen on {settings.host}:{settings.port}: {error.strerror}",
                remedy="end what uses that port, or set HINDCAST_STATUS_PORT to another (0: any free one)",
                exit_code=2,
            ) from error
        self.port: int = self._server.server_address[1]
        threading.Thread(target=self._server.serve_forever, name="status", daemon=True).start()

    def close(self) -> None:
        """Stop answering."""
        self._server.shutdown()
        self._server.server_close()


def stop_on_signals() -> threading.Event:
    """Return an Event that SIGTERM and SIGINT set."""
    stop = threading.Event()

    def handle(signum: int, _frame: object) -> None:
        _log.info("stopping signal=%s", signal.Signals(signum).name)
        stop.set()

    signal.signal(signal.SIGTERM, handle)
    signal.signal(signal.SIGINT, handle)
    return stop


def run(name: str, body: Callable[[], None]) -> None:
    """Run a service's `body` as its main(): logging set up, a UserError printed plainly, the exit code kept."""
    logging.basicConfig(
        level=logging.INFO, stream=sys.stderr, format=f"%(asctime)s level=%(levelname)s service={name} %(message)s"
    )
    # kafka-python says pages while a broker is away; what it means for a service, the service says.
    logging.getLogger("kafka").setLevel(logging.CRITICAL)
    logging.getLogger("httpx").setLevel(logging.WARNING)
    try:
        body()
    except UserError as error:
        sys.stderr.write(f"{name}: {error}\n")
        raise SystemExit(error.exit_code) from None
