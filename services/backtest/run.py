"""A backtest from what was asked to its figures."""

import concurrent.futures
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass, field
from typing import Any

from detectors.contract import Finding
from detectors.engine.engine import Choice
from services.backtest.figures import Subject, figures, weeks_of
from services.backtest.history import RuleSet, detected, fired, missing, node_days_of, work_off
from services.backtest.judged import Judged, judged
from services.backtest.losses import Assumptions, Ledger
from services.backtest.pieces import Part, Piece, parts_of
from services.backtest.policies import POLICIES, Policy
from services.backtest.results import Results
from services.backtest.tickets import Ticket
from services.backtest.truth import Correction, Places, Truth, of_labels, of_tickets
from services.recording.instants import format_instant

Pieces = Callable[[concurrent.futures.Executor], Sequence[Piece]]
"""Makes the pieces of a history, with an executor at hand."""
_NOTES = """\
Each window's detectors begin with its warm-up: what they learn of a site over weeks is theirs only where the \
configuration names a calibration.
A loss is taken to be spread evenly over its trouble's time; where none is stated, a job that the trouble ended has \
lost half a checkpoint interval and a restart, and other losses are not known."""


@dataclass(frozen=True)
class Asked:
    """What a backtest is to look at beside the history, and how."""

    configurations: Mapping[str, Sequence[Choice]]
    rule_sets: Mapping[str, RuleSet] = field(default_factory=dict)
    tickets: Sequence[Ticket] | None = None
    """None: the recordings' own labels are the truth."""
    corrections: Mapping[str, Correction] = field(default_factory=dict)
    before_ms: int = 7_200_000
    """How long before a ticket was opened its trouble may have begun: people take a while to write one."""
    assumed: Assumptions = field(default_factory=Assumptions)
    policies: Sequence[Policy] = POLICIES


@dataclass(frozen=True)
class Heard:
    """Who hears how far it is: `left` the number of tasks to do, then each that is done by its number."""

    left: Callable[[int], None] = lambda _: None
    done: Callable[[int], None] = lambda _: None


def backtest(
    pieces: Pieces,
    asked: Asked,
    results: Results,
    executor: AbstractContextManager[concurrent.futures.Executor],
    heard: Heard | None = None,
) -> dict[str, Any]:
    """Return the figures (`figures`, `page`); what is missing in `results` is worked on first and put there.

    UserError: as for what it reads.
    """
    heard = heard or Heard()
    with executor as pool:
        parts = parts_of(pieces(pool))
        work = missing(parts, list(asked.configurations.values()), list(asked.rule_sets.values()), results)
        heard.left(len(work))
        count = iter(range(1, len(work) + 1))
        work_off(work, pool, results, lambda _: heard.done(next(count)))
    ledgers = [Ledger(part.jobs(), part.topology, asked.assumed) for part in parts]
    judge = _Judge(parts, asked)
    subjects = [
        Subject(name, "detectors", judge([detected(part, choices, results) for part in parts]))
        for name, choices in asked.configurations.items()
    ]
    for name, rules in asked.rule_sets.items():
        alerts = [fired(part, rules, results) for part in parts]
        subjects.append(
            Subject(name, "rules", judge([found for found, _ in alerts]), sum(apart for _, apart in alerts))
        )
    return {
        "from": format_instant(min(part.begin for part in parts)),
        "to": format_instant(max(part.end for part in parts)),
        "weeks": weeks_of(parts),
        "node_days": node_days_of(parts, results),
        "truth": "labels" if asked.tickets is None else "tickets",
        "tickets_of_other_times": judge.of_other_times,
        "assumptions": asdict(asked.assumed),
        "notes": _NOTES.splitlines(),
        "worked": len(work),
        "subjects": [figures(one, parts, ledgers, asked.policies) for one in subjects],
    }


class _Judge:
    """Holds findings against the labels of each part, or against the tickets on it."""

    def __init__(self, parts: Sequence[Part], asked: Asked) -> None:
        self._asked = asked
        self._parts = parts
        self._places = [Places(part.topology) for part in parts]
        self._tickets: list[list[Ticket]] = [[] for _ in parts]
        self.of_other_times = 0
        """Tickets that were opened when the history has nothing."""
        for ticket in asked.tickets or ():
            at = [number for number, part in enumerate(parts) if part.begin <= ticket.opened_at < part.end]
            correction = asked.corrections.get(ticket.id, Correction())
            self.of_other_times += not at
            named = [number for number in at if self._places[number].of(ticket, correction)]
            for number in (named or at)[:1]:
                self._tickets[number].append(ticket)

    def __call__(self, findings: Sequence[Sequence[Finding]]) -> list[Judged]:
        """Return what a subject's findings, by part, are worth."""
        return [judged(found, self._truths(number, found)) for number, found in enumerate(findings)]

    def _truths(self, number: int, findings: Sequence[Finding]) -> list[Truth] | None:
        if self._asked.tickets is None:
            labels = self._parts[number].labels()
            return None if labels is None else of_labels(labels)
        mine, places = self._tickets[number], self._places[number]
        return of_tickets(mine, findings, places, self._asked.before_ms, self._asked.corrections)
