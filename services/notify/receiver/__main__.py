"""`python -m services.notify.receiver`: a webhook receiver that keeps what Alertmanager delivers."""

import logging
import socket

import uvicorn

from services.kit.errors import UserError
from services.kit.service import run
from services.kit.settings import load
from services.notify.receiver.app import app
from services.notify.receiver.settings import ReceiverSettings
from services.notify.receiver.store import Store

_log = logging.getLogger(__name__)


def _listen(settings: ReceiverSettings) -> socket.socket:
    try:
        return socket.create_server((settings.host, settings.port))
    except OSError as error:
        raise UserError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}",
            remedy="end what uses that port, or set HINDCAST_RECEIVER_PORT to another",
            exit_code=2,
        ) from error


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    settings = load(ReceiverSettings)
    with _listen(settings) as listening:
        store = Store(settings.state_dir)
        _log.info("listening host=%s port=%d state_dir=%s", settings.host, settings.port, settings.state_dir)
        server = uvicorn.Server(uvicorn.Config(app(store), log_config=None, access_log=False))
        server.run(sockets=[listening])
        store.close()


run("receiver", main)
