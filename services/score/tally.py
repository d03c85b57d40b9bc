"""Outcomes counted: by fault and over all, with delays, false alarms by node-days, and how well findings behave."""

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Self

import numpy as np

from detectors.contract import Finding
from services.recording.model import Label
from services.score.matching import Outcome, about

RESOLVE_WITHIN_S = 300.0
"""So soon after a label's end its finding should be resolved."""


_COUNT_OF = {
    "hit": "hits", "miss": "misses", "false": "false_alarms", "late": "late", "repeat": "repeats",
    "optional": "optional",
}  # fmt: skip


class Summed:
    """Counts and lists that add up over recordings."""

    def merge(self, other: Self) -> None:
        """Add another's, field by field."""
        for name, value in vars(other).items():
            setattr(self, name, getattr(self, name) + value)


@dataclass
class Tally(Summed):
    """Counts of one fault, or of all; delays in seconds."""

    hits: int = 0
    misses: int = 0
    false_alarms: int = 0
    late: int = 0
    repeats: int = 0
    optional: int = 0
    delays_s: list[float] = field(default_factory=list)

    def add(self, outcome: Outcome) -> None:
        """Count one outcome."""
        count = _COUNT_OF.get(outcome.kind)
        if count is None:
            return  # where nobody has labelled anything, nothing is right or wrong
        setattr(self, count, getattr(self, count) + 1)
        if outcome.kind == "hit":
            self.delays_s.append(outcome.delay_s or 0.0)

    @property
    def labels(self) -> int:
        """Labels that require an alert."""
        return self.hits + self.misses

    @property
    def precision(self) -> float:
        """Hits by alerts that had to explain something; NaN without any."""
        return _share(self.hits, self.hits + self.false_alarms)

    @property
    def recall(self) -> float:
        """Hits by labels; NaN without any."""
        return _share(self.hits, self.labels)

    @property
    def f1(self) -> float:
        """The harmonic mean of precision and recall, from the counts."""
        return _share(2 * self.hits, 2 * self.hits + self.false_alarms + self.misses)

    def delay_s(self, share: float) -> float:
        """Return a quantile of the delays; NaN without any hit."""
        return float(np.quantile(self.delays_s, share)) if self.delays_s else float("nan")

    def figures(self) -> dict[str, float | int | None]:
        """Return all figures as JSON can say them."""
        return {
            "labels": self.labels,
            "hits": self.hits,
            "misses": self.misses,
            "late": self.late,
            "repeats": self.repeats,
            "optional": self.optional,
            "false_alarms": self.false_alarms,
            "precision": figure(self.precision),
            "recall": figure(self.recall),
            "f1": figure(self.f1),
            "delay_p50_s": figure(self.delay_s(0.5)),
            "delay_p95_s": figure(self.delay_s(0.95)),
        }


def figure(value: float) -> float | None:
    """Return a figure as JSON can say it: null where it has no value."""
    return round(value, 4) if np.isfinite(value) else None


def _share(part: int, whole: int) -> float:
    return part / whole if whole else float("nan")


def tally(outcomes: Iterable[Outcome]) -> dict[str, Tally]:
    """Return the counts by fault; under ``all`` those of all faults together."""
    found: dict[str, Tally] = defaultdict(Tally)
    for outcome in outcomes:
        found[outcome.fault].add(outcome)
        found["all"].add(outcome)
    found.setdefault("all", Tally())
    return dict(sorted(found.items(), key=lambda item: (item[0] == "all", item[0])))


def upper_bound(events: int) -> float:
    """Return the upper bound, at 95%, of a Poisson mean of which `events` were seen (exact, by Garwood 1936)."""
    from scipy.special import gammaincinv  # half of chi-squared's quantile at twice the degrees of freedom

    return float(gammaincinv(events + 1, 0.95))


@dataclass
class Manners(Summed):
    """How findings behave around the labels: counts, of labels that were hit unless stated otherwise."""

    jobs_hit: int = 0
    """Required labels with a job, in whose nodes something was raised while they lasted."""
    culprit_first: int = 0
    """Of those: the first finding there was on the culprit."""
    once: int = 0
    """Raised no more than once on the entity while the label lasted."""
    resolvable: int = 0
    """Labels that ended so long before the recording's end that a resolve was due."""
    resolved_in_time: int = 0
    hits: int = 0


def manners(
    findings: Sequence[Finding],
    labels: Sequence[Label],
    outcomes: Sequence[Outcome],
    nodes_of: dict[str, set[str]],
    end: int,
) -> Manners:
    """Return how one recording's findings behaved.

    `nodes_of` gives the nodes of each job, `end` the recording's end (ms).
    """
    found = Manners()
    raised = [finding for finding in findings if finding.state == "firing"]
    resolved = {finding.id: finding.detected_at for finding in findings if finding.state == "resolved"}
    for label in labels:
        if label.distractor or label.optional or label.job_id is None:
            continue
        nodes = nodes_of.get(label.job_id, set())
        there = [
            finding
            for finding in raised
            if label.onset <= finding.detected_at <= label.end
            and (
                finding.entity.get("node") in nodes
                or finding.entity.get("job_id") == label.job_id
                or about(label, finding.entity)
            )
        ]
        if there:
            found.jobs_hit += 1
            first = min(finding.detected_at for finding in there)
            culprits = [other for other in labels if not other.distractor and other.onset <= first <= other.end]
            found.culprit_first += any(
                about(other, finding.entity) for finding in there if finding.detected_at == first for other in culprits
            )
    for outcome in outcomes:
        if outcome.kind != "hit" or outcome.label is None or outcome.finding is None:
            continue
        label, entity = outcome.label, outcome.finding.entity
        found.hits += 1
        again = [
            finding
            for finding in raised
            if finding.fault == label.fault
            and finding.entity == entity
            and label.onset <= finding.detected_at <= label.end
        ]
        found.once += len(again) == 1
        if label.end + RESOLVE_WITHIN_S * 1000 < end:
            found.resolvable += 1
            closed = max((resolved.get(finding.id, end) for finding in again), default=end)
            found.resolved_in_time += closed <= label.end + RESOLVE_WITHIN_S * 1000
    return found
