"""Recordings: looked at, drawn, imported, deleted."""

import asyncio
import tempfile
from pathlib import Path
from typing import Annotated, Literal

from fastapi import APIRouter, Query, Request
from fastapi import Path as InPath
from starlette.concurrency import run_in_threadpool

from services.api.http.bodies import receive
from services.api.models import Id
from services.api.recordings.archive import LEFT, import_archive
from services.api.recordings.charts import series
from services.api.recordings.columns import KEYS
from services.api.recordings.library import Library, Place, Window
from services.api.recordings.models import Coverage, Heatmap, LogLines, RecordingDetail, RecordingSummary, SeriesAnswer
from services.api.runs.heat import heatmap
from services.api.runs.runs import Runs
from services.api.settings import ApiSettings
from services.kit.errors import UsageError
from services.kit.problems import RefusedError
from services.recording.instants import resolve_instant
from services.recording.reader import Recording

RecordingName = Annotated[str, InPath(max_length=100, description="A recording's name.")]
Moment = Annotated[str | None, Query(max_length=40, description="RFC 3339, +HH:MM:SS from the start, or epoch ms.")]
From = Annotated[str | None, Query(alias="from", max_length=40, description="As `to`; without it, the start.")]
Points = Annotated[int, Query(ge=1, le=5000)]
_IMPORTS_AT_A_TIME = 2
_ARCHIVES = {
    kind: {"schema": {"type": "string", "format": "binary"}} for kind in ("application/zip", "application/gzip")
}


def add(api: APIRouter, library: Library, runs: Runs, settings: ApiSettings) -> None:
    """Add the routes."""
    _looking(api, library, runs)
    _changing(api, library, runs, settings)


def _looking(api: APIRouter, library: Library, runs: Runs) -> None:
    @api.get("/recordings", operation_id="list_recordings")
    def listing() -> list[RecordingSummary]:
        """Return all recordings."""
        return library.summaries()

    @api.get("/recordings/{name}", operation_id="show_recording")
    def one(name: RecordingName) -> RecordingDetail:
        """Return a recording's machines, jobs, streams and labels."""
        return library.detail(name)

    @api.get("/recordings/{name}/coverage", operation_id="coverage")
    def coverage(name: RecordingName) -> Coverage:
        """Return, fault by fault, what the recording's telemetry can show, and what to add to see the rest."""
        return library.coverage(name, runs.configured({}))

    @api.get("/recordings/{name}/series", operation_id="series")
    def columns(
        name: RecordingName,
        kind: Annotated[Literal[tuple(KEYS)], Query()],  # type: ignore[valid-type]  # the kinds there are
        field: Annotated[str, Query(max_length=200)],
        entities: Annotated[
            str, Query(max_length=20_000, description="Keys joined by '/', or the first of them; commas between.")
        ] = "",
        from_: From = None,
        to: Moment = None,
        points: Points = 500,
        rate: Annotated[bool, Query(description="Increase per second, for counters.")] = False,
        peers: Annotated[bool, Query(description="With the band of the first entity's peers.")] = True,
    ) -> SeriesAnswer:
        """Return a column, down-sampled: lowest, highest and mean in each bucket, and the peers' band."""
        recording = library.open(name)
        return series(
            recording,
            kind,
            field,
            entities=[key for key in entities.split(",") if key],
            window=window_of(recording, from_, to),
            points=points,
            rate=rate,
            peers=peers,
        )

    @api.get("/recordings/{name}/heatmap", operation_id="heatmap")
    def heat(
        name: RecordingName,
        run: Annotated[Id | None, Query(description="Whose findings; without it, what is there to read.")] = None,
        from_: From = None,
        to: Moment = None,
        points: Points = 300,
    ) -> Heatmap:
        """Return the health of every GPU over time."""
        recording = library.open(name)
        findings = []
        if run is not None:
            if runs.one(run).recording != name:
                raise RefusedError(
                    400, f"run {run} is of another recording", remedy=f"GET /api/v1/runs?recording={name}"
                )
            findings = runs.findings(run).items
        return heatmap(recording, window_of(recording, from_, to), points, run, findings)

    @api.get("/recordings/{name}/logs", operation_id="logs")
    def logs(
        name: RecordingName,
        from_: From = None,
        to: Moment = None,
        node: Annotated[str, Query(max_length=200)] = "",
        severity: Annotated[Literal["", "info", "warning", "error", "critical"], Query()] = "",
        source: Annotated[Literal["", "kernel", "sel", "fabricmanager", "scheduler", "job"], Query()] = "",
        contains: Annotated[str, Query(max_length=200)] = "",
        limit: Annotated[int, Query(ge=1, le=5000)] = 500,
    ) -> LogLines:
        """Return lines of the logs, in order of time."""
        window = window_of(library.open(name), from_, to)
        return library.logs(name, window, limit=limit, node=node, severity=severity, source=source, contains=contains)


def _changing(api: APIRouter, library: Library, runs: Runs, settings: ApiSettings) -> None:
    importing = asyncio.Semaphore(_IMPORTS_AT_A_TIME)

    @api.post(
        "/recordings",
        status_code=201,
        operation_id="import_recording",
        openapi_extra={"requestBody": {"required": True, "content": _ARCHIVES}},
    )
    async def upload(request: Request) -> RecordingSummary:
        """Import a recording: the body is a .zip or .tar.gz of its folder, checked before and while it is unpacked."""
        async with importing:
            library.imported.mkdir(parents=True, exist_ok=True)
            with tempfile.NamedTemporaryFile(prefix=LEFT, dir=library.imported) as file:
                await receive(request, Path(file.name), settings.upload_bytes)
                path = await run_in_threadpool(
                    import_archive, Path(file.name), library.imported, settings, library.places()
                )
        return await run_in_threadpool(library.summary, Place(path, False))

    @api.delete("/recordings/{name}", status_code=204, operation_id="delete_recording")
    def delete(name: RecordingName) -> None:
        """Delete a recording that was imported; its runs stay, without its data."""
        if runs.uses(name):
            raise RefusedError(409, f"a run of {name} waits or is running", remedy="cancel it first, or wait")
        library.delete(name)


def window_of(recording: Recording, from_: str | None, to: str | None) -> Window:
    """Return the stretch of a recording that is asked for, clipped to it; UserError (exit code 2) where it is empty."""
    start, end = recording.manifest.start, recording.manifest.end
    low = start if from_ is None else max(start, _moment(from_, start))
    high = end if to is None else min(end, _moment(to, start))
    if low > high:
        raise UsageError("the window is empty", remedy="mend `from` and `to`: both are of recording time")
    return Window(low, high)


def _moment(text: str, start: int) -> int:
    # A plus sign that was not escaped in an address arrives as a blank.
    text = f"+{text[1:]}" if text.startswith(" ") else text
    if text.isdecimal() and len(text) < 16:
        return int(text)
    try:
        return resolve_instant(text, start)
    except (ValueError, OverflowError) as error:
        raise UsageError(str(error), remedy="write RFC 3339, +HH:MM:SS from the start, or epoch ms") from None
