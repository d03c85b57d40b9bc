"""`python -m services.notify`: findings to Alertmanager."""

from services.kit.kafka import KafkaSettings
from services.kit.service import StatusServer, StatusSettings, run, stop_on_signals
from services.kit.settings import check, load
from services.notify.service import Notify
from services.notify.settings import NotifySettings


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    check(NotifySettings, KafkaSettings, StatusSettings)
    settings, kafka = load(NotifySettings), load(KafkaSettings)
    status = StatusServer(load(StatusSettings))
    stop = stop_on_signals()
    notify = Notify(settings, kafka)
    notify.rebuild()
    status.ready.set()
    notify.run(stop)
    notify.close()
    status.close()


run("notify", main)
