"""`hindcast postmortem`: an incident of a recording, told in one file."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from services.kit.errors import UserError

if TYPE_CHECKING:
    from services.postmortem.case import Case
    from services.postmortem.report import Alerts

_ALERT_RULES = Path(__file__).resolve().parents[2] / "alert-rules"
_FORMS = {".html": "html", ".htm": "html", ".md": "markdown"}


def register(app: typer.Typer) -> None:
    """Add the command to `app`."""
    app.command()(postmortem)


def postmortem(
    recording: Annotated[Path, typer.Argument(help="The directory of a recording.", show_default=False)],
    out: Annotated[Path, typer.Option(help="The file to write: .html or .md.", show_default=False)],
    price: Annotated[float | None, typer.Option(min=0, help="USD per GPU-hour, for the cost.")] = None,
    config: Annotated[Path | None, typer.Option(help="A detectors.yaml: what differs from the defaults.")] = None,
    incident: Annotated[str | None, typer.Option(help="Which incident; by default the one that cost most.")] = None,
    rules: Annotated[bool, typer.Option("--rules", help="Evaluate the alert rules, too.")] = False,
    what_if: Annotated[bool, typer.Option(help="Try other settings: several more runs.")] = True,
) -> None:
    """Tell an incident: what happened when, why, what it cost, and what would have caught it sooner."""
    from services.detect.choices import load_choices, load_incident_config
    from services.postmortem import html, markdown
    from services.postmortem.appendix import Asked
    from services.postmortem.case import investigate
    from services.postmortem.report import Report, compose, evidence_of
    from services.postmortem.whatif import nearness, trials, without_streams
    from services.recording.reader import Recording

    form = _FORMS.get(out.suffix.lower())
    if form is None:
        raise UserError(f"{out}: neither .html nor .md", remedy="--out report.html", exit_code=2)
    choices, incidents = load_choices(config), load_incident_config(config)
    opened = Recording.open(recording)
    start, length = opened.manifest.start, max(opened.manifest.end - opened.manifest.start, 1)
    with _status() as (said, moved):
        said(f"detectors over {opened.manifest.name}")
        case = investigate(
            opened, choices, incidents, incident, progress=lambda at: moved(min(1.0, (at - start) / length))
        )
        said("evidence")
        shown, lines = evidence_of(case)
        tried = trials(case, progress=said) if what_if else []
        blind = without_streams(case, progress=said) if what_if else []
        silent = nearness(case, progress=said) if what_if else []
        alerts = _alerts(case, said) if rules else None
    asked = Asked(price=price, config=config, incident=incident, rules=rules, what_if=what_if)
    document = compose(Report(case, asked, tried, blind, silent, alerts, shown, lines))
    text = html.html(document) if form == "html" else markdown.markdown(document)
    try:
        out.write_text(text, encoding="utf-8")
    except OSError as error:
        raise UserError(
            f"{out}: cannot be written: {error.strerror}", remedy="name a file in a folder that is there", exit_code=2
        ) from None
    typer.echo(f"{out}: {document.title}")


@contextmanager
def _status() -> Iterator[tuple[Callable[[str], None], Callable[[float], None]]]:
    """Show on stderr what is being done while the body runs."""
    from rich.console import Console
    from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn

    columns = (TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn())
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=1.0)

        def say(words: str) -> None:
            bar.update(task, description=words, total=None)

        def move(share: float) -> None:
            bar.update(task, total=1.0, completed=share)

        yield say, move


def _alerts(case: "Case", said: Callable[[str], None]) -> "Alerts":
    """Return which alert rules of the detectors fire on the incident, by Prometheus' own engine."""
    from services.postmortem.case import place, related
    from services.postmortem.report import Alerts
    from services.rules.evaluation import evaluate
    from services.rules.files import rule_files
    from services.rules.verdict import findings_of, node_names
    from services.stack.build import ensure
    from services.stack.recipes import EVALUATOR
    from services.stack.settings import load_settings

    said("alert rules")
    files = rule_files(_ALERT_RULES)
    if not files:
        raise UserError(f"{_ALERT_RULES}: has no rule files", remedy="leave out --rules", exit_code=2)
    evaluator = ensure(load_settings().cache_dir, (EVALUATOR,))[EVALUATOR] / EVALUATOR
    changes = evaluate(evaluator, case.recording, files).changes
    found, apart = findings_of(changes, node_names([node.model_dump() for node in case.recording.topology.nodes]))
    jobs = {job.job_id for job in case.incident.impact.jobs}
    begin, end = case.incident.started_at, case.over_at or case.recording.manifest.end
    mine = [
        one
        for one in found
        if begin <= one.detected_at <= end
        and (related(one.entity, case.cause.entity) or one.entity.get("job_id") in jobs)
    ]
    return Alerts(sorted(mine, key=lambda one: (one.detected_at, one.detector, place(one.entity))), apart)
