"""Findings against labels, by the rule of the recording format: one to one, most matches first, then least delay.

A finding and a label match when the fault is the same, the entities are equal or one holds the other by one level (a
GPU or NIC in its node, a port in its switch), and the finding was first raised from the label's onset to `within_s`
after it. A further finding on a matching entity until the label's end is a repeat; one after `within_s`, where nothing
was raised in time, is late: the label is missed and the finding no false alarm. What explains nothing is false.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np

from detectors.contract import Entity, Finding
from services.recording.model import Label

Kind = Literal["hit", "miss", "late", "repeat", "false", "optional", "unknown"]
_INSIDE = ({"node", "gpu"}, {"node", "nic"}, {"switch", "port"})
_UNMATCHED = 1e15
"""Costs more than all delays together: a match is always worth more than any delay."""
_OPTIONAL = 1e12
"""A finding that could answer for a required label is not spent on an optional one."""


@dataclass(frozen=True)
class Outcome:
    """What became of a label (hit, miss) or of a finding (late, repeat, false, optional, unknown)."""

    kind: Kind
    fault: str
    label: Label | None = None
    finding: Finding | None = None

    @property
    def delay_s(self) -> float | None:
        """Seconds from the label's onset to the finding; None without both."""
        if self.label is None or self.finding is None:
            return None
        return (self.finding.detected_at - self.label.onset) / 1000


def same_place(one: Mapping[str, str | int], other: Mapping[str, str | int]) -> bool:
    """Return whether two entities are the same, or one holds the other by one level."""
    if one == other:
        return True
    small, large = (one, other) if len(one) < len(other) else (other, one)
    return len(large) == len(small) + 1 and set(large) in _INSIDE and small.items() <= large.items()


def about(label: Label, entity: Entity) -> bool:
    """Return whether an entity is the label's, or one that is as right."""
    return any(same_place(place, entity) for place in (label.entity, *label.also))


def judge(findings: Sequence[Finding], labels: Sequence[Label] | None) -> list[Outcome]:
    """Return the outcome of every label that is required and of every firing finding, fault by fault.

    Findings that are resolved or alert nobody (severity info), and distractors, play no part: an alert on a distractor
    explains no label. Where nobody has labelled anything (None), whether a finding is right is unknown.
    """
    raised = [finding for finding in findings if finding.state == "firing" and finding.severity != "info"]
    if labels is None:
        return [Outcome("unknown", finding.fault, None, finding) for finding in raised]
    truths = [label for label in labels if not label.distractor]
    outcomes: list[Outcome] = []
    for fault in sorted({label.fault for label in truths} | {finding.fault for finding in raised}):
        outcomes += _of_fault(
            fault,
            [finding for finding in raised if finding.fault == fault],
            [label for label in truths if label.fault == fault],
        )
    return outcomes


def _of_fault(fault: str, findings: list[Finding], labels: list[Label]) -> list[Outcome]:
    pairs = _assigned(findings, labels)
    outcomes: list[Outcome] = []
    used = {number for number, _ in pairs}
    answered = {number for _, number in pairs}
    for number, place in pairs:
        kind: Kind = "optional" if labels[place].optional else "hit"
        outcomes.append(Outcome(kind, fault, labels[place], findings[number]))
    for place, label in enumerate(labels):
        if place not in answered and not label.optional:
            outcomes.append(Outcome("miss", fault, label))
    for number, finding in enumerate(findings):
        if number in used:
            continue
        explained = [
            place
            for place, label in enumerate(labels)
            if label.onset <= finding.detected_at <= label.end and about(label, finding.entity)
        ]
        if not explained:
            outcomes.append(Outcome("false", fault, None, finding))
        elif set(explained) & answered:
            outcomes.append(Outcome("repeat", fault, labels[min(set(explained) & answered)], finding))
        else:
            outcomes.append(Outcome("late", fault, labels[explained[0]], finding))
    return outcomes


def _assigned(findings: list[Finding], labels: list[Label]) -> list[tuple[int, int]]:
    """Return pairs of (finding, label): as many as there can be, and of those the least total delay."""
    if not findings or not labels:
        return []
    cost = np.full((len(findings), len(labels)), _UNMATCHED)
    for place, label in enumerate(labels):
        due = label.onset + label.within_s * 1000
        for number, finding in enumerate(findings):
            if label.onset <= finding.detected_at <= due and about(label, finding.entity):
                delay = finding.detected_at - label.onset
                cost[number, place] = delay + (_OPTIONAL if label.optional else 0.0)
    possible = cost < _UNMATCHED
    rows, columns = possible.nonzero()
    if max(possible.sum(axis=0).max(), possible.sum(axis=1).max()) > 1:  # else nobody has a choice
        from scipy.optimize import linear_sum_assignment  # takes a second, which most runs need not pay

        rows, columns = linear_sum_assignment(cost)
    return [(row, column) for row, column in zip(rows.tolist(), columns.tolist(), strict=True) if possible[row, column]]
