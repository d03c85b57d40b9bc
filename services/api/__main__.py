"""`python -m services.api`: the API and, where it is built, the console."""

import logging
import socket

import uvicorn

from services.api.app import build, check
from services.api.settings import ApiSettings
from services.api.stream import Streams
from services.kit.kafka import KafkaSettings
from services.kit.listening import address_of
from services.kit.service import run, stop_on_signals
from services.kit.settings import load

_log = logging.getLogger(__name__)
_GRACE_S = 3
"""Wall seconds that browsers which follow a run are given to go when the service ends."""


class _Server(uvicorn.Server):
    """Ends what browsers follow before it waits for them to go."""

    def __init__(self, config: uvicorn.Config, streams: Streams) -> None:
        super().__init__(config)
        self._streams = streams

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End."""
        self._streams.closing = True
        await super().shutdown(sockets)


def serve(settings: ApiSettings, kafka: KafkaSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    check(settings)
    app = build(settings, kafka)
    # uvicorn handles signals itself and raises them again when it has ended: they must not kill the process then.
    stop_on_signals()
    with settings.listen() as server_socket:
        _log.info("listening address=%s data_dir=%s", address_of(server_socket), settings.data_dir)
        config = uvicorn.Config(app, log_config=None, access_log=False, timeout_graceful_shutdown=_GRACE_S)
        _Server(config, app.state.streams).run(sockets=[server_socket])
        _log.info("stopped")


def main() -> None:
    """Serve as the environment says."""
    serve(load(ApiSettings), load(KafkaSettings))


if __name__ == "__main__":
    run("api", main)
