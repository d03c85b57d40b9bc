"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig


class TelemetryGapConfig(DetectorConfig):
    """The thresholds of telemetry_gap."""

    least_s: float = Field(gt=0)
