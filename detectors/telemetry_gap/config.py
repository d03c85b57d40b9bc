"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig


class TelemetryGapConfig(DetectorConfig):
    """The thresholds of telemetry_gap."""

    freeze_s: float = Field(gt=0)
    freeze_readings: int = Field(ge=2)
    freeze_habits: float = Field(ge=2)
    node_share: float = Field(gt=0, le=1)
    together_nodes: int = Field(ge=2)
    together_intervals: float = Field(gt=0)
    power_ratio: float = Field(gt=0, lt=1)
    boot_grace_s: float = Field(ge=0)
    release_s: float = Field(ge=0, le=240)
    back_share: float = Field(gt=0, le=1)
    forget_s: float = Field(gt=0)
