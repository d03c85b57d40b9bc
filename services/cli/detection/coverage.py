"""`hindcast coverage`: fault by fault, what a cluster's telemetry can show, and what would show more."""

import json
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.cli.recordings.from_server import BearerFile, CaFile, Cluster, PasswordFile, Tenant, Url, User, captured
from services.cli.recordings.named import recording_of
from services.cli.written import write_file
from services.kit.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.console import Console

    from detectors.coverage import Row, Seen
    from services.recording.reader import Recording

_WORDS = {
    "sees": "yes",
    "less": "less surely",
    "late": "late",
    "partly": "partly",
    "blind": "BLIND",
    "off": "switched off",
    "undeclared": "not declared",
}
_STYLES = {"blind": "red", "partly": "yellow", "late": "yellow", "less": "yellow", "off": "dim", "undeclared": "dim"}


def coverage(
    recording: Annotated[
        Path | None, typer.Argument(help="the recording", callback=recording_of, show_default=False)
    ] = None,
    url: Url = None,
    hours: Annotated[float, typer.Option(min=0.05, max=48, help="with --url: how much to look at")] = 0.25,
    beside: Annotated[
        list[str] | None, typer.Option("--with", help="what there is beside it, or would be: logs.kernel, jobs, nic")
    ] = None,
    config: Annotated[Path | None, typer.Option(help="a detectors.yaml: what differs from the defaults")] = None,
    out: Annotated[Path | None, typer.Option("--json", help="write the matrix there")] = None,
    cluster: Cluster = None,
    bearer_file: BearerFile = None,
    user: User = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
    tenant: Tenant = None,
) -> None:
    """Say which faults a cluster's telemetry can show, how soon, and what to add to see the others.

    A Prometheus holds no log lines and mostly no jobs: say with --with what of them reaches hindcast otherwise.
    """
    from detectors.coverage import csv_lines
    from services.cli.sheets import plain_console
    from services.detect.choices import load_choices
    from services.recording.importers.parts.series.query_api import Access
    from services.recording.reader import Recording
    from services.recording.seen import coverage_of, seen_in

    if (recording is None) == (url is None):
        raise UsageError(
            "name a recording or a server", remedy="hindcast coverage DIR, or --url http://prometheus:9090"
        )
    choices = load_choices(config)
    with ExitStack() as stack:
        if recording is None:
            assert url is not None  # noqa: S101 - one of the two is there
            access = Access(url, bearer_file, user, password_file, ca_file, tenant)
            recording = stack.enter_context(captured(access, hours, cluster))
        opened = Recording.open(recording)
        seen = _with(seen_in(opened), beside or [])
    rows = coverage_of(choices, seen)
    console = plain_console()
    _print_matrix(console, opened, rows, seen)
    _print_additions(console, rows, seen)
    if lines := csv_lines(rows, seen):
        console.print("\nLines for dcgm-exporter's CSV (its option -f):", style="bold")
        for line in lines:
            console.print(line, soft_wrap=True)
    if out is not None:
        from services.recording.seen import coverage_json

        write_file(out, json.dumps(coverage_json(rows, seen), indent=1) + "\n")


def _with(seen: "Seen", beside: "Sequence[str]") -> "Seen":
    """Return what is seen with needs that somebody says are there, or would be."""
    from dataclasses import replace

    from detectors.registry import needs

    known = needs()
    given = [word.strip() for text in beside for word in text.split(",") if word.strip()]
    added: dict[str, float] = {}
    wrong = []
    for word in given:
        there = [need for need in known if need == word or need.startswith(f"{word}.")]
        added |= dict.fromkeys([word, word.partition(".")[0], *there], 1.0)
        if not there:
            wrong.append(repr(word))
    if wrong:
        kinds = sorted({need if need.startswith(("logs", "topology")) else need.partition(".")[0] for need in known})
        raise UsageError(
            f"--with: no detector asks for {', '.join(wrong)}",
            remedy=f"there are {', '.join(kinds)}, and fields such as dcgm.DCGM_FI_DEV_XID_ERRORS",
        )
    return replace(seen, shares={**seen.shares, **added})


def _print_matrix(console: "Console", recording: "Recording", rows: "Sequence[Row]", seen: "Seen") -> None:
    from rich.table import Table

    cluster = recording.manifest.cluster
    of = f"{cluster.nodes} nodes, {cluster.gpus} GPUs ({cluster.gpu_model})"
    console.print(f"{recording.manifest.name}: {cluster.name}, {of}\n")
    table = Table(box=None, pad_edge=False, header_style="bold")
    table.add_column("fault", no_wrap=True)
    table.add_column("seen", no_wrap=True)
    table.add_column("within", justify="right", no_wrap=True)
    table.add_column("what can be detected", overflow="fold")
    for row in rows:
        style = _STYLES.get(row.verdict)
        first = [row.fault, _WORDS[row.verdict]]
        for level in row.levels:
            part = f" ({level.share:.0%} of it)" if level.share < 0.995 else ""
            table.add_row(*first, f"{level.within_s:g} s", f"{level.sees}{part}", style=style)
            first = ["", ""]
        if not row.levels:
            table.add_row(*first, "", _blind(row), style=style)
        elif row.verdict == "partly":
            table.add_row("", "", "", f"nothing on {row.blind_share:.0%}", style=style)
    console.print(table)
    slow = [f"{kind} every {every:g} s" for kind, every in seen.intervals_s.items() if every > 5]
    if slow:
        console.print(f"\nThe delays are for readings every 5 s; here {', '.join(slow)}: later by some readings.")
    if seen.inferred_jobs:
        console.print("\nNobody names the jobs: they are found by GPUs that work in step, minutes after their start.")


def _blind(row: "Row") -> str:
    from detectors.exporters import exporters

    if not row.gains:
        return ""
    return f"needs {', '.join(dict.fromkeys(exporters().words(need) for need in row.gains[-1].lacks))}"


def _print_additions(console: "Console", rows: "Sequence[Row]", seen: "Seen") -> None:
    from rich.padding import Padding

    from detectors.coverage import additions
    from detectors.exporters import exporters

    listed = additions(rows)
    if not listed:
        return
    console.print("\nWhat would show more, or sooner", style="bold")
    for one in listed:
        named = ", ".join(need.removeprefix("dcgm.") for need in one.needs)
        console.print(f"+ {named}", style="bold")
        for source in dict.fromkeys(exporters().source(need, amd=seen.amd) for need in one.needs):
            console.print(Padding(f"from {source}", (0, 0, 0, 4)))
        for fault, gain in one.gives:
            console.print(Padding(f"{fault} within {gain.within_s:g} s: {gain.sees}", (0, 0, 0, 4)))
