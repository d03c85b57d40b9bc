"""Comparisons: two configurations, or two versions, over the same recordings."""

from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as InPath

from services.api.comparisons import Comparisons
from services.api.steering_models import Comparison, ComparisonRequest

AnyId = Annotated[str, InPath(max_length=32)]


def add(api: APIRouter, comparisons: Comparisons) -> None:
    """Add the routes."""

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
