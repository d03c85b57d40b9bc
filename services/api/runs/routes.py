"""Runs: started, followed, looked at."""

from typing import Annotated, Literal

from fastapi import APIRouter, Depends, Header, Query
from fastapi import Path as InPath
from starlette.responses import StreamingResponse

from detectors.contract import Severity
from services.api.detectors.catalogue import runbook
from services.api.http.events import EVENT_STREAM, events_of
from services.api.http.paging import After, Limit
from services.api.models import Page
from services.api.recordings.library import Library
from services.api.recordings.models import Coverage
from services.api.runs.models import Alert, Finding, Incident, IncidentDetail, Run, RunRequest, Timeline, Verdict
from services.api.runs.runs import Runs
from services.api.runs.streams import Streams
from services.kit.findings import FaultName

RunId = Annotated[str, InPath(max_length=32, description="A run's id.")]


def add(api: APIRouter, runs: Runs, streams: Streams, library: Library) -> None:
    """Add the routes."""
    _runs(api, runs)
    _found(api, runs, library)

    @api.get("/runs/{run}/events", operation_id="follow_run", dependencies=[Depends(streams.seat)], **EVENT_STREAM)
    def events(
        run: RunId,
        after: After = 0,
        last_event_id: Annotated[str | None, Header(max_length=20)] = None,
    ) -> StreamingResponse:
        """Follow a run by server-sent events, see RunEvent; `after` or Last-Event-ID: the last number that was seen."""
        runs.one(run)
        if last_event_id is not None and last_event_id.isdecimal() and len(last_event_id) < 10:
            after = max(after, int(last_event_id))
        return events_of(streams.follow(run, after))


def _runs(api: APIRouter, runs: Runs) -> None:
    @api.post("/runs", status_code=201, operation_id="start_run")
    def start(asked: RunRequest) -> Run:
        """Run the detectors over a recording, in a process of its own."""
        return runs.start(asked.recording, dict(asked.detectors))

    @api.get("/runs", operation_id="list_runs")
    def listing(
        recording: Annotated[str | None, Query(max_length=100)] = None,
        replay: Annotated[str | None, Query(max_length=63, pattern=r"^[a-z0-9-]+$")] = None,
        after: After = 0,
        limit: Limit = 50,
    ) -> Page[Run]:
        """Return runs, the latest first; `replay`: those that are a generation of that replay."""
        return runs.page(recording, replay, after, limit)

    @api.get("/runs/{run}", operation_id="show_run")
    def one(run: RunId) -> Run:
        """Return how far a run is."""
        return runs.one(run)

    @api.post("/runs/{run}/cancel", operation_id="cancel_run")
    def cancel(run: RunId) -> Run:
        """End a run."""
        return runs.cancel(run)

    @api.delete("/runs/{run}", status_code=204, operation_id="delete_run")
    def delete(run: RunId) -> None:
        """Delete a run that is over."""
        runs.delete(run)


def _found(api: APIRouter, runs: Runs, library: Library) -> None:
    @api.get("/runs/{run}/timeline", operation_id="timeline")
    def timeline(run: RunId) -> Timeline:
        """Return all moments of a run, and its score."""
        return runs.timeline(run)

    @api.get("/runs/{run}/coverage", operation_id="run_coverage")
    def coverage(run: RunId) -> Coverage:
        """Return what the telemetry could show this run's detectors: `closing` says what was not judged."""
        one = runs.one(run)
        return library.coverage(one.recording, one.detectors)

    @api.get("/runs/{run}/findings", operation_id="list_findings")
    def findings(
        run: RunId,
        fault: Annotated[FaultName | None, Query()] = None,
        detector: Annotated[str | None, Query(max_length=100)] = None,
        severity: Annotated[Severity | None, Query()] = None,
        state: Annotated[Literal["firing", "resolved"] | None, Query()] = None,
        node: Annotated[str | None, Query(max_length=200)] = None,
        verdict: Annotated[Verdict | None, Query()] = None,
        after: After = 0,
        limit: Limit = 200,
    ) -> Page[Finding]:
        """Return findings in order of their detection."""
        wanted = {"fault": fault, "detector": detector, "severity": severity, "state": state, "node": node}
        return runs.findings(run, after, limit, verdict=verdict, **wanted)

    @api.get("/runs/{run}/findings/{finding}", operation_id="show_finding")
    def finding(run: RunId, finding: Annotated[str, InPath(max_length=32)]) -> Finding:
        """Return a finding."""
        return runs.finding(run, finding)

    @api.get("/runs/{run}/incidents", operation_id="list_incidents")
    def incidents(
        run: RunId,
        state: Annotated[Literal["open", "closed"] | None, Query()] = None,
        after: After = 0,
        limit: Limit = 200,
    ) -> Page[Incident]:
        """Return incidents as they opened."""
        return runs.incidents(run, state, after, limit)

    @api.get("/runs/{run}/incidents/{incident}", operation_id="show_incident")
    def incident(run: RunId, incident: Annotated[str, InPath(max_length=32)]) -> IncidentDetail:
        """Return an incident with the runbooks of its causes."""
        found = runs.incident(run, incident)
        detectors = {member.id: member.detector for member in found.members}
        named = dict.fromkeys(detectors[cause.finding] for cause in found.causes if cause.finding in detectors)
        texts = {name: text for name in named if (text := runbook(name)) is not None}
        members = {member.id for member in found.members}
        alerts = [alert for alert in runs.alerts(run).items if members.intersection(alert.findings)]
        return IncidentDetail(**found.model_dump(), runbooks=texts, alerts=alerts)

    @api.get("/alerts", operation_id="list_alerts")
    def alerts(
        run: Annotated[str | None, Query(max_length=32)] = None,
        state: Annotated[Literal["firing", "resolved"] | None, Query()] = None,
        after: After = 0,
        limit: Limit = 200,
    ) -> Page[Alert]:
        """Return what Alertmanager was sent, the latest first."""
        return runs.alerts(run, state, after, limit)
