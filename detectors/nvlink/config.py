"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig
from detectors.xid import XidOverrides


class NvlinkConfig(DetectorConfig):
    """The thresholds of nvlink."""

    crc_fatal_per_s: float = Field(gt=0)
    crc_slow_per_s: float = Field(gt=0)
    slow_readings: int = Field(ge=1, le=16)
    slow_window: int = Field(ge=1, le=16)
    replays: int = Field(ge=1)
    replay_readings: int = Field(ge=1)
    replay_span_s: float = Field(ge=0)
    recoveries: int = Field(ge=1)
    retry_window_s: float = Field(gt=0)
    hold_ms: int = Field(ge=0)
    coalesce_s: float = Field(ge=0)
    node_gpus: int = Field(ge=2)
    lost_gpu_s: float = Field(ge=0)
    traffic_slot_s: float = Field(ge=10)
    traffic_floor_bytes_per_s: float = Field(ge=0)
    traffic_ratio: float = Field(gt=0, lt=1)
    traffic_back_ratio: float = Field(gt=0, le=1)
    traffic_mates_ratio: float = Field(gt=0, lt=1)
    traffic_deviations: float = Field(gt=0)
    traffic_spread_floor: float = Field(gt=0)
    traffic_low_slots: int = Field(ge=1, le=16)
    traffic_window: int = Field(ge=1, le=16)
    traffic_history_slots: int = Field(ge=1)
    peer_minimum: int = Field(ge=2)
    busy_utilisation: float = Field(ge=0, le=100)
    quiet_s: float = Field(gt=0)
    recurrence_quiet_s: float = Field(gt=0)
    recurrence_s: float = Field(ge=0)
    sticky_s: float = Field(gt=0)
    xid_overrides: XidOverrides
