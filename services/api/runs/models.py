"""What the API says and takes of runs: findings, incidents, alerts and events."""

from typing import Any, Literal

from pydantic import BaseModel, Field

from detectors.contract import Severity
from services.api.models import Asked, DetectorSettings, Entity, Name, SettingsTaken, Time
from services.api.recordings.models import Truth
from services.kit.findings import FaultName

RunState = Literal["queued", "running", "done", "failed", "cancelled"]


class RunRequest(Asked):
    """Run the detectors over a recording, with no server, in a process of its own."""

    recording: Name
    detectors: DetectorSettings = Field(default={})


class Run(BaseModel):
    """One run. `progress` and `event_time` are how far event time has come."""

    id: str
    recording: str
    detectors: SettingsTaken
    state: RunState
    progress: float = Field(ge=0, le=1)
    event_time: Time | None
    findings: int
    incidents: int
    created_at: Time
    began_at: Time | None
    over_at: Time | None
    error: str | None
    versions: dict[str, str] | None = Field(
        description="Of hindcast and of each detector; null before it begins, and of a replay by way of Kafka."
    )
    replay: str | None = Field(description="Of a replay by way of Kafka its name: what the services there found in it.")
    generation: int | None = Field(description="Of such a replay: a seek begins a new generation, and so a new run.")


Verdict = Literal["hit", "late", "repeat", "optional", "false"]


class ActionRequest(Asked):
    """What somebody does about a finding of a live cluster, and why."""

    note: str = Field(min_length=1, max_length=4000)


class SilenceRequest(ActionRequest):
    """Have Alertmanager notify nobody of a finding's alert for so long."""

    for_s: int = Field(ge=60, le=31 * 86_400, description="Seconds from now on.")


class Action(BaseModel):
    """What a person did about a finding. Its times are wall time."""

    kind: Literal["acknowledged", "closed", "silenced"]
    author: str
    note: str
    at: Time
    until: Time | None = Field(default=None, description="Of a silence: its end.")
    link: str | None = Field(default=None, description="Of a silence: its page in Alertmanager.")


class Finding(BaseModel):
    """What a detector found at one entity, from firing to resolved.

    `verdict` and `delay_s` (from the label's onset to `detected_at`) are judged against the recording's labels when the
    run is over; null before, and where the recording has no labels at all.
    """

    run: str
    id: str
    detector: str
    fault: FaultName
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
    actions: list[Action] = Field(
        default=[], description="Of a live cluster: what people did about it. One closed by hand is resolved."
    )


class Cause(BaseModel):
    """A finding as root cause; the scores of an incident's causes add up to 1."""

    finding: str
    fault: FaultName
    entity: Entity
    score: float
    reasons: list[str]


class Member(BaseModel):
    """A finding of an incident."""

    id: str
    detector: str
    fault: FaultName
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
    gpu_hours_lost: float | None
    ended_at: Time | None


class Impact(BaseModel):
    """What an incident cost; null where that is not known: no touched job reports its steps, or no job is known."""

    gpus: int
    nodes: int
    jobs: list[Touched]
    step_time_factor: float | None
    gpu_hours_lost: float | None


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


class Rates(BaseModel):
    """How findings fared against labels; what has no value is null."""

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


class Score(Rates):
    """A run against its recording's labels."""

    missed: list[Truth]


class Timeline(BaseModel):
    """All moments of a run in order, and its score once it is over."""

    run: str
    entries: list[TimelineEntry]
    score: Score | None


class RunEvent(BaseModel):
    """What GET /runs/{run}/events sends, as server-sent events named by `kind`, `data` being the body.

    `progress`: a Run, four times a second at most, without an id; `finding`: a Finding, again when it is resolved;
    `incident`: an Incident, at each revision; `joined`: an incident that turned out to belong to another, {"id",
    "joined_to"}; `alert`: an Alert, again when it is resolved; `over`: the Run, at its end, after which the stream is
    closed. A client that reconnects with Last-Event-ID misses nothing.

    GET /replays/{name}/events follows a replay over all seeks: first, and whenever something of it changes, `replay`
    with a Replay, or with null when it is removed; then the events of its present run. An id is the run's and the
    event's number. With another `run` in `replay` what came before is not of this generation. Nothing is `over`
    there: the stream stays open, as a replay that has ended can be sought.
    """

    kind: Literal["progress", "finding", "incident", "joined", "alert", "over", "replay"]
    id: int | str | None
    body: dict[str, Any] | None
