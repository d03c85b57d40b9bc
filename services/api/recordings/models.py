"""What the API says of recordings: what is in them, columns for charts, health over time."""

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from services.api.models import Entity, Time


class Cluster(BaseModel):
    """The machines."""

    name: str
    nodes: int
    gpus: int
    gpu_model: str


class RecordingSummary(BaseModel):
    """A recording in the library. `read_only`: it came with the library and cannot be deleted."""

    name: str
    title: str
    summary: str
    origin: Literal["synthetic", "captured", "imported"]
    start: Time
    end: Time
    duration_s: float
    cluster: Cluster
    faults: list[str] = Field(description="Faults of its labels, each once.")
    labelled: int = Field(description="Labels that are faults, distractors left out.")
    size_bytes: int
    read_only: bool


class Stream(BaseModel):
    """One stream: what identifies a row beside its time, and what can be drawn."""

    kind: str
    interval_s: float | None
    rows: int
    keys: list[str]
    fields: list[str]


class Node(BaseModel):
    """A machine."""

    name: str
    rack: str | None
    pod: str | None
    gpu_model: str | None
    gpus: list[int]
    nics: list[str]


class Job(BaseModel):
    """A job; `gpus` only where it has part of a node."""

    job_id: str
    name: str
    user: str
    nodes: list[str]
    gpus: dict[str, list[int]] | None
    start: Time
    end: Time | None
    state: str


class Truth(BaseModel):
    """One label of the recording: a fault that was there or (`distractor`) what only looks like one."""

    id: str
    fault: str
    entity: Entity
    also: list[Entity] = []
    onset: Time
    end: Time
    within_s: float
    job_id: str | None = None
    cause: str | None = None
    note: str | None = None
    incident: str | None = None
    root: bool = False
    distractor: bool = False
    optional: bool = False


class RecordingDetail(RecordingSummary):
    """All about a recording but its data."""

    source: dict[str, Any]
    seed: int | None
    streams: list[Stream]
    nodes: list[Node]
    switches: list[str]
    jobs: list[Job]
    truths: list[Truth]


class LogLine(BaseModel):
    """A line of the recording's logs."""

    at: Time
    source: str
    severity: str
    node: str | None
    job_id: str | None
    rank: int | None
    message: str


class LogLines(BaseModel):
    """Lines in order of time; `more`: there were more in that window than asked for."""

    items: list[LogLine]
    more: bool


Values = list[float | None]


class Series(BaseModel):
    """One entity's readings, one place a bucket: lowest, highest and mean; null where there was none."""

    key: str = Field(description="The entity's keys joined by '/', as `entities` takes them.", examples=["v002/3"])
    entity: Entity
    min: Values
    max: Values
    mean: Values


class Band(BaseModel):
    """The peers of the first entity: those of its job, the drawn ones left out if enough others are left.

    `low` and `high` are the median less and plus three robust standard deviations (1.4826 times the median absolute
    deviation), of the peers' means in each bucket.
    """

    about: str = Field(description="Whose: 'job 812', or 'switch tor-01a'.")
    peers: int
    median: Values
    low: Values
    high: Values


class SeriesAnswer(BaseModel):
    """Columns for a chart: bucket i reaches from `times[i]` for `bucket_ms`, times in epoch milliseconds."""

    recording: str
    kind: str
    field: str
    rate: bool = Field(description="Whether values are increases per second of a counter.")
    from_ms: int
    to_ms: int
    bucket_ms: int
    times: list[int]
    series: list[Series]
    band: Band | None
    left_out: int = Field(description="Entities that matched beyond the most that one answer has.")


class HeatRow(BaseModel):
    """One GPU."""

    node: str
    gpu: int
    rack: str | None


class CoverageLevel(BaseModel):
    """What is seen of a fault on a part of the cluster: on which rung of the ladder (0 is the best), and how soon."""

    sees: str
    within_s: float = Field(description="From a sudden onset, at readings every 5 s.")
    share: float
    rung: int


class CoverageFault(BaseModel):
    """One fault.

    `less`: on a lower rung, as soon; `late`: later; `partly`: on a part of the cluster; `off`: its detector does not
    run; `undeclared`: it does not say what it needs.
    """

    fault: str
    detector: str
    verdict: Literal["sees", "less", "late", "partly", "blind", "off", "undeclared"]
    blind_share: float | None
    levels: list[CoverageLevel]
    lacks: list[str] = Field(description="In words, what is missing for the next better rung, or for any.")


class CoverageGain(BaseModel):
    """What an addition would show of a fault."""

    fault: str
    sees: str
    within_s: float


class CoverageAddition(BaseModel):
    """What to add, what gives it, and what it would show."""

    needs: list[str] = Field(examples=[["dcgm.DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"]])
    from_: list[str] = Field(alias="from")
    gives: list[CoverageGain]

    model_config = ConfigDict(populate_by_name=True)


class Coverage(BaseModel):
    """Fault by fault what a recording's telemetry can show."""

    recording: str
    intervals_s: dict[str, float]
    inferred_jobs: bool = Field(description="Nobody names the jobs: they are found by GPUs that work in step.")
    faults: list[CoverageFault]
    additions: list[CoverageAddition]
    csv: list[str] = Field(
        description="Lines for dcgm-exporter's CSV that give it every field that would add something."
    )
    closing: list[str] = Field(description="In a line each, what could not be judged, or only late, and why.")


class Heatmap(BaseModel):
    """Health of every GPU over time, from a run's findings and from which readings are there.

    `cells[row]` has one character a bucket: `-` no reading, `.` idle, `o` at work and well, `i` `t` `p` under an open
    finding of severity info, ticket, page (of the GPU or of its node), the worst one.
    """

    recording: str
    run: str | None
    from_ms: int
    to_ms: int
    bucket_ms: int
    times: list[int]
    rows: list[HeatRow]
    cells: list[str]
