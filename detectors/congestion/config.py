"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig


class CongestionConfig(DetectorConfig):
    """The thresholds of congestion."""

    pauses_per_s: float = Field(gt=0)
    marks_per_s: float = Field(gt=0)
    marked_share: float = Field(ge=0, lt=1)
    marked_share_unusual: float = Field(ge=0, lt=1)
    drops_per_s: float = Field(gt=0)
    wait_ticks_per_s: float = Field(gt=0)
    peer_ratio: float = Field(ge=1)
    peer_deviations: float = Field(gt=0)
    peer_minimum: int = Field(ge=2)
    sibling_ratio: float = Field(ge=1)
    own_switch_share: float = Field(gt=0, le=1)
    habit_ratio: float = Field(ge=1)
    habit_minimum_s: float = Field(gt=0)
    sustain_s: float = Field(gt=0)
    sustain_readings: int = Field(ge=1)
    switch_ports: int = Field(ge=2)
    switch_share: float = Field(gt=0, le=1)
