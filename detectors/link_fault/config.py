"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig


class LinkFaultConfig(DetectorConfig):
    """The settings of link_fault."""

    confirm_s: float = Field(ge=0)
    flap_downs: int = Field(ge=2, le=8)
    errors_per_s: float = Field(gt=0)
