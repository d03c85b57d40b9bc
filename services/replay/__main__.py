"""`python -m services.replay`: the replay service."""

import logging

from services.kit.kafka import KafkaSettings
from services.kit.service import run, stop_on_signals
from services.kit.serving import Server
from services.kit.settings import check, load
from services.replay.api import build
from services.replay.manager import Manager
from services.replay.settings import ReplaySettings

_log = logging.getLogger(__name__)


def main() -> None:
    """Take up what was running, and serve the control API until SIGTERM or SIGINT."""
    check(ReplaySettings, KafkaSettings)
    settings = load(ReplaySettings)
    # uvicorn handles signals itself and raises them again when it has ended: they must not kill the process then.
    stop = stop_on_signals()
    with settings.listen() as server_socket:
        manager = Manager(settings, load(KafkaSettings))
        manager.take_up()
        _log.info("listening address=%s state_dir=%s", settings.address(server_socket), settings.state_dir)
        try:
            Server(build(manager, settings), settings, stop).run(sockets=[server_socket])
        finally:
            manager.close()
            _log.info("stopped")


if __name__ == "__main__":
    run("replay", main)
