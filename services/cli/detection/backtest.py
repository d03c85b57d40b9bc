"""`hindcast backtest`: what detectors and rules would have raised over months, against the tickets that there were."""

import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from services.cli.recordings.commands import Strict, progress_bar
from services.cli.recordings.from_server import BearerFile, CaFile, Cluster, PasswordFile, Tenant, Url, User
from services.cli.recordings.named import recordings_of
from services.cli.written import write_files
from services.kit.errors import UsageError

if TYPE_CHECKING:
    from detectors.engine.engine import Choice
    from services.backtest.history import RuleSet
    from services.backtest.run import Heard, Pieces

_Recordings = Annotated[
    list[Path] | None,
    typer.Argument(help="recordings of one or several clusters", callback=recordings_of, show_default=False),
]


def backtest(
    recordings: _Recordings = None,
    url: Url = None,
    from_: Annotated[str | None, typer.Option("--from", help="first instant: RFC 3339, or how long ago, -90d")] = None,
    to: Annotated[str | None, typer.Option("--to", help="last instant: RFC 3339, -1d, or now")] = None,
    incidents: Annotated[Path | None, typer.Option(help="CSV of tickets; else the recordings' labels count")] = None,
    matches: Annotated[Path | None, typer.Option(help="matches.csv of an earlier run, corrected")] = None,
    timezone: Annotated[str, typer.Option(help="zone of tickets' times that name none")] = "UTC",
    before: Annotated[str, typer.Option(help="how long before its ticket a trouble may have begun")] = "2h",
    config: Annotated[list[Path] | None, typer.Option(help="a detectors.yaml; again for more, each on its own")] = None,
    rules: Annotated[list[Path] | None, typer.Option(help="a rule file, or a folder of them; again for more")] = None,
    policy: Annotated[
        list[str] | None, typer.Option(help="none, drain-on-page, or 'drain-after N'; again for more")
    ] = None,
    assume: Annotated[
        list[str] | None, typer.Option(help="NAME=NUMBER: an assumption; the report has them all")
    ] = None,
    window: Annotated[str, typer.Option(help="how much is worked on at once")] = "1d",
    warm_up: Annotated[str, typer.Option(help="what is read before each window")] = "2h",
    grid: Annotated[str, typer.Option(help="how often detectors decide: 5s as live, up to 30s")] = "5s",
    workers: Annotated[int, typer.Option(min=1, help="windows worked on at a time")] = 2,
    ray: Annotated[str | None, typer.Option(help="a Ray cluster for the windows: auto, ray://HOST:10001")] = None,
    dask: Annotated[str | None, typer.Option(help="a Dask cluster that does: tcp://HOST:8786")] = None,
    work: Annotated[Path | None, typer.Option(help="folder of kept results; else in the user's cache")] = None,
    out: Annotated[Path, typer.Option(help="folder for report.html, backtest.json and matches.csv")] = Path("backtest"),
    cluster: Cluster = None,
    bearer_file: BearerFile = None,
    user: User = None,
    password_file: PasswordFile = None,
    ca_file: CaFile = None,
    tenant: Tenant = None,
    strict: Strict = False,
) -> None:
    """Report what would have been caught, missed and raised falsely in weeks to years, and what it would have saved.

    Broken off, it goes on where it was; after a change of one detector only that one is run again.
    """
    from services.backtest.losses import assumptions
    from services.backtest.pieces import opened, pieces_of
    from services.backtest.policies import POLICIES, policy_of
    from services.backtest.results import Results
    from services.backtest.run import Asked
    from services.backtest.run import backtest as run
    from services.backtest.server import captured
    from services.backtest.tickets import read_tickets
    from services.backtest.truth import read_corrections
    from services.backtest.windows import Cuts
    from services.kit.executors import executor_of
    from services.kit.folders import cache_dir
    from services.recording.importers.parts.series.query_api import Access
    from services.recording.importers.parts.zones import zone_of

    if (url is None) == (not recordings):
        raise UsageError("name recordings, or a server by --url", remedy="hindcast backtest DIR")
    cuts = Cuts(_length("--window", window), _length("--warm-up", warm_up, least=0), _grid(grid))
    span, folder = _span(from_, to, url is not None), work or cache_dir("backtest")
    asked = Asked(
        _configurations(config),
        _rule_sets(rules),
        None if incidents is None else read_tickets(incidents, zone_of(timezone)),
        {} if matches is None else read_corrections(matches),
        _length("--before", before, least=0),
        assumptions(assume or ()),
        [policy_of(text) for text in policy] if policy else POLICIES,
    )
    results = Results(folder / "results")
    with _progress() as (heard, moved):
        pieces: Pieces
        if url is not None:
            access = Access(url, bearer_file, user, password_file, ca_file, tenant)
            pieces = lambda pool: captured(access, cluster, cuts, span, folder / "captured", pool, moved)  # noqa: E731
        else:
            open_ = partial(opened, results=results, strict=strict)
            pieces = lambda _: [one for path in recordings or () for one in pieces_of(open_(path), cuts, span)]  # noqa: E731
        report = run(pieces, asked, results, executor_of(workers, ray=ray, dask=dask), heard)
    _write(out, report)
    _print(report, out)


def _configurations(given: Sequence[Path] | None) -> "dict[str, Sequence[Choice]]":
    from services.detect.choices import load_choices

    if not given:
        return {"defaults": load_choices(None)}
    return {name: load_choices(path) for name, path in _named("--config", given).items()}


def _named(option: str, given: Sequence[Path]) -> dict[str, Path]:
    """Return what is given by its name; where names are the same, by its path."""
    stems = [path.stem for path in given]
    found = {str(path) if stems.count(path.stem) > 1 else path.stem: path for path in given}
    if len(found) < len(given):
        raise UsageError(f"{option} names a file twice", remedy="give each once")
    return found


def _rule_sets(given: Sequence[Path] | None) -> "dict[str, RuleSet]":
    from services.backtest.history import RuleSet
    from services.rules.evaluation import evaluator_program, reads_of

    found: dict[str, RuleSet] = {}
    for name, path in _named("--rules", given or ()).items():
        files = sorted(path.glob("*.y*ml")) if path.is_dir() else [path]
        if not files or not all(file.is_file() for file in files):
            raise UsageError(f"{path}: no such rule file", remedy="name a file or a folder of rule files")
        evaluator = evaluator_program()
        reads_of(evaluator, files)
        found[name] = RuleSet([file.absolute() for file in files], evaluator)
    return found


def _length(option: str, text: str, least: int = 60_000) -> int:
    """Return a length of time in milliseconds."""
    from services.recording.instants import parse_offset

    try:
        length = parse_offset(f"+{text}")
    except ValueError:
        length = -1
    if length < least:
        raise UsageError(f"{option} {text!r} is no length of time", remedy="write it as 1d, 6h or 1h30m")
    return length


def _grid(text: str) -> int:
    found = _length("--grid", text, least=1)
    if 30_000 % found or found < 5000:
        raise UsageError(f"--grid {text} is none", remedy="5s, 10s, 15s or 30s")
    return found


def _span(start: str | None, end: str | None, needed: bool) -> tuple[int, int]:
    """Return the time asked for, in ms, both ends included; without it all that there is."""
    from services.kit.times import wall_ms
    from services.recording.instants import resolve_past

    if needed and (start is None or end is None):
        raise UsageError("--url needs --from and --to", remedy="for instance --from -90d --to now")
    now = wall_ms()
    try:
        first = 0 if start is None else resolve_past(start, now)
        last = now if end is None else resolve_past(end, now)
    except ValueError as error:
        raise UsageError(str(error), remedy="write 2026-03-04T00:00:00Z, -90d or now") from None
    if last <= first:
        raise UsageError(f"--to {end} is not after --from {start}", remedy="correct the two")
    return first, last


@contextmanager
def _progress() -> "Iterator[tuple[Heard, Callable[[float], None]]]":
    """Show on stderr how far it is: what is captured, then the tasks."""
    from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn

    from services.backtest.run import Heard

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with progress_bar("reading", *columns, total=None) as moved:
        yield (
            Heard(lambda count: moved(0, description="windows", total=count), moved),
            lambda share: moved(round(100 * share), description="capturing", total=100),
        )


def _write(out: Path, report: Mapping[str, Any]) -> None:
    from services.backtest.page import html, matches_csv

    texts = {
        "report.html": html(report),
        "backtest.json": json.dumps(report, indent=1, allow_nan=False) + "\n",
        "matches.csv": matches_csv(report),
    }
    write_files(out, texts)


def _print(report: Mapping[str, Any], out: Path) -> None:
    from services.backtest.page import sheets
    from services.cli.sheets import plain_console, print_sheet

    console = plain_console()
    for sheet in sheets(report):
        print_sheet(console, sheet)
    console.print(f"\n{report['worked']} tasks were worked on; the rest was there already.")
    console.print(f"{out}: report.html, backtest.json, matches.csv")
