"""Jobs where only their traces are known: the series or rows that name them."""

from collections.abc import Iterable
from dataclasses import dataclass, field

from services.recording.importers.contract import Report
from services.recording.importers.parts.census import Place
from services.recording.model import Job, Topology

STILL_RUNNING_MS = 300_000
"""A job whose last trace is at most this long before the end is taken to run on: Prometheus' own look-back."""


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

    def seen(self, stream: str, place: Place, first_ms: int, last_ms: int) -> None:
        """Take note of a series of a stream that has samples between two instants."""
        job = str(place.key[0]) if stream == "steps" else place.job
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

    def jobs(self, end_ms: int, topology: Topology, report: Report) -> list[Job]:
        """Return the jobs; a GPU that several are said to have at once stays with the one that was first."""
        whole = {node.name: {gpu.gpu for gpu in node.gpus} for node in topology.nodes}
        held: dict[tuple[str, int], int] = {}
        made = []
        for name, traces in sorted(self._jobs.items(), key=lambda item: (item[1].first, item[0])):
            running = end_ms - traces.last <= STILL_RUNNING_MS
            until = 2**62 if running else traces.last
            parts: dict[str, set[int]] = {}
            for node in sorted(traces.nodes | set(traces.gpus)):
                if node in traces.parts:
                    parts[node] = set()
                    continue
                asked = traces.gpus.get(node) or whole.get(node, set())
                free = {gpu for gpu in asked if held.get((node, gpu), -1) <= traces.first}
                if len(free) < len(asked):
                    report.skip("a job's GPU is another job's at the same time", f"job {name} on {node}")
                if free or not asked:
                    parts[node] = free
                held.update({(node, gpu): until for gpu in free})
            made.append(_job(name, traces, parts, whole, running=running))
        return made


def _job(name: str, traces: _Traces, parts: dict[str, set[int]], whole: dict[str, set[int]], *, running: bool) -> Job:
    partly = {node: sorted(gpus) for node, gpus in parts.items() if gpus != whole.get(node, set())}
    sizes = _sizes(parts.values())
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


def _sizes(parts: Iterable[set[int]]) -> set[int]:
    return {len(gpus) for gpus in parts}
