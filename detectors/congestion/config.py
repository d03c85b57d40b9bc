"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig


class CongestionConfig(DetectorConfig):
    """The settings of congestion."""

    waiting_share: float = Field(gt=0, lt=1)
    wait_ticks_per_s: float = Field(gt=0)
    drops_per_s: float = Field(gt=0)
    sustain_s: float = Field(gt=0)
