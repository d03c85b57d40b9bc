"""What people do about a live cluster's findings."""

from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as InPath

from services.api.live.live_run import LiveRun
from services.api.runs.models import ActionRequest, Finding, SilenceRequest
from services.api.runs.routes import RunId
from services.api.runs.runs import Runs
from services.kit.application import Asking
from services.kit.problems import RefusedError

FindingId = Annotated[str, InPath(max_length=32)]


def add(api: APIRouter, runs: Runs, live: LiveRun | None) -> None:
    """Add the routes; without a live cluster that is watched here they refuse what they are asked (409)."""

    def watched(run: str) -> LiveRun:
        if live is None or live.name != runs.one(run).id:
            remedy = "ask the hindcast live that watches it; a finding can be judged anywhere: POST /api/v1/labels"
            raise RefusedError(409, f"run {run} is not that of a live cluster that is watched here", remedy)
        return live

    @api.post("/runs/{run}/findings/{finding}/acknowledge", operation_id="acknowledge_finding")
    def acknowledge(me: Asking, run: RunId, finding: FindingId, asked: ActionRequest) -> Finding:
        """Say that you see to a finding that is open."""
        return watched(run).acknowledge(finding, asked, me.name)

    @api.post("/runs/{run}/findings/{finding}/close", operation_id="close_finding")
    def close(me: Asking, run: RunId, finding: FindingId, asked: ActionRequest) -> Finding:
        """Close an open finding: its alert is resolved; what its detector finds after the fault was over is new."""
        return watched(run).close(finding, asked, me.name)

    @api.post("/runs/{run}/findings/{finding}/silence", operation_id="silence_finding")
    def silence(me: Asking, run: RunId, finding: FindingId, asked: SilenceRequest) -> Finding:
        """Silence the alert of an open finding in Alertmanager."""
        return watched(run).silence(finding, asked, me.name)
