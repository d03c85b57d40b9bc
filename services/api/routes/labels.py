"""What people say of findings and incidents: right or wrong."""

from typing import Annotated

from fastapi import APIRouter, Query
from fastapi import Path as InPath

from services.api.feedback import Feedback
from services.api.steering_models import Label, LabelChange, LabelRequest
from services.kit.application import Asking

AnyId = Annotated[str, InPath(max_length=32)]


def add(api: APIRouter, feedback: Feedback) -> None:
    """Add the routes."""

    @api.get("/labels", operation_id="list_labels")
    def listing(
        recording: Annotated[str | None, Query(max_length=100)] = None,
        run: Annotated[str | None, Query(max_length=32)] = None,
    ) -> list[Label]:
        """Return what people said, the latest first."""
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
