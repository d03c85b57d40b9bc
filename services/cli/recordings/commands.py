"""Commands about recordings: validate, repair, show, cut, make, list."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.recordings.named import NewDir, RecordingDir

if TYPE_CHECKING:
    from rich.progress import ProgressColumn

Strict = Annotated[bool, typer.Option("--strict", help="refuse a recording with rows that cannot be right")]
_LONGEST_S = 30 * 86_400
"""Of what is made: a slip of the pen must not keep a machine busy for years."""
_Out = Annotated[Path | None, typer.Option(help="directory to write; must not exist yet")]


def register(app: typer.Typer) -> None:
    """Add the commands to the program."""
    app.command()(validate)
    app.command()(repair)
    app.command()(show)
    app.command()(cut)
    app.command()(make)
    app.command("list")(list_scenarios)


def validate(directory: RecordingDir) -> None:
    """Check a recording against the format; list every violation and exit 1 if there is any."""
    _end_if_violated(directory, "violation(s)")
    typer.echo(f"{directory}: valid")


def repair(directory: RecordingDir, out: NewDir) -> None:
    """Write a recording anew without what cannot be right: in order, none twice, none outside; types and hashes.

    What it cannot repair, it lists, as validate does, and exits 1.
    """
    from services.recording.repair import rewrite_recording
    from services.recording.tidy import open_tidy

    name = recording_name(out)
    recording = open_tidy(directory)
    rewrite_recording(recording, out, name)
    typer.echo(f"{out}: written; {recording.left_out or 'no row and no line was wrong'}")
    _end_if_violated(out, "violation(s) are left, for you to judge")


def _end_if_violated(directory: Path, words: str) -> None:
    """List what is not as the format has it, and exit 1 if anything is not."""
    from services.recording.validate import validate_recording

    violations = validate_recording(directory)
    for violation in violations:
        typer.echo(str(violation))
    if violations:
        typer.echo(f"{directory}: {sum(one.count for one in violations):,} {words}", err=True)
        raise typer.Exit(1)


def show(
    what: Annotated[str, typer.Argument(help="a recording's directory, or a scenario's name", show_default=False)],
) -> None:
    """Print what is in a recording, or a scenario's story."""
    from services.cli.recordings.story import named, print_story

    scenario = named(what)
    if scenario is None:
        _show(Path(what))
    else:
        print_story(scenario)


def _show(directory: Path) -> None:
    from rich.table import Table

    from services.cli.sheets import plain_console
    from services.recording.instants import format_instant
    from services.recording.model import words_of
    from services.recording.reader import Recording
    from services.recording.schema import STREAMS

    recording, console = Recording.open(directory), plain_console()
    manifest, cluster = recording.manifest, recording.manifest.cluster
    minutes = (manifest.end - manifest.start) / 60_000
    console.print(manifest.title, style="bold")
    console.print(f"{manifest.summary.strip()}\n")
    console.print(f"cluster   {cluster.name}: {cluster.nodes} nodes, {cluster.gpus} GPUs, {cluster.gpu_model}")
    console.print(
        f"time      {format_instant(manifest.start)} to {format_instant(manifest.end)}, {minutes:.0f} minutes"
    )
    console.print(f"origin    {manifest.origin}" + ("" if manifest.seed is None else f", seed {manifest.seed}"))
    world = (manifest.model_extra or {}).get("world")
    if isinstance(world, dict):
        console.print("world     " + ", ".join(f"{name} {value}" for name, value in world.items()), soft_wrap=True)
    for key, value in manifest.source.items():
        if isinstance(value, str):
            console.print(f"  {key}: {value}", soft_wrap=True)
    table = Table("stream", "every", "rows", "columns", "size", box=None, header_style="bold")
    for name, info in manifest.streams.items():
        if name not in STREAMS:
            continue
        path = directory / STREAMS[name].file
        every = "" if info.interval_s is None else f"{info.interval_s:g} s"
        table.add_row(name, every, f"{info.rows:,}", str(_column_count(path)), _size(path.stat().st_size))
    console.print()
    console.print(table)
    total = sum(path.stat().st_size for path in directory.iterdir() if path.is_file())
    has_log = (directory / "events.jsonl").exists()
    logs = f"{sum(1 for _ in recording.events()):,} log records" if has_log else "no log was recorded"
    console.print(f"\nsize      {_size(total)}; {logs}")
    for job in recording.jobs():
        end = "still running" if job.end is None else f"to {format_instant(job.end)}"
        where = f"{len(job.nodes)} nodes, {format_instant(job.start)} {end}, {job.state}"
        console.print(f"job       {job.job_id} {job.name}: {where}")
    labels = list(recording.labels())
    for label in labels:
        if not label.distractor:
            entity = words_of(label.entity)
            span = f"{format_instant(label.onset)} to {format_instant(label.end)}"
            console.print(f"fault     {label.fault} at {entity}, {span}, due within {label.within_s:g} s")
    if recording.labelled:
        console.print(f"          {sum(1 for label in labels if label.distractor)} distractors")
    else:
        console.print("faults    nobody has labelled it")


def _column_count(path: Path) -> int:
    from services.recording.stream_file import open_stream

    with open_stream(path) as file:
        return len(file.schema_arrow.names)


def _size(count: int) -> str:
    return f"{count / 1e6:.1f} MB" if count >= 100_000 else f"{count / 1e3:.1f} kB"


def cut(
    directory: RecordingDir,
    start: Annotated[
        str | None, typer.Option("--from", help="RFC 3339 time, +1h20m from the start, -10m from the end")
    ] = None,
    end: Annotated[
        str | None, typer.Option("--to", help="RFC 3339 time, +1h20m from the start, -10m from the end")
    ] = None,
    out: _Out = None,
) -> None:
    """Cut a stretch out of a recording; without --out it goes to NAME-cut beside the original."""
    from services.recording.cut import cut_recording
    from services.recording.reader import Recording

    recording = Recording.open(directory)
    begin, last = recording.manifest.start, recording.manifest.end
    target = out or directory.resolve().parent / f"{recording.manifest.name}-cut"
    cut_recording(
        recording,
        target,
        start=None if start is None else instant_given("--from", start, begin, last),
        end=None if end is None else instant_given("--to", end, begin, last),
        name=None if out is None else recording_name(out),
    )
    typer.echo(f"{target}: written")


def instant_given(option: str, text: str, start_ms: int, end_ms: int) -> int:
    """Return the instant an option gives, absolutely or from the start or end of a recording. UserError for none."""
    from services.kit.errors import UsageError
    from services.recording.instants import resolve_instant

    try:
        return resolve_instant(text, start_ms, end_ms)
    except ValueError as error:
        remedy = "write 2024-04-01T09:20:00Z, +01:20:00 or +1h20m from the start, or -10m from the end"
        raise UsageError(f"{option}: {error}", remedy=remedy) from error


def recording_name(out: Path) -> str:
    """Return the name a recording written to ``out`` has: the directory's own. UserError if it can be none."""
    import re

    from services.kit.errors import UsageError

    name = out.resolve().name
    if not re.fullmatch(r"[a-z0-9]+(-[a-z0-9]+)*", name):
        raise UsageError(
            f"--out {out}: {name!r} is no name for a recording", remedy="use lower-case letters, digits and hyphens"
        )
    return name


def make(
    scenario: Annotated[str, typer.Argument(help="a scenario's name (see `hindcast list`) or its file")],
    out: _Out = None,
    seed: Annotated[int | None, typer.Option(help="instead of the scenario's own: another case of the same")] = None,
    scale: Annotated[float, typer.Option(min=0.02, max=10, help="nodes, times the profile's")] = 1.0,
    profile: Annotated[Path | None, typer.Option(help="another cluster's profile to put the incident on")] = None,
    duration: Annotated[str | None, typer.Option(help="+HH:MM:SS, instead of the scenario's own")] = None,
    interval: Annotated[float | None, typer.Option(min=1, max=300, help="seconds between DCGM samples")] = None,
    world: Annotated[int | None, typer.Option(min=1, help="number of a world: what else is usual on a cluster")] = None,
) -> None:
    """Make the recording of a scenario; one made before from the same scenario, options and code is kept."""
    from services.synth.library import ensure_recording
    from services.synth.make import Variant

    length_s = None if duration is None else _length_s(duration)
    variant = Variant(seed, scale, profile, length_s, interval, world=world)
    if out is not None:
        recording_name(out)
    with progress_bar(f"making {scenario}") as progress:
        made = ensure_recording(scenario, out=out, variant=variant, progress=progress)
    typer.echo(f"{made.path}: {'already made, unchanged (cache hit)' if made.cached else 'made'}")


def _length_s(text: str) -> float:
    from services.kit.errors import UsageError
    from services.recording.instants import parse_offset

    try:
        length_s = parse_offset(text) / 1000
    except ValueError as error:
        raise UsageError(f"--duration: {error}", remedy="write +01:20:00 or +1h20m") from error
    if not 0 < length_s <= _LONGEST_S:
        problem = f"--duration {text}: must be longer than nothing, and {_LONGEST_S // 86_400} days at most"
        raise UsageError(problem, remedy="write +01:20:00 or +1h20m")
    return length_s


@contextmanager
def progress_bar(title: str, *columns: "ProgressColumn", total: float | None = 1.0) -> Iterator[Callable[..., None]]:
    """Show a bar on stderr while the body runs, moved by calls with how much of `total` is done (None: not known yet).

    They may name what else changes: `description`, `total`. `columns` are rich's, in place of its usual ones.
    """
    from rich.console import Console
    from rich.progress import Progress

    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=total)
        yield lambda done=None, **changes: bar.update(task, completed=done, **changes)


def list_scenarios() -> None:
    """List the scenarios that can be made: cluster, length, faults, title."""
    from services.cli.recordings.story import list_library

    list_library()
