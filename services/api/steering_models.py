"""What the API says and takes of labels by people, detectors, comparisons and replays. The rest is in models.py."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from services.api.models import Asked, DetectorSettings, Entity, Id, Name, SettingsTold, Time
from services.api.run_models import Score
from services.recording.faults import FaultName
from services.replay.spec import Shift, Speed
from services.replay.status import ReplayStatus
from services.score.comparison import Change

Mark = Literal["right", "wrong", "unsure"]


class LabelRequest(Asked):
    """What a person says of a finding or of an incident of a run: give one of the two."""

    run: Id
    finding: Id | None = None
    incident: Id | None = None
    mark: Mark
    note: str = Field(default="", max_length=4000)


class LabelChange(Asked):
    """What is to be otherwise."""

    mark: Mark | None = None
    note: str | None = Field(default=None, max_length=4000)


class Label(BaseModel):
    """A mark by a person."""

    id: str
    recording: str
    run: str
    finding: str | None
    incident: str | None
    mark: Mark
    note: str
    author: str
    created_at: Time
    updated_at: Time


class Setting(BaseModel):
    """One default, and where the figure comes from."""

    name: str
    value: float | int | str | bool
    unit: str
    source: str


class Detector(BaseModel):
    """A detector: what it finds, what it reads, how it can be configured."""

    name: str
    version: int
    faults: list[FaultName]
    reads: list[str]
    latency_s: float = Field(description="Promised delay from the fault's beginning, on readings every 5 s.")
    settings: list[Setting]
    config_schema: dict[str, Any] = Field(description="JSON schema of its configuration.")
    shadow: bool = Field(description="Runs that say nothing else have it in shadow: recorded, nobody alerted.")
    runbook: str | None = Field(description="Markdown.")


class ShadowChange(Asked):
    """Whether a detector is in shadow from now on."""

    shadow: bool


class ComparisonRequest(Asked):
    """Two configurations, or two versions, on the same recordings; each side has a run a recording.

    The first is either carried out now (`recordings`, `before`) or was before: `before_runs` are runs that are done, by
    whichever version, each of another recording.
    """

    recordings: list[Name] = Field(default=[], max_length=50)
    before: DetectorSettings = Field(default={})
    before_runs: list[Id] = Field(default=[], max_length=50)
    after: DetectorSettings = Field(default={})
    title: str = Field(default="", max_length=200)


class Difference(BaseModel):
    """One thing that the second configuration does otherwise; `seconds`: how much later (negative: earlier)."""

    recording: str
    change: Change
    fault: str
    entity: Entity
    seconds: float
    truth: str | None
    before: str | None = Field(description="The finding's id under the first configuration.")
    after: str | None


class Comparison(BaseModel):
    """A comparison; `differences`, `before_score` and `after_score` are there once all its runs are done."""

    id: str
    title: str
    state: Literal["running", "done", "failed"]
    progress: float
    created_at: Time
    recordings: list[str]
    before: SettingsTold
    after: SettingsTold
    before_runs: list[str]
    after_runs: list[str]
    versions: dict[str, tuple[str, str]] = Field(
        description="What was of another version on the second side: hindcast or a detector, with both versions."
    )
    differences: list[Difference] | None
    before_score: Score | None
    after_score: Score | None


class ReplayStart(Asked):
    """Start a replay of a recording of the library. Times: RFC 3339, or +HH:MM:SS from the recording's start."""

    model_config = ConfigDict(extra="forbid", populate_by_name=True)
    recording: Name
    speed: Speed = 1.0
    shift: Shift = "now"
    name: str | None = Field(default=None, pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")
    target: str | None = Field(default=None, max_length=100)
    from_: str | None = Field(default=None, alias="from", max_length=40)
    to: str | None = Field(default=None, max_length=40)
    detectors: DetectorSettings = Field(default={}, description="Over the detect service's own configuration.")


class Replay(ReplayStatus):
    """A replay by way of Kafka: where it is, and under which run what is found in it can be looked at and followed."""

    recording: str = Field(description="The recording's name.")
    run: str = Field(description="The run that is its present generation; a seek begins another.")
