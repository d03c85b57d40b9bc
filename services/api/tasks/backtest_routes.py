"""Backtests: asked for, their figures and report, and counted again with matches that a person has corrected."""

import shutil
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import FileResponse

from services.api.recordings.library import Library
from services.api.settings import ApiSettings
from services.api.tasks.backtest_models import Backtest, BacktestRequest, CorrectionsRequest
from services.api.tasks.backtesting import TICKETS, checked, corrected
from services.api.tasks.models import Task
from services.api.tasks.routes import REPORT_HEADERS, TaskId, stored
from services.api.tasks.tasks import Tasks
from services.kit.problems import RefusedError, missing

_REPORTS = {
    "html": ("report.html", "text/html; charset=utf-8"),
    "json": ("backtest.json", "application/json"),
    "csv": ("matches.csv", "text/csv; charset=utf-8"),
}
_REPORT: dict[str, Any] = {"text/html": {}, "application/json": {}, "text/csv": {}}


def add(api: APIRouter, tasks: Tasks, library: Library, settings: ApiSettings) -> None:
    """Add the routes."""

    @api.post("/backtests", status_code=201, operation_id="start_backtest")
    def start(asked: BacktestRequest) -> Task:
        """Say what would have been caught, missed and raised for nothing over a history, against its tickets."""
        if bool(asked.recordings) == (asked.of is not None):
            raise RefusedError(400, "a backtest is of recordings or of a server's time", remedy="give one of the two")
        names, server = list(dict.fromkeys(asked.recordings)), None
        if asked.of is not None:
            source = settings.sources.get(asked.of.source)
            if source is None:
                raise missing("source", asked.of.source, "GET /api/v1/sources lists those of HINDCAST_API_SOURCES")
            server = source.model_dump(mode="json")
        paths = [str(library.place(name).path.resolve()) for name in names]
        shown = asked.model_dump(by_alias=True, exclude={"rules", "tickets"})
        shown |= {"recordings": names, "tickets": asked.tickets is not None, "corrections": {}}
        shown["rules"] = [{"name": one.name} for one in asked.rules]
        with tasks.new_folder() as folder:
            checked(folder, asked)
            needs = shown | {"paths": paths} | ({} if server is None else {"server": server})
            return tasks.start("backtest", shown, needs, folder)

    @api.post("/backtests/{task}/corrections", status_code=201, operation_id="correct_backtest")
    def correct(task: TaskId, asked: CorrectionsRequest) -> Task:
        """Count a backtest again with some tickets corrected; nothing is looked at anew, as all windows are known."""
        before, needs, files = tasks.again(task, "backtest")
        if not (files / TICKETS).is_file():
            raise RefusedError(409, f"backtest {task} has no tickets", remedy="correct the recordings' labels instead")
        given = before["corrections"] | asked.corrections
        corrections = {"corrections": {ticket: words for ticket, words in given.items() if words.strip()}}
        with tasks.new_folder() as folder:
            for file in (files / TICKETS, *files.glob("rules-*.yaml")):
                shutil.copy(file, folder / file.name)
            corrected(folder, corrections["corrections"])
            return tasks.start("backtest", before | corrections, needs | corrections, folder)

    @api.get("/backtests/{task}", operation_id="show_backtest")
    def show(task: TaskId) -> Backtest:
        """Return a backtest's figures and matches, once it is done."""
        return stored(Backtest, tasks.file(task, "backtest", "backtest.json"), "make the backtest again")

    @api.get(
        "/backtests/{task}/report",
        operation_id="show_backtest_report",
        response_class=FileResponse,
        responses={200: {"description": "The report, all figures, or the matches.", "content": _REPORT}},
    )
    def report(task: TaskId, form: Annotated[Literal["html", "json", "csv"], Query()] = "html") -> FileResponse:
        """Return the report as one page, as JSON with all figures, or the matches alone as CSV."""
        name, kind = _REPORTS[form]
        return FileResponse(tasks.file(task, "backtest", name), media_type=kind, headers=REPORT_HEADERS)
