"""Commands that make recordings fit to pass on: merge, anonymise, label."""

import math
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.recordings.named import NewDir, RecordingDir, recordings_of
from services.kit.errors import UsageError

if TYPE_CHECKING:
    from services.recording.model import Label

_Entity = Annotated[str | None, typer.Option(help="the culprit, such as node=v041 or node=v041,gpu=3")]
_Also = Annotated[list[str] | None, typer.Option(help="an entity that is as right; may be given again")]
_Onset = Annotated[str | None, typer.Option(help="RFC 3339 time, +1h20m from the start, -10m from the end")]
_End = Annotated[str | None, typer.Option(help="as --onset; add: else the recording's end")]
_Within = Annotated[float | None, typer.Option(help="how soon after the onset an alert is due, in seconds")]
_Flag = bool | None


commands = typer.Typer(name="label", help="Write down by hand what was really wrong.", no_args_is_help=True)


def merge(
    recordings: Annotated[
        list[Path], typer.Argument(help="two or more; where they differ, the first wins", callback=recordings_of)
    ],
    out: NewDir,
    cluster: Annotated[str | None, typer.Option(help="the cluster's name, where the recordings' names differ")] = None,
    title: Annotated[str, typer.Option(help="its headline; else the one that all have, or its name")] = "",
    keep_all: Annotated[
        bool, typer.Option("--keep-all", help="keep what lies outside of the stretch that they share, too")
    ] = False,
    align_clocks: Annotated[
        bool, typer.Option("--align-clocks", help="correct logs' times by events that the telemetry saw too")
    ] = False,
    aliases: Annotated[
        Path | None, typer.Option(help="YAML file, a machine's name and a list of its others: they become one")
    ] = None,
) -> None:
    """Join recordings of the same time and cluster into one: the stretch that their telemetry is of."""
    from services.cli.recordings.commands import progress_bar, recording_name
    from services.recording.identity import Identity, identify, read_aliases, renamed
    from services.recording.merge import merge_recordings
    from services.recording.reader import Recording

    recording_name(out)
    if len(recordings) < 2:
        raise UsageError("one recording alone cannot be merged", remedy="name two or more")
    opened = [Recording.open(path) for path in recordings]
    identity = Identity() if aliases is None else identify(opened, read_aliases(aliases))
    with TemporaryDirectory(prefix="hindcast-merge-") as scratch, progress_bar("merging") as progress:
        if aliases is not None:
            parts = enumerate(opened)
            opened = [renamed(part, Path(scratch) / f"part-{number}", identity, number) for number, part in parts]
        report = merge_recordings(
            opened,
            out,
            cluster=cluster,
            title=title,
            keep_all=keep_all,
            align_clocks=align_clocks,
            progress=progress,
        )
    report.notes += identity.notes()
    typer.echo(f"{out}: {report}")


def anonymise(
    directory: RecordingDir,
    out: NewDir,
    salt_file: Annotated[
        Path | None, typer.Option(help="secret the new names are made with, so that several recordings fit together")
    ] = None,
) -> None:
    """Rename hosts, users, jobs, serials, addresses and paths in every file, so that it can be shared."""
    from services.cli.recordings.commands import progress_bar, recording_name
    from services.recording.anonymise import anonymise_recording, read_salt
    from services.recording.reader import Recording

    recording_name(out)
    salt = read_salt(salt_file) if salt_file is not None else None
    with progress_bar("anonymising") as progress:
        report = anonymise_recording(Recording.open(directory), out, salt=salt, progress=progress)
    typer.echo(f"{out}: {report}")


@commands.callback()
def _labels(context: typer.Context, directory: RecordingDir) -> None:
    context.obj = directory


@commands.command("list")
def _list(context: typer.Context) -> None:
    """List the labels."""
    from services.recording.labelling import labels_of

    for label in labels_of(context.obj):
        typer.echo(_shown(label))


@commands.command("add")
def _add(
    context: typer.Context,
    entity: Annotated[str, typer.Option(help="the culprit, such as node=v041 or node=v041,gpu=3")],
    onset: Annotated[str, typer.Option(help="when the cause began: RFC 3339 time or +HH:MM:SS from the start")],
    fault: Annotated[str, typer.Option(help="the fault's name; none for a distractor")] = "none",
    end: _End = None,
    within: _Within = None,
    label_id: Annotated[str | None, typer.Option("--id", help="else the next free one")] = None,
    also: _Also = None,
    job: Annotated[str | None, typer.Option(help="the job that suffered")] = None,
    cause: Annotated[str | None, typer.Option(help="the cause behind the fault, such as psu_failure")] = None,
    note: Annotated[str | None, typer.Option(help="a sentence for people")] = None,
    incident: Annotated[str | None, typer.Option(help="the incident it belongs to")] = None,
    impact: Annotated[str | None, typer.Option(help="gpus=8,jobs=1,step_time_factor=3,gpu_hours_lost=40")] = None,
    root: Annotated[_Flag, typer.Option("--root", help="it is the incident's root cause")] = None,
    optional: Annotated[_Flag, typer.Option("--optional", help="right, but not required")] = None,
    distractor: Annotated[_Flag, typer.Option("--distractor", help="looks wrong and is not")] = None,
) -> None:
    """Add a label."""
    from services.recording.labelling import add_label

    if distractor:
        within = within or 0
    elif fault == "none":
        raise UsageError("--fault is missing", remedy="name it, or say --distractor: it only looks wrong")
    elif within is None:
        raise UsageError("--within is missing", remedy="seconds within which an alert is due: --within 60")
    fields = _fields(context.obj, entity=entity, onset=onset, end=end or "", within=within, also=also, impact=impact)
    plain = {"fault": fault, "id": label_id, "job_id": job, "cause": cause, "note": note, "incident": incident}
    flags = {"root": root, "optional": optional, "distractor": distractor}
    given = {key: value for key, value in (plain | flags).items() if value is not None}
    typer.echo(f"added {_shown(add_label(context.obj, fields | given))}")


@commands.command("edit")
def _edit(
    context: typer.Context,
    label_id: Annotated[str, typer.Argument(help="the label's id", show_default=False)],
    fault: Annotated[str | None, typer.Option(help="the fault's name")] = None,
    entity: _Entity = None,
    onset: _Onset = None,
    end: _End = None,
    within: _Within = None,
    also: _Also = None,
    job: Annotated[str | None, typer.Option(help="the job that suffered")] = None,
    cause: Annotated[str | None, typer.Option(help="the cause behind the fault")] = None,
    note: Annotated[str | None, typer.Option(help="a sentence for people")] = None,
    incident: Annotated[str | None, typer.Option(help="the incident it belongs to")] = None,
    impact: Annotated[str | None, typer.Option(help="gpus=8,jobs=1,step_time_factor=3,gpu_hours_lost=40")] = None,
    root: Annotated[_Flag, typer.Option("--root/--no-root", help="it is the incident's root cause")] = None,
    optional: Annotated[_Flag, typer.Option("--optional/--required", help="right, but not required")] = None,
    clear: Annotated[list[str] | None, typer.Option(help="a field to take away; may be given again")] = None,
) -> None:
    """Change what is given of a label; the rest stays."""
    from services.recording.labelling import edit_label

    fields = _fields(context.obj, entity=entity, onset=onset, end=end, within=within, also=also, impact=impact)
    plain = {"fault": fault, "job_id": job, "cause": cause, "note": note, "incident": incident}
    given = {key: value for key, value in (plain | {"root": root, "optional": optional}).items() if value is not None}
    if not fields and not given and not clear:
        raise UsageError("nothing to change was given", remedy="see `hindcast label DIR edit --help`")
    typer.echo(f"changed {_shown(edit_label(context.obj, label_id, fields | given, clear or ()))}")


@commands.command("remove")
def _remove(
    context: typer.Context, label_id: Annotated[str, typer.Argument(help="the label's id", show_default=False)]
) -> None:
    """Remove a label."""
    from services.recording.labelling import remove_label

    remove_label(context.obj, label_id)
    typer.echo(f"removed {label_id}")


def _fields(
    directory: Path,
    *,
    entity: str | None,
    onset: str | None,
    end: str | None,
    within: float | None,
    also: list[str] | None,
    impact: str | None,
) -> dict[str, Any]:
    """Return the fields that are not plain text; an empty ``end`` is the recording's."""
    from services.cli.recordings.commands import instant_given
    from services.recording.labelling import parse_entity
    from services.recording.reader import read_manifest

    manifest = read_manifest(directory)
    fields: dict[str, Any] = {}
    if entity is not None:
        fields["entity"] = parse_entity(entity)
    for name, text in (("onset", onset), ("end", end)):
        if text is not None:
            start, end_ms = manifest.start, manifest.end
            fields[name] = instant_given(f"--{name}", text, start, end_ms) if text else end_ms
    if within is not None:
        fields["within_s"] = within
    if also:
        fields["also"] = [parse_entity(text) for text in also]
    if impact is not None:
        fields["impact"] = _numbers(impact)
    return fields


def _numbers(text: str) -> dict[str, float | int]:
    numbers: dict[str, float | int] = {}
    for part in text.split(","):
        key, _, value = part.partition("=")
        try:
            number = float(value)
            if not math.isfinite(number):
                raise ValueError  # noqa: TRY301 - refused like any other text that is no number
        except ValueError:
            raise UsageError(f"--impact: {part!r} is no number", remedy="write gpus=8,jobs=1") from None
        numbers[key.strip()] = int(number) if number.is_integer() else number
    return numbers


def _shown(label: "Label") -> str:
    from services.recording.instants import format_instant

    entity = ",".join(f"{key}={value}" for key, value in label.entity.items())
    span = f"{format_instant(label.onset)} to {format_instant(label.end)}"
    kind = "distractor" if label.distractor else f"{label.fault}, due within {label.within_s:g} s"
    marks = "".join(f", {word}" for word, there in (("root", label.root), ("optional", label.optional)) if there)
    incident = f", incident {label.incident}" if label.incident else ""
    return f"{label.id}: {kind}, at {entity}, {span}{incident}{marks}" + (f" ({label.note})" if label.note else "")
