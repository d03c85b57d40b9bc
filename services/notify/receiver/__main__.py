"""`python -m services.notify.receiver`: a webhook receiver that keeps what Alertmanager delivers."""

import logging

import uvicorn

from services.kit.listening import address_of
from services.kit.service import run
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
        _log.info("listening address=%s state_dir=%s", address_of(listening), settings.state_dir)
        server = uvicorn.Server(uvicorn.Config(app(store), log_config=None, access_log=False))
        server.run(sockets=[listening])
        store.close()


run("receiver", main)
