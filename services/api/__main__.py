"""`python -m services.api`: the API and, where it is built, the console."""

import logging

from services.api.app import build
from services.api.app import check as check_data
from services.api.settings import ApiSettings
from services.kit.kafka import KafkaSettings
from services.kit.service import run, stop_on_signals
from services.kit.serving import Server
from services.kit.settings import check, load

_log = logging.getLogger(__name__)
_GRACE_S = 3
"""Wall seconds that browsers which follow a run are given to go when the service ends."""


def serve(settings: ApiSettings, kafka: KafkaSettings) -> None:
    """Serve until SIGTERM or SIGINT."""
    check_data(settings)
    app = build(settings, kafka)
    # uvicorn handles signals itself and raises them again when it has ended: they must not kill the process then.
    stop = stop_on_signals()
    with settings.listen() as server_socket:
        _log.info("listening address=%s data_dir=%s", settings.address(server_socket), settings.data_dir)
        Server(app, settings, stop, grace_s=_GRACE_S, closing=app.state.streams.close).run(sockets=[server_socket])
        _log.info("stopped")


def main() -> None:
    """Serve as the environment says."""
    check(ApiSettings, KafkaSettings)
    serve(load(ApiSettings), load(KafkaSettings))


if __name__ == "__main__":
    run("api", main)
