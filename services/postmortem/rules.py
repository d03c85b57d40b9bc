"""What alert rules did in the incident: which fired, and how near the others on its fault came."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from importlib import resources
from typing import Any

from detectors import yaml_text
from detectors.contract import Finding
from services.postmortem.case import Case, place
from services.postmortem.chart import figure
from services.postmortem.document import Block, Table, Text
from services.postmortem.timeline import clock, gap
from services.rules.evaluation import Came

_MOST_FIRED = 20
_MOST_MISSED = 3
_NEVER = "its condition was never true"


@dataclass(frozen=True)
class Alerts:
    """What alert rules did: those that fired while the incident lasted; without `--rules` nobody knows."""

    fired: Sequence[Finding]
    held: Mapping[str, int] = field(default_factory=dict)
    """For how long the condition of a rule was true meanwhile without its firing, in ms: the longest time, by rule."""
    came: Sequence[tuple[str, Came]] = ()
    """How near the comparisons in the conditions of rules on the fault came, on parts of the culprit and its jobs."""


def rules_on(case: Case) -> dict[str, Mapping[str, Any]]:
    """Return the alert rules on the root's fault by their names, as their files have them."""
    files = (resources.files("detectors") / kind.spec.name / "rules.yaml" for kind, _ in case.choices)
    groups = (group for file in files if file.is_file() for group in yaml_text.load(file.read_text("utf-8"))["groups"])
    rules = (rule for group in groups for rule in group["rules"] if "alert" in rule)
    return {str(rule["alert"]): rule for rule in rules if rule["labels"].get("fault") == case.root.fault}


def rule_blocks(case: Case, alerts: Alerts | None) -> list[Block]:
    """Return the section on the alert rules."""
    if alerts is None:
        return [Text("Alert rules were not evaluated: `--rules` does so.")]
    fired = {one.detector for one in alerts.fired}
    quiet = {name: rule for name, rule in rules_on(case).items() if name not in fired}
    rows = [[name, _near(alerts, rule)] for name, rule in quiet.items()]
    silent = [Table([f"rule on {case.root.fault} that stayed silent", "how near it came"], rows)] if quiet else []
    if not fired:
        return [Text("No alert rule fired on the culprit or its jobs while it lasted."), *silent]
    rows = [
        [
            one.detector,
            one.severity,
            place(one.entity),
            clock(one.detected_at),
            gap(one.detected_at - case.root.detected_at),
        ]
        for one in alerts.fired[:_MOST_FIRED]
    ]
    first = alerts.fired[0]
    sooner = case.root.detected_at - first.detected_at
    words = (
        f"The first, {first.detector}, fired {gap(sooner)} before the detector."
        if sooner > 0
        else f"The first, {first.detector}, fired {gap(-sooner)} after the detector."
    )
    return [
        Text(f"Alert rules on the culprit or its jobs while it lasted, evaluated by Prometheus' own engine. {words}"),
        Table(["rule", "severity", "entity", "fired", "after the detector"], rows, frozenset({4})),
        *silent,
    ]


def _near(alerts: Alerts, rule: Mapping[str, Any]) -> str:
    length = alerts.held.get(rule["alert"])
    if length is not None:
        return f"its condition was true for {gap(length)}, of the {rule.get('for', '0s')} that it waits"
    nearest: dict[str, tuple[str, Came]] = {}
    for part, one in sorted(alerts.came, key=lambda found: found[1].wanting):
        if one.rule == rule["alert"]:
            nearest.setdefault(one.condition, (part, one))
    # How near a comparison came holds for those in it, too.
    whole = [(part, one) for part, one in nearest.values() if one.within not in nearest]
    if not whole:
        return _NEVER
    missed = [(part, one) for part, one in whole if not one.met]
    if not missed:
        excepted = ", or what stands behind its `unless` was true too" if "unless" in rule["expr"] else ""
        return f"{_NEVER}: each comparison in it was at some time, not all at once{excepted}"
    closest = (
        f"`{_shown(one.condition)}` came to {figure(one.value)} of {figure(one.threshold)} ({part}, {clock(one.at)})"
        for part, one in missed[:_MOST_MISSED]
    )
    return f"{_NEVER}: {'; '.join(closest)}"


def _shown(condition: str) -> str:
    """Return a comparison without what all rules of hindcast select and group by."""
    return " ".join(condition.replace('{replay=~"live|"}', "").replace("cluster, replay, ", "").split())
