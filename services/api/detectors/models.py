"""What the API says and takes of detectors."""

from typing import Any

from pydantic import BaseModel, Field

from services.api.models import Asked
from services.kit.findings import FaultName


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
    faults: list[FaultName]
    reads: list[str]
    latency_s: float = Field(description="Promised delay from the fault's beginning, on readings every 5 s.")
    settings: list[Setting]
    config_schema: dict[str, Any] = Field(description="JSON schema of its configuration.")
    shadow: bool = Field(description="Runs that say nothing else have it in shadow: recorded, nobody alerted.")
    runbook: str | None = Field(description="Markdown.")


class ShadowChange(Asked):
    """Whether a detector is in shadow from now on."""

    shadow: bool
