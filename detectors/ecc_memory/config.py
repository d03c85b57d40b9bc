"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig
from detectors.xid import XidOverrides


class EccMemoryConfig(DetectorConfig):
    """The thresholds of ecc_memory."""

    storm_errors: int = Field(ge=1)
    storm_window_s: float = Field(ge=60, le=3600)
    storm_burst_errors: int = Field(ge=1)
    storm_habit_factor: float = Field(ge=1)
    storm_peer_factor: float = Field(ge=1)
    storm_quiet_s: float = Field(ge=30, le=3600)
    recurrence_s: float = Field(ge=0)
    recurrence_quiet_s: float = Field(ge=0)
    habit_half_life_s: float = Field(gt=0)
    remap_wait_s: float = Field(ge=0)
    clear_readings: int = Field(ge=1, le=100)
    no_reset_quiet_s: float = Field(gt=0)
    xid_overrides: XidOverrides
