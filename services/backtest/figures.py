"""The figures of a backtest as JSON can say them: what a page, a terminal and other programs are given."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from statistics import median
from typing import Any

from detectors.contract import Finding
from services.backtest.judged import Answer, Judged, outcomes_of
from services.backtest.losses import Ledger, total
from services.backtest.pages import WEEK_MS, Notice, notices, offenders, pages_a_week
from services.backtest.pieces import Part
from services.backtest.policies import POLICIES, Policy, outcome_of
from services.recording.instants import format_instant
from services.score.tally import Tally, tally


@dataclass
class Subject:
    """A configuration or a set of rules, with what it came to in each part of the history."""

    name: str
    kind: str
    """``detectors`` or ``rules``."""
    judged: Sequence[Judged]
    apart: int = 0
    """Alerts of rules that name no part of the cluster, or are informative."""


def weeks_of(parts: Sequence[Part]) -> float:
    """Return how long the history is: time that several recordings cover counts once, what none has not at all."""
    covered, upto = 0, 0
    for window in sorted((piece.window for part in parts for piece in part.pieces), key=lambda one: one.begin):
        covered += max(0, window.end - max(window.begin, upto))
        upto = max(upto, window.end)
    return covered / WEEK_MS


def figures(
    subject: Subject, parts: Sequence[Part], ledgers: Sequence[Ledger], policies: Sequence[Policy] = POLICIES
) -> dict[str, Any]:
    """Return all that is reported of a subject; `ledgers` has the jobs of each part."""
    whole = Judged()
    sent: list[Notice] = []
    for part, one in zip(parts, subject.judged, strict=True):
        whole.add(one)
        sent += notices(one.findings, part.topology)
    weeks = weeks_of(parts)
    caught = whole.of("caught")
    known = whole.false is not None
    counts = tally(outcomes_of(whole))
    return {
        "name": subject.name,
        "kind": subject.kind,
        "known": known,
        "truths": len(whole.answers),
        **{f"{what.replace(' ', '_')}": len(whole.of(what)) for what in ("caught", "missed", "unclear", "outside")},
        "by_time_and_host_alone": sum(one.truth.how == "time and host alone" for one in caught),
        "before_the_ticket": sum((one.against_s or 0) < 0 for one in caught),
        "against_ticket_p50_s": median(one.against_s or 0.0 for one in caught) if caught else None,
        "false": len(whole.false or []),
        "false_a_week": len(whole.false or []) / weeks,
        "repeats": whole.repeats,
        "alerts_apart": subject.apart,
        "sent_a_week": pages_a_week(sent, weeks),
        "offenders": offenders(sent),
        "gpu_hours": _hours(subject, ledgers),
        "policies": [asdict(outcome_of(policy, subject.judged, ledgers)) for policy in policies] if known else [],
        "faults": {name: _counts(one) for name, one in counts.items()},
        "matches": [_match(one) for one in whole.answers],
        "cried_wolf": [_alert(one) for one in whole.false or []],
    }


def _hours(subject: Subject, ledgers: Sequence[Ledger]) -> dict[str, Any]:
    """Return the GPU-hours that all troubles cost, and what an alert of this subject would have saved of them."""
    lost, saved = [], []
    for one, ledger in zip(subject.judged, ledgers, strict=True):
        for answer in one.answers:
            if answer.verdict in {"caught", "missed", "not required"}:
                lost.append(ledger.lost(answer.truth))
            if answer.finding is not None:
                saved.append(ledger.saved(answer.truth, answer.finding.detected_at))
    (lost_h, unknown), (saved_h, _) = total(lost), total(saved)
    return {"lost": lost_h, "saved": saved_h, "of_unknown_cost": unknown}


def _counts(counts: Tally) -> dict[str, int]:
    return {"caught": counts.hits, "missed": counts.misses, "false": counts.false_alarms}


def _match(answer: Answer) -> dict[str, Any]:
    """Return a label or ticket with what answered for it, and by what it was matched."""
    truth, finding = answer.truth, answer.finding
    return {
        "ticket": truth.label.id,
        "at": format_instant(truth.at),
        "fault": truth.label.fault,
        "entity": truth.label.entity,
        "words": truth.label.note or "",
        "verdict": answer.verdict,
        "how": truth.how,
        "against_s": answer.against_s,
        "alert": None if finding is None else _alert(finding),
    }


def _alert(finding: Finding) -> dict[str, Any]:
    return {
        "detector": finding.detector,
        "fault": finding.fault,
        "entity": dict(finding.entity),
        "at": format_instant(finding.detected_at),
        "severity": finding.severity,
        "summary": finding.summary,
    }
