"""`python -m services.detect`: telemetry in Kafka to findings."""

from services.detect.choices import load_choices, load_incident_config
from services.detect.service import Detect
from services.detect.settings import DetectSettings
from services.kit.kafka import KafkaSettings
from services.kit.service import StatusServer, StatusSettings, run, stop_on_signals
from services.kit.settings import check, load


def main() -> None:
    """Run until SIGTERM or SIGINT."""
    check(DetectSettings, KafkaSettings, StatusSettings)
    settings, kafka = load(DetectSettings), load(KafkaSettings)
    choices, incidents = load_choices(settings.config), load_incident_config(settings.config)
    status = StatusServer(load(StatusSettings))
    stop = stop_on_signals()
    detect = Detect(settings, kafka, choices, incidents)
    try:
        detect.run(stop, status.ready)
    finally:
        detect.close()
        status.close()


run("detect", main)
