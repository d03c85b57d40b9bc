"""`hindcast run`: the engine over a recording, in the process, with no server."""

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from detectors.contract import Finding
from services.kit.errors import UserError
from services.kit.times import format_time

if TYPE_CHECKING:
    from detectors.engine import Choice
    from services.recording.model import Label
    from services.recording.reader import Recording


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


def _with_progress(recording: "Recording", choices: "list[Choice]") -> Iterator[Finding]:
    """Yield the findings while a bar on stderr shows how far event time has come."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    from services.recording.embedded import steps

    start, end = recording.manifest.start, recording.manifest.end
    columns = (TextColumn("{task.description}"), BarColumn(), TextColumn("{task.fields[at]}"), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), refresh_per_second=5) as bar:
        task = bar.add_task(recording.manifest.name, total=max(end - start, 1), at=format_time(start))
        for at, findings in steps(recording, choices):
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
