"""What a site can set of storage; the defaults, with unit and source, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig


class StorageConfig(DetectorConfig):
    """Settings of storage."""

    latency_rise: float = Field(gt=0)
    wait_rise: float = Field(gt=0, lt=1)
    starving_share: float = Field(gt=0, lt=1)
