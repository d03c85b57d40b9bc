"""What a site can set of job_health; the defaults, with unit and source, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig


class JobHealthConfig(DetectorConfig):
    """Settings of job_health."""

    hang_spinning_s: float = Field(gt=0, allow_inf_nan=False)
    hang_s: float = Field(gt=0, allow_inf_nan=False)
    loss_rise: float = Field(gt=0)
    grad_rise: float = Field(gt=0)
