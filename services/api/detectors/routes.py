"""Detectors: their settings, runbooks, and which are in shadow."""

from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as InPath

from services.api.detectors.catalogue import Catalogue
from services.api.detectors.models import Detector, ShadowChange


def add(api: APIRouter, catalogue: Catalogue) -> None:
    """Add the routes."""

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
