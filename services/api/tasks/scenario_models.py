"""What the API says and takes of the scenarios that come with hindcast, of which recordings can be made."""

from typing import Any

from pydantic import BaseModel, Field

from services.api.models import Asked, Name
from services.api.recordings.models import Cluster
from services.synth.make import LEAST_SCALE, MOST_SCALE, MOST_SEED


class Scenario(BaseModel):
    """A sample incident: its story, the cluster it befalls, the faults in it, and where it comes from.

    Lengths of time and sizes of making are about what they are on two cores, as the scenario is written.
    """

    name: Name
    title: str
    summary: str
    duration_s: float
    cluster: Cluster
    faults: list[str] = Field(description="Each once; none where an alert would be a false alarm.")
    source: dict[str, Any]
    seed: int
    making_s: float
    making_bytes: int
    recording: Name | None = Field(description="What was made of it as it is written, and is in the library.")


class MakeRequest(Asked):
    """How the recording is to differ from what the scenario says; another name says so. Beyond the bounds: 422."""

    seed: int | None = Field(
        default=None,
        description="Another case of the same.",
        json_schema_extra={"minimum": 0, "maximum": MOST_SEED},
    )
    scale: float = Field(
        default=1.0,
        description="Nodes, times the cluster's.",
        json_schema_extra={"minimum": LEAST_SCALE, "maximum": MOST_SCALE},
    )
    world: int | None = Field(
        default=None,
        description="Number of a world: what else is usual on a cluster.",
        json_schema_extra={"minimum": 1, "maximum": MOST_SEED},
    )
    overwrite: bool = Field(default=False, description="Replace the recording of that name, if there is one.")
