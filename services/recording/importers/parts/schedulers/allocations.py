"""What the accounting of any scheduler comes to: jobs, the machines they ran on, and how they ended.

Importers read their scheduler's own words into allocations, with the state in Slurm's words (sacct.1, JOB STATE CODES),
which are those of the recording format. All else is the same for all of them, and here.
"""

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from services.recording.importers.contract import Draft, Report
from services.recording.model import Event, Gpu, Job, Node, Topology

RUNNING = frozenset({"RUNNING", "COMPLETING", "SUSPENDED"})
"""States of a job that holds its nodes: it has no end yet."""
_SEVERITIES = {
    "NODE_FAIL": "error",
    "BOOT_FAIL": "error",
    "FAILED": "warning",
    "OUT_OF_MEMORY": "warning",
    "TIMEOUT": "info",
    "DEADLINE": "info",
    "PREEMPTED": "info",
    "CANCELLED": "info",
}
_NODE_STATES = frozenset({"NODE_FAIL", "BOOT_FAIL"})
_MOST_GPUS = 256
"""Of a node: the format numbers them by a uint8."""
_SHARED = (
    "several jobs had parts of one node at the same time: `gpus` is empty for them on that node, because accounting "
    "does not say which GPUs they had"
)


@dataclass(frozen=True)
class Allocation:
    """A job as it ran once: its GPUs on each node (0: not known), and the accounting's words about its end."""

    job: Job
    gpus_per_node: int = 0
    gpu_model: str | None = None
    words: str = ""
    failed_node: str = ""


def fill(draft: Draft, found: Sequence[Allocation], report: Report) -> tuple[Topology, int]:
    """Add jobs and the events of their ends to a draft; return the machines, and how many jobs there are."""
    distinct = _distinct(found, report)
    jobs, topology = _placed(distinct, report)
    draft.add_jobs(jobs)
    for allocation in distinct:
        draft.add_events(_ending(allocation))
    report.notes.append("nodes are those that jobs ran on, with as many GPUs as jobs had of them at once")
    return topology, len(distinct)


def jobs_of(found: Sequence[Allocation], report: Report) -> list[Job]:
    """Return the jobs alone: each run of one that was requeued, with its part of nodes that it shared."""
    return _placed(_distinct(found, report), report)[0]


def _placed(distinct: list[Allocation], report: Report) -> tuple[list[Job], Topology]:
    topology, shared = _machines(distinct)
    cards = {node.name: {gpu.gpu for gpu in node.gpus} for node in topology.nodes}
    if shared:
        report.notes.append(_SHARED)
    return [_with_parts(allocation, shared, cards) for allocation in distinct], topology


def _distinct(found: Sequence[Allocation], report: Report) -> list[Allocation]:
    """Give every run of a requeued job an id of its own, the last one keeping the plain id; drop repeats."""
    by_id: dict[str, dict[int, Allocation]] = defaultdict(dict)
    for allocation in found:
        runs = by_id[allocation.job.job_id]
        if allocation.job.start in runs:
            report.skip("the job was there already", f"job {allocation.job.job_id}")
        runs[allocation.job.start] = allocation  # the later account knows more
    kept = []
    for job_id, runs in by_id.items():
        ordered = [runs[start] for start in sorted(runs)]
        for number, allocation in enumerate(ordered[:-1], start=1):
            renamed = allocation.job.model_copy(update={"job_id": f"{job_id}#run{number}"})
            kept.append(replace(allocation, job=renamed))
        kept.append(ordered[-1])
    return kept


def _machines(found: list[Allocation]) -> tuple[Topology, dict[str, set[str]]]:
    """Return the nodes, and by node the jobs that had it together with others."""
    spans: dict[str, list[tuple[int, int, Allocation]]] = defaultdict(list)
    models: dict[str, str] = {}
    for allocation in found:
        job = allocation.job
        for node in job.nodes:
            spans[node].append((job.start, 2**62 if job.end is None else job.end, allocation))
            if allocation.gpu_model is not None:
                models.setdefault(node, allocation.gpu_model)
    nodes, shared = [], {}
    for name in sorted(spans):
        together, gpus = _together(name, spans[name])
        if together:
            shared[name] = together
        cards = [Gpu(gpu=index) for index in range(min(gpus, _MOST_GPUS))]
        nodes.append(Node(name=name, gpu_model=models.get(name), gpus=cards))
    return Topology(nodes=nodes), shared


def _together(node: str, spans: list[tuple[int, int, Allocation]]) -> tuple[set[str], int]:
    """Return the jobs of a node that were on it with others, and the most GPUs of it in use at once."""
    together: set[str] = set()
    running: list[tuple[int, Allocation]] = []
    most = 0
    for start, end, allocation in sorted(spans, key=lambda span: (span[0], span[1], span[2].job.job_id)):
        running = [(until, other) for until, other in running if until > start]
        if running:
            together.add(allocation.job.job_id)
            together.update(other.job.job_id for _, other in running)
        running.append((end, allocation))
        known = [index for _, other in running for index in (other.job.gpus or {}).get(node, [])]
        if len(set(known)) < len(known):  # shards, or a damaged account
            for _, other in running:
                (other.job.gpus or {}).pop(node, None)
        most = max(most, sum(other.gpus_per_node for _, other in running), *(index + 1 for index in known))
    return together, most


def _with_parts(allocation: Allocation, shared: dict[str, set[str]], cards: dict[str, set[int]]) -> Job:
    """Return the job with its part of nodes: where it shared one and nothing names its GPUs, they are unknown."""
    job, known = allocation.job, allocation.job.gpus or {}
    parts: dict[str, list[int]] = {}
    for node in job.nodes:
        if job.job_id in shared.get(node, ()):
            parts[node] = known.get(node, [])
        elif node in known and set(known[node]) != cards[node]:
            parts[node] = known[node]
    return job.model_copy(update={"gpus": parts or None})


def _ending(allocation: Allocation) -> Iterator[Event]:
    """Yield the scheduler event of a job that did not end by its own success."""
    job, failed = allocation.job, allocation.failed_node
    severity = _SEVERITIES.get(job.state)
    if severity is None or job.end is None:
        return
    node = failed if failed in job.nodes else job.nodes[0] if len(job.nodes) == 1 else None
    yield Event(
        timestamp=job.end,
        source="scheduler",
        node=node if job.state in _NODE_STATES else None,
        job_id=job.job_id,
        severity=severity,
        message=allocation.words,
    )
