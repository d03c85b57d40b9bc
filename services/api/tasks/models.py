"""What the API says and takes of tasks: what takes long and is no run."""

from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field

from services.api.models import Asked, DetectorSettings, Entity, Id, Name, Time, Written, one_of
from services.api.runs.models import Rates, RunState
from services.kit.times import parse_instant

TaskKind = Literal["postmortem", "score", "capture", "import", "evaluation", "backtest", "make"]


def _readable(time: str) -> str:
    parse_instant(time)
    return time


AskedTime = Annotated[Written, Field(max_length=40), AfterValidator(_readable)]
"""A time that somebody gives: refused at once where it is none."""


class TaskResult(BaseModel):
    """What came of a task: its title, of a postmortem the incident, of what makes one the recording."""

    title: str | None = None
    incident: str | None = None
    recording: str | None = None
    notes: str | None = Field(default=None, description="What a capture or an import has read, made and left out.")


class Task(BaseModel):
    """What takes long: carried out in a process of its own, in the order they were asked for.

    `asked` is what was asked for. Results: GET /postmortems/{task}/report, GET /scores/{task}, GET /recordings/{name},
    GET /evaluations/{task}, GET /backtests/{task}.
    """

    id: str
    kind: TaskKind
    asked: dict[str, Any]
    state: RunState
    progress: float = Field(ge=0, le=1, description="Of a postmortem, that of its first run: trials come after.")
    doing: str | None
    created_at: Time
    began_at: Time | None
    over_at: Time | None
    error: str | None
    result: TaskResult | None


class PostmortemRequest(Asked):
    """Write the postmortem of an incident of a run, of here or of a replay, or of a recording: give one of the two."""

    model_config = ConfigDict(json_schema_extra=one_of("run", "recording"))
    run: Id | None = None
    recording: Name | None = None
    detectors: DetectorSettings = Field(default={}, description="With `recording` only: a run has its own.")
    incident: Id | None = Field(default=None, description="Without it, the one that cost most.")
    price: float | None = Field(default=None, ge=0, le=1e6, description="USD per GPU-hour, for the cost.")
    rules: bool = Field(default=False, description="Evaluate the alert rules, too.")
    what_if: bool = Field(default=True, description="Try other settings: several more runs, which take the longest.")


class ScoreRequest(Asked):
    """Score the detectors on recordings of the library; on all of it where none is named."""

    recordings: list[Name] = Field(default=[], max_length=200)
    detectors: DetectorSettings = Field(default={})
    title: str = Field(default="", max_length=200)


class CaptureRequest(Asked):
    """Capture a stretch of time from a Prometheus or Thanos Query that HINDCAST_API_SOURCES names."""

    source: str = Field(max_length=100)
    name: Name = Field(description="The recording's name.")
    from_: AskedTime = Field(alias="from", description="First instant.")
    to: AskedTime = Field(description="Last instant.")
    cluster: str | None = Field(default=None, max_length=100, description="Only series with this label.")
    replay: str | None = Field(default=None, max_length=63, description="Only those of one replay.")
    shift_s: float = Field(default=0.0, allow_inf_nan=False, description="Taken off all times: what a replay added.")
    step_s: float | None = Field(default=None, ge=0.001, le=1e7, description="Resample, as a graph does.")


class Source(BaseModel):
    """A server that can be captured from."""

    name: str


class ImporterOption(BaseModel):
    """An option of an importer, given as `option=NAME=VALUE`."""

    name: str
    help: str
    type: str
    default: str | float | int | bool | None


class Importer(BaseModel):
    """A foreign format that can be imported."""

    name: str
    help: str
    takes: str
    options: list[ImporterOption]


class Figures(Rates):
    """Counts and rates of one fault, of all, or of a control."""

    optional: int


class MissedLabel(BaseModel):
    """A label without an alert in time."""

    id: str
    fault: str
    entity: Entity


class FalseAlarm(BaseModel):
    """An alert that no label explains."""

    fault: str
    entity: Entity
    summary: str


class ScoredRecording(BaseModel):
    """What came of one recording."""

    name: str
    seed: int | None
    cluster: str
    node_days: float
    outcomes: dict[str, int]
    missed: list[MissedLabel]
    false: list[FalseAlarm]


class CurvePoint(BaseModel):
    """Precision and recall of all faults where only findings of at least that score count."""

    least_score: float
    precision: float | None
    recall: float | None
    false_alarms: int


class LibraryScore(BaseModel):
    """The detectors on the library: by fault (`all` is their sum), against controls that know nothing, by recording.

    `manners` and `incidents` are counts: how findings behave, and how well incidents were found.
    """

    faults: dict[str, Figures]
    controls: dict[str, Figures]
    recordings: list[ScoredRecording]
    curve: list[CurvePoint]
    node_days: float
    false_alarms_per_100_node_days: float | None
    false_alarms_per_100_node_days_upper_95: float | None
    manners: dict[str, Any]
    incidents: dict[str, Any]
