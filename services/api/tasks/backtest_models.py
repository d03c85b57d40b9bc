"""What the API says and takes of backtests: months of history against their tickets."""

from typing import Annotated, Literal

from pydantic import BaseModel, ConfigDict, Field

from services.api.models import Asked, Entity, Name, Time, one_of
from services.api.tasks.models import AskedTime
from services.api.tasks.rules_models import RuleText
from services.backtest.losses import Assumptions

_USUAL = Assumptions()
_Amount = Annotated[float, Field(ge=0, le=1e6, allow_inf_nan=False)]
Correction = Annotated[str, Field(max_length=200, examples=["gpu_lost node=v041,gpu=3"])]
Title = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9 ._-]*$", max_length=60)]
Span = Annotated[str, Field(pattern=r"^[1-9][0-9]{0,3}[mhd]$", examples=["2h"])]


class Configuration(Asked):
    """Detectors under a name."""

    name: Title
    yaml: str = Field(default="", max_length=200_000, description="A detectors.yaml. Empty: as they come.")


class RuleSet(Asked):
    """Alert rules under a name."""

    name: Title
    rules: RuleText | None = Field(default=None, description="A rule file, YAML. Without it: all that hindcast has.")


class Stretch(Asked):
    """A stretch of time of a server that HINDCAST_API_SOURCES names."""

    source: str = Field(max_length=100)
    from_: AskedTime = Field(alias="from", description="First instant.")
    to: AskedTime = Field(description="Last instant.")
    cluster: str | None = Field(default=None, max_length=100, description="Only series with this label.")


class Assumed(Asked):
    """What is not in the telemetry, and what GPU-hours are counted by."""

    checkpoint_min: _Amount = Field(default=_USUAL.checkpoint_min, description="Minutes between a job's checkpoints.")
    restart_min: _Amount = Field(default=_USUAL.restart_min, description="Minutes until a stopped job works again.")
    reaction_min: _Amount = Field(default=_USUAL.reaction_min, description="Minutes until an alert is acted on.")
    repair_h: _Amount = Field(default=_USUAL.repair_h, description="Hours that a drained node is away.")
    spares: _Amount = Field(default=_USUAL.spares, description="Nodes that idle, ready to take another's place.")


class BacktestRequest(Asked):
    """Hold what detectors and rules would have raised against tickets, as `hindcast backtest` does.

    Over recordings of the library, or a stretch of time of a server: give one of the two.
    """

    model_config = ConfigDict(json_schema_extra=one_of("recordings", "of"))
    recordings: list[Name] = Field(default=[], max_length=1000)
    of: Stretch | None = None
    tickets: str | None = Field(
        default=None, max_length=12_000_000, description="A CSV of tickets. Without it: the recordings' labels."
    )
    timezone: str = Field(default="UTC", max_length=60, description="Of tickets' times that name no zone.")
    before: Span = Field(default="2h", description="How long before its ticket a trouble may have begun.")
    configurations: list[Configuration] = Field(
        default=[], max_length=8, description="Without any: the detectors as they come."
    )
    rules: list[RuleSet] = Field(default=[], max_length=8)
    window: Span = Field(default="1d", description="How much is worked on at once.")
    warm_up: Span = Field(default="2h", description="What is read before each window.")
    grid_s: Literal[5, 10, 15, 30] = Field(default=5, description="How often detectors decide.")
    assumptions: Assumed = Assumed()


class AgainRequest(Asked):
    """Count a backtest again. What was looked at is known from before."""

    corrections: dict[Annotated[str, Field(max_length=200)], Correction] = Field(
        default={},
        max_length=5000,
        description="By ticket a fault, a place, both with a space between, or `none`; an empty text takes one back.",
    )
    assumptions: Assumed | None = Field(default=None, description="Without them: those of before.")


class MatchedAlert(BaseModel):
    """An alert of a detector or a rule."""

    detector: str
    fault: str
    entity: Entity
    at: Time
    severity: str
    summary: str


class Match(BaseModel):
    """A ticket or label, by what it was matched, and the alert that answered for it."""

    ticket: str
    at: Time
    fault: str
    entity: Entity
    words: str
    verdict: Literal["caught", "missed", "unclear", "outside", "not required"]
    how: str
    against_s: float | None
    alert: MatchedAlert | None


class GpuHours(BaseModel):
    """What all that was wrong cost, and what acting on each alert would have saved of it."""

    lost: float
    saved: float
    of_unknown_cost: int = Field(description="Troubles of which nobody knows what they cost: left out.")


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
    alerts_apart: int = Field(description="Alerts of rules that are informative or name no machine: left out.")
    sent_a_week: dict[str, dict[str, float]] = Field(description="By team, pages and tickets; `all` is their sum.")
    gpu_hours: GpuHours
    matches: list[Match]


class Backtest(BaseModel):
    """A backtest's figures; GET /backtests/{task}/report has all of them."""

    from_: Time = Field(alias="from")
    to: Time
    weeks: float
    node_days: float
    truth: Literal["labels", "tickets"]
    tickets_of_other_times: int = Field(description="Tickets opened when the history has nothing: left out.")
    assumptions: Assumed
    worked: int = Field(description="Tasks that were worked on; the rest was known from before.")
    subjects: list[Subject]
