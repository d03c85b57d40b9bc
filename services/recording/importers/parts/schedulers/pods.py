"""Kubernetes' pods as jobs: the pods that ask for GPUs, each together with the others of what it belongs to.

That is what a label names (JobSet, Kueue's group of pods, Kubeflow's job, LeaderWorkerSet), else the pod's owner (Job,
StatefulSet, RayCluster, ...), else the pod alone. The job has the nodes of its pods and the GPUs that they asked for.
"""

import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC
from typing import Any

from services.recording.importers.contract import Report
from services.recording.importers.parts.moments import parse_stamp
from services.recording.importers.parts.objects import WrongObjectError, part, parts, text
from services.recording.importers.parts.schedulers.allocations import Allocation
from services.recording.model import Job

NO_GPU = "the pod asks for no GPU"
NEVER_STARTED = "the job never started"
ENDS = {
    # reason of an event about a pod, or of its status: how it ended
    "Killing": "CANCELLED", "Evicted": "PREEMPTED", "Preempted": "PREEMPTED", "TaintManagerEviction": "NODE_FAIL",
    "NodeNotReady": "NODE_FAIL", "OOMKilling": "OUT_OF_MEMORY", "DeadlineExceeded": "TIMEOUT",
    "Completed": "COMPLETED", "BackoffLimitExceeded": "FAILED",
}  # fmt: skip
_NODE_LOST = frozenset({"NodeLost", "NodeShutdown", "Terminated"})
_WORST = ("NODE_FAIL", "OUT_OF_MEMORY", "TIMEOUT", "PREEMPTED", "FAILED", "CANCELLED", "COMPLETED")
"""The state of a job of several pods is that of the pod that fared worst."""
_GPU = re.compile(r"(?:nvidia\.com/(?:gpu|mig-.*)|amd\.com/gpu|gpu\.intel\.com/.*)(?:\.shared)?")
_MOST_GPUS = 256
_GROUPS = (
    "jobset.sigs.k8s.io/jobset-name",
    "kueue.x-k8s.io/pod-group-name",
    "training.kubeflow.org/job-name",
    "leaderworkerset.sigs.k8s.io/name",
)
"""Labels of a pod that name the whole that its owner is a part of."""


@dataclass
class Pod:
    """What is known of one pod: times in ms, `gpus` None where its specification is not known."""

    job: str = ""
    node: str = ""
    gpus: int | None = None
    submit: int | None = None
    start: int | None = None
    end: int | None = None
    state: str = ""


class Pods:
    """Pods by ``namespace/name``, as objects, and what else is known of them, come."""

    def __init__(self) -> None:
        self.known: dict[str, Pod] = {}

    def named(self, name: str) -> Pod:
        """Return a pod, which may be new."""
        return self.known.setdefault(name, Pod())

    def take(self, item: Mapping[str, Any]) -> None:
        """Take a pod as the API gives it; WrongObjectError where it is none, and nothing is changed then."""
        name, meta = name_of(item), part(item, "metadata")
        spec, status = part(item, "spec"), part(item, "status")
        submit, start = time_in(meta, "creationTimestamp"), time_in(status, "startTime")
        gpus = sum(_gpus(container) for container in parts(spec, "containers"))
        overs = [part(part(one, "state"), "terminated") for one in parts(status, "containerStatuses")]
        finished = _times(overs, "finishedAt") or _times(parts(status, "conditions"), "lastTransitionTime")
        pod = self.named(name)
        pod.job, pod.node = _job_name(meta, name), text(spec, "nodeName") or pod.node
        pod.gpus, pod.submit, pod.start = gpus, submit, start or pod.start
        phase, reason = text(status, "phase"), text(status, "reason")
        if phase not in {"Succeeded", "Failed"}:
            return
        pod.end = max(finished, default=pod.end or pod.start)
        if phase == "Succeeded":
            pod.state = "COMPLETED"
        elif reason in _NODE_LOST:
            pod.state = "NODE_FAIL"
        elif any(text(over, "reason") == "OOMKilled" for over in overs):
            pod.state = "OUT_OF_MEMORY"
        else:
            pod.state = ENDS.get(reason, "FAILED")

    def allocations(self, report: Report, over: Mapping[str, tuple[int, str]]) -> Iterator[Allocation]:
        """Yield the jobs; `over` has by job when its controller reported that it is over, and how."""
        together: dict[str, list[Pod]] = {}
        for name, pod in self.known.items():
            if pod.gpus == 0:
                report.skip(NO_GPU, f"pod {name}")
            else:
                together.setdefault(pod.job or name, []).append(pod)
        for job_id, pods in sorted(together.items()):
            ran = [pod for pod in pods if pod.node and pod.start is not None]
            if ran:
                submits = [pod.submit for pod in pods if pod.submit is not None]
                yield _allocation(job_id, ran, min(submits, default=None), *over.get(job_id, (None, "")))
            else:
                report.skip(NEVER_STARTED, f"job {job_id}")


def _allocation(job_id: str, ran: Sequence[Pod], submit: int | None, over: int | None, ended: str) -> Allocation:
    """Return a job of pods that ran; while one of them runs, it is where those are that run."""
    running = [pod for pod in ran if pod.end is None] if over is None else []
    pods = running or ran
    ends = [pod.end for pod in pods if pod.end is not None]
    start = min(pod.start for pod in pods if pod.start is not None)
    end = None if running else max(start, over or max(ends))
    states = {pod.state for pod in pods} | {ended}
    by_node = {node: _most_at_once([pod for pod in pods if pod.node == node]) for node in {pod.node for pod in pods}}
    gpus = max(by_node.values())
    job = Job(
        job_id=job_id,
        name=job_id.partition("/")[2],
        user=job_id.partition("/")[0],
        nodes=sorted(by_node),
        gpus_per_node=gpus or None,
        submit=None if submit is None else min(submit, start),
        start=start,
        end=end,
        state="RUNNING" if end is None else next((one for one in _WORST if one in states), "UNKNOWN"),
    )
    return Allocation(job, gpus, words=f"kubernetes job {job_id} State={job.state} nodes={','.join(job.nodes)}"[:2000])


def _most_at_once(pods: Sequence[Pod]) -> int:
    """Return how many GPUs the pods of a node had together: one that takes the place of another has its GPUs."""
    changes = [(pod.start or 0, pod.gpus or 0) for pod in pods]
    changes += [(pod.end, -(pod.gpus or 0)) for pod in pods if pod.end is not None]
    had = most = 0
    for _, change in sorted(changes):
        had += change
        most = max(most, had)
    return most


def name_of(item: Any) -> str:
    """Return an object's ``namespace/name``, or its name where it has no namespace; WrongObjectError without one."""
    if not isinstance(item, dict):
        raise WrongObjectError("no object")
    meta = part(item, "metadata")
    name, namespace = text(meta, "name"), text(meta, "namespace")
    if not name:
        raise WrongObjectError("an object without a name")
    return f"{namespace}/{name}" if namespace else name


def time_in(item: Mapping[str, Any], key: str) -> int | None:
    """Return a time of an object in ms, None where there is none; WrongObjectError where it is something else."""
    stamp = text(item, key)
    at = parse_stamp(stamp, UTC) if stamp else None
    if stamp and at is None:
        raise WrongObjectError(f"{key} is no time")
    return at


def _times(items: Sequence[Mapping[str, Any]], key: str) -> list[int]:
    return [at for item in items if (at := time_in(item, key)) is not None]


def _job_name(meta: Mapping[str, Any], name: str) -> str:
    labels = part(meta, "labels")
    owners = parts(meta, "ownerReferences")
    owner = next((one for one in owners if one.get("controller") is True), owners[0] if owners else {})
    group = next((named for label in _GROUPS if (named := text(labels, label))), "") or text(owner, "name")
    return f"{name.rpartition('/')[0]}/{group}" if group else name


def _gpus(container: Mapping[str, Any]) -> int:
    limits = part(part(container, "resources"), "limits")
    counts = [str(count) for name, count in limits.items() if _GPU.fullmatch(name)]
    if not all(count.isascii() and count.isdecimal() and int(count[:9]) <= _MOST_GPUS for count in counts):
        raise WrongObjectError("asks for GPUs by what is no number of them")
    return sum(map(int, counts))
