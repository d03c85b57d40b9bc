"""`hindcast rules`: which alerts of Prometheus' rules would have fired over a recording, in its own time."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.written import write_file, write_files
from services.kit.errors import UsageError
from services.kit.shipped import shipped
from services.kit.times import format_time

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from detectors.contract import Finding
    from services.recording.reader import Recording
    from services.rules.evaluation import Evaluated, Settings
    from services.score.matching import Outcome

_ALERT_RULES = shipped("alert-rules")
_Names = Annotated[list[str] | None, typer.Argument(help="recordings' directories, or scenarios of the library")]
_Rules = Annotated[list[Path] | None, typer.Option("--rules", help="a rule file; else those of hindcast's detectors")]
_ALL_SCALE = 0.1
"""Of the whole library: one that fits a coffee break; the culprits are the same."""
_Duration = r"^([0-9]+(ms|s|m|h))+$"


def rules(
    names: _Names = None,
    every: Annotated[bool, typer.Option("--all", help="the whole library, small: half an hour")] = False,
    files: _Rules = None,
    scale: Annotated[
        float | None, typer.Option(min=0.02, max=10, help="nodes, times the profile's; 1, with --all 0.1")
    ] = None,
    interval: Annotated[str, typer.Option(help="evaluation interval of groups that name none")] = "15s",
    lookback: Annotated[str, typer.Option(help="how long a sample counts")] = "5m",
    replay: Annotated[str, typer.Option(help="the label `replay` of the series; hindcast's rules want live")] = "live",
    out: Annotated[
        Path | None, typer.Option("--json", help="write every change of an alert there, a line each")
    ] = None,
    openmetrics: Annotated[
        Path | None, typer.Option(help="write the recorded series and ALERTS of a single recording there")
    ] = None,
    remote_write: Annotated[
        str | None, typer.Option(help="write them to this URL; HINDCAST_SINK_* say protocol, tenant and credentials")
    ] = None,
    blocks: Annotated[
        Path | None, typer.Option(help="write them into this new folder as TSDB blocks, for Thanos or Mimir to upload")
    ] = None,
    at: Annotated[
        str | None, typer.Option(help="with --remote-write or --blocks: when the recording begins there")
    ] = None,
    of: Annotated[
        str | None, typer.Option("--as", help="with --remote-write or --blocks: the label `replay` there")
    ] = None,
    pending: Annotated[bool, typer.Option(help="show alerts that are pending, too")] = False,
    write: Annotated[
        Path | None, typer.Option(help="only write hindcast's rule files to this folder, with links to your own sites")
    ] = None,
    grafana: Annotated[str | None, typer.Option(help="with --write: your Grafana's URL")] = None,
    runbooks: Annotated[
        str | None, typer.Option(help="with --write: where this repository's files can be read")
    ] = None,
) -> None:
    """Evaluate alert rules over recordings with Prometheus' own engine, in event time, and score what fires."""
    from dataclasses import replace

    from services.kit.times import parse_time
    from services.recording.reader import Recording
    from services.rules.evaluation import Settings

    if write is not None:
        _write_rules(write, grafana, runbooks)
        return
    chosen = _files(files)
    for name, value in (("--interval", interval), ("--lookback", lookback)):
        _duration(name, value)
    single = {"--openmetrics": openmetrics, "--remote-write": remote_write, "--blocks": blocks, "--at": at}
    if any(value is not None for value in single.values()) and (every or len(names or ()) > 1):
        option = next(name for name, value in single.items() if value is not None)
        raise UsageError(f"{option} takes one recording", remedy="name a single one")
    settings = Settings(
        interval=interval, lookback=lookback, replay=replay, openmetrics=openmetrics, blocks=blocks, kept_as=of or ""
    )
    if blocks is not None:
        _new_folder(blocks)
    paths = _paths(names, every)
    outcomes: list[Outcome] = []
    lines: list[str] = []
    for number, name in enumerate(paths, start=1):
        made = _made(name, scale or (_ALL_SCALE if every else 1.0))
        if at is not None:
            settings = replace(settings, shift_ms=parse_time(at) - Recording.open(made).manifest.start)
        if remote_write is not None:
            evaluated, judged = _with_write_back(made, chosen, settings, remote_write, pending=pending)
        else:
            evaluated, judged = _one(made, chosen, settings, pending=pending, place=(number, len(paths)))
        if blocks is not None:
            typer.echo(f"{len(list(blocks.iterdir()))} blocks of recorded series and ALERTS written to {blocks}")
        outcomes += judged
        lines += [f"{change.to_json()}\n" for change in evaluated.changes]
        if out is not None:
            write_file(out, "".join(lines))
    if len(paths) > 1:
        _print_tally(outcomes)


def _files(given: "Sequence[Path] | None") -> list[Path]:
    from services.rules.files import rule_files

    found = list(given or rule_files(_ALERT_RULES))
    for path in found:
        if not path.is_file():
            raise UsageError(f"{path}: no such rule file", remedy="name a file of Prometheus' rules")
    if not found:
        raise UsageError(f"{_ALERT_RULES}: has no rule files", remedy="name yours with --rules")
    return [path.absolute() for path in found]


def _duration(name: str, value: str) -> None:
    import re

    if not re.fullmatch(_Duration, value):
        raise UsageError(f"{name} {value!r} is no duration", remedy="write it like 15s or 1m30s")


def _paths(names: "Sequence[str] | None", every: bool) -> list[str]:
    """Return the recordings' folders and the scenarios that are meant."""
    from services.synth.library import scenario_paths

    if bool(names) == every:
        raise UsageError("name recordings or scenarios, or say --all", remedy="hindcast rules --all")
    return list(names or scenario_paths())


def _made(name: str, scale: float) -> Path:
    """Return the recording; that of a scenario is made first, with progress shown."""
    from services.cli.recordings.commands import progress_bar
    from services.synth.library import ensure_recording
    from services.synth.make import Variant

    if (Path(name) / "recording.yaml").exists() or Path(name).is_dir():
        return Path(name)
    with progress_bar(f"making {name}") as progress:
        return ensure_recording(name, variant=Variant(scale=scale), progress=progress).path


def _write_rules(folder: Path, grafana: str | None, runbooks: str | None) -> None:
    from services.rules.files import Links, generated_rules

    links = Links(grafana or Links.grafana, runbooks or Links.runbooks)
    texts = generated_rules(links)
    write_files(folder, texts)
    for name in texts:
        typer.echo(folder / name)


def _new_folder(path: Path) -> None:
    """Make a folder; in one that holds blocks already, those of two runs would overlap."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        held = any(path.iterdir())
    except OSError as error:
        raise UsageError(f"{path}: {error.strerror}", remedy="name another folder") from None
    if held:
        raise UsageError(f"{path} is not empty", remedy="name a new folder for the blocks")


def _with_write_back(
    path: Path, files: "Sequence[Path]", settings: "Settings", url: str, *, pending: bool
) -> "tuple[Evaluated, list[Outcome]]":
    """Evaluate and print one recording, then write what rules recorded to a URL."""
    import tempfile
    from dataclasses import replace

    from services.kit.settings import load
    from services.recording.reader import Recording
    from services.rules.recorded import write_back
    from services.sink.settings import SinkSettings

    target = load(SinkSettings, url=url)
    with tempfile.TemporaryDirectory() as scratch:
        recorded = Path(scratch) / "recorded"
        found = _one(path, files, replace(settings, recorded=recorded), pending=pending)
        taken = write_back(recorded, target, replay=settings.kept_as or settings.replay)
    begin = Recording.open(path).manifest.start + settings.shift_ms
    typer.echo(f"{taken} samples of recorded series and ALERTS written to {url}, from {format_time(begin)}")
    return found


def _one(
    path: Path, files: "Sequence[Path]", settings: "Settings", *, pending: bool, place: tuple[int, int] = (1, 1)
) -> "tuple[Evaluated, list[Outcome]]":
    """Evaluate and print one recording."""
    from services.cli.recordings.commands import progress_bar
    from services.recording.reader import Recording
    from services.rules.evaluation import evaluate, evaluator_program
    from services.rules.verdict import findings_of, node_names
    from services.score.matching import judge

    recording = Recording.open(path)
    start, length = recording.manifest.start, max(recording.manifest.end - recording.manifest.start, 1)
    title = recording.manifest.name if place[1] == 1 else f"{place[0]}/{place[1]} {recording.manifest.name}"
    with progress_bar(title) as moved:
        evaluated = evaluate(
            evaluator_program(), recording, files, settings, progress=lambda at: moved(min(1.0, (at - start) / length))
        )
    nodes = node_names([node.model_dump() for node in recording.topology.nodes])
    findings, apart = findings_of(evaluated.changes, nodes)
    outcomes = judge(findings, recording.truth())
    _print(recording, evaluated, outcomes, apart, nodes, pending=pending)
    return evaluated, outcomes


def _print(
    recording: "Recording",
    evaluated: "Evaluated",
    outcomes: "Sequence[Outcome]",
    apart: int,
    nodes: frozenset[str],
    *,
    pending: bool,
) -> None:
    """Print the timeline of a recording's alerts, and what became of its labels."""
    from rich.table import Table

    from services.cli.sheets import plain_console
    from services.recording.model import words_of
    from services.rules.verdict import entity_of

    console = plain_console()
    verdicts = {_identity(o.finding): o for o in outcomes if o.finding is not None}
    table = Table(
        title=f"{recording.manifest.name}, {format_time(recording.manifest.start)[:10]}", title_justify="left"
    )
    for name in ("time", "alert", "severity", "entity", "state", "judged"):
        table.add_column(name, overflow="fold", no_wrap=name in {"time", "alert"})
    shown = {"firing", "resolved"} | ({"pending", "cleared"} if pending else set())
    for change in evaluated.changes:
        if change.state not in shown:
            continue
        entity = entity_of(change.labels, nodes)
        outcome = (
            verdicts.get((change.labels["alertname"], words_of(entity), change.at))
            if change.state == "firing"
            else None
        )
        delay = outcome.delay_s if outcome is not None and outcome.kind == "hit" else None
        table.add_row(
            format_time(change.at)[11:],
            change.labels["alertname"],
            change.labels.get("severity", ""),
            words_of(entity),
            change.state,
            "" if outcome is None else outcome.kind if delay is None else f"{outcome.kind} after {delay:.0f} s",
        )
    if table.row_count:
        console.print(table)
    for outcome in outcomes:
        if outcome.kind == "miss" and outcome.label is not None:
            console.print(f"missed: {outcome.fault} of {words_of(outcome.label.entity)}")
    for name, message in evaluated.errors.items():
        console.print(f"rule {name} failed: {message}")
    fired = sum(change.state == "firing" for change in evaluated.changes)
    counts = ", ".join(
        f"{kind} {sum(outcome.kind == kind for outcome in outcomes)}"
        for kind in ("hit", "miss", "late", "repeat", "false")
    )
    if not recording.labelled:
        counts = "nobody has labelled it, so that what is right is unknown"
    console.print(
        f"{fired} alert(s) fired, {apart} of them informative or without a fault of the labels'; {counts}; "
        f"{evaluated.samples} samples of {evaluated.series} series, {evaluated.refused} refused",
        soft_wrap=True,
    )


def _identity(finding: "Finding") -> tuple[str, str, int]:
    from services.recording.model import words_of

    return finding.detector, words_of(finding.entity), finding.detected_at


def _print_tally(outcomes: "Iterable[Outcome]") -> None:
    from rich.table import Table

    from services.cli.sheets import plain_console
    from services.score.tally import tally

    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("fault", no_wrap=True)
    for title in ("labels", "hits", "missed", "late", "false", "again", "prec.", "recall", "F1", "p50", "p95"):
        table.add_column(title, justify="right", no_wrap=True)
    for name, counts in tally(outcomes).items():
        numbers = (counts.labels, counts.hits, counts.misses, counts.late, counts.false_alarms, counts.repeats)
        shares = (counts.precision, counts.recall, counts.f1)
        delays = (counts.delay_s(0.5), counts.delay_s(0.95))
        table.add_row(
            name,
            *(str(number) for number in numbers),
            *("" if share != share else f"{share:.3g}" for share in shares),  # noqa: PLR0124 - NaN has no value
            *("" if delay != delay else f"{delay:.0f} s" for delay in delays),  # noqa: PLR0124
        )
    plain_console().print(table)
