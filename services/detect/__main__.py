"""`python -m services.detect`: telemetry in Kafka to findings."""

from services.detect.choices import overrides_in
from services.detect.configured import Configured
from services.detect.service import Detect
from services.detect.settings import DetectSettings
from services.kit.kafka import KafkaSettings
from services.kit.service import StatusServer, StatusSettings, run, stop_on_signals
from services.kit.settings import check, load


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    check(DetectSettings, KafkaSettings, StatusSettings)
    settings, kafka = load(DetectSettings), load(KafkaSettings)
    configured = Configured(overrides_in(settings.config), settings.config)
    status = StatusServer(load(StatusSettings))
    stop = stop_on_signals()
    detect = Detect(settings, kafka, configured)
    try:
        detect.run(stop, status.ready)
    finally:
        detect.close()
        status.close()


run("detect", main)
