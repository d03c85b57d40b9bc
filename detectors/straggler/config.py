"""What can be set; the defaults, with unit and source of each, are in detector.yaml."""

from typing import Annotated

from pydantic import Field

from detectors.contract import DetectorConfig

_Share = Annotated[float, Field(gt=0, lt=1)]
_UpToAll = Annotated[float, Field(gt=0, le=1)]
_Positive = Annotated[float, Field(gt=0)]
_Seconds = Annotated[float, Field(ge=0)]
_Count = Annotated[int, Field(ge=1)]


class StragglerConfig(DetectorConfig):
    """The thresholds of straggler."""

    effect_share: _Share
    effect_share_few: _Share
    peer_deviations: _Positive
    spread_floor: _Positive
    peer_minimum: _Count
    wait_share: Annotated[float, Field(ge=0, le=1)]
    warm_up_steps: Annotated[int, Field(ge=0)]
    learn_beats: _Count
    learn_beats_few: _Count
    level_s: _Positive
    confirm_s: _Seconds
    confirm_beats: _Count
    node_share: _UpToAll
    most_nodes: _Count
    most_node_share: _Share
    most_stages: Annotated[int, Field(ge=2)]
    stage_ratio: Annotated[float, Field(gt=1)]
    excuse_s: _Seconds
    excuse_lines_s: _Seconds
    capped_clock_ratio: _UpToAll
    release_s: _Positive
    brief_s: _Seconds
    release_brief_s: _Positive
    release_longest_s: _Positive
    release_beats: _Count
    lone_clock_ratio: _Share
    lone_confirm_s: _Seconds
    clock_floor_mhz: _Positive
