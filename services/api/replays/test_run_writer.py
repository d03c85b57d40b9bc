"""What comes from Kafka comes again after a crash, and late: it is noted once, and in the order of its revisions."""

import json
from pathlib import Path
from typing import Any

import pytest

from detectors.contract import Finding
from detectors.registry import choose
from services.api.conftest import SMALL, settings_at
from services.api.recordings.library import Library
from services.api.replays.generations import Generation, Generations
from services.api.runs.models import Incident
from services.api.runs.runs import Runs
from services.api.runs.writer import RunWriter
from services.api.store import Store
from services.recording.embedded import steps
from services.recording.reader import Recording

BRAKE = SMALL / "vela-power-brake"
ONE = Generation("vela/again", 0, 1000)
Updates = list[Finding | dict[str, Any]]
"""Findings, and incidents as JSON."""


@pytest.fixture(scope="module")
def updates() -> Updates:
    """All that the engine says of the power brake."""
    found: Updates = []
    for step in steps(Recording.open(BRAKE), choose()):
        found += step.findings
        found += [json.loads(incident.to_json()) for incident in step.incidents]
    return found


@pytest.fixture
def place(tmp_path: Path) -> tuple[Store, Generations, Runs]:
    settings = settings_at(tmp_path)
    store, library = Store(settings.data_dir / "api.sqlite"), Library(settings)
    store.migrate()
    return store, Generations(store, library), Runs(store, library, settings)


def hear(notes: RunWriter, updates: Updates) -> None:
    for one in updates:
        if isinstance(one, Finding):
            notes.hear_finding(one, shadow=False)
        else:
            notes.hear_incident(one)


def test_what_comes_again_changes_nothing(place: tuple[Store, Generations, Runs], updates: Updates) -> None:
    _, generations, runs = place
    assert generations.opened(ONE, str(BRAKE), {})
    assert runs.one(ONE.run).recording == "vela-power-brake"
    notes = generations.notes(ONE, 0, 1000)
    half = len(updates) // 2
    hear(notes, updates[:half])
    notes.write()
    hear(notes, updates[:half])
    assert not notes.unwritten
    again = generations.notes(ONE, 0, 1000)  # as after a crash: from the start, with what the store has
    hear(again, updates)
    again.write("done")
    hear(again, updates[:half])
    assert not again.unwritten
    found = runs.findings(ONE.run).items
    raised = [one for one in updates if isinstance(one, Finding) and one.state == "firing"]
    assert [one.id for one in found] == [one.id for one in raised]
    assert {one.state for one in found} == {"resolved"}
    latest = {one["id"]: one for one in updates if not isinstance(one, Finding) and one["state"] != "joined"}
    assert {one.id: one for one in runs.incidents(ONE.run).items} == {
        name: Incident.model_validate({"run": ONE.run, **body}) for name, body in latest.items()
    }
    numbers = [row["id"] for row in runs.events(ONE.run, 0)]
    assert numbers == list(range(1, len(updates) + 1))
    assert runs.one(ONE.run).state == "done"


def test_a_run_that_was_deleted_stays_deleted(place: tuple[Store, Generations, Runs], updates: Updates) -> None:
    _, generations, runs = place
    generations.opened(ONE, str(BRAKE), {})
    notes = generations.notes(ONE, 0, 1000)
    hear(notes, updates)
    notes.write("done")
    runs.delete(ONE.run)
    assert not generations.opened(ONE, str(BRAKE), {})
    notes.take_incident(next(one for one in updates if not isinstance(one, Finding)))
    notes.write()
    assert runs.page(None, "again", 0, 10).total == 0


def test_what_is_no_incident_is_refused(place: tuple[Store, Generations, Runs]) -> None:
    _, generations, _ = place
    notes = generations.notes(ONE, 0, 1000)
    for body in ({"id": "x"}, {"id": "x", "revision": 1, "state": "open"}, {}):
        with pytest.raises((ValueError, KeyError, TypeError)):
            notes.hear_incident(body)
    assert not notes.unwritten
