"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig


class NodeDownConfig(DetectorConfig):
    """The thresholds of node_down."""

    supported_intervals: float = Field(ge=1.5, le=8)
    support_window_s: float = Field(gt=0)
    power_ratio: float = Field(gt=0, lt=1)
    together_nodes: int = Field(ge=2)
    together_intervals: float = Field(gt=0)
    feed_share: float = Field(gt=0, le=1)
    steps_wait_s: float = Field(ge=0)
    release_s: float = Field(ge=0, le=240)
    release_intervals: float = Field(ge=1, le=10)
    forget_s: float = Field(gt=0)
