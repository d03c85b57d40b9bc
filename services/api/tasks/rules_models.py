"""What the API says and takes of alert rules evaluated over recordings."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from services.api.models import Asked, Entity, Name, Time
from services.api.recordings.models import Truth

RuleText = Annotated[str, Field(min_length=1, max_length=500_000)]
Length = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,4}[smh]$", examples=["15s"])]


class RuleFile(BaseModel):
    """A file of hindcast's own alert rules, as it is."""

    name: str
    text: str


class EvaluationRequest(Asked):
    """See which alerts Prometheus' rules would have fired over recordings, in event time. They are loaded nowhere."""

    recordings: list[Name] = Field(min_length=1, max_length=50)
    rules: RuleText | None = Field(default=None, description="A rule file, YAML. Without it: all that hindcast has.")
    interval: Length = Field(default="15s", description="Of groups that name none.")
    lookback: Length = Field(default="5m", description="How long a sample counts.")


class Answer(BaseModel):
    """The alert that answered for a label or, `late`, the first after it was due: such a label counts as missed."""

    name: str
    entity: Entity
    at: Time
    delay_s: float = Field(description="From the label's onset.")
    late: bool


class AnsweredLabel(BaseModel):
    """A label that asks for an alert; what rules and what detectors had for it, null where they had nothing."""

    label: Truth
    rules: Answer | None
    detectors: Answer | None


class Fared(BaseModel):
    """Alerts against labels; null where nobody has labelled the recording. `repeats`: on what was caught, or late."""

    fired: int
    caught: int | None
    missed: int | None
    repeats: int | None
    false_alarms: int | None


class FiredAlert(BaseModel):
    """An alert of a rule, or a finding of a detector. Its times are recording time.

    `verdict` is null where nobody has labelled the recording, and of what is informative or names no part of it.
    """

    by: Literal["rules", "detectors"]
    name: str
    entity: Entity
    severity: str
    started_at: Time = Field(description="Since when the condition held, or the fault could be seen.")
    at: Time
    resolved_at: Time | None
    summary: str
    labels: dict[str, str] = Field(description="Of a rule's alert.")
    verdict: Literal["hit", "late", "repeat", "false"] | None
    label: str | None = Field(description="The label that it is about.")


class EvaluatedRecording(BaseModel):
    """What rules would have fired over one recording, beside what the detectors found, in order of time."""

    name: str
    start: Time
    end: Time
    labelled: bool
    run: str | None = Field(description="The run whose findings these are; null: they were looked for anew.")
    rules: Fared
    detectors: Fared
    labels: list[AnsweredLabel]
    alerts: list[FiredAlert]
    unlisted: int = Field(description="So many more alerts there were.")
    failures: dict[str, str] = Field(description="Rules that failed as they were evaluated, with their first error.")
    series: int
    samples: int


class RuleCount(BaseModel):
    """One alert rule over all recordings. `fired` 0: it was silent."""

    name: str
    fired: int
    hits: int
    late: int
    repeats: int
    false_alarms: int


class Evaluation(BaseModel):
    """Alert rules over recordings. `rules`: the file that was sent, null where it was hindcast's own."""

    rules: str | None
    counts: list[RuleCount]
    recordings: list[EvaluatedRecording]
