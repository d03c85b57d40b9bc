"""Backtests: asked for, their figures and report, and counted again with what a person has corrected or assumes."""

from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from starlette.responses import FileResponse

from services.api.recordings.library import Library
from services.api.settings import ApiSettings
from services.api.tasks.backtest_models import AgainRequest, Backtest, BacktestRequest
from services.api.tasks.backtesting import checked, checked_again
from services.api.tasks.models import Task
from services.api.tasks.routes import REPORT_HEADERS, TaskId, source_of, stored
from services.api.tasks.tasks import Tasks
from services.kit.problems import RefusedError

_REPORTS = {
    "html": ("report.html", "text/html; charset=utf-8"),
    "json": ("backtest.json", "application/json"),
    "csv": ("matches.csv", "text/csv; charset=utf-8"),
}
_REPORT: dict[str, Any] = {"text/html": {}, "application/json": {}, "text/csv": {}}


def add(api: APIRouter, tasks: Tasks, library: Library, settings: ApiSettings) -> None:
    """Add the routes."""

    def history(shown: dict[str, Any]) -> dict[str, Any]:
        """Return where the history lies that was asked for."""
        if shown["of"] is None:
            return {"paths": [str(library.place(name).path.resolve()) for name in shown["recordings"]]}
        return {"server": source_of(settings, shown["of"]["source"]).model_dump(mode="json")}

    @api.post("/backtests", status_code=201, operation_id="start_backtest")
    def start(asked: BacktestRequest) -> Task:
        """Say what would have been caught, missed and raised for nothing over a history, against its tickets."""
        if bool(asked.recordings) == (asked.of is not None):
            raise RefusedError(400, "a backtest is of recordings or of a server's time", remedy="give one of the two")
        shown = asked.model_dump(by_alias=True, exclude={"tickets", "configurations", "rules"}) | {
            "recordings": list(dict.fromkeys(asked.recordings)),
            "tickets": asked.tickets is not None,
            "configurations": [one.name for one in asked.configurations],
            "rules": [one.name for one in asked.rules],
            "corrections": {},
        }
        needs = shown | history(shown)
        tasks.check()
        with tasks.new_folder() as folder:
            checked(folder, asked)
            return tasks.start("backtest", shown, needs, folder)

    @api.post("/backtests/{task}/again", status_code=201, operation_id="repeat_backtest")
    def again(task: TaskId, asked: AgainRequest) -> Task:
        """Count a backtest again, some tickets corrected, or by other assumptions."""
        before, files = tasks.asked(task, "backtest")
        given = before["corrections"] | asked.corrections
        shown = before | {"corrections": {ticket: words for ticket, words in given.items() if words.strip()}}
        if asked.assumptions is not None:
            shown["assumptions"] = asked.assumptions.model_dump()
        needs = shown | history(shown)
        tasks.check()
        with tasks.new_folder() as folder:
            checked_again(folder, files, shown)
            return tasks.start("backtest", shown, needs, folder)

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
