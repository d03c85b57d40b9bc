"""Imports what Kubernetes tells of jobs: `kubectl get pods,events -A -o json`, or either, or `-o json` of a Job's pods.

A pod's owner (Job, PyTorchJob, MPIJob, StatefulSet, ...) is a job on the nodes of its pods, with the GPUs that they
asked for; a pod without owner is a job of its own. What ended a pod other than its own success, and what the control
plane says of nodes, become scheduler events.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from datetime import UTC
from pathlib import Path
from typing import Annotated, Any

from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.allocations import Allocation, fill
from services.recording.importers.parts.imported_header import imported
from services.recording.importers.parts.moments import parse_stamp
from services.recording.importers.parts.source_files import SourceFiles, clean, where
from services.recording.model import Event, Job, Node, Topology

_GPU = re.compile(r"(?:nvidia\.com/(?:gpu|mig-.*)|amd\.com/gpu|gpu\.intel\.com/.*)(?:\.shared)?")
_ASSIGNED = re.compile(r"Successfully assigned (?P<pod>\S+) to (?P<node>\S+)")
_CREATED = re.compile(r"Created pod:? (?P<pod>\S+)")
_NODE_WORDS = {
    # what the node controller and kubelets say of nodes, in the words that schedulers' logs have for it
    "NodeNotReady": ("error", "Node {node} not responding, setting DOWN"),
    "NodeReady": ("info", "node {node} returned to service"),
    "NodeNotSchedulable": ("info", "node {node} state set to DRAIN"),
    "NodeSchedulable": ("info", "node {node} state set to RESUME"),
    "Rebooted": ("warning", "Node {node} unexpectedly rebooted"),
}
_ENDS = {
    # reason of an event about a pod: how it ended
    "Killing": "CANCELLED", "Evicted": "PREEMPTED", "Preempted": "PREEMPTED", "TaintManagerEviction": "NODE_FAIL",
    "NodeNotReady": "NODE_FAIL", "OOMKilling": "OUT_OF_MEMORY", "DeadlineExceeded": "TIMEOUT",
    "Completed": "COMPLETED", "BackoffLimitExceeded": "FAILED",
}  # fmt: skip
_WORST = ("NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "PREEMPTED", "FAILED", "CANCELLED", "COMPLETED")
"""The state of a job of several pods is that of the pod that fared worst."""
_MOST_GPUS = 256


@dataclass
class _Pod:
    """What is known of one pod; times in ms."""

    job: str = ""
    node: str = ""
    gpus: int | None = None
    user: str = ""
    submit: int | None = None
    start: int | None = None
    end: int | None = None
    state: str = ""


@dataclass
class _Seen:
    pods: dict[str, _Pod] = field(default_factory=dict)
    jobs: dict[str, tuple[int, str]] = field(default_factory=dict)
    """By ``namespace/name`` of a job: when its controller said that it is over, and how."""
    nodes: dict[str, None] = field(default_factory=dict)
    events: list[Event] = field(default_factory=list)

    def pod(self, name: str) -> _Pod:
        return self.pods.setdefault(name, _Pod())


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
        topology, count = fill(draft, list(_allocations(seen, report)), report)
        draft.add_events(seen.events)
        known = {node.name for node in topology.nodes}
        nodes = [*topology.nodes, *(Node(name=name) for name in sorted(seen.nodes) if name not in known)]
        header = imported(
            out,
            cluster,
            title=f"Pods and events of {cluster}",
            summary=f"{count} jobs on {len(nodes)} nodes, as Kubernetes tells them.",
            document="Kubernetes pods and events",
            notes=["a job is the owner of its pods; events are kept for an hour by most clusters"],
        )
        draft.finish(header, Topology(nodes=nodes))
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
    meta = _dict(item.get("metadata")) if kind else {}
    if kind == "Pod":
        report.read["pods"] += 1
        _pod(seen, item, meta)
    elif kind == "Event":
        report.read["events"] += 1
        _event(seen, item, meta)
    else:
        report.skip("an object that is no pod and no event", place)


def _pod(seen: _Seen, item: dict[str, Any], meta: dict[str, Any]) -> None:
    namespace, name = _text(meta.get("namespace")), _text(meta.get("name"))
    pod, spec, status = seen.pod(f"{namespace}/{name}"), _dict(item.get("spec")), _dict(item.get("status"))
    owner = _dict(next(iter(_list(meta.get("ownerReferences"))), None))
    pod.job = f"{namespace}/{_text(owner.get('name')) or name}"
    pod.node = _text(spec.get("nodeName")) or pod.node
    pod.gpus = sum(_gpus(_dict(container)) for container in _list(spec.get("containers")))
    pod.user = namespace
    pod.submit, pod.start = _at(meta.get("creationTimestamp")), _at(status.get("startTime")) or pod.start
    ends = []
    for container in _list(status.get("containerStatuses")):
        over = _dict(_dict(_dict(container).get("state")).get("terminated"))
        if over:
            ends.append((_at(over.get("finishedAt")), _text(over.get("reason"))))
    phase, reason = _text(status.get("phase")), _text(status.get("reason"))
    if phase not in {"Succeeded", "Failed"}:
        return
    finished = [at for at, _ in ends if at is not None]
    pod.end = max(finished) if finished else pod.end
    if phase == "Succeeded":
        pod.state = "COMPLETED"
    elif reason in {"NodeLost", "NodeShutdown", "Terminated"}:
        pod.state = "NODE_FAIL"
    elif any(why == "OOMKilled" for _, why in ends):
        pod.state = "OUT_OF_MEMORY"
    else:
        pod.state = _ENDS.get(reason, "FAILED")


def _gpus(container: dict[str, Any]) -> int:
    limits = _dict(_dict(container.get("resources")).get("limits"))
    counts = [str(count) for name, count in limits.items() if _GPU.fullmatch(str(name))]
    return sum(min(int(count), _MOST_GPUS) for count in counts if count.isascii() and count.isdecimal())


def _event(seen: _Seen, item: dict[str, Any], meta: dict[str, Any]) -> None:
    about = _dict(item.get("involvedObject") or item.get("regarding"))
    kind, name = _text(about.get("kind")), _text(about.get("name"))
    key = f"{_text(about.get('namespace')) or _text(meta.get('namespace'))}/{name}"
    reason, message = _text(item.get("reason")), _text(item.get("message") or item.get("note"))
    stamps = (item.get("firstTimestamp"), item.get("eventTime"), meta.get("creationTimestamp"))
    at = next((ms for ms in map(_at, stamps) if ms is not None), None)
    if at is None or not name:
        return
    if kind == "Node" and reason in _NODE_WORDS:
        severity, words = _NODE_WORDS[reason]
        seen.nodes[name] = None
        text = f"kubernetes {reason}: {words.format(node=name)} ({message[:400]})"
        seen.events.append(
            Event.model_validate(
                {"timestamp": at, "source": "scheduler", "node": name, "severity": severity, "message": text}
            )
        )
    elif kind == "Pod":
        pod = seen.pod(key)
        assigned = _ASSIGNED.match(message) if reason == "Scheduled" else None
        if assigned is not None:
            pod.node = pod.node or assigned["node"]
            pod.start = pod.start or at
        elif reason in _ENDS and pod.end is None:
            pod.end, pod.state = at, _ENDS[reason]
    elif reason == "SuccessfulCreate" and (created := _CREATED.match(message)):
        pod = seen.pod(f"{key.partition('/')[0]}/{created['pod']}")
        pod.job, pod.submit = pod.job or key, pod.submit or at
    elif reason in _ENDS:
        seen.jobs[key] = at, _ENDS[reason]


def _allocations(seen: _Seen, report: Report) -> Iterator[Allocation]:
    """Yield a job for the pods of each owner."""
    together: dict[str, list[_Pod]] = {}
    for name, pod in seen.pods.items():
        together.setdefault(pod.job or name, []).append(pod)
    for job_id, pods in sorted(together.items()):
        ran = [pod for pod in pods if pod.node and pod.start is not None]
        if not ran:
            report.skip("the job never started", f"job {job_id}")
            continue
        over, told = seen.jobs.get(job_id, (None, ""))
        ends = [pod.end for pod in ran]
        end = over or (max(at for at in ends if at is not None) if None not in ends else None)
        states = {pod.state for pod in ran} | {told}
        state = next((one for one in _WORST if one in states), "UNKNOWN") if end is not None else "RUNNING"
        by_node: dict[str, int] = {}
        for pod in ran:
            by_node[pod.node] = by_node.get(pod.node, 0) + (pod.gpus or 0)
        start = min(pod.start for pod in ran if pod.start is not None)
        submits = [pod.submit for pod in pods if pod.submit is not None]
        gpus = max(by_node.values())
        job = Job(
            job_id=job_id,
            name=job_id.partition("/")[2],
            user=next((pod.user for pod in ran if pod.user), ""),
            nodes=sorted(by_node),
            gpus_per_node=gpus or None,
            submit=min([*submits, start]) if submits else None,
            start=start,
            end=None if end is None else max(end, start),
            state=state,
        )
        yield Allocation(job, gpus, words=f"kubernetes job {job_id} State={state} nodes={','.join(job.nodes)}"[:2000])


def _at(value: Any) -> int | None:
    return parse_stamp(value, UTC) if isinstance(value, str) else None


def _dict(value: Any) -> dict[str, Any]:
    return value if isinstance(value, dict) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def _text(value: Any) -> str:
    return clean(value)[:1000] if isinstance(value, str) else ""
