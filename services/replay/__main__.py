"""`python -m services.replay`: the replay service."""

import logging
import socket

import uvicorn

from services.kit.errors import UserError
from services.kit.kafka import KafkaSettings
from services.kit.service import run, stop_on_signals
from services.kit.settings import check, load
from services.replay.api import build
from services.replay.manager import Manager
from services.replay.settings import ReplaySettings

_log = logging.getLogger(__name__)


def listen(settings: ReplaySettings) -> socket.socket:
    """Return a listening socket; raise UserError (exit code 2) where the port cannot be had."""
    try:
        return socket.create_server((settings.host, settings.port), backlog=64)
    except OSError as error:
        raise UserError(
            f"cannot listen on {settings.host}:{settings.port}: {error.strerror}",
            remedy="end what uses that port, or set HINDCAST_REPLAY_PORT to another (0: any free one)",
            exit_code=2,
        ) from error


def main() -> None:
    """Take up what was running, and serve the control API until SIGTERM or SIGINT."""
    check(ReplaySettings, KafkaSettings)
    settings = load(ReplaySettings)
    # uvicorn handles signals itself and raises them again when it has ended: they must not kill the process then.
    stop_on_signals()
    with listen(settings) as server_socket:
        manager = Manager(settings, load(KafkaSettings))
        manager.take_up()
        host, port = server_socket.getsockname()[:2]
        _log.info("listening address=http://%s:%d state_dir=%s", host, port, settings.state_dir)
        config = uvicorn.Config(build(manager, settings), log_config=None, access_log=False)
        try:
            uvicorn.Server(config).run(sockets=[server_socket])
        finally:
            manager.close()
            _log.info("stopped")


if __name__ == "__main__":
    run("replay", main)
