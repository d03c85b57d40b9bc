"""Labels by people, whether findings and incidents were right, and comparisons of two configurations or versions."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi import Path as InPath

from services.api.review.comparisons import Comparisons
from services.api.review.feedback import Feedback
from services.api.review.models import Comparison, ComparisonRequest, Label, LabelChange, LabelRequest
from services.kit.application import Asking

AnyId = Annotated[str, InPath(max_length=32)]


def add_labels(api: APIRouter, feedback: Feedback) -> None:
    """Add the routes of labels."""

    @api.get("/labels", operation_id="list_labels")
    def listing(
        recording: Annotated[str | None, Query(max_length=100)] = None,
        run: Annotated[str | None, Query(max_length=32)] = None,
    ) -> list[Label]:
        """Return labels by people, the latest first."""
        return feedback.all(recording, run)

    @api.post("/labels", status_code=201, operation_id="add_label")
    def new(me: Asking, asked: LabelRequest) -> Label:
        """Say whether a finding or an incident was right."""
        return feedback.add(asked, me.name)

    @api.patch("/labels/{label}", operation_id="change_label")
    def change(me: Asking, label: AnyId, asked: LabelChange) -> Label:
        """Say otherwise."""
        return feedback.change(label, asked, me.name)

    @api.delete("/labels/{label}", status_code=204, operation_id="delete_label")
    def delete(label: AnyId) -> None:
        """Take it back."""
        feedback.delete(label)


def add_comparisons(api: APIRouter, comparisons: Comparisons) -> None:
    """Add the routes of comparisons."""

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
