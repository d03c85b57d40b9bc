"""Labels by people, detectors, comparisons."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi import Path as InPath

from services.api.catalogue import Catalogue
from services.api.comparisons import Comparisons
from services.api.marks import Marks
from services.api.steering_models import (
    Comparison,
    ComparisonRequest,
    Detector,
    Label,
    LabelChange,
    LabelRequest,
    ShadowChange,
)
from services.kit.application import Asking

AnyId = Annotated[str, InPath(max_length=32)]


def add(api: APIRouter, marks: Marks, catalogue: Catalogue, comparisons: Comparisons) -> None:
    """Add the routes of labels, detectors and comparisons."""
    _labels(api, marks)
    _detectors(api, catalogue)
    _comparisons(api, comparisons)


def _labels(api: APIRouter, marks: Marks) -> None:
    @api.get("/labels", operation_id="list_labels")
    def listing(
        recording: Annotated[str | None, Query(max_length=100)] = None,
        run: Annotated[str | None, Query(max_length=32)] = None,
    ) -> list[Label]:
        """Return what people said, the latest first."""
        return marks.all(recording, run)

    @api.post("/labels", status_code=201, operation_id="add_label")
    def new(me: Asking, asked: LabelRequest) -> Label:
        """Say whether a finding or an incident was right."""
        return marks.add(asked, me.name)

    @api.patch("/labels/{label}", operation_id="change_label")
    def change(me: Asking, label: AnyId, asked: LabelChange) -> Label:
        """Say otherwise."""
        return marks.change(label, asked, me.name)

    @api.delete("/labels/{label}", status_code=204, operation_id="delete_label")
    def delete(label: AnyId) -> None:
        """Take it back."""
        marks.delete(label)


def _detectors(api: APIRouter, catalogue: Catalogue) -> None:
    @api.get("/detectors", operation_id="list_detectors")
    def listing() -> list[Detector]:
        """Return every detector with its settings and their JSON schema."""
        return catalogue.all()

    @api.get("/detectors/{name}", operation_id="show_detector")
    def one(name: Annotated[str, InPath(max_length=100)]) -> Detector:
        """Return a detector and its runbook."""
        return catalogue.one(name)

    @api.put("/detectors/{name}/shadow", operation_id="set_shadow")
    def shadow(name: Annotated[str, InPath(max_length=100)], asked: ShadowChange) -> Detector:
        """Put a detector in shadow for runs to come, or out of it."""
        return catalogue.set_shadow(name, shadow=asked.shadow)


def _comparisons(api: APIRouter, comparisons: Comparisons) -> None:
    @api.get("/comparisons", operation_id="list_comparisons")
    def listing() -> list[Comparison]:
        """Return comparisons, the latest first, without what came out."""
        return comparisons.all()

    @api.post("/comparisons", status_code=201, operation_id="start_comparison")
    def start(asked: ComparisonRequest) -> Comparison:
        """Run two configurations over the same recordings."""
        return comparisons.start(asked)

    @api.get("/comparisons/{comparison}", operation_id="show_comparison")
    def one(comparison: AnyId) -> Comparison:
        """Return a comparison: caught, missed, earlier, later, false alarms new and gone."""
        return comparisons.one(comparison)

    @api.delete("/comparisons/{comparison}", status_code=204, operation_id="delete_comparison")
    def delete(comparison: AnyId) -> None:
        """Delete a comparison and its runs."""
        comparisons.delete(comparison)
