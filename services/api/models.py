"""What the API says and takes, under /api/v1. Times are RFC 3339 in UTC, but epoch milliseconds in columns for charts.

Recording time and wall time are kept apart: `created_at`, `began_at`, `over_at` and `updated_at` alone are wall time.

The routes are in docs/openapi.json. Errors are a Problem, as application/problem+json. Here is what all rooms share;
what only one of them says or takes is in its own models.py.
"""

from typing import Annotated, Any, Generic, Literal, TypeVar

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from services.kit.times import format_time

Entity = dict[str, str | int]
"""What something is about: node, gpu, nic, switch, port, mount, job_id."""
Written = Annotated[str, Field(examples=["2024-04-01T09:30:00.000Z"], json_schema_extra={"format": "date-time"})]
"""A time as text."""


def _written(given: object) -> object:
    return format_time(given) if isinstance(given, int) else given


Time = Annotated[Written, BeforeValidator(_written)]
"""A time that may come as epoch milliseconds, and is answered as text."""
Name = Annotated[str, Field(pattern=r"^[a-z0-9]+(-[a-z0-9]+)*$", max_length=100)]
Id = Annotated[str, Field(pattern=r"^[0-9a-f]{12,16}$")]
Word = Annotated[str, Field(pattern=r"^[a-z][a-z0-9_]*$", max_length=100)]
DetectorSettings = dict[Word, dict[Word, Annotated[float, Field(allow_inf_nan=False)] | int | str | bool]]
"""As detectors.yaml: by detector what differs from its defaults (`enabled` and `shadow` too); and `incidents`."""
SettingsTaken = dict[str, dict[str, float | int | str | bool | dict[str, dict[str, str]]]]
"""As they were taken, by whichever version."""
Item = TypeVar("Item", bound=BaseModel)


class Asked(BaseModel):
    """What somebody asks for, and nothing else."""

    model_config = ConfigDict(extra="forbid")


def one_of(*names: str) -> dict[str, Any]:
    """Return what a request's schema says where just one of some properties must be given, not null and not empty."""
    return {"oneOf": [{"required": [one], "properties": {one: {"not": {"enum": [None, []]}}}} for one in names]}


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
