"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from typing import Annotated

from pydantic import Field

from detectors.contract import DetectorConfig

_Share = Annotated[float, Field(gt=0, lt=1)]


class StragglerConfig(DetectorConfig):
    """The settings of straggler."""

    effect_share: _Share
    job_share: _Share
