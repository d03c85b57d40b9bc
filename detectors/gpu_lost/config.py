"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig


class GpuLostConfig(DetectorConfig):
    """The thresholds of gpu_lost."""

    least_s: float = Field(gt=0)
    least_readings: float = Field(ge=2, le=100)
    unsure_s: float = Field(gt=0)
    quiet_s: float = Field(gt=0)
