"""The task of a backtest: what is asked of it, checked before it waits, and what it writes."""

import csv
import json
from collections.abc import Iterator, Mapping
from concurrent.futures import Executor, ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.api.tasks.backtest_models import BacktestRequest
from services.api.tasks.models import TaskResult
from services.api.tasks.rule_texts import built_evaluator, written
from services.backtest.history import RuleSet
from services.backtest.page import html, matches_csv
from services.backtest.pieces import pieces_of
from services.backtest.results import Results
from services.backtest.run import Asked, Heard, Pieces, backtest
from services.backtest.server import Server, captured
from services.backtest.tickets import read_tickets
from services.backtest.truth import read_corrections
from services.backtest.windows import Cuts
from services.detect.choices import choices_of
from services.kit.errors import UserError
from services.kit.times import parse_time
from services.recording.importers.parts.zones import zone_of
from services.recording.instants import parse_offset
from services.recording.tidy import open_tidy

if TYPE_CHECKING:
    from services.api.tasks.process import Work

_ALWAYS_MS = 2**53
"""Later than any recording."""
TICKETS, MATCHES = "tickets.csv", "corrections.csv"


def checked(folder: Path, asked: BacktestRequest) -> None:
    """Write what a backtest needs into its folder. UserError (exit code 2) names what is wrong, with its line."""
    for names in ([one.name for one in asked.configurations], [one.name for one in asked.rules]):
        if len(set(names)) < len(names):
            raise UserError("two of them have the same name", remedy="give each its own", exit_code=2)
    for one in asked.configurations:
        choices_of(one.detectors)
    for number, rules in enumerate(asked.rules):
        written(folder / f"rules-{number}.yaml", rules.rules)
    if asked.of is not None:
        _span(asked.of.model_dump(by_alias=True))
    zone = zone_of(asked.timezone)
    if asked.tickets is not None:
        (folder / TICKETS).write_text(asked.tickets, encoding="utf-8", newline="")
        with _named(folder):
            read_tickets(folder / TICKETS, zone)


def corrected(folder: Path, corrections: Mapping[str, str]) -> None:
    """Write corrections by ticket. UserError (exit code 2) names the one that cannot be read."""
    with (folder / MATCHES).open("w", encoding="utf-8", newline="") as file:
        rows = csv.writer(file)
        rows.writerows([("ticket", "correct"), *corrections.items()])
    with _named(folder):
        read_corrections(folder / MATCHES)


@contextmanager
def _named(folder: Path) -> Iterator[None]:
    """Have errors name files, not where they lie here."""
    try:
        yield
    except UserError as error:
        words = error.message.replace(f"{folder}/", "")
        raise UserError(words, remedy=error.remedy, exit_code=error.exit_code) from None


def carried_out(work: "Work") -> TaskResult:
    """Write report.html, backtest.json and matches.csv. UserError: as for what it reads."""
    needs, folder = work.needs, work.folder
    kept = work.store.path.parent / "backtests"
    cuts = Cuts(_ms(needs["window"]), _ms(needs["warm_up"]), needs["grid_s"] * 1000)
    tickets, matches = folder / TICKETS, folder / MATCHES
    configurations = needs["configurations"] or [{"name": "defaults", "detectors": {}}]
    asked = Asked(
        {one["name"]: choices_of(one["detectors"]) for one in configurations},
        {
            one["name"]: RuleSet([folder / f"rules-{number}.yaml"], built_evaluator())
            for number, one in enumerate(needs["rules"])
        },
        read_tickets(tickets, zone_of(needs["timezone"])) if tickets.is_file() else None,
        read_corrections(matches) if matches.is_file() else {},
        _ms(needs["before"]),
    )
    work.say("reading")
    with _alone() as pool:
        result = backtest(_pieces(work, cuts, kept), asked, Results(kept / "results"), pool, _heard(work))
    (folder / "report.html").write_text(html(result), encoding="utf-8")
    (folder / "backtest.json").write_text(json.dumps(result, allow_nan=False), encoding="utf-8")
    (folder / "matches.csv").write_text(matches_csv(result), encoding="utf-8")
    return TaskResult()


def _pieces(work: "Work", cuts: Cuts, kept: Path) -> Pieces:
    needs, stretch = work.needs, work.needs["of"]
    if stretch is None:
        always = (0, _ALWAYS_MS)
        return lambda _: [
            piece for path in needs["paths"] for piece in pieces_of(open_tidy(Path(path), strict=False), cuts, always)
        ]
    given = needs["server"]
    files = {name: Path(given[name]) if given[name] else None for name in ("bearer_file", "password_file", "ca_file")}
    server = Server(given["url"], stretch["cluster"], user=given["user"], tenant=given["tenant"], **files)
    return lambda pool: captured(server, cuts, _span(stretch), kept / "captured", pool, work.move)


def _heard(work: "Work") -> Heard:
    """Return what has the task say how many windows are done."""
    count = [1]

    def left(tasks: int) -> None:
        count[0] = max(tasks, 1)
        work.move(0.0)
        work.say(f"{tasks} tasks over windows")

    return Heard(left, lambda number: work.move(number / count[0]))


@contextmanager
def _alone() -> Iterator[Executor]:
    """Give an executor within this process, which may have no others below it; an error ends what waits."""
    pool = ThreadPoolExecutor(1)
    try:
        yield pool
    finally:
        pool.shutdown(cancel_futures=True)


def _ms(length: str) -> int:
    return parse_offset(f"+{length}")


def _span(stretch: Mapping[str, Any]) -> tuple[int, int]:
    """Return the time asked for, in ms. UserError (exit code 2) where it is none."""
    first, last = parse_time(stretch["from"]), parse_time(stretch["to"])
    if last <= first:
        raise UserError("`to` is not after `from`", remedy="correct the two", exit_code=2)
    return first, last
