"""Imports what Kubernetes says of jobs: `kubectl get pods,events -A -o json`, or either, or `-o json` of a Job's pods.

Which pods are a job `parts.pods` says. What ended a pod other than its own success, and what the control plane says of
nodes, become scheduler events.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.objects import WrongObjectError, part, text
from services.recording.importers.parts.schedulers.allocations import fill
from services.recording.importers.parts.schedulers.pods import ENDS, Pods, time_in
from services.recording.importers.parts.source_files import SourceFiles, where
from services.recording.model import Event, Node, Topology

_ASSIGNED = re.compile(r"Successfully assigned (?P<pod>\S+) to (?P<node>\S+)")
_CREATED = re.compile(r"Created pod:? (?P<pod>\S+)")
_NODE_WORDS = {
    # what the node controller and kubelets say of nodes, in the words that schedulers' logs have for it
    "NodeNotReady": ("error", "node {node} is not ready"),
    "NodeReady": ("info", "node {node} returned to service"),
    "NodeNotSchedulable": ("info", "node {node} state set to DRAIN"),
    "NodeSchedulable": ("info", "node {node} state set to RESUME"),
    "Rebooted": ("warning", "Node {node} unexpectedly rebooted"),
}


@dataclass
class _Seen:
    pods: Pods = field(default_factory=Pods)
    jobs: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By ``namespace/name`` of a job: when its controller reported that it is over, and how."""
    nodes: dict[str, None] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)


def convert(
    source: Annotated[Path, "a file of `kubectl get pods,events -A -o json`, or a folder of them"],
    out: Path,
    *,
    cluster: Annotated[str, "name of the cluster"] = "imported",
    progress: Progress = silent,
) -> Report:
    """Convert pods and events into a recording of jobs, nodes and scheduler events at ``out``.

    UserError: the source does not exist, nothing in it is a pod that ran or an event of a node, or ``out`` exists.
    """
    report = Report()
    files = SourceFiles(source, report, progress)
    seen = _Seen()
    with Draft(out, report) as draft:
        for path in files.paths:
            for number, item in enumerate(_items(files.document(path)), 1):
                _take(seen, item, report, f"{where(path)}: item {number}")
        topology, count = fill(draft, list(seen.pods.allocations(report, seen.jobs)), report)
        draft.add_events(seen.events)
        known = {node.name for node in topology.nodes}
        nodes = [*topology.nodes, *(Node(name=name) for name in sorted(seen.nodes) if name not in known)]
        draft.imported(
            Topology(nodes=nodes),
            cluster,
            title=f"Pods and events of {cluster}",
            summary=f"{count} jobs on {len(nodes)} nodes, as Kubernetes reports them.",
            document="Kubernetes pods and events",
            notes=["a job is the owner of its pods; events are kept for an hour by most clusters"],
        )
    return report


def recognise(_name: str, head: str) -> str | None:
    """Return why a file is taken for Kubernetes', None where it is none."""
    kinds = re.search(r'"kind"\s*:\s*"(?:Pod|Event|PodList|EventList|List)"', head)
    return "JSON of Kubernetes objects" if kinds is not None and '"apiVersion"' in head else None


def _items(document: Any) -> Iterator[Any]:
    if isinstance(document, dict):
        items = document.get("items")
        yield from items if isinstance(items, list) else [document]


def _take(seen: _Seen, item: Any, report: Report, place: str) -> None:
    kind = item.get("kind") if isinstance(item, dict) else None
    try:
        if kind == "Pod":
            report.read["pods"] += 1
            seen.pods.take(item)
        elif kind == "Event":
            report.read["events"] += 1
            _event(seen, item)
        else:
            report.skip("an object that is no pod and no event", place)
    except WrongObjectError as error:
        report.skip(str(error), place)


def _event(seen: _Seen, item: Mapping[str, Any]) -> None:
    about, meta = part(item, "involvedObject") or part(item, "regarding"), part(item, "metadata")
    kind, name = text(about, "kind"), text(about, "name")
    key = f"{text(about, 'namespace') or text(meta, 'namespace')}/{name}"
    reason, message = text(item, "reason"), text(item, "message") or text(item, "note")
    at = time_in(item, "firstTimestamp") or time_in(item, "eventTime") or time_in(meta, "creationTimestamp")
    if at is None or not name:
        return
    if kind == "Node" and reason in _NODE_WORDS:
        severity, words = _NODE_WORDS[reason]
        seen.nodes[name] = None
        line = f"kubernetes {reason}: {words.format(node=name)} ({message[:400]})"
        # What comes again within the hour is counted in one object, which has the first time and the last.
        last = time_in(item, "lastTimestamp") or time_in(part(item, "series"), "lastObservedTime") or at
        for moment in sorted({at, last}):
            record = {"timestamp": moment, "source": "scheduler", "node": name, "severity": severity, "message": line}
            seen.events.append(Event.model_validate(record))
    elif kind == "Pod":
        pod = seen.pods.named(key)
        assigned = _ASSIGNED.match(message) if reason == "Scheduled" else None
        if assigned is not None:
            pod.node = pod.node or assigned["node"]
            pod.start = pod.start or at
        elif reason in ENDS and pod.end is None:
            pod.end, pod.state = at, ENDS[reason]
    elif reason == "SuccessfulCreate" and (created := _CREATED.match(message)):
        pod = seen.pods.named(f"{key.partition('/')[0]}/{created['pod']}")
        pod.job, pod.submit = pod.job or key, pod.submit or at
    elif reason in ENDS:
        seen.jobs[key] = at, ENDS[reason]
