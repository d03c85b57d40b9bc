"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig


class LinkFaultConfig(DetectorConfig):
    """The thresholds of link_fault."""

    confirm_s: float = Field(ge=0)
    confirm_again_s: float = Field(ge=0)
    confirm_readings: int = Field(ge=1)
    release_s: float = Field(ge=0, le=240)
    boot_grace_s: float = Field(ge=0)
    flap_downs: int = Field(ge=2, le=8)
    flap_window_s: float = Field(gt=0)
    flap_hold_s: float = Field(gt=0, le=280)
    switch_links: int = Field(ge=2)
    switch_share: float = Field(gt=0, le=1)
    together_s: float = Field(gt=0)
    symbol_errors_per_s: float = Field(gt=0)
    symbol_errors: float = Field(gt=0)
    receive_errors_per_s: float = Field(gt=0)
    receive_errors: float = Field(gt=0)
    recoveries: float = Field(gt=0)
    integrity_errors: float = Field(gt=0)
    uncorrectable_per_s: float = Field(gt=0)
    uncorrectable: float = Field(gt=0)
    input_errors_per_s: float = Field(gt=0)
    input_errors: float = Field(gt=0)
    error_minutes: int = Field(ge=1, le=10)
    fast_readings: int = Field(ge=1)
    peer_factor: float = Field(ge=1)
    rail_quiet_s: float = Field(gt=0)
    rail_share: float = Field(gt=0, le=1)
