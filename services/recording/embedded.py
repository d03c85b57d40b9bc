"""The engine over a recording, in this process, with no server: the same findings as through Kafka."""

import heapq
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from detectors.contract import KINDS, Finding, Instant, Kind, LogRecord
from detectors.engine.engine import GRID_MS, Choice, Engine
from detectors.engine.heard import FORGET_MS
from detectors.fleet.fleet import Job, JobEvent
from detectors.fleet.scheduling import is_maintenance
from detectors.incidents.knowledge import IncidentConfig
from detectors.incidents.report import Incident
from detectors.registry import choose
from services.kit.columns import rows_of
from services.recording import model
from services.recording.reader import Recording
from services.recording.schema import STREAMS
from services.recording.stream_file import open_stream

_ROWS = 32_768
_LINES = 8192


class Step(NamedTuple):
    """How far event time has come, and what was found and how incidents were revised on the way there."""

    at: Instant
    findings: list[Finding]
    incidents: list[Incident]


def latest(revisions: Iterable[Incident]) -> list[Incident]:
    """Return the last revision of each incident, without those that turned out to belong to another, as opened."""
    last = {incident.id: incident for incident in revisions}
    return sorted(
        (incident for incident in last.values() if incident.state != "joined"), key=lambda one: (one.opened_at, one.id)
    )


def findings_of(recording: Recording, choices: Sequence[Choice] | None = None) -> Iterator[Finding]:
    """Yield the findings of a recording, by (detected_at, detector, entity, state); by default of every detector."""
    for step in steps(recording, choose() if choices is None else choices):
        yield from step.findings


def steps(recording: Recording, choices: Sequence[Choice], incidents: IncidentConfig | None = None) -> Iterator[Step]:
    """Run the detectors over a recording; yield what comes of it."""
    return fed(engine_for(recording, choices, incidents), recording)


def engine_for(
    recording: Recording,
    choices: Sequence[Choice],
    incidents: IncidentConfig | None = None,
    *,
    every: bool = False,
    grid_ms: int = GRID_MS,
) -> Engine:
    """Return an engine that a recording can be fed to; `every`: with all its streams, whoever reads them."""
    topology = recording.topology.model_dump(mode="json", exclude_unset=True)
    streams = ("jobs", "logs", *recording.streams())
    spare = _spare(recording) if every else ()
    return Engine(topology, choices, streams, grid_ms=grid_ms, incidents=incidents, every=every, spare=spare)


def _spare(recording: Recording) -> set[Kind]:
    """Return the streams that jobs are not found by: none where somebody may be forgotten, who is heard by any.

    Where a list has jobs from the beginning on GPUs' readings find none. Ranks are forgotten within a day.
    """
    start = recording.manifest.start
    if recording.manifest.end - start >= FORGET_MS:
        return set()
    listed = any(job.start <= start for job in recording.jobs())
    return set(KINDS) - ({"steps"} if listed else {"steps", "dcgm"})


def fed(engine: Engine, recording: Recording) -> Iterator[Step]:
    """Feed the engine stream by stream, always the one that is furthest behind; yield what comes of it."""
    end = recording.manifest.end
    feeds = {"jobs": _feed_jobs(engine, recording), "logs": _feed_logs(engine, recording)}
    feeds |= {kind: _feed_rows(engine, recording, kind) for kind in KINDS if kind in engine.streams}
    behind = [(recording.manifest.start - 1, stream) for stream in feeds]
    heapq.heapify(behind)
    while behind:
        _, stream = heapq.heappop(behind)
        mark = next(feeds[stream], None)
        if mark is None:
            engine.mark(stream, end, end=True)
        else:
            engine.mark(stream, mark)
            heapq.heappush(behind, (mark, stream))
        findings = engine.process()
        yield Step(max(engine.event_time, recording.manifest.start), findings, engine.incidents())
    yield Step(end, engine.finish(end), engine.incidents())


def _feed_rows(engine: Engine, recording: Recording, kind: Kind) -> Iterator[Instant]:
    """Feed one stream batch by batch; yield the time up to which all of it was fed."""
    wanted = engine.fields.get(kind, ())
    with open_stream(recording.path / STREAMS[kind].file) as file:
        columns = [name for name in file.schema_arrow.names if name in wanted or (kind == "steps" and name == "node")]
    start, end = recording.manifest.start, recording.manifest.end + 1
    for batch in recording.batches(kind, start, end, max_rows=_ROWS, columns=columns):
        rows = rows_of(kind, batch, wanted)
        engine.feed(rows)
        yield int(rows.times.max()) - 1


def _feed_jobs(engine: Engine, recording: Recording) -> Iterator[Instant]:
    for entry in recording.jobs():
        job = fleet_job(entry)
        events = [JobEvent(entry.start, "start", job)]
        if entry.end is not None:
            events.append(JobEvent(entry.end, "end", job, entry.state.upper()))
        engine.feed_jobs(events)
    yield recording.manifest.end


def fleet_job(entry: model.Job) -> Job:
    """Return a job of a recording as the engine knows it."""
    gpus = {node: tuple(indices) for node, indices in (entry.gpus or {}).items()}
    keeps = is_maintenance(entry.name, entry.user, entry.gpus_per_node)
    return Job(entry.job_id, tuple(entry.nodes), entry.start, entry.gpus_per_node, gpus, keeps)


def _feed_logs(engine: Engine, recording: Recording) -> Iterator[Instant]:
    events = recording.events(recording.manifest.start, recording.manifest.end + 1)
    while chunk := list(itertools.islice(events, _LINES)):
        engine.feed_logs(
            LogRecord(line.timestamp, line.source, line.message, line.severity, line.node, line.job_id, line.rank)
            for line in chunk
        )
        yield chunk[-1].timestamp - 1
