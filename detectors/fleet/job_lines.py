"""What logs say of jobs that start and end, for clusters of which no list of jobs is gathered.

Wordings of SchedMD's slurmctld: job_scheduler.c, backfill.c and proc_req.c (allocations), job_mgr.c (ends). A line that
names no nodes in Slurm's form starts nothing. A job's own lines name its ranks and the nodes that these run on, though
rarely all: Megatron-LM prints from the first rank and the last.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from detectors.contract import Instant, LogRecord
from detectors.fleet.fleet import Job, JobEvent
from detectors.fleet.scheduling import NODES, expand

_JOB = r"(?:JobId=)?(?P<job>\d+(?:[_+]\d+)?)(?:\(\d+\))?"
_STARTED = tuple(
    re.compile(form.replace("JOB", _JOB).replace("NODES", NODES))
    for form in (
        r"\bAllocate JOB NodeList=NODES(?= |$)",
        r"\b_slurm_rpc_allocate_resources:? JOB NodeList=NODES(?= |$)",
        r"\bStarted JOB in \S+ on NODES\s*$",
    )
)
_ENDED = re.compile(r"\b(?:_job_complete:|Time limit exhausted for|Killing)(?: requeue)? JOB\b".replace("JOB", _JOB))


def job_event_of(record: LogRecord) -> JobEvent | None:
    """Return the start or the end of a job that a scheduler's line reports; an end knows no nodes."""
    if record.source != "scheduler":
        return None
    for form in _STARTED:
        if found := form.search(record.message):
            nodes = tuple(sorted(set(expand(found["nodes"]))))
            return JobEvent(record.at, "start", Job(record.job_id or found["job"], nodes, record.at))
    if found := _ENDED.search(record.message):
        return JobEvent(record.at, "end", Job(record.job_id or found["job"], (), record.at))
    return None


@dataclass(slots=True)
class Speakers:
    """The ranks of a job that wrote lines: the highest, and from when on each of their nodes is known."""

    highest: int = 0
    nodes: dict[str, Instant] = field(default_factory=dict)

    def take(self, record: LogRecord) -> None:
        """Take a line of a rank on a node."""
        if record.node is not None and record.rank is not None:
            self.highest = max(self.highest, record.rank)
            self.nodes.setdefault(record.node, record.at)

    def among(self, lots: Iterable[tuple[str, ...]], gpus: Mapping[str, int]) -> tuple[str, ...]:
        """Return the nodes of the job, sorted: its speakers' and those that work in step with them, if these are all.

        They are where the highest rank is the last of as many as they have GPUs (`gpus`, by node).
        """
        mine = set(self.nodes).union(*(lot for lot in lots if not self.nodes.keys().isdisjoint(lot)))
        return tuple(sorted(mine)) if 0 < self.highest == sum(gpus.get(node, 0) for node in mine) - 1 else ()
