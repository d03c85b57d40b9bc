"""Machines that come later: an engine that learns of them on the way finds what one does that knew them."""

from pathlib import Path

from detectors.contract import Finding
from detectors.engine.engine import Engine
from detectors.fleet.fleet import JobEvent
from detectors.registry import choose
from services.kit.columns import rows_of
from services.recording.embedded import fleet_job
from services.recording.reader import Recording
from tests.small import Brake, small_recording


def _fed(engine: Engine, recording: Recording, start: int, end: int) -> list[Finding]:
    """Feed what lies between two instants, the end not included, and hand it over."""
    for kind in engine.fields.keys() & set(recording.streams()):
        for batch in recording.batches(kind, start, end):
            engine.feed(rows_of(kind, batch, engine.fields[kind]))
    for stream in engine.streams:
        engine.mark(stream, end - 1)
    return engine.process()


def test_a_node_that_comes_later_is_judged_as_one_that_was_known(tmp_path: Path) -> None:
    path = small_recording(tmp_path, "late", nodes=4, minutes=8, brakes=[Brake("v002", 240, 400)])
    recording = Recording.open(path)
    whole = recording.topology.model_dump(mode="json", exclude_unset=True)
    less = whole | {"nodes": [node for node in whole["nodes"] if node["name"] != "v002"]}
    start, middle, end = recording.manifest.start, recording.manifest.start + 90_000, recording.manifest.end + 1
    streams = ("jobs", *recording.streams())

    def found(first: dict[str, object]) -> list[str]:
        engine = Engine(first, choose(), streams)
        engine.feed_jobs(JobEvent(job.start, "start", fleet_job(job)) for job in recording.jobs())
        lines = _fed(engine, recording, start, middle)
        engine.incidents()
        engine = Engine.restore(whole, choose(), streams, engine.snapshot())
        lines += _fed(engine, recording, middle, end)
        return [finding.to_json() for finding in lines]

    assert any('"power_throttle"' in line for line in found(whole))
    assert found(less) == found(whole)
