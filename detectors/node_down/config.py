"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig


class NodeDownConfig(DetectorConfig):
    """The thresholds of node_down."""

    least_s: float = Field(gt=0)
