"""`hindcast postmortem`: an incident of a recording, or of a run of the API, as one file."""

import json
import os
import re
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.recordings.commands import progress_bar
from services.cli.written import unwritable, write_file
from services.kit.errors import UsageError

if TYPE_CHECKING:
    from services.postmortem.case import Case
    from services.postmortem.rules import Alerts

_FORMS = {".html": "html", ".htm": "html", ".md": "markdown"}
_RUNS, _MANY_ROWS = 2, 1_000_000
"""Trials at a time of a recording of so many rows: over fewer they take less than it takes to start other processes."""
_NAME = re.compile(r"[a-z0-9][a-z0-9-]*")


def postmortem(
    subject: Annotated[
        str,
        typer.Argument(
            metavar="RUN|RECORDING",
            help="The directory of a recording; or the API's run, or replay.",
            show_default=False,
        ),
    ],
    out: Annotated[Path, typer.Option(help="The file to write: .html or .md.", show_default=False)],
    price: Annotated[float | None, typer.Option(min=0, help="USD per GPU-hour, for the cost.")] = None,
    config: Annotated[Path | None, typer.Option(help="A detectors.yaml: what differs from the defaults.")] = None,
    incident: Annotated[str | None, typer.Option(help="Which incident; by default the one that cost most.")] = None,
    rules: Annotated[bool, typer.Option("--rules", help="Evaluate the alert rules, too.")] = False,
    what_if: Annotated[bool, typer.Option(help="Try other settings: several more runs.")] = True,
) -> None:
    """Write up an incident: what happened when, why, what it cost, and what would have caught it sooner.

    Of a run that had settings of its own, these are written beside the report.
    """
    import yaml

    from services.detect.choices import load_choices, load_incident_config
    from services.kit.executors import alone, executor_of
    from services.postmortem import html, markdown
    from services.postmortem.appendix import Asked
    from services.postmortem.make import make
    from services.recording.reader import Recording

    form = _FORMS.get(out.suffix.lower())
    if form is None:
        raise UsageError(f"{out}: neither .html nor .md", remedy="--out report.html, or --out report.md")
    if not os.access(out if out.exists() else out.parent, os.W_OK) or out.is_dir():
        raise unwritable(out, "is a folder" if out.is_dir() else "cannot be written")
    recording = Path(subject)
    if not recording.exists():
        recording, settings = _run(subject)
        if settings and config is None:
            config = out.with_name(f"{out.stem}.detectors.yaml")
            write_file(config, yaml.safe_dump(settings, sort_keys=True))
    choices, incidents = load_choices(config), load_incident_config(config)
    opened = Recording.open(recording)
    rows = sum(stream.rows for stream in opened.manifest.streams.values())
    asked = Asked(price=price, config=config, incident=incident, rules=rules, what_if=what_if)
    with _status() as (doing, moved):
        _, document = make(
            opened,
            choices,
            incidents,
            asked,
            executor_of(_RUNS) if rows >= _MANY_ROWS else alone(),
            alerts=_alerts if rules else None,
            doing=doing,
            moved=moved,
        )
    write_file(out, html.html(document) if form == "html" else markdown.markdown(document))
    typer.echo(f"{out}: {document.title}")


def _alerts(case: "Case") -> "Alerts":
    from services.api.tasks.alert_rules import alerts_of

    return alerts_of(case)


def _run(name: str) -> tuple[Path, dict[str, Any]]:
    """Return the recording of a run in the API's store, and the settings of its detectors."""
    from services.api.settings import ApiSettings
    from services.api.store import Store
    from services.kit.settings import load
    from services.synth.library import scenario_paths

    path = load(ApiSettings).data_dir / "api.sqlite"
    query = "SELECT path, detectors FROM runs WHERE id = ?1 OR unit LIKE '%/' || ?1 ORDER BY created_ms DESC"
    row = Store(path).one(query, (name,)) if path.is_file() and _NAME.fullmatch(name) else None
    if row is None:
        remedy = "name a directory that has a recording.yaml, or see `GET /api/v1/runs` of hindcast api"
        if name in scenario_paths():
            remedy = f"it is a scenario: `hindcast make {name} --out {name}` makes the recording"
        raise UsageError(f"{name}: neither a recording's directory, nor a run or replay in {path}", remedy=remedy)
    return Path(row["path"]), json.loads(row["detectors"])


@contextmanager
def _status() -> Iterator[tuple[Callable[[str], None], Callable[[float], None]]]:
    """Show on stderr what is being done while the body runs."""
    from rich.progress import BarColumn, TextColumn, TimeElapsedColumn

    with progress_bar("", TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn()) as moved:
        yield lambda words: moved(description=words), moved
