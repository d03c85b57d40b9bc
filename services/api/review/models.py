"""What the API says and takes of labels by people, and of comparisons."""

from typing import Literal

from pydantic import BaseModel, ConfigDict, Field

from services.api.models import Asked, DetectorSettings, Entity, Id, Name, SettingsTaken, Time, one_of
from services.api.runs.models import Score
from services.score.comparison import Change

Judgement = Literal["right", "wrong", "unsure"]


class LabelRequest(Asked):
    """What a person says of a finding or of an incident of a run: give one of the two."""

    model_config = ConfigDict(json_schema_extra=one_of("finding", "incident"))
    run: Id
    finding: Id | None = None
    incident: Id | None = None
    mark: Judgement
    note: str = Field(default="", max_length=4000)


class LabelChange(Asked):
    """What is to be otherwise."""

    mark: Judgement | None = None
    note: str | None = Field(default=None, max_length=4000)


class Label(BaseModel):
    """A judgement by a person."""

    id: str
    recording: str
    run: str
    finding: str | None
    incident: str | None
    mark: Judgement
    note: str
    author: str
    created_at: Time
    updated_at: Time


class ComparisonRequest(Asked):
    """Two configurations, or two versions, on the same recordings; each side has a run a recording.

    The first is either carried out now (`recordings`, `before`) or was before: `before_runs` are runs that are done, by
    whichever version, each of another recording.
    """

    model_config = ConfigDict(json_schema_extra=one_of("recordings", "before_runs"))
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
    before: SettingsTaken
    after: SettingsTaken
    before_runs: list[str]
    after_runs: list[str]
    versions: dict[str, tuple[str, str]] = Field(
        description="What was of another version on the second side: hindcast or a detector, with both versions."
    )
    differences: list[Difference] | None
    before_score: Score | None
    after_score: Score | None
