"""One configuration, or one set of rules, held against what really happened: by the scorer's own rule."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Literal

from detectors.contract import Finding
from detectors.faults import faults
from services.backtest.truth import Truth
from services.score.matching import Outcome, about, judge

Verdict = Literal["caught", "missed", "unclear", "outside", "not required"]


@dataclass(frozen=True)
class Answer:
    """What became of a label or ticket, and the alert that answered for it."""

    truth: Truth
    verdict: Verdict
    finding: Finding | None = None

    @property
    def against_s(self) -> float | None:
        """Seconds from when people knew to the alert: before the ticket it is negative; None where nothing answered."""
        return None if self.finding is None else (self.finding.detected_at - self.truth.at) / 1000


@dataclass
class Judged:
    """All that one subject raised, and what it is worth; `false` is None where nobody knows what was true."""

    findings: list[Finding] = field(default_factory=list)
    answers: list[Answer] = field(default_factory=list)
    false: list[Finding] | None = None
    repeats: int = 0
    """Further alerts on what was caught, or late ones."""

    def add(self, other: "Judged") -> None:
        """Add another part of the history."""
        self.findings += other.findings
        self.answers += other.answers
        self.repeats += other.repeats
        if other.false is not None:
            self.false = [*(self.false or []), *other.false]

    def of(self, verdict: Verdict) -> list[Answer]:
        """Return the answers of one kind."""
        return [one for one in self.answers if one.verdict == verdict]


def judged(findings: Sequence[Finding], truths: Sequence[Truth] | None) -> Judged:
    """Return what the findings of one part of the history are worth; without truths that is unknown.

    Beside the scorer's rule, which is one alert to one label: tickets about the same trouble are answered by the same
    alert, and an alert at a ticket's place in its time is explained by it, whatever fault it names.
    """
    if truths is None:
        return Judged(list(findings))
    known = [one for one in truths if one.state == "judged" and not one.label.distractor]
    alerts = [_named(one, known) for one in findings]
    outcomes = judge(alerts, [one.label for one in known])
    hits = {o.label.id: o.finding for o in outcomes if o.label is not None and o.kind in {"hit", "optional"}}
    answers = [_answer(one, hits.get(one.label.id), alerts) for one in truths if not one.label.distractor]
    unexplained = [o.finding for o in outcomes if o.kind == "false" and o.finding is not None]
    ticketed = [one for one in known if one.ticket is not None]
    false = [one for one in unexplained if not any(_meant(truth, one) for truth in ticketed)]
    again = sum(o.kind in {"repeat", "late"} for o in outcomes) + len(unexplained) - len(false)
    return Judged(list(findings), answers, false, again)


def _named(finding: Finding, known: Sequence[Truth]) -> Finding:
    """Return an alert that names no fault of ours as one on the fault of what it is about, where there is any."""
    if finding.fault in faults():
        return finding
    meant = [one for one in known if _meant(one, finding)]
    nearest = min(meant, key=lambda one: (abs(finding.detected_at - one.at), one.label.id), default=None)
    return finding if nearest is None else replace(finding, fault=nearest.label.fault)


def _meant(truth: Truth, finding: Finding) -> bool:
    label = truth.label
    return label.onset <= finding.detected_at <= label.end and about(label, finding.entity)


def _answer(truth: Truth, hit: Finding | None, alerts: Sequence[Finding]) -> Answer:
    if truth.state != "judged":
        return Answer(truth, "unclear" if truth.state == "unclear" else "outside")
    if hit is None and truth.ticket is not None:
        same = (one for one in judge(alerts, [truth.label]) if one.kind == "hit")
        hit = next((one.finding for one in same), None)
    if hit is not None:
        return Answer(truth, "caught", hit)
    return Answer(truth, "not required" if truth.label.optional else "missed")


def outcomes_of(judged_: Judged) -> list[Outcome]:
    """Return the answers and false alarms as the scorer's outcomes, to be counted by its tally."""
    kinds = {"caught": "hit", "missed": "miss", "not required": "optional"}
    found = [
        Outcome(kinds[one.verdict], one.truth.label.fault, one.truth.label, one.finding)  # type: ignore[arg-type]  # a Kind
        for one in judged_.answers
        if one.verdict in kinds
    ]
    return found + [Outcome("false", one.fault, None, one) for one in judged_.false or []]
