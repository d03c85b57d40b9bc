"""The task of a backtest: what is asked of it, checked before it waits, and what it writes."""

import json
import shutil
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from services.api.tasks.backtest_models import BacktestRequest
from services.api.tasks.detector_texts import settings_in
from services.api.tasks.models import TaskResult
from services.api.tasks.rule_texts import built_evaluator, shipped_rules, written
from services.backtest.history import RuleSet
from services.backtest.losses import Assumptions
from services.backtest.page import html, matches_csv
from services.backtest.pieces import opened, pieces_of
from services.backtest.results import Results
from services.backtest.run import Asked, Heard, Pieces, backtest
from services.backtest.server import captured
from services.backtest.tickets import Ticket, read_tickets
from services.backtest.truth import correction_of
from services.backtest.windows import Cuts
from services.detect.choices import choices_of
from services.kit.errors import UsageError, UserError
from services.kit.executors import alone
from services.kit.problems import RefusedError
from services.kit.times import parse_time
from services.recording.importers.parts.zones import zone_of
from services.recording.instants import parse_offset

if TYPE_CHECKING:
    from detectors.engine.engine import Choice
    from services.api.tasks.process import Work

_ALWAYS_MS = 2**53
"""Later than any recording."""
_TICKETS = "tickets.csv"


def checked(folder: Path, asked: BacktestRequest) -> None:
    """Write what a backtest needs into its folder. UserError (exit code 2) names what is wrong, with its line.

    RefusedError (409) where rules are given, and there is no evaluator.
    """
    names = [*(one.name for one in asked.configurations), *(one.name for one in asked.rules)]
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        raise UsageError(f"two of them are called {twice!r}", remedy="give each a name of its own")
    if asked.of is not None:
        _span(asked.of.model_dump(by_alias=True))
    for number, one in enumerate(asked.configurations):
        settings_in(f"configuration {one.name!r}", one.yaml)
        _configuration(folder, number).write_text(one.yaml, encoding="utf-8")
    for number, rules in enumerate(asked.rules):
        built_evaluator()
        if rules.rules is not None:
            path = _rules(folder, number)
            with _named_as(path.name, f"rules {rules.name!r}"):
                written(path, rules.rules)
    with _named_as("--timezone", "time zone"):
        zone_of(asked.timezone)
    if asked.tickets is not None:
        (folder / _TICKETS).write_text(asked.tickets, encoding="utf-8", newline="")
        _tickets(folder, asked.timezone)


def checked_again(folder: Path, files: Path, shown: Mapping[str, Any]) -> None:
    """Copy what a backtest was given, for one that counts again.

    UserError (exit code 2) names a correction that cannot be read. RefusedError: there is nothing to correct (409), or
    no such ticket (404).
    """
    given = (_TICKETS, *(_configuration(files, number).name for number, _ in enumerate(shown["configurations"])))
    for name in (*given, *(_rules(files, number).name for number, _ in enumerate(shown["rules"]))):
        if (files / name).is_file():
            shutil.copy(files / name, folder / name)
    if not shown["corrections"]:
        return
    tickets = _tickets(folder, shown["timezone"])
    if tickets is None:
        raise RefusedError(409, "this backtest has no tickets", remedy="correct the recordings' labels instead")
    known = {one.id for one in tickets}
    for ticket, words in shown["corrections"].items():
        if ticket not in known:
            raise RefusedError(404, f"there is no ticket {ticket}", remedy="name tickets as the matches do")
        correction_of(words, f"ticket {ticket}")


def _configuration(folder: Path, number: int) -> Path:
    return folder / f"detectors-{number}.yaml"


def _rules(folder: Path, number: int) -> Path:
    return folder / f"rules-{number}.yaml"


def _tickets(folder: Path, timezone: str) -> list[Ticket] | None:
    path = folder / _TICKETS
    if not path.is_file():
        return None
    with _named_as(str(path), "tickets"):
        return read_tickets(path, zone_of(timezone))


@contextmanager
def _named_as(what: str, words: str) -> Iterator[None]:
    """Have errors name something by the words that whoever asked knows it by."""
    try:
        yield
    except UserError as error:
        raise UserError(error.message.replace(what, words), remedy=error.remedy, exit_code=error.exit_code) from None


def carried_out(work: "Work") -> TaskResult:
    """Write report.html, backtest.json and matches.csv. UserError: as for what it reads."""
    needs, folder = work.needs, work.folder
    kept = work.store.path.parent / "backtests"
    cuts = Cuts(_ms(needs["window"]), _ms(needs["warm_up"]), needs["grid_s"] * 1000)
    asked = Asked(
        _configurations(folder, needs["configurations"]),
        {name: _rule_set(_rules(folder, number)) for number, name in enumerate(needs["rules"])},
        _tickets(folder, needs["timezone"]),
        {ticket: correction_of(words, f"ticket {ticket}") for ticket, words in needs["corrections"].items()},
        _ms(needs["before"]),
        Assumptions(**needs["assumptions"]),
    )
    work.say("reading")
    with alone() as pool:
        results = Results(kept / "results")
        result = backtest(_pieces(work, cuts, kept, results), asked, results, pool, _heard(work))
    (folder / "report.html").write_text(html(result), encoding="utf-8")
    (folder / "backtest.json").write_text(json.dumps(result, allow_nan=False), encoding="utf-8")
    (folder / "matches.csv").write_text(matches_csv(result), encoding="utf-8")
    return TaskResult()


def _configurations(folder: Path, names: Sequence[str]) -> "dict[str, Sequence[Choice]]":
    if not names:
        return {"defaults": choices_of({})}
    texts = (_configuration(folder, number).read_text(encoding="utf-8") for number, _ in enumerate(names))
    return {name: choices_of(settings_in(name, text)) for name, text in zip(names, texts, strict=True)}


def _rule_set(path: Path) -> RuleSet:
    return RuleSet([path] if path.is_file() else shipped_rules(), built_evaluator())


def _pieces(work: "Work", cuts: Cuts, kept: Path, results: Results) -> Pieces:
    needs, stretch = work.needs, work.needs["of"]
    if stretch is None:
        always = (0, _ALWAYS_MS)
        return lambda _: [
            piece for path in needs["paths"] for piece in pieces_of(opened(Path(path), results), cuts, always)
        ]
    server, cluster = work.access(), stretch["cluster"]
    return lambda pool: captured(server, cluster, cuts, _span(stretch), kept / "captured", pool, work.move)


def _heard(work: "Work") -> Heard:
    """Return what has the task say how much is done."""
    count = [1]

    def done(number: int) -> None:
        work.move(number / count[0])
        work.say(f"looking at it: {number} of {count[0]} pieces")

    def left(pieces: int) -> None:
        count[0] = max(pieces, 1)
        done(0)

    return Heard(left, done)


def _ms(length: str) -> int:
    return parse_offset(f"+{length}")


def _span(stretch: Mapping[str, Any]) -> tuple[int, int]:
    """Return the time asked for, in ms. UserError (exit code 2) where it is none."""
    first, last = parse_time(stretch["from"]), parse_time(stretch["to"])
    if last <= first:
        raise UsageError("`to` is not after `from`", remedy="correct the two")
    return first, last
