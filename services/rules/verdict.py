"""Alerts of rules as findings, so that they are judged against the labels as a detector's are."""

from collections.abc import Iterable, Mapping, Sequence

from detectors.contract import Entity, Finding, finding_id
from detectors.faults import faults
from services.rules.evaluation import Change

_PLACES = (("node", "gpu"), ("node", "nic"), ("node",), ("switch", "port"), ("switch",), ("mount",), ("job_id",))
_NODE_LABELS = ("node", "Hostname", "hostname", "nodename")
"""The name of a node, in hindcast's rules and in those that people bring."""


def entity_of(labels: Mapping[str, str], nodes: frozenset[str]) -> Entity:
    """Return what an alert is about, as narrowly as its labels say; empty where they name nothing known.

    `nodes` are the names in the recording's topology: an `instance` is a node where its host part is one of them.
    """
    node = next((labels[name] for name in _NODE_LABELS if labels.get(name)), "")
    host = labels.get("instance", "").partition(":")[0]
    named = dict(labels) | ({"node": node or host} if node or host in nodes else {})
    for place in _PLACES:
        if all(named.get(key) for key in place):
            return {key: int(named[key]) if key == "gpu" and named[key].isdigit() else named[key] for key in place}
    return {}


def findings_of(changes: Iterable[Change], nodes: frozenset[str], *, whole: bool = False) -> tuple[list[Finding], int]:
    """Return the firing alerts as findings, and how many others fired that can't be judged.

    Judged is what says a fault by a name of the recording format and disturbs somebody (severity page or ticket, or
    none named). `whole`: those that name no such fault too, under the alert's name, and when each was over.
    """
    found: list[Finding] = []
    apart = 0
    for change in changes:
        if change.state != "firing" and not (whole and change.state == "resolved"):
            continue
        fault, severity = change.labels.get("fault", ""), change.labels.get("severity", "ticket")
        if whole and fault not in faults():
            fault = change.labels["alertname"]
        entity = entity_of(change.labels, nodes)
        if (fault not in faults() and not whole) or severity == "info" or not entity:
            apart += change.state == "firing"
            continue
        found.append(
            Finding(
                id=finding_id(change.labels["alertname"], entity, change.active_at),
                detector=change.labels["alertname"],
                fault=fault,
                entity=entity,
                state="firing" if change.state == "firing" else "resolved",
                started_at=change.active_at,
                detected_at=change.at,
                severity="page" if severity == "page" else "ticket",
                score=1.0,
                summary=change.annotations.get("summary", change.labels["alertname"]),
                recommended_action=change.annotations.get("first_step", ""),
            )
        )
    return found, apart


def node_names(topology_nodes: Sequence[Mapping[str, object]]) -> frozenset[str]:
    """Return the names of a topology's nodes."""
    return frozenset(str(node["name"]) for node in topology_nodes)
