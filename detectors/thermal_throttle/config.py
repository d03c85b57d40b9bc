"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig


class ThermalThrottleConfig(DetectorConfig):
    """The thresholds of thermal_throttle."""

    peer_excess_k: float = Field(gt=0)
