"""Tasks of all kinds: asked for, looked at, ended, and what came of them."""

import asyncio
from pathlib import Path
from typing import Annotated, Any, Literal, TypeVar

from fastapi import APIRouter, Query, Request
from fastapi import Path as InPath
from pydantic import BaseModel, ValidationError
from starlette.concurrency import run_in_threadpool
from starlette.responses import FileResponse

from services.api.http.bodies import receive
from services.api.http.paging import After, Limit
from services.api.models import Name, Page
from services.api.recordings.library import Library
from services.api.runs.runs import Runs
from services.api.settings import ApiSettings, SourceSettings
from services.api.tasks.importers import importers, options_of
from services.api.tasks.models import (
    CaptureRequest,
    Importer,
    LibraryScore,
    PostmortemRequest,
    ScoreRequest,
    Source,
    Task,
    TaskKind,
)
from services.api.tasks.rule_texts import built_evaluator, shipped_rules, written
from services.api.tasks.rules_models import Evaluation, EvaluationRequest, RuleFile
from services.api.tasks.tasks import Tasks
from services.detect.choices import choices_of, incident_config_of
from services.kit.problems import RefusedError, missing

_UPLOADS_AT_A_TIME = 2
Stored = TypeVar("Stored", bound=BaseModel)
TaskId = Annotated[str, InPath(max_length=32)]
_REPORTS = {
    "html": ("report.html", "text/html; charset=utf-8"),
    "md": ("report.md", "text/markdown; charset=utf-8"),
    "detectors": ("detectors.yaml", "application/yaml"),
}
_REPORT: dict[str, Any] = {"text/html": {}, "text/markdown": {}, "application/yaml": {}}
# A report is a page of its own: it runs nothing, loads nothing, and the console may show it in a frame.
REPORT_HEADERS = {
    "Content-Security-Policy": "sandbox; default-src 'none'; img-src data:; style-src 'unsafe-inline';"
    " frame-ancestors 'self'",
    "X-Frame-Options": "SAMEORIGIN",
}


def add(api: APIRouter, tasks: Tasks, library: Library, runs: Runs, settings: ApiSettings) -> None:
    """Add the routes."""
    _any(api, tasks)
    _postmortems(api, tasks, library, runs)
    _scores(api, tasks, library)
    _evaluations(api, tasks, library, runs)
    _captures(api, tasks, library, settings)
    _imports(api, tasks, library, settings)


def _any(api: APIRouter, tasks: Tasks) -> None:
    @api.get("/tasks", operation_id="list_tasks")
    def listing(kind: Annotated[TaskKind | None, Query()] = None, after: After = 0, limit: Limit = 50) -> Page[Task]:
        """Return tasks, the latest first."""
        return tasks.page(kind, after, limit)

    @api.get("/tasks/{task}", operation_id="show_task")
    def one(task: TaskId) -> Task:
        """Return how far a task is."""
        return tasks.one(task)

    @api.post("/tasks/{task}/cancel", operation_id="cancel_task")
    def cancel(task: TaskId) -> Task:
        """End a task."""
        return tasks.cancel(task)

    @api.delete("/tasks/{task}", status_code=204, operation_id="delete_task")
    def delete(task: TaskId) -> None:
        """Delete a task that is over; a recording that it made stays."""
        tasks.delete(task)


def _postmortems(api: APIRouter, tasks: Tasks, library: Library, runs: Runs) -> None:
    @api.post("/postmortems", status_code=201, operation_id="start_postmortem")
    def start(asked: PostmortemRequest) -> Task:
        """Write the postmortem of an incident, HTML and Markdown."""
        if (asked.run is None) == (asked.recording is None):
            raise RefusedError(400, "a postmortem is of a run or of a recording", remedy="name one of the two")
        detectors: dict[str, Any] = dict(asked.detectors)
        if asked.recording is not None:
            path = library.place(asked.recording).path.resolve()
        else:
            path, detectors = runs.place(str(asked.run))
            if asked.incident is not None:
                runs.incident(str(asked.run), asked.incident)
        _check(detectors)
        needs = asked.model_dump(include={"incident", "price", "rules", "what_if"})
        return tasks.start("postmortem", asked.model_dump(), {**needs, "path": str(path), "detectors": detectors})

    @api.get(
        "/postmortems/{task}/report",
        operation_id="show_postmortem",
        response_class=FileResponse,
        responses={200: {"description": "The report, or the settings of the detectors.", "content": _REPORT}},
    )
    def report(task: TaskId, form: Annotated[Literal["html", "md", "detectors"], Query()] = "html") -> FileResponse:
        """Return a postmortem's report; `detectors`: the settings it was made with, where they are not the defaults."""
        name, kind = _REPORTS[form]
        return FileResponse(tasks.file(task, "postmortem", name), media_type=kind, headers=REPORT_HEADERS)


def _scores(api: APIRouter, tasks: Tasks, library: Library) -> None:
    @api.post("/scores", status_code=201, operation_id="start_score")
    def start(asked: ScoreRequest) -> Task:
        """Score the detectors on the library."""
        _check(dict(asked.detectors))
        names = list(dict.fromkeys(asked.recordings)) or [one.name for one in library.summaries()]
        paths = [str(library.place(name).path.resolve()) for name in names]
        if not paths:
            raise RefusedError(409, "there is no recording to score", remedy="import one")
        needs = {"paths": paths, "detectors": dict(asked.detectors)}
        return tasks.start("score", asked.model_dump() | {"recordings": names}, needs)

    @api.get("/scores/{task}", operation_id="show_score")
    def score(task: TaskId) -> LibraryScore:
        """Return a score's figures, once it is done."""
        return stored(LibraryScore, tasks.file(task, "score", "score.json"), "score it again")


def _evaluations(api: APIRouter, tasks: Tasks, library: Library, runs: Runs) -> None:
    @api.get("/rule-files", operation_id="list_rule_files")
    def files() -> list[RuleFile]:
        """Return hindcast's own alert rules."""
        return [RuleFile(name=file.name, text=file.read_text(encoding="utf-8")) for file in shipped_rules()]

    @api.post("/evaluations", status_code=201, operation_id="start_evaluation")
    def start(asked: EvaluationRequest) -> Task:
        """Evaluate alert rules over recordings, in event time: what would have fired, beside what detectors found."""
        names = list(dict.fromkeys(asked.recordings))
        paths = [str(library.place(name).path.resolve()) for name in names]
        built_evaluator()
        shown = asked.model_dump(exclude={"rules"}) | {"recordings": names, "own": asked.rules is not None}
        needs = {"paths": paths, "runs": [runs.latest(name) for name in names]}
        with tasks.new_folder() as folder:
            if asked.rules is not None:
                written(folder / "rules.yaml", asked.rules)
            return tasks.start("evaluation", shown, shown | needs, folder)

    @api.get("/evaluations/{task}", operation_id="show_evaluation")
    def evaluation(task: TaskId) -> Evaluation:
        """Return what rules would have fired, once it is evaluated."""
        return stored(Evaluation, tasks.file(task, "evaluation", "evaluation.json"), "evaluate the rules again")


def source_of(settings: ApiSettings, name: str) -> SourceSettings:
    """Return a server that can be captured from; RefusedError (404) where none has that name."""
    if name not in settings.sources:
        raise missing("source", name, "GET /api/v1/sources lists those of HINDCAST_API_SOURCES")
    return settings.sources[name]


def _captures(api: APIRouter, tasks: Tasks, library: Library, settings: ApiSettings) -> None:
    @api.get("/sources", operation_id="list_sources")
    def sources() -> list[Source]:
        """Return the servers that can be captured from."""
        return [Source(name=name) for name in sorted(settings.sources)]

    @api.post("/captures", status_code=201, operation_id="start_capture")
    def start(asked: CaptureRequest) -> Task:
        """Capture a stretch of time from a server, as a recording."""
        source = source_of(settings, asked.source)
        _check_name(library, asked.name)
        shown = asked.model_dump(by_alias=True)
        needs = shown | {"server": source.model_dump(mode="json"), "recordings": str(library.imported.resolve())}
        return tasks.start("capture", shown, needs)


def _imports(api: APIRouter, tasks: Tasks, library: Library, settings: ApiSettings) -> None:
    @api.get("/importers", operation_id="list_importers")
    def listing() -> list[Importer]:
        """Return the foreign formats that can be imported."""
        return importers()

    receiving = asyncio.Semaphore(_UPLOADS_AT_A_TIME)
    body = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}

    @api.post(
        "/imports/{importer}",
        status_code=201,
        operation_id="start_import",
        openapi_extra={"requestBody": {"required": True, "content": body}},
    )
    async def start(
        request: Request,
        importer: Annotated[str, InPath(max_length=40)],
        name: Annotated[Name, Query(description="The recording's name.")],
        filename: Annotated[
            str, Query(max_length=200, description="A single file's name: importers take nodes and times from it.")
        ] = "upload",
        option: Annotated[list[str], Query(max_length=20, description="NAME=VALUE, see GET /importers.")] = [],  # noqa: B006 - pydantic copies it
    ) -> Task:
        """Import what others recorded: the body is a file, gzip or not, or a .zip or .tar.gz of a folder."""
        options = options_of(importer, option)
        await run_in_threadpool(_check_name, library, name)
        await run_in_threadpool(tasks.check)
        with tasks.new_folder() as folder:
            async with receiving:
                await receive(request, folder / "upload", settings.upload_bytes)
            shown = {"importer": importer, "name": name, "filename": filename, "options": options}
            needs = {"unpacked_bytes": settings.unpacked_bytes, "recordings": str(library.imported.resolve())}
            return await run_in_threadpool(tasks.start, "import", shown, shown | needs, folder)


def stored(kind: type[Stored], path: Path, remedy: str) -> Stored:
    """Return what a task has written. RefusedError (410) where another version of hindcast has written it."""
    try:
        return kind.model_validate_json(path.read_bytes())
    except ValidationError:
        raise RefusedError(410, "this was made by another version of hindcast", remedy=remedy) from None


def _check(detectors: dict[str, Any]) -> None:
    """UserError (exit code 2) where a configuration is wrong."""
    choices_of(detectors)
    incident_config_of(detectors)


def _check_name(library: Library, name: str) -> None:
    if name in library.places():
        raise RefusedError(409, f"there is a recording {name}", remedy="choose another name")
