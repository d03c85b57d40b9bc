"""What a site can set of job_health; the defaults, with unit and source, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig


class JobHealthConfig(DetectorConfig):
    """Settings of job_health."""

    minimum_steps: int = Field(ge=2)
    hang_steps: float = Field(gt=3)
    hang_spinning_s: float = Field(gt=0)
    hang_s: float = Field(gt=0)
    pause_factor: float = Field(ge=1)
    pause_slack_s: float = Field(ge=0)
    saving_s: float = Field(gt=0)
    loading_s: float = Field(gt=0)
    working_ratio: float = Field(gt=0, lt=1)
    spinning_percent: float = Field(gt=0, le=100)
    cause_lead_s: float = Field(ge=0)
    nan_steps: int = Field(ge=1)
    nan_hold_s: float = Field(ge=0)
    rise_window: int = Field(ge=4, le=200)
    rise_steps: int = Field(ge=2, le=200)
    rise_hold_s: float = Field(ge=0)
    loss_effect: float = Field(gt=0)
    loss_deviations: float = Field(gt=0)
    grad_factor: float = Field(gt=1)
    grad_deviations: float = Field(gt=0)
    phase_change: float = Field(gt=0)
