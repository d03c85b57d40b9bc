"""`python -m services.notify.receiver`: a webhook receiver that keeps what Alertmanager delivers."""

import logging

from services.kit.service import run, stop_on_signals
from services.kit.serving import Server
from services.kit.settings import load
from services.notify.receiver.app import app
from services.notify.receiver.settings import ReceiverSettings
from services.notify.receiver.store import Store

_log = logging.getLogger(__name__)


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    settings = load(ReceiverSettings)
    # uvicorn handles signals itself and raises them again when it has ended: they must not kill the process then.
    stop = stop_on_signals()
    with settings.listen() as listening:
        store = Store(settings.state_dir)
        _log.info("listening address=%s state_dir=%s", settings.address(listening), settings.state_dir)
        Server(app(store, settings), settings, stop).run(sockets=[listening])
        store.close()


run("receiver", main)
