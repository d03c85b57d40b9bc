"""What the API says and takes, under /api/v1. Times are RFC 3339 in UTC, but epoch milliseconds in columns for charts.

Recording time and wall time are kept apart: `created_at`, `began_at`, `over_at` and `updated_at` alone are wall time.

    GET /healthz /readyz /metrics                                      (not under /api/v1)
    GET /me                                                            Me
    GET /recordings; POST /recordings (body: .zip or .tar.gz)          [RecordingSummary]; RecordingSummary
    GET, DELETE /recordings/{name}                                     RecordingDetail
    GET /recordings/{name}/series?kind=&field=&entities=&from=&to=&points=&rate=&peers=    SeriesAnswer
    GET /recordings/{name}/heatmap?run=&from=&to=&points=              Heatmap
    GET /recordings/{name}/logs?from=&to=&node=&severity=&source=&contains=&limit=         LogLines
    POST /runs; GET /runs?recording=&replay=&after=&limit=               Run; Page[Run]
    GET, DELETE /runs/{run}; POST /runs/{run}/cancel                   Run
    GET /runs/{run}/events                                             server-sent events, see RunEvent
    GET /runs/{run}/timeline                                           Timeline
    GET /runs/{run}/findings?fault=&detector=&severity=&state=&node=&verdict=&after=&limit=   Page[Finding]
    GET /runs/{run}/findings/{finding}                                 Finding
    GET /runs/{run}/incidents?state=&after=&limit=                     Page[Incident]
    GET /runs/{run}/incidents/{incident}                               IncidentDetail
    GET /labels?recording=&run=; POST /labels                          [Label]; Label
    PATCH, DELETE /labels/{label}                                      Label
    GET /detectors; GET /detectors/{name}; PUT /detectors/{name}/shadow   [Detector]; Detector; Detector
    GET /comparisons; POST /comparisons; GET, DELETE /comparisons/{id}    [Comparison]; Comparison
    GET /alerts?run=&state=&after=&limit=                              Page[Alert]
    GET /replays; POST /replays; GET, DELETE /replays/{name}           [Replay]; Replay
    POST /replays/{name}/pause, resume, stop, seek {to}, speed {speed} Replay
    GET /tasks?kind=&after=&limit=; GET, DELETE /tasks/{task}; POST /tasks/{task}/cancel      Page[Task]; Task
    POST /postmortems; GET /postmortems/{task}/report?form=html|md     Task; the file
    POST /scores; GET /scores/{task}                                   Task; LibraryScore
    GET /sources; POST /captures                                       [Source]; Task
    GET /importers; POST /imports/{importer}?name=&filename=&option=   [Importer]; Task
    GET /replays/{name}/events                                         server-sent events, see RunEvent

Errors are a Problem, as application/problem+json.
"""

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

from detectors.contract import Fault, Severity
from services.replay.spec import Shift, Speed
from services.replay.status import ReplayStatus

Entity = dict[str, str | int]
"""What something is about: node, gpu, nic, switch, port, mount, job_id."""
Time = Annotated[str, Field(examples=["2024-04-01T09:30:00.000Z"], json_schema_extra={"format": "date-time"})]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=100)]
Id = Annotated[str, Field(pattern=r"^[0-9a-f]{12,16}$")]
DetectorSettings = dict[str, dict[str, float | int | str | bool]]
"""As detectors.yaml: by detector what differs from its defaults (`enabled` and `shadow` too); and `incidents`."""
Item = TypeVar("Item", bound=BaseModel)


class Asked(BaseModel):
    """What somebody asks for, and nothing else."""

    model_config = ConfigDict(extra="forbid")


class Problem(BaseModel):
    """An error as RFC 9457 has it, and what to do about it."""

    type: str = "about:blank"
    title: str
    status: int
    detail: str
    remedy: str


class Health(BaseModel):
    """Whether it lives; `checks` says of each thing it needs whether that is well."""

    status: Literal["ok", "not ready"]
    version: str
    checks: dict[str, str] = {}


class Me(BaseModel):
    """Who is asking."""

    name: str
    role: Literal["viewer", "operator"]
    authentication: bool = Field(description="False where it is off: on loopback only.")


class Page(BaseModel, Generic[Item]):
    """A part of a list; `next` is the `after` of the part that follows, null at the end."""

    items: list[Item]
    next: str | None = None
    total: int


# ---- recordings ----------------------------------------------------------------------------------------------------


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
    faults: list[str] = Field(description="Faults its labels tell of, each once.")
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


# ---- runs ----------------------------------------------------------------------------------------------------------

RunState = Literal["queued", "running", "done", "failed", "cancelled"]


class RunRequest(Asked):
    """Run the detectors over a recording, with no server, in a process of its own."""

    recording: Name
    detectors: DetectorSettings = {}


class Run(BaseModel):
    """One run. `progress` and `event_time` are how far event time has come."""

    id: str
    recording: str
    detectors: DetectorSettings
    state: RunState
    progress: float = Field(ge=0, le=1)
    event_time: Time | None
    findings: int
    incidents: int
    created_at: Time
    began_at: Time | None
    over_at: Time | None
    error: str | None
    replay: str | None = Field(description="Of a replay by way of Kafka its name: what the services there said of it.")
    generation: int | None = Field(description="Of such a replay: a seek begins a new generation, and so a new run.")


Verdict = Literal["hit", "late", "repeat", "optional", "false"]


class Finding(BaseModel):
    """What a detector said of one entity, from firing to resolved.

    `verdict` and `delay_s` (from the label's onset to `detected_at`) are judged against the recording's labels when the
    run is over; null before, and where the recording has no labels at all.
    """

    run: str
    id: str
    detector: str
    fault: Fault
    entity: Entity
    state: Literal["firing", "resolved"]
    started_at: Time
    detected_at: Time
    resolved_at: Time | None
    severity: Severity
    score: float
    summary: str
    recommended_action: str
    evidence: dict[str, float | int | str]
    shadow: bool
    verdict: Verdict | None
    truth: str | None = Field(description="The label it is about.")
    delay_s: float | None


class Cause(BaseModel):
    """A finding as root cause; the scores of an incident's causes add up to 1."""

    finding: str
    fault: Fault
    entity: Entity
    score: float
    reasons: list[str]


class Member(BaseModel):
    """A finding of an incident."""

    id: str
    detector: str
    fault: Fault
    entity: Entity
    severity: Severity
    started_at: Time
    detected_at: Time
    resolved_at: Time | None
    summary: str


class Link(BaseModel):
    """One step of the chain; an end is a finding's id, `job:ID`, or `seen:` and what evidence says."""

    cause: str
    effect: str
    over: str
    because: str
    score: float


class Touched(BaseModel):
    """What a job lost."""

    job_id: str
    gpus: int
    step_time_factor: float | None
    stood_s: float
    gpu_hours_lost: float
    ended_at: Time | None


class Impact(BaseModel):
    """What an incident cost."""

    gpus: int
    nodes: int
    jobs: list[Touched]
    step_time_factor: float
    gpu_hours_lost: float


class Offender(BaseModel):
    """A part that was the root of incidents before."""

    entity: Entity
    incidents: int
    score: float


class Incident(BaseModel):
    """The last revision of an incident: findings that share a cause, with the root ranked first in `causes`."""

    run: str
    id: str
    revision: int
    revised_at: Time
    state: Literal["open", "closed"]
    opened_at: Time
    started_at: Time
    closed_at: Time | None
    severity: Severity
    title: str
    causes: list[Cause]
    members: list[Member]
    unlisted: int
    chain: list[Link]
    impact: Impact
    offenders: list[Offender]


class Alert(BaseModel):
    """What Alertmanager was sent of findings of a replay that share their labels. Its times are wall time.

    `sent_at`: since when Alertmanager was seen to have it (it is asked once a second); `said_at`: when Kafka had the
    finding; `delay_s` is the one less the other. `detected_at` is the finding's own, in recording time.
    """

    id: str
    run: str
    replay: str
    state: Literal["firing", "resolved"]
    findings: list[str]
    name: str = Field(examples=["PowerThrottle"])
    severity: Severity
    labels: dict[str, str]
    detected_at: Time
    said_at: Time
    sent_at: Time
    resolved_at: Time | None
    delay_s: float
    suppressed: bool = Field(description="Silenced or inhibited when it was seen last: nobody was notified.")
    receivers: list[str]


class IncidentDetail(Incident):
    """An incident, the runbooks of the detectors whose findings are its causes, as Markdown, and what was alerted."""

    runbooks: dict[str, str]
    alerts: list[Alert] = Field(description="Of a replay by way of Kafka only: runs of here alert nobody.")


Moment = Literal["onset", "signal", "finding", "incident", "resolved", "end"]


class TimelineEntry(BaseModel):
    """One moment of a run: a label's `onset` and `end`; of a finding its `signal` (the best estimate of the onset), the
    `finding` and `resolved`; the opening of an `incident`. `id` is that of the label, finding or incident.
    """

    at: Time
    moment: Moment
    id: str
    fault: str | None
    entity: Entity
    severity: Severity | None
    text: str


class Score(BaseModel):
    """A run against its recording's labels; what has no value is null."""

    labels: int
    hits: int
    misses: int
    late: int
    repeats: int
    false_alarms: int
    precision: float | None
    recall: float | None
    f1: float | None
    delay_p50_s: float | None
    delay_p95_s: float | None
    missed: list[Truth]


class Timeline(BaseModel):
    """All moments of a run in order, and its score once it is over."""

    run: str
    entries: list[TimelineEntry]
    score: Score | None


# ---- labels by people, detectors, comparisons, replays ------------------------------------------------------------


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
    faults: list[Fault]
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
    """Two configurations on the same recordings; each gives a run a recording."""

    recordings: list[Name] = Field(min_length=1, max_length=50)
    before: DetectorSettings = {}
    after: DetectorSettings = {}
    title: str = Field(default="", max_length=200)


class Difference(BaseModel):
    """One thing that the second configuration does otherwise; `seconds`: how much later (negative: earlier)."""

    recording: str
    change: Literal["caught", "missed", "earlier", "later", "false alarm gone", "false alarm new"]
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
    before: DetectorSettings
    after: DetectorSettings
    before_runs: list[str]
    after_runs: list[str]
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


class Replay(ReplayStatus):
    """A replay by way of Kafka: where it is, and under which run what is found in it can be looked at and followed."""

    recording: str = Field(description="The recording's name.")
    run: str = Field(description="The run that is its present generation; a seek begins another.")


# ---- server-sent events --------------------------------------------------------------------------------------------


class RunEvent(BaseModel):
    """What GET /runs/{run}/events sends, as server-sent events named by `kind`, `data` being the body.

    `progress`: a Run, four times a second at most, without an id; `finding`: a Finding, again when it is resolved;
    `incident`: an Incident, at each revision; `joined`: an incident that turned out to belong to another, {"id",
    "joined_to"}; `alert`: an Alert, again when it is resolved; `over`: the Run, at its end, after which the stream is
    closed. A client that reconnects with Last-Event-ID misses nothing.

    GET /replays/{name}/events follows a replay over all seeks: first, and whenever something of it changes, `replay`
    with a Replay, or with null when it is removed; then the events of its present run. An id is the run's and the
    event's number. With another `run` in `replay` what was said before is not of this generation. Nothing is `over`
    there: the stream stays open, as a replay that has ended can be sought.
    """

    kind: Literal["progress", "finding", "incident", "joined", "alert", "over", "replay"]
    id: int | str | None
    body: dict[str, Any] | None
