"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig
from detectors.xid import XidOverrides


class GpuLostConfig(DetectorConfig):
    """The thresholds of gpu_lost."""

    missed_readings: int = Field(ge=2, le=100)
    missed_chance: float = Field(gt=0, lt=1)
    minimum_readings: int = Field(ge=1)
    node_share: float = Field(gt=0, le=1)
    job_edge_s: float = Field(ge=0)
    back_readings: int = Field(ge=1)
    back_s: float = Field(ge=0)
    quiet_s: float = Field(gt=0)
    xid_overrides: XidOverrides
