"""What a site can set of storage; the defaults, with unit and source, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig


class StorageConfig(DetectorConfig):
    """Settings of storage."""

    window_s: int = Field(ge=5, le=600)
    latency_ratio: float = Field(gt=1)
    latency_deviations: float = Field(gt=0)
    unknown_load_ratio: float = Field(gt=1)
    client_ratio: float = Field(gt=1)
    client_share: float = Field(gt=0, le=1)
    minimum_history: int = Field(ge=2)
    needed: int = Field(ge=1)
    window: int = Field(ge=1, le=16)
    starving_share: float = Field(gt=0, lt=1)
    starving_ratio: float = Field(gt=1)
    starving_windows: int = Field(ge=1, le=64)
    starving_latency_ms: float = Field(gt=0)
    link_share: float = Field(gt=0, le=1)
    release_s: float = Field(ge=0)
