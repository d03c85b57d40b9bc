"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from pydantic import Field

from detectors.contract import DetectorConfig


class StragglerConfig(DetectorConfig):
    """The thresholds of straggler."""

    effect_share: float = Field(gt=0, lt=1)
    effect_share_few: float = Field(gt=0, lt=1)
    peer_deviations: float = Field(gt=0)
    spread_floor: float = Field(gt=0)
    peer_minimum: int = Field(ge=1)
    wait_share: float = Field(ge=0, le=1)
    warm_up_steps: int = Field(ge=0)
    learn_beats: int = Field(ge=1)
    learn_beats_few: int = Field(ge=1)
    level_s: float = Field(gt=0)
    confirm_s: float = Field(ge=0)
    confirm_beats: int = Field(ge=1)
    node_share: float = Field(gt=0, le=1)
    most_nodes: int = Field(ge=1)
    most_node_share: float = Field(gt=0, lt=1)
    most_stages: int = Field(ge=2)
    stage_ratio: float = Field(gt=1)
    excuse_s: float = Field(ge=0)
    excuse_lines_s: float = Field(ge=0)
    capped_clock_ratio: float = Field(gt=0, le=1)
    release_s: float = Field(gt=0)
    brief_s: float = Field(ge=0)
    release_brief_s: float = Field(gt=0)
    release_longest_s: float = Field(gt=0)
    release_beats: int = Field(ge=1)
    lone_clock_ratio: float = Field(gt=0, lt=1)
    lone_confirm_s: float = Field(ge=0)
    clock_floor_mhz: float = Field(gt=0)
