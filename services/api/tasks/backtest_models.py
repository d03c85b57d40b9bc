"""What the API says and takes of backtests: months of history against their tickets."""

from typing import Annotated, Literal

from pydantic import BaseModel, Field

from services.api.models import Asked, DetectorSettings, Entity, Name
from services.api.tasks.rules_models import Length, RuleText

Correction = Annotated[str, Field(max_length=200, examples=["gpu_lost node=v041,gpu=3"])]
Title = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$", max_length=60)]


class Configuration(Asked):
    """Detectors as they come, but for these settings, under a name."""

    name: Title
    detectors: DetectorSettings = Field(default={})


class RuleSet(Asked):
    """A rule file, YAML, under a name."""

    name: Title
    rules: RuleText


class Stretch(Asked):
    """A stretch of time of a server that HINDCAST_API_SOURCES names."""

    source: str = Field(max_length=100)
    from_: str = Field(alias="from", max_length=40, description="First instant, RFC 3339.")
    to: str = Field(max_length=40, description="Last instant, RFC 3339.")
    cluster: str | None = Field(default=None, max_length=100, description="Only series with this label.")


class BacktestRequest(Asked):
    """Hold what detectors and rules would have raised against tickets, as `hindcast backtest` does.

    Over recordings of the library, or a stretch of time of a server: give one of the two.
    """

    recordings: list[Name] = Field(default=[], max_length=200)
    of: Stretch | None = None
    tickets: str | None = Field(
        default=None, max_length=5_000_000, description="A CSV of tickets. Without it: the recordings' labels."
    )
    timezone: str = Field(default="UTC", max_length=60, description="Of tickets' times that name no zone.")
    before: Length = Field(default="2h", description="How long before its ticket a trouble may have begun.")
    configurations: list[Configuration] = Field(
        default=[], max_length=8, description="Without any: the detectors as they come."
    )
    rules: list[RuleSet] = Field(default=[], max_length=8)
    window: Length = Field(default="24h", description="How much is worked on at once.")
    warm_up: Length = Field(default="2h", description="What is read before each window.")
    grid_s: Literal[5, 10, 15, 30] = Field(default=5, description="How often detectors decide.")


class CorrectionsRequest(Asked):
    """Count again: by ticket a fault, a place, both with a space between, or `none`; an empty text takes one back."""

    corrections: dict[Annotated[str, Field(max_length=200)], Correction] = Field(min_length=1, max_length=5000)


class MatchedAlert(BaseModel):
    """An alert of a detector or a rule."""

    detector: str
    fault: str
    entity: Entity
    at: str
    severity: str
    summary: str


class Match(BaseModel):
    """A ticket or label, by what it was matched, and the alert that answered for it."""

    ticket: str
    at: str
    fault: str
    entity: Entity
    words: str
    verdict: Literal["caught", "missed", "unclear", "outside", "not required"]
    how: str
    against_s: float | None
    alert: MatchedAlert | None


class Subject(BaseModel):
    """What one configuration or one set of rules came to. `known`: whether there is anything to hold it against."""

    name: str
    kind: Literal["detectors", "rules"]
    known: bool
    truths: int
    caught: int
    missed: int
    unclear: int
    outside: int
    by_time_and_host_alone: int
    before_the_ticket: int
    against_ticket_p50_s: float | None
    false: int
    false_a_week: float
    sent_a_week: dict[str, dict[str, float]] = Field(description="By team, pages and tickets; `all` is their sum.")
    gpu_hours: dict[str, float | None]
    matches: list[Match]


class Backtest(BaseModel):
    """A backtest's figures; GET /backtests/{task}/report has all of them."""

    from_: str = Field(alias="from")
    to: str
    weeks: float
    node_days: float
    truth: Literal["labels", "tickets"]
    worked: int = Field(description="Tasks that were worked on; the rest was known from before.")
    subjects: list[Subject]
