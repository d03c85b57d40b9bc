"""`python -m services.notify.receiver`: a webhook receiver that keeps what Alertmanager delivers."""

import logging

from services.kit.service import run
from services.kit.serving import Server
from services.kit.settings import load
from services.notify.receiver.app import app
from services.notify.receiver.settings import ReceiverSettings
from services.notify.receiver.store import Store

_log = logging.getLogger(__name__)


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    settings = load(ReceiverSettings)
    with settings.listen() as listening:
        store = Store(settings.state_dir)
        _log.info("listening address=%s state_dir=%s", settings.address(listening), settings.state_dir)
        Server(app(store, settings), settings).run(sockets=[listening])
        store.close()


run("receiver", main)
