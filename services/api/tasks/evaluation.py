"""Alert rules over recordings, in event time, held against the labels as the detectors' findings are."""

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from detectors.contract import Entity, Finding
from detectors.faults import faults
from services.api.recordings.library import truth
from services.api.tasks.rules_models import (
    Answer,
    AnsweredLabel,
    EvaluatedRecording,
    Fared,
    FiredAlert,
    RuleCount,
)
from services.backtest.judged import Answer as Judgement
from services.backtest.judged import Judged, judged
from services.backtest.truth import of_labels
from services.kit.times import format_time
from services.recording.reader import Recording
from services.rules.evaluation import Change, Settings, evaluate
from services.rules.verdict import entity_of, findings_of, node_names
from services.score.matching import about

_MOST = 2000
"""Alerts of a recording that are listed; all are counted."""
Verdict = Literal["hit", "late", "repeat", "false"]


@dataclass(frozen=True)
class Found:
    """What the detectors found in a recording, firing and resolved; by a run, where `run` names it."""

    findings: Sequence[Finding]
    run: str | None = None


@dataclass
class _Alert:
    """A firing alert, what it is about, and what can be judged of it."""

    change: Change
    entity: Entity
    finding: Finding | None
    resolved_at: int | None = None


def evaluated(
    recording: Recording,
    files: Sequence[Path],
    evaluator: Path,
    settings: Settings,
    found: Found,
    moved: Callable[[float], None],
) -> EvaluatedRecording:
    """Return what the rules fire over a recording beside what the detectors `found`; `moved` hears the share done.

    UserError: a rule or the recording is wrong.
    """
    start, end = recording.manifest.start, recording.manifest.end
    result = evaluate(
        evaluator, recording, files, settings, progress=lambda at: moved((at - start) / max(end - start, 1))
    )
    labels = recording.truth()
    truths = None if labels is None else of_labels(labels)
    alerts = _alerts(result.changes, node_names([node.model_dump() for node in recording.topology.nodes]))
    of_rules = judged([one.finding for one in alerts if one.finding is not None], truths)
    firing = [one for one in found.findings if one.state == "firing"]
    of_detectors = judged([one for one in firing if one.severity != "info"], truths)
    over = {one.id: one.detected_at for one in found.findings if one.state == "resolved"}
    verdict = _verdicts(of_rules)
    listed = [_of_rule(one, *verdict(one.finding)) for one in alerts]
    verdict = _verdicts(of_detectors)
    listed += [_of_detector(one, over.get(one.id), *verdict(one)) for one in firing]
    listed.sort(key=lambda one: (one.at, one.by, one.name))
    return EvaluatedRecording(
        name=recording.manifest.name,
        start=format_time(start),
        end=format_time(end),
        labelled=labels is not None,
        run=found.run,
        rules=_fared(len(alerts), of_rules),
        detectors=_fared(len(firing), of_detectors),
        labels=_answered(of_rules, of_detectors),
        alerts=listed,
        unlisted=0,
        failures=result.errors,
        series=result.series,
        samples=result.samples,
    )


def counts(names: Iterable[str], recordings: Iterable[EvaluatedRecording]) -> list[RuleCount]:
    """Return how each rule of these `names` fared, in their order; to be asked before alerts are cut off."""
    seen = Counter((one.name, one.verdict) for of in recordings for one in of.alerts if one.by == "rules")
    return [
        RuleCount(
            name=name,
            fired=sum(count for (other, _), count in seen.items() if other == name),
            hits=seen[name, "hit"],
            late=seen[name, "late"],
            repeats=seen[name, "repeat"],
            false_alarms=seen[name, "false"],
        )
        for name in names
    ]


def shortened(of: EvaluatedRecording) -> EvaluatedRecording:
    """Return it with as many alerts as a page can show."""
    return of.model_copy(update={"alerts": of.alerts[:_MOST], "unlisted": max(0, len(of.alerts) - _MOST)})


def _alerts(changes: Iterable[Change], nodes: frozenset[str]) -> list[_Alert]:
    """Return the alerts that fired, with when each was over."""
    open_: dict[frozenset[tuple[str, str]], _Alert] = {}
    found = []
    for change in changes:
        who = frozenset(change.labels.items())
        if change.state == "firing":
            findings, _ = findings_of([change], nodes, whole=True)
            open_[who] = _Alert(change, entity_of(change.labels, nodes), next(iter(findings), None))
            found.append(open_[who])
        elif change.state == "resolved" and who in open_:
            open_.pop(who).resolved_at = change.at
    return found


def _of_rule(alert: _Alert, verdict: Verdict | None, label: str | None) -> FiredAlert:
    change = alert.change
    return FiredAlert(
        by="rules",
        name=change.labels["alertname"],
        entity=dict(alert.entity),
        severity=change.labels.get("severity", ""),
        started_at=format_time(change.active_at),
        at=format_time(change.at),
        resolved_at=_time(alert.resolved_at),
        summary=change.annotations.get("summary", ""),
        labels=dict(sorted(change.labels.items())),
        verdict=verdict,
        label=label,
    )


def _of_detector(finding: Finding, over: int | None, verdict: Verdict | None, label: str | None) -> FiredAlert:
    return FiredAlert(
        by="detectors",
        name=finding.fault,
        entity=dict(finding.entity),
        severity=finding.severity,
        started_at=format_time(finding.started_at),
        at=format_time(finding.detected_at),
        resolved_at=_time(over),
        summary=finding.summary,
        labels={},
        verdict=verdict,
        label=label,
    )


def _verdicts(of: Judged) -> Callable[[Finding | None], tuple[Verdict | None, str | None]]:
    """Return what finds an alert's verdict, and the label that it is about."""
    hits = {one.finding.id: one.truth.label.id for one in of.answers if one.finding is not None}
    judged_, false = {one.id for one in of.findings}, {one.id for one in of.false or []}

    def verdict(finding: Finding | None) -> tuple[Verdict | None, str | None]:
        if finding is None or of.false is None or finding.id not in judged_:
            return None, None
        if finding.id in hits:
            return "hit", hits[finding.id]
        if finding.id in false:
            return "false", None
        meant = [one for one in of.answers if _explains(one, finding)]
        caught = next((one for one in meant if one.finding is not None), None)
        label = (caught or meant[0]).truth.label.id if meant else None
        return "late" if caught is None else "repeat", label

    return verdict


def _explains(answer: Judgement, finding: Finding) -> bool:
    """Return whether a label is what an alert is about; one that names no fault of ours may be about any."""
    label = answer.truth.label
    same = finding.fault == label.fault or finding.fault not in faults()
    return same and label.onset <= finding.detected_at <= label.end and about(label, finding.entity)


def _fared(fired: int, of: Judged) -> Fared:
    if of.false is None:
        return Fared(fired=fired, caught=None, missed=None, repeats=None, false_alarms=None)
    return Fared(
        fired=fired,
        caught=len(of.of("caught")),
        missed=len(of.of("missed")),
        repeats=of.repeats,
        false_alarms=len(of.false),
    )


def _answered(rules: Judged, detectors: Judged) -> list[AnsweredLabel]:
    """Return the labels with the alert of either that answered for each; both were judged by the same labels."""
    return [
        AnsweredLabel(label=truth(one.truth.label), rules=_answer(one, rules), detectors=_answer(other, detectors))
        for one, other in zip(rules.answers, detectors.answers, strict=True)
    ]


def _answer(answer: Judgement, of: Judged) -> Answer | None:
    """Return the alert that answered for a label or, where none did in time, the first that came late."""
    explained = (one for one in of.findings if _explains(answer, one))
    finding = answer.finding or min(explained, key=lambda one: one.detected_at, default=None)
    if finding is None:
        return None
    return Answer(
        name=finding.detector,
        entity=dict(finding.entity),
        at=format_time(finding.detected_at),
        delay_s=(finding.detected_at - answer.truth.label.onset) / 1000,
        late=answer.finding is None,
    )


def _time(at_ms: int | None) -> str | None:
    return None if at_ms is None else format_time(at_ms)
