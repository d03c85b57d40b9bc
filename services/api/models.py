"""What the API says and takes, under /api/v1. Times are RFC 3339 in UTC, but epoch milliseconds in columns for charts.

Recording time and wall time are kept apart: `created_at`, `began_at`, `over_at` and `updated_at` alone are wall time.

    GET /healthz /readyz /metrics                                      (not under /api/v1)
    GET /me                                                            Me
    GET /recordings; POST /recordings (body: .zip or .tar.gz)          [RecordingSummary]; RecordingSummary
    GET, DELETE /recordings/{name}                                     RecordingDetail
    GET /recordings/{name}/coverage                                    Coverage
    GET /recordings/{name}/series?kind=&field=&entities=&from=&to=&points=&rate=&peers=    SeriesAnswer
    GET /recordings/{name}/heatmap?run=&from=&to=&points=              Heatmap
    GET /recordings/{name}/logs?from=&to=&node=&severity=&source=&contains=&limit=         LogLines
    POST /runs; GET /runs?recording=&replay=&after=&limit=               Run; Page[Run]
    GET, DELETE /runs/{run}; POST /runs/{run}/cancel                   Run
    GET /runs/{run}/events                                             server-sent events, see RunEvent
    GET /runs/{run}/timeline                                           Timeline
    GET /runs/{run}/coverage                                           Coverage
    GET /runs/{run}/findings?fault=&detector=&severity=&state=&node=&verdict=&after=&limit=   Page[Finding]
    GET /runs/{run}/findings/{finding}                                 Finding
    POST /runs/{run}/findings/{finding}/acknowledge, close {note}, silence {note, for_s}      Finding
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
    POST /postmortems; GET /postmortems/{task}/report?form=html|md|detectors     Task; the file
    POST /scores; GET /scores/{task}                                   Task; LibraryScore
    GET /sources; POST /captures                                       [Source]; Task
    GET /importers; POST /imports/{importer}?name=&filename=&option=   [Importer]; Task
    GET /replays/{name}/events                                         server-sent events, see RunEvent

Errors are a Problem, as application/problem+json. Here is what all share; the rest is in recording_models.py,
run_models.py, steering_models.py and task_models.py.
"""

from typing import Annotated, Generic, Literal, TypeVar

from pydantic import BaseModel, ConfigDict, Field

Entity = dict[str, str | int]
"""What something is about: node, gpu, nic, switch, port, mount, job_id."""
Time = Annotated[str, Field(examples=["2024-04-01T09:30:00.000Z"], json_schema_extra={"format": "date-time"})]
Name = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=100)]
Id = Annotated[str, Field(pattern=r"^[0-9a-f]{12,16}$")]
Word = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=100)]
DetectorSettings = dict[Word, dict[Word, Annotated[float, Field(allow_inf_nan=False)] | int | str | bool]]
"""As detectors.yaml: by detector what differs from its defaults (`enabled` and `shadow` too); and `incidents`."""
SettingsTold = dict[str, dict[str, float | int | str | bool]]
"""As they were taken, by whichever version."""
Item = TypeVar("Item", bound=BaseModel)


class Asked(BaseModel):
    """What somebody asks for, and nothing else."""

    model_config = ConfigDict(extra="forbid")


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
