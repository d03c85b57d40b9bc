"""Which alert rules fire on an incident, by Prometheus' own engine."""

from collections.abc import Iterable

from detectors.contract import Entity
from services.api.tasks.rule_texts import built_evaluator, shipped_rules
from services.postmortem.case import Case, place, related
from services.postmortem.rules import Alerts, rules_on
from services.rules.evaluation import Settings, evaluate, evaluator_program
from services.rules.feed import Places
from services.rules.verdict import entity_of, findings_of, node_names


def alerts_of(case: Case, *, build: bool = True) -> Alerts:
    """Return the alerts. `build`: the evaluator may be built first where it is not there, which takes minutes.

    UserError: there are no rules, the evaluator is not there, or it cannot evaluate them.
    """
    files = shipped_rules()
    evaluator = evaluator_program() if build else built_evaluator()
    begin, end = case.incident.started_at, case.over_at or case.recording.manifest.end
    jobs = {job.job_id for job in case.incident.impact.jobs}
    settings = Settings(about=(begin, end), places=_places(case.cause.entity, jobs), near=list(rules_on(case)))
    evaluated = evaluate(evaluator, case.recording, files, settings)
    changes = evaluated.changes
    nodes = node_names([node.model_dump() for node in case.recording.topology.nodes])
    found, _ = findings_of(changes, nodes)

    def concerned(entity: Entity) -> bool:
        return related(entity, case.cause.entity) or entity.get("job_id") in jobs

    mine = [one for one in found if begin <= one.detected_at <= end and concerned(one.entity)]
    held: dict[str, int] = {}
    for change in changes:
        if change.state == "cleared" and begin <= change.at and change.active_at <= end:
            name = change.labels["alertname"]
            if concerned(entity_of(change.labels, nodes)):
                held[name] = max(held.get(name, 0), change.at - change.active_at)
    came = [(one, entity_of(one.labels, nodes)) for one in evaluated.came]
    return Alerts(
        sorted(mine, key=lambda one: (one.detected_at, one.detector, place(one.entity))),
        held,
        [(place(entity), one) for one, entity in came if concerned(entity)],
    )


def _places(culprit: Entity, jobs: Iterable[str]) -> Places:
    """Return what the alerts are about that `concerned` asks for; nothing where the culprit's place has no name."""
    found = {key: [str(culprit[key])] for key in ("node", "switch", "mount", "job_id") if key in culprit}
    return {**found, "job_id": sorted({*found.get("job_id", ()), *jobs})} if found else {}
