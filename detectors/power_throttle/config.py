"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig


class PowerThrottleConfig(DetectorConfig):
    """The thresholds of power_throttle."""

    clock_ratio: float = Field(gt=0, lt=1)
    power_ratio: float = Field(gt=0, lt=1)
    confirm_readings: int = Field(ge=1, le=8)
