"""`hindcast diff A B`: whether two recordings hold the same, and where not."""

from enum import StrEnum
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.recordings.named import RecordingDir

if TYPE_CHECKING:
    from rich.console import Console

    from services.recording.diff import RecordingDiff


class _Part(StrEnum):
    STREAMS = "streams"
    TOPOLOGY = "topology"
    JOBS = "jobs"
    EVENTS = "events"
    LABELS = "labels"


def diff(
    a: RecordingDir,
    b: RecordingDir,
    only: Annotated[list[_Part] | None, typer.Option(help="compare this part; again for more (default: all)")] = None,
    tolerance: Annotated[float, typer.Option(min=0, help="how far values may be apart, relative to the larger")] = 0.0,
    as_json: Annotated[bool, typer.Option("--json", help="print all figures as JSON")] = False,
) -> None:
    """Compare two recordings sample by sample; exit 1 if they differ.

    Values are compared exactly, as float32 where one of the two columns is float32. Name, title and source are not
    compared.
    """
    import json
    from dataclasses import asdict

    from services.cli.recordings.commands import progress_bar
    from services.cli.sheets import plain_console
    from services.recording.diff import PARTS, diff_recordings
    from services.recording.reader import Recording

    chosen = [part for part in PARTS if only is None or part in only]
    with progress_bar("comparing") as progress:
        found = diff_recordings(
            Recording.open(a), Recording.open(b), parts=chosen, tolerance=tolerance, progress=progress
        )
    if as_json:
        typer.echo(json.dumps({"same": found.same, **asdict(found)}, indent=2, ensure_ascii=False))
    else:
        _print(plain_console(soft_wrap=True), found, a, b)
    if not found.same:
        raise typer.Exit(1)


def _print(console: "Console", found: "RecordingDiff", a: Path, b: Path) -> None:
    from rich.table import Table

    console.print(f"A  {a}\nB  {b}\n")
    rows = Table("stream", "rows in A", "rows in B", "only in A", "only in B", "values", "differ", box=None)
    for name, stream in found.streams.items():
        compared = sum(column.compared for column in stream.columns.values())
        wrong = sum(column.differ + column.only_a + column.only_b for column in stream.columns.values())
        counts = (stream.rows_a, stream.rows_b, stream.only_a, stream.only_b, compared, wrong)
        rows.add_row(name, *(f"{count:,}" for count in counts))
    if found.streams:
        console.print(rows)
    for name, document in found.documents.items():
        words = "the same"
        if not document.same:
            words = f"{document.only_a:,} only in A, {document.only_b:,} only in B, {document.differ:,} differ"
        console.print(f"{name}: {words}")
    for name, stream in found.streams.items():
        for column, entry in stream.columns.items():
            if not entry.same:
                console.print(
                    f"{name}.{column}: {entry.differ:,} of {entry.compared:,} differ (by up to {entry.largest:g}), "
                    f"{entry.only_a:,} only in A, {entry.only_b:,} only in B; first at {entry.first}"
                )
    examples = {name: stream.examples for name, stream in found.streams.items()}
    examples |= {name: document.examples for name, document in found.documents.items()}
    for name, lines in examples.items():
        for line in lines:
            console.print(f"  {name}: {line}")
    console.print("\nthe same" if found.same else "\nthey differ")
