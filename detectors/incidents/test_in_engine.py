"""Incidents as the engine makes them: the same however it is cut and carried over, and none of what is in shadow."""

from collections.abc import Sequence

import pytest

from detectors.contract import Instant
from detectors.engine.engine import Choice, Engine
from detectors.laws import examples_of
from detectors.registry import choose, discover
from detectors.tapes.tape import Tape


def run(tape: Tape, choices: Sequence[Choice], cuts: Sequence[Instant]) -> tuple[list[str], Engine]:
    """Return the revisions made of a tape, with the engine restored at each cut."""
    engine = Engine(tape.topology, choices, tape.streams)
    for rows in tape.rows:
        engine.feed(rows)
    engine.feed_logs(tape.logs)
    engine.feed_jobs(tape.jobs)
    revisions: list[str] = []
    for cut in cuts:
        for stream in tape.streams:
            engine.mark(stream, cut)
        for finding in engine.process():
            assert engine.incident_of(finding) is not None
        revisions += [incident.to_json() for incident in engine.incidents()]
        engine = Engine.restore(tape.topology, choices, tape.streams, engine.snapshot())
    engine.finish(tape.end)
    revisions += [incident.to_json() for incident in engine.incidents()]
    return revisions, engine


@pytest.mark.parametrize("name", ["power_throttle", "job_health"])
def test_no_cut_changes_the_incidents_of_a_fault(name: str) -> None:
    choices = choose({other: {"enabled": False} for other in discover() if other != name})
    tape = examples_of(discover()[name]).faults[0].tape
    whole, engine = run(tape, choices, [])
    assert whole
    span = tape.end - tape.start
    assert run(tape, choices, [tape.start + span * part // 7 + 137 for part in range(1, 7)])[0] == whole
    engine.finish(tape.end)
    assert engine.incidents() == [], "what has ended is reported once"


def test_what_is_in_shadow_is_found_and_belongs_to_no_incident() -> None:
    only = {other: {"enabled": False} for other in discover() if other != "power_throttle"}
    choices = choose(only | {"power_throttle": {"shadow": True}})
    tape = examples_of(discover()["power_throttle"]).faults[0].tape
    engine = Engine(tape.topology, choices, tape.streams)
    for rows in tape.rows:
        engine.feed(rows)
    engine.feed_logs(tape.logs)
    engine.feed_jobs(tape.jobs)
    found = engine.finish(tape.end)
    assert engine.shadow == {"power_throttle"}
    assert [finding.detector for finding in found][:1] == ["power_throttle"]
    assert {engine.incident_of(finding) for finding in found} == {None}
    assert engine.incidents() == []
