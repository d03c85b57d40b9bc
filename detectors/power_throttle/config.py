"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig


class PowerThrottleConfig(DetectorConfig):
    """The thresholds of power_throttle."""

    clock_ratio: float = Field(gt=0, lt=1)
    power_ratio: float = Field(gt=0, lt=1)
    violation_fraction: float = Field(gt=0, le=1)
    idle_utilisation: float = Field(ge=0, lt=100)
    confirm_readings: int = Field(ge=1, le=8)
    confirm_s: float = Field(ge=0)
    window_readings: int = Field(ge=1, le=8)
    node_share: float = Field(gt=0, le=1)
    supply_window_s: float = Field(ge=0)
    history_readings: int = Field(ge=1, le=1000)
    history_minimum: int = Field(ge=1)
    stale_s: float = Field(gt=0)
    release_clock_ratio: float = Field(gt=0, lt=1)
    release_s: float = Field(gt=0, le=240)
    clock_floor_mhz: float = Field(gt=0)
    peer_minimum: int = Field(ge=1)
    peer_deviations: float = Field(gt=0)
    limit_ratio: float = Field(gt=0, lt=1)
    limit_confirm_s: float = Field(ge=0)
