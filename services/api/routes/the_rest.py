"""Labels by people, detectors, comparisons, replays."""

from typing import Annotated, Literal

from fastapi import APIRouter, Query
from fastapi import Path as InPath
from pydantic import BaseModel, ConfigDict, Field

from services.api.access import Operator, Viewer
from services.api.catalogue import Catalogue
from services.api.comparisons import Comparisons
from services.api.marks import Marks
from services.api.models import (
    Comparison,
    ComparisonRequest,
    Detector,
    Label,
    LabelChange,
    LabelRequest,
    ReplayStart,
    ShadowChange,
)
from services.api.replays import Replays
from services.replay.spec import Speed
from services.replay.status import ReplayStatus

AnyId = Annotated[str, InPath(max_length=32)]
ReplayName = Annotated[str, InPath(pattern=r"^[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?$")]


class SeekTo(BaseModel):
    """Where a replay goes on: RFC 3339, or +HH:MM:SS from the recording's start."""

    model_config = ConfigDict(extra="forbid")
    to: str = Field(max_length=40)


class SpeedTo(BaseModel):
    """How fast it goes on."""

    model_config = ConfigDict(extra="forbid")
    speed: Speed


def add(api: APIRouter, marks: Marks, catalogue: Catalogue, comparisons: Comparisons) -> None:
    """Add the routes of labels, detectors and comparisons."""
    _labels(api, marks)
    _detectors(api, catalogue)
    _comparisons(api, comparisons)


def _labels(api: APIRouter, marks: Marks) -> None:
    @api.get("/labels", operation_id="list_labels")
    def listing(
        _: Viewer,
        recording: Annotated[str | None, Query(max_length=100)] = None,
        run: Annotated[str | None, Query(max_length=32)] = None,
    ) -> list[Label]:
        """Return what people said, the latest first."""
        return marks.all(recording, run)

    @api.post("/labels", status_code=201, operation_id="add_label")
    def new(me: Operator, asked: LabelRequest) -> Label:
        """Say whether a finding or an incident was right."""
        return marks.add(asked, me.name)

    @api.patch("/labels/{label}", operation_id="change_label")
    def change(me: Operator, label: AnyId, asked: LabelChange) -> Label:
        """Say otherwise."""
        return marks.change(label, asked, me.name)

    @api.delete("/labels/{label}", status_code=204, operation_id="delete_label")
    def delete(_: Operator, label: AnyId) -> None:
        """Take it back."""
        marks.delete(label)


def _detectors(api: APIRouter, catalogue: Catalogue) -> None:
    @api.get("/detectors", operation_id="list_detectors")
    def listing(_: Viewer) -> list[Detector]:
        """Return every detector with its settings and their JSON schema."""
        return catalogue.all()

    @api.get("/detectors/{name}", operation_id="show_detector")
    def one(_: Viewer, name: Annotated[str, InPath(max_length=100)]) -> Detector:
        """Return a detector and its runbook."""
        return catalogue.one(name)

    @api.put("/detectors/{name}/shadow", operation_id="set_shadow")
    def shadow(_: Operator, name: Annotated[str, InPath(max_length=100)], asked: ShadowChange) -> Detector:
        """Put a detector in shadow for runs to come, or out of it."""
        return catalogue.set_shadow(name, shadow=asked.shadow)


def _comparisons(api: APIRouter, comparisons: Comparisons) -> None:
    @api.get("/comparisons", operation_id="list_comparisons")
    def listing(_: Viewer) -> list[Comparison]:
        """Return comparisons, the latest first, without what came out."""
        return comparisons.all()

    @api.post("/comparisons", status_code=201, operation_id="start_comparison")
    def start(_: Operator, asked: ComparisonRequest) -> Comparison:
        """Run two configurations over the same recordings."""
        return comparisons.start(asked)

    @api.get("/comparisons/{comparison}", operation_id="show_comparison")
    def one(_: Viewer, comparison: AnyId) -> Comparison:
        """Return a comparison: caught, missed, earlier, later, false alarms new and gone."""
        return comparisons.one(comparison)

    @api.delete("/comparisons/{comparison}", status_code=204, operation_id="delete_comparison")
    def delete(_: Operator, comparison: AnyId) -> None:
        """Delete a comparison and its runs."""
        comparisons.delete(comparison)


def add_replays(api: APIRouter, replays: Replays) -> None:
    """Add the routes of replays."""

    @api.get("/replays", operation_id="list_replays")
    def listing(_: Viewer) -> list[ReplayStatus]:
        """Return all replays."""
        return replays.all()

    @api.post("/replays", status_code=201, operation_id="start_replay")
    def start(_: Operator, asked: ReplayStart) -> ReplayStatus:
        """Start a replay of a recording into Kafka."""
        return replays.start(asked)

    @api.get("/replays/{name}", operation_id="show_replay")
    def one(_: Viewer, name: ReplayName) -> ReplayStatus:
        """Return where a replay is."""
        return replays.one(name)

    @api.delete("/replays/{name}", status_code=204, operation_id="delete_replay")
    def delete(_: Operator, name: ReplayName) -> None:
        """Stop a replay and forget it."""
        replays.remove(name)

    @api.post("/replays/{name}/seek", operation_id="seek_replay")
    def seek(_: Operator, name: ReplayName, asked: SeekTo) -> ReplayStatus:
        """Go on at another time."""
        return replays.tell(name, "seek", asked.model_dump())

    @api.post("/replays/{name}/speed", operation_id="set_replay_speed")
    def speed(_: Operator, name: ReplayName, asked: SpeedTo) -> ReplayStatus:
        """Go on at another speed."""
        return replays.tell(name, "speed", asked.model_dump())

    @api.post("/replays/{name}/{order}", operation_id="steer_replay")
    def steer(_: Operator, name: ReplayName, order: Literal["pause", "resume", "stop"]) -> ReplayStatus:
        """Pause a replay, let it go on, or end it where it is."""
        return replays.tell(name, order)
