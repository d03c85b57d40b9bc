"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig


class PcieDegradationConfig(DetectorConfig):
    """The thresholds of pcie_degradation.

    The Vela report's rule alone (the mean of twelve hourly tests under 3.4 to 4 GB/s) is ``sample_count: 12,
    sample_bar_gb_s: 3.4, link_state: false, replay_rate: false, peer_bandwidth: false``.
    """

    link_state: bool
    replay_rate: bool
    peer_bandwidth: bool
    busy_utilisation: float = Field(ge=0, lt=100)
    link_confirm_s: float = Field(gt=0)
    confirm_readings: int = Field(ge=1, le=1000)
    wrong_share: float = Field(gt=0, le=1)
    replay_factor: float = Field(gt=0)
    replay_confirm_s: float = Field(gt=0)
    stretch_s: float = Field(ge=5)
    bandwidth_ratio: float = Field(gt=0, lt=1)
    bandwidth_floor_gb_s: float = Field(gt=0)
    bandwidth_stretches: int = Field(ge=1, le=10_000)
    bandwidth_chance: float = Field(gt=0, lt=1)
    contention_stretches: int = Field(ge=1, le=10_000)
    history_stretches: int = Field(ge=1)
    peer_minimum: int = Field(ge=2)
    peer_deviations: float = Field(gt=0)
    peer_spread: float = Field(gt=0)
    sample_count: int = Field(ge=0, le=1000)
    sample_s: float = Field(ge=5)
    sample_bar_gb_s: float = Field(gt=0)
    sample_least_gb_s: float = Field(gt=0)
    stale_s: float = Field(gt=0)
    release_s: float = Field(gt=0)
    release_stretches: int = Field(ge=1)
    unseen_s: float = Field(gt=0)
    absent_s: float = Field(gt=0)
