"""`python -m services.sink`: settings, ports, run."""

import logging
import threading

from services.kit import kafka, service, topics
from services.kit.replay_directory import ReplayDirectory
from services.kit.settings import check, load
from services.sink.delivery import OtherProtocolError
from services.sink.settings import SinkSettings
from services.sink.sink import Sink

_log = logging.getLogger(__name__)


def body() -> None:
    """Run a sink until it is to stop."""
    check(SinkSettings, kafka.KafkaSettings, service.StatusSettings)
    settings = load(SinkSettings)
    to = load(kafka.KafkaSettings)
    status = service.StatusServer(load(service.StatusSettings))
    stop = service.stop_on_signals()
    try:
        try:
            work(settings, to, status, stop)
        except OtherProtocolError:
            _log.warning("the target takes remote-write v1 only, going on with that target=%s", settings.server)
            work(settings.model_copy(update={"protocol": "v1"}), to, status, stop)
    finally:
        status.close()
    _log.info("stopped target=%s", settings.server)


def work(settings: SinkSettings, to: kafka.KafkaSettings, status: service.StatusServer, stop: threading.Event) -> None:
    """Run a sink from what is committed until `stop` is set; OtherProtocolError where the target takes v1 only."""
    producer = kafka.producer(to, to=(topics.DEAD_LETTER,))
    consumer = kafka.consumer(
        to,
        group=settings.group,
        group_instance_id=settings.instance,
        max_poll_records=1000,
        # A sink without a name that was killed keeps its partitions so long: its successor must not wait for 45 s.
        session_timeout_ms=10_000,
        heartbeat_interval_ms=3_000,
    )
    directory = ReplayDirectory(to)
    sink = Sink(settings, consumer, producer, directory)
    status.ready.set()
    _log.info(
        "started target=%s url=%s protocol=%s status_port=%d",
        settings.server,
        settings.url,
        settings.protocol,
        status.port,
    )
    try:
        sink.run(stop)
    finally:
        consumer.close()
        producer.close()
        directory.close()


if __name__ == "__main__":
    service.run("sink", body)
