"""`hindcast run`: the engine over a recording, in the process, with no server."""

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detectors.contract import Entity, Finding
from services.cli.recordings.commands import Strict
from services.cli.recordings.named import RecordingDir
from services.cli.written import unwritable, write_file
from services.kit.times import format_time

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from rich.console import Console

    from detectors.engine.engine import Choice
    from detectors.incidents.knowledge import IncidentConfig
    from detectors.incidents.report import Incident
    from services.model.novelty import Novelty
    from services.recording.embedded import Step
    from services.recording.reader import Recording


_MOST_ODD = 10
"""So many findings that alert nobody are listed."""


def run(
    recording: RecordingDir,
    findings: Annotated[Path | None, typer.Option(help="Write the findings there, one JSON object a line.")] = None,
    incidents: Annotated[
        Path | None,
        typer.Option(help="Write the incidents there. With --findings, incidents.jsonl beside these is the default."),
    ] = None,
    config: Annotated[Path | None, typer.Option(help="A detectors.yaml: what differs from the defaults.")] = None,
    calibration: Annotated[Path | None, typer.Option(help="What `hindcast calibrate` wrote.")] = None,
    strict: Strict = False,
) -> None:
    """Run the detectors over a recording, with no server, and print what they would have found, and when."""
    from services.detect.choices import load_choices, load_incident_config
    from services.recording.tidy import open_tidy

    for path in (findings, incidents):  # before the work, which may take minutes
        if path is not None and not path.parent.is_dir():
            raise unwritable(path, "cannot be written: there is no such folder")
    choices, config_of_incidents = load_choices(config, calibration), load_incident_config(config)
    found, revised = run_and_show(open_tidy(recording, strict=strict), choices, config_of_incidents)
    if findings is not None:
        write_lines(findings, found)
        incidents = incidents or findings.with_name("incidents.jsonl")
    if incidents is not None:
        write_lines(incidents, revised)


def run_and_show(
    recording: "Recording", choices: "list[Choice]", config: "IncidentConfig | None" = None
) -> "tuple[list[Finding], list[Incident]]":
    """Run the detectors over a recording with a bar of progress, and print the timeline and the incidents.

    Return the findings, and the last revision of each incident.
    """
    from services.recording.embedded import latest

    if recording.left_out:
        typer.echo(f"{recording.path}: {recording.left_out} (`hindcast repair` writes a clean copy)", err=True)
    steps = list(_with_progress(recording, choices, config))
    found = [finding for step in steps for finding in step.findings]
    incidents = latest(incident for step in steps for incident in step.incidents)
    _print(recording, found, {kind.spec.name for kind, settings in choices if settings.shadow})
    _print_incidents(incidents)
    _print_harmless(found)
    _print_unjudged(recording, choices)
    return found, incidents


def _with_progress(
    recording: "Recording", choices: "list[Choice]", config: "IncidentConfig | None"
) -> "Iterator[Step]":
    """Yield what is found while a bar on stderr shows how far event time has come."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from services.recording.embedded import steps

    start, end = recording.manifest.start, recording.manifest.end
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[at]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=5) as bar:
        task = bar.add_task(recording.manifest.name, total=max(end - start, 1), at=format_time(start))
        for step in steps(recording, choices, config):
            bar.update(task, completed=step.at - start, at=format_time(step.at))
            if step.findings or step.incidents:
                yield step


def write_lines(path: Path, lines: "Sequence[Finding | Incident | Novelty]") -> None:
    """Write a file of JSON lines. UserError where that cannot be."""
    write_file(path, "".join(f"{line.to_json()}\n" for line in lines))


def _print(recording: "Recording", findings: list[Finding], shadow: set[str]) -> None:
    """Print the timeline, and how long after its onset each labelled fault was found."""
    from rich.table import Table

    from services.cli.sheets import plain_console
    from services.score.matching import judge

    console = plain_console(wide=True)
    labels = [label for label in recording.labels() if not label.distractor]
    day = format_time(recording.manifest.start)[:10]
    table = Table(title=f"{recording.manifest.name}, {day}", title_justify="left")
    for name in ("time", "fault", "entity", "state", "after onset"):
        table.add_column(name, no_wrap=name == "time", overflow="fold")
    alerting = [finding for finding in findings if finding.severity != "info"]
    delays = {one.finding.id: one.delay_s for one in judge(alerting, labels) if one.finding is not None}
    for finding in alerting:
        delay = delays.get(finding.id) if finding.state == "firing" else None
        table.add_row(
            format_time(finding.detected_at)[11:19],
            finding.fault,
            _words(finding.entity),
            f"{finding.state}, in shadow" if finding.detector in shadow else finding.state,
            "" if delay is None else f"{delay:.1f} s",
        )
    if alerting:
        console.print(table)
    for finding in alerting:
        if finding.state == "firing":
            console.print(f"{finding.summary}\n  do: {finding.recommended_action}")
    firing = sum(finding.state == "firing" for finding in alerting)
    truth = f"{len(labels)} labelled fault(s)" if labels or recording.labelled else "nobody has labelled it"
    console.print(f"{firing} finding(s), {len(alerting) - firing} resolved; {truth}")


def _print_harmless(findings: list[Finding]) -> None:
    """Print what is odd and harms nobody, so that it is not taken for an alert."""
    from services.cli.sheets import plain_console

    odd = [finding for finding in findings if finding.severity == "info" and finding.state == "firing"]
    if not odd:
        return
    console = plain_console(wide=True)
    console.print("\nalso seen, alerts nobody", style="bold")
    for finding in odd[:_MOST_ODD]:
        console.print(f"  {format_time(finding.detected_at)[11:19]} {finding.summary}")
    if len(odd) > _MOST_ODD:
        console.print(f"  and {len(odd) - _MOST_ODD} more: --findings FILE has them all")


def _print_unjudged(recording: "Recording", choices: "list[Choice]") -> None:
    """Print what the telemetry does not show, or only late: no news of it is no good news."""
    from detectors.coverage import closing
    from services.cli.sheets import plain_console
    from services.recording.seen import coverage_of, seen_in

    lines = closing(coverage_of(choices, seen_in(recording)))
    if lines:
        console = plain_console(wide=True)
        console.print("")
        for line in lines:
            console.print(line)
        console.print("`hindcast coverage` says what would show more.", style="dim")


def _words(entity: Entity) -> str:
    return " ".join(f"{key}={value}" for key, value in sorted(entity.items(), reverse=True))


def _print_incidents(incidents: "list[Incident]") -> None:
    """Print each incident: what it cost, the root cause with what speaks for it, and what followed from what."""
    from services.cli.sheets import plain_console

    console = plain_console(wide=True)
    for number, incident in enumerate(incidents, start=1):
        until = "still open" if incident.closed_at is None else f"to {format_time(incident.closed_at)[11:19]}"
        console.print(
            f"\nincident {number}, {incident.id}, from {format_time(incident.started_at)[11:19]} {until}", style="bold"
        )
        console.print(f"  {incident.title}")
        for place, cause in enumerate(incident.causes):
            title = "root cause" if place == 0 else "or else"
            reasons = "; ".join(cause.reasons)
            console.print(f"  {title}: {cause.fault} {_words(cause.entity)} ({cause.score:.0%}): {reasons}")
        _print_chain(console, incident)
        for offender in incident.offenders:
            console.print(
                f"  repeat offender: {_words(offender.entity)}, root of {offender.incidents} incident(s) in the last"
                f" 28 days (score {offender.score:.2f})"
            )


def _print_chain(console: "Console", incident: "Incident") -> None:
    names = {one.id: f"{one.fault} {_words(one.entity)}" for one in incident.members}
    for link in incident.chain:
        cause, effect = (
            names.get(end, end.removeprefix("seen:").replace("job:", "job ")) for end in (link.cause, link.effect)
        )
        console.print(f"  {cause} -> {effect}: {link.because}")
    if incident.unlisted:
        console.print(f"  and {incident.unlisted} finding(s) more")
