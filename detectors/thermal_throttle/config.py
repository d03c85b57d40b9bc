"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig


class ThermalThrottleConfig(DetectorConfig):
    """The thresholds of thermal_throttle."""

    idle_utilisation: float = Field(ge=0, lt=100)
    near_limit_k: float = Field(ge=0, lt=40)
    peer_excess_k: float = Field(gt=0)
    clock_ratio: float = Field(gt=0, lt=1)
    violation_fraction: float = Field(gt=0, le=1)
    alarm_confirm_s: float = Field(ge=0)
    node_confirm_s: float = Field(gt=0)
    gpu_confirm_s: float = Field(gt=0)
    confirm_readings: int = Field(ge=1, le=1000)
    node_share: float = Field(gt=0, le=1)
    cooling_window_s: float = Field(ge=0)
    inlet_rise_k: float = Field(gt=0)
    inlet_most_c: float = Field(gt=0)
    bmc_stale_s: float = Field(gt=0)
    stale_s: float = Field(gt=0)
    release_s: float = Field(gt=0)
    release_idle_s: float = Field(gt=0)
    peer_minimum: int = Field(ge=1)
