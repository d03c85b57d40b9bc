"""What slurmctld's log says of jobs that start and end, for clusters of which no list of jobs is gathered.

Wordings of SchedMD's slurmctld: job_scheduler.c, backfill.c and proc_req.c (allocations), job_mgr.c (ends). A line that
names no nodes in Slurm's form starts nothing.
"""

import re

from detectors.contract import LogRecord
from detectors.fleet import Job, JobEvent
from detectors.scheduling import NODES, expand

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
