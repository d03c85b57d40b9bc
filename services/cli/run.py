"""`hindcast run`: the engine over a recording, in the process, with no server."""

import heapq
import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detectors.contract import Finding, Instant, Kind, LogRecord
from services.kit.errors import UserError
from services.kit.times import format_time

if TYPE_CHECKING:
    from detectors.engine import Choice, Engine
    from services.recording.model import Label
    from services.recording.reader import Recording

_ROWS = 32_768
_LINES = 8192


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""

    @app.command()
    def run(
        recording: Annotated[Path, typer.Argument(help="The directory of a recording.", show_default=False)],
        findings: Annotated[Path | None, typer.Option(help="Write the findings there, one JSON object a line.")] = None,
        config: Annotated[Path | None, typer.Option(help="A detectors.yaml: what differs from the defaults.")] = None,
    ) -> None:
        """Run the detectors over a recording, with no server, and print what they would have said, and when."""
        from services.detect.choices import load_choices
        from services.recording.reader import Recording

        choices = load_choices(config)
        found = run_and_show(Recording.open(recording), choices)
        if findings is not None:
            _write(findings, found)


def run_and_show(recording: "Recording", choices: "list[Choice]") -> list[Finding]:
    """Run the detectors over a recording with a bar of progress, print the timeline, and return the findings."""
    found = list(_with_progress(recording, choices))
    _print(recording, found)
    return found


def findings_of(recording: "Recording", choices: "list[Choice] | None" = None) -> Iterator[Finding]:
    """Yield the findings of a recording, by (detected_at, detector, entity, state); by default of every detector."""
    from detectors.registry import choose

    for _, findings in _steps(recording, choose() if choices is None else choices):
        yield from findings


def _steps(recording: "Recording", choices: "list[Choice]") -> Iterator[tuple[Instant, list[Finding]]]:
    """Feed the engine stream by stream, always the one that is furthest behind; yield event time and its findings."""
    from detectors.engine import Engine

    topology = recording.topology.model_dump(mode="json", exclude_unset=True)
    engine = Engine(topology, choices, ("jobs", "logs", *recording.streams()))
    end = recording.manifest.end
    feeds = {"jobs": _feed_jobs(engine, recording), "logs": _feed_logs(engine, recording)}
    feeds |= {kind: _feed_rows(engine, recording, kind) for kind in engine.fields if kind in engine.streams}
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
        yield max(engine.event_time, recording.manifest.start), findings
    yield end, engine.finish(end)


def _feed_rows(engine: "Engine", recording: "Recording", kind: Kind) -> Iterator[Instant]:
    """Feed one stream batch by batch; yield the time up to which all of it was fed."""
    from services.kit.columns import rows_of
    from services.recording.reader import open_stream
    from services.recording.schema import STREAMS

    wanted = engine.fields[kind]
    with open_stream(recording.path / STREAMS[kind].file) as file:
        columns = [name for name in file.schema_arrow.names if name in wanted]
    start, end = recording.manifest.start, recording.manifest.end + 1
    for batch in recording.batches(kind, start, end, max_rows=_ROWS, columns=columns):
        rows = rows_of(kind, batch, wanted)
        engine.feed(rows)
        yield int(rows.times.max()) - 1


def _feed_jobs(engine: "Engine", recording: "Recording") -> Iterator[Instant]:
    from detectors.fleet import Job, JobEvent

    for entry in recording.jobs():
        gpus = {node: tuple(indices) for node, indices in (entry.gpus or {}).items()}
        job = Job(entry.job_id, tuple(entry.nodes), entry.start, entry.gpus_per_node, gpus)
        events = [JobEvent(entry.start, "start", job)]
        if entry.end is not None:
            events.append(JobEvent(entry.end, "end", job))
        engine.feed_jobs(events)
    yield recording.manifest.end


def _feed_logs(engine: "Engine", recording: "Recording") -> Iterator[Instant]:
    events = recording.events(recording.manifest.start, recording.manifest.end + 1)
    while chunk := list(itertools.islice(events, _LINES)):
        engine.feed_logs(
            LogRecord(line.timestamp, line.source, line.message, line.severity, line.node, line.job_id, line.rank)
            for line in chunk
        )
        yield chunk[-1].timestamp - 1


def _with_progress(recording: "Recording", choices: "list[Choice]") -> Iterator[Finding]:
    """Yield the findings while a bar on stderr shows how far event time has come."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    start, end = recording.manifest.start, recording.manifest.end
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[at]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=5) as bar:
        task = bar.add_task(recording.manifest.name, total=max(end - start, 1), at=format_time(start))
        for at, findings in _steps(recording, choices):
            bar.update(task, completed=at - start, at=format_time(at))
            yield from findings


def _write(path: Path, findings: list[Finding]) -> None:
    try:
        path.write_text("".join(f"{finding.to_json()}\n" for finding in findings), encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{path}: cannot be written: {error.strerror}", remedy="name a file in a folder that is there", exit_code=2
        ) from None


def _print(recording: "Recording", findings: list[Finding]) -> None:
    """Print the timeline, and how long after its onset each labelled fault was found."""
    from rich.console import Console
    from rich.table import Table

    console = Console()
    labels = [label for label in recording.labels() if not label.distractor]
    day = format_time(recording.manifest.start)[:10]
    table = Table(title=f"{recording.manifest.name}, {day}", title_justify="left")
    for name in ("time", "fault", "entity", "state", "after onset"):
        table.add_column(name, no_wrap=True)
    for finding in findings:
        delay = _delay_s(finding, labels) if finding.state == "firing" else None
        table.add_row(
            format_time(finding.detected_at)[11:],
            finding.fault,
            " ".join(f"{key}={value}" for key, value in sorted(finding.entity.items(), reverse=True)),
            finding.state,
            "" if delay is None else f"{delay:.1f} s",
        )
    if findings:
        console.print(table)
    for finding in findings:
        if finding.state == "firing":
            console.print(f"{finding.summary}\n  do: {finding.recommended_action}", highlight=False, markup=False)
    firing = sum(finding.state == "firing" for finding in findings)
    console.print(f"{firing} finding(s), {len(findings) - firing} resolved; {len(labels)} labelled fault(s)")


def _delay_s(finding: Finding, labels: "list[Label]") -> float | None:
    """Return how long after the onset of the label it is about a finding was made; None without one."""
    for label in labels:
        same = finding.fault == label.fault and label.onset <= finding.detected_at <= label.end
        if same and (label.entity.items() <= finding.entity.items() or finding.entity.items() <= label.entity.items()):
            return (finding.detected_at - label.onset) / 1000
    return None
