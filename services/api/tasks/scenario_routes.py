"""Scenarios: listed, and a recording made of one."""

from typing import Annotated

from fastapi import APIRouter
from fastapi import Path as InPath

from services.api.recordings.library import Library
from services.api.runs.runs import Runs
from services.api.tasks.models import Task
from services.api.tasks.scenario_models import MakeRequest, Scenario
from services.api.tasks.scenarios import checked, listed
from services.api.tasks.tasks import Tasks


def add(api: APIRouter, tasks: Tasks, library: Library, runs: Runs) -> None:
    """Add the routes."""

    @api.get("/scenarios", operation_id="list_scenarios")
    def listing() -> list[Scenario]:
        """Return the sample incidents that recordings can be made of."""
        return listed(library)

    @api.post("/scenarios/{scenario}/make", status_code=201, operation_id="start_make")
    def start(scenario: Annotated[str, InPath(max_length=100)], asked: MakeRequest) -> Task:
        """Make the recording of a scenario, as `hindcast make` does."""
        name = checked(scenario, asked, library, tasks, runs)
        shown = asked.model_dump() | {"scenario": scenario, "recording": name}
        return tasks.start("make", shown, shown | {"recordings": str(library.imported.resolve())})
