"""Jobs where only their traces are known: the series or rows that name them."""

from collections.abc import Callable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field
from typing import Any

from services.recording.importers.parts.series.census import Place
from services.recording.model import Job, Topology

STILL_RUNNING_MS = 300_000
"""A job whose last trace is at most this long before the end is taken to run on: Prometheus' own look-back."""
RELEASED_MS = 60_000
"""But not where one of its GPUs has reported without it for so long, or for another: its label is gone."""


@dataclass
class _Traces:
    first: int
    last: int
    nodes: set[str] = field(default_factory=set)
    gpus: dict[str, set[int]] = field(default_factory=dict)
    parts: set[str] = field(default_factory=set)
    """Nodes where the job has instances of GPUs: which GPUs are its own, the format cannot say."""


class JobSpans:
    """Collects from which entities a job left traces, and when."""

    def __init__(self) -> None:
        self._jobs: dict[str, _Traces] = {}
        self._latest: dict[tuple[str, int], tuple[int, str | None]] = {}
        """When a GPU was last heard of, and for which job then."""

    def seen(self, stream: str, place: Place, first_ms: int, last_ms: int) -> None:
        """Take note of a series of a stream that has samples between two instants."""
        job = str(place.key[0]) if stream == "steps" else place.job
        if stream == "dcgm":
            gpu = str(place.key[0]), int(place.key[1])
            known = self._latest.get(gpu, (first_ms - 1, None))
            if last_ms > known[0] or (last_ms == known[0] and known[1] is None):
                self._latest[gpu] = last_ms, job
        if not job:
            return
        traces = self._jobs.setdefault(job, _Traces(first_ms, last_ms))
        traces.first, traces.last = min(traces.first, first_ms), max(traces.last, last_ms)
        if stream == "steps" and place.key[2]:
            traces.nodes.add(str(place.key[2]))
        if stream == "dcgm":
            node = str(place.key[0])
            traces.gpus.setdefault(node, set()).add(int(place.key[1]))
            if place.part:
                traces.parts.add(node)

    def jobs(self, end_ms: int, topology: Topology, skip: Callable[[str, str], None]) -> list[Job]:
        """Return the jobs; a GPU that several seem to have at once stays with the one that was first.

        `skip` takes why something was left out, and where.
        """
        whole = {node.name: {gpu.gpu for gpu in node.gpus} for node in topology.nodes}
        held: dict[tuple[str, int], int] = {}
        made = []
        for name, traces in sorted(self._jobs.items(), key=lambda item: (item[1].first, item[0])):
            running = end_ms - traces.last <= STILL_RUNNING_MS and not self._released(name, traces)
            until = 2**62 if running else traces.last
            parts: dict[str, set[int]] = {}
            for node in sorted(traces.nodes | set(traces.gpus)):
                if node in traces.parts:
                    parts[node] = set()
                    continue
                asked = traces.gpus.get(node) or whole.get(node, set())
                free = {gpu for gpu in asked if held.get((node, gpu), -1) <= traces.first}
                if len(free) < len(asked):
                    skip("a job's GPU is another job's at the same time", f"job {name} on {node}")
                if free or not asked:
                    parts[node] = free
                held.update({(node, gpu): until for gpu in free})
            made.append(_job(name, traces, parts, whole, running=running))
        return made

    def forget_machines(self, gone: AbstractSet[str]) -> None:
        """Let go of when GPUs of machines that are gone were last heard of."""
        self._latest = {gpu: latest for gpu, latest in self._latest.items() if gpu[0] not in gone}

    def forget(self, job: str) -> None:
        """Let go of a job that is over."""
        self._jobs.pop(job, None)

    def snapshot(self) -> dict[str, Any]:
        """Return what is known, as JSON can say it."""
        jobs = {
            name: [one.first, one.last, sorted(one.nodes), _lists(one.gpus), sorted(one.parts)]
            for name, one in self._jobs.items()
        }
        return {"jobs": jobs, "latest": [[*gpu, *seen] for gpu, seen in self._latest.items()]}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take what `snapshot` returned."""
        for name, (first, last, nodes, gpus, parts) in state["jobs"].items():
            held = {node: set(numbers) for node, numbers in gpus.items()}
            self._jobs[name] = _Traces(first, last, set(nodes), held, set(parts))
        self._latest = {(node, gpu): (at, job) for node, gpu, at, job in state["latest"]}

    def _released(self, job: str, traces: _Traces) -> bool:
        """Return whether a GPU of a job goes on without it."""
        for node, gpus in traces.gpus.items():
            for gpu in gpus:
                at, whose = self._latest[node, gpu]
                if at > traces.last + (RELEASED_MS if whose is None else 0) and whose != job:
                    return True
        return False


def _job(name: str, traces: _Traces, parts: dict[str, set[int]], whole: dict[str, set[int]], *, running: bool) -> Job:
    partly = {node: sorted(gpus) for node, gpus in parts.items() if gpus != whole.get(node, set())}
    sizes = {len(gpus) for gpus in parts.values()}
    facts: dict[str, object] = {
        "job_id": name,
        "nodes": sorted(parts),
        "start": traces.first,
        "end": None if running else traces.last,
        # Its series ended; whether it had finished or failed they do not say.
        "state": "RUNNING" if running else "UNKNOWN",
    }
    if len(sizes) == 1 and 0 not in sizes:
        facts["gpus_per_node"] = next(iter(sizes))
    if partly:
        facts["gpus"] = partly
    return Job.model_validate(facts)


def _lists(gpus: Mapping[str, set[int]]) -> dict[str, list[int]]:
    return {node: sorted(numbers) for node, numbers in gpus.items()}
