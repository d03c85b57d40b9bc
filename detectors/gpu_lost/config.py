"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig


class GpuLostConfig(DetectorConfig):
    """The thresholds of gpu_lost."""

    least_s: float = Field(gt=0)
