"""What logs say of jobs: checkpoints, loading, NCCL's watchdog, and what stops a job and is a fault of its own.

Wordings of Megatron-LM, NeMo, DeepSpeed and PyTorch (ProcessGroupNCCL); what a trainer prints otherwise is not known,
and then the job's own pauses must do.
"""

import re
from collections.abc import Sequence
from typing import Any, NamedTuple

from detectors.contract import Instant, LogRecord
from detectors.fleet.fleet import Fleet
from detectors.fleet.scheduling import words_of
from detectors.job_health.reports import HINT
from detectors.signals.xid import XidCatalogue, parse_line

_KEPT_MS = 86_400_000
_MATTERS = {
    "watchdog": r"Watchdog caught collective operation timeout|collective operation timeout|Watchdog timeout.*NCCL|"
    r"Timed out waiting \d+ ?ms for|NCCL watchdog.*(?:timed out|hang)|ProcessGroup\w+.*timed out|"
    r"monitoredBarrier.*timeout",
    "attached": r"\b(?:py-spy|(?:cuda-)?gdb|lldb|strace|debugpy|debugger)\b.{0,80}\battach(?:ed|ing)\b|"
    r"\battach(?:ed|ing)\b.{0,80}\b(?:py-spy|(?:cuda-)?gdb|lldb|strace|debugpy|debugger)\b",
    "debugging": r"\((?:Pdb\+*|gdb)\)|\bipdb>|\bbreakpoint\(\)|\bset_trace\(\)|waiting for (?:a |the )?debugger",
    "saved": r"(?:successfully |finished |done )sav\w+|saved (?:a )?checkpoint|checkpoint (?:was )?saved",
    "saving": r"\bsaving\b.*(?:checkpoint|state|model)|\bcheckpoint\b.*\b(?:being saved|saving|writing)\b",
    "uploading": r"\b(?:uploading|exporting|consolidating)\b|\bpushing\b.*\b(?:hub|registry|model)\b",
    "loading": r"\bload(?:ing|ed)\b.*checkpoint|\binitializ\w+\b|rendezvous|restart(?:ing)? worker|NCCL ready|"
    r"compil(?:ing|ation)|building (?:the )?(?:dataset|index)",
    "over": r"training (?:is )?(?:done|finished|complete)|after training is done|exiting program|"
    r"['\"]train_runtime['\"]|Trainer\.fit\W* stopped",
    "at_step": r"\biteration\s+(\d+)\s*/\s*(\d+)|\bstep[: ]+(\d+)\s*/\s*(\d+)",
    "evaluating": r"\bevaluat\w+|\bvalidat\w+|val(?:idation)?[ _]loss",
}
"""By the matter, in the order in which they are tried."""
_FORMS = {matter: re.compile(form, re.IGNORECASE) for matter, form in _MATTERS.items()}
_SESSION_MS = 900_000
"""Of a user's debugger the first rank that it attaches to counts: that one stops the job, others follow."""
_SUSPENDED = re.compile(r"\b(?:suspend\w*|preempt\w*|SSUSP|USUSP|bstop)\b", re.IGNORECASE)
_ENDED = re.compile(
    r"\bdone\b|\bcomplet(?:e|ed)\b|\bexit(?:ed|_status)?\b|\bcancel\w*|\bfinished\b|\bterminated\b|\bkilled\b|"
    r"WEXITSTATUS|WTERMSIG|time ?limit exhausted|\bobit\b|job_complete",
    re.IGNORECASE,
)
"""What slurmctld, mbatchd and pbs_server write of a job that is over, however it ended."""
_HARMLESS = XidCatalogue({}).codes("information", "remap_recorded", "correctable_memory", "power")
_KERNEL = re.compile(
    r"link (?:is )?down|lost carrier|carrier lost|cable unplugged|kernel panic|hard LOCKUP|soft lockup|"
    r"not responding, (?:still trying|timed out)|"
    r"Fatal machine check|Hardware Error.*(?:fatal|uncorrected)|I/O error, dev|"
    r"Machine check: Processor context corrupt",
    re.IGNORECASE,
)
"""What is a fault of its own, or a consequence of one. A rank that is killed for want of memory is none: where its job
stays, the others wait for ever.
"""
_ANSWERS = re.compile(r"\bnfs: server (\S+) OK\b")
"""A client sees it of its own requests: the server is there for all, and what others wait for is under way."""


def matter_of(message: str) -> str | None:
    """Return what a line of a job's log is about."""
    for matter, form in _FORMS.items():
        found = form.search(message)
        if found is None:
            continue
        if matter != "at_step":
            return matter
        done, total = (int(part) for part in found.groups() if part is not None)
        return "over" if done >= total - 1 else None
    return None


class Printed(NamedTuple):
    """A line that may report an iteration: when, of which job, as which job that runs, by which rank, and its text."""

    at: Instant
    job_id: str
    runs_as: str
    rank: int | None
    text: str


class Lines:
    """When each matter was last spoken of by each job, and the last line of each node that may stop its job."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._jobs: dict[str, dict[str, Instant]] = {}
        self._nodes: dict[str, tuple[Instant, str]] = {}
        self._reports: list[Printed] = []

    def take(self, record: LogRecord) -> str | None:
        """Take a line, in order of time; return the job whose watchdog it is from."""
        if record.source == "job":
            matter, job_id = matter_of(record.message), self._running(record)
            if job_id is not None and HINT in record.message:
                self._reports.append(Printed(record.at, record.job_id or job_id, job_id, record.rank, record.message))
            if matter is None or job_id is None:
                return None
            if matter != "attached" or record.at - self.last(job_id, matter) > _SESSION_MS:
                self._jobs.setdefault(job_id, {})[matter] = record.at
            return job_id if matter == "watchdog" else None
        if record.source == "scheduler":
            for matter, form in (("suspended", _SUSPENDED), ("over", _ENDED)) if record.job_id else ():
                if form.search(record.message):
                    self._jobs.setdefault(str(record.job_id), {})[matter] = record.at
            for node, word in words_of(record):
                if word in {"down", "suspect", "unready"}:
                    self._nodes[node] = record.at, record.message[:200]
        elif (back := _ANSWERS.search(record.message)) is not None:
            waits = f"server {back[1]} not responding"
            self._nodes = {node: entry for node, entry in self._nodes.items() if waits not in entry[1]}
        elif record.node is not None and _stops_jobs(record):
            self._nodes[record.node] = record.at, record.message[:200]
        return None

    def _running(self, record: LogRecord) -> str | None:
        """Return the job that a line is of, as it is known here: where nothing says which nodes the job that the line
        names has, the one that was found on its node.
        """
        if record.node is None or record.job_id in self._fleet.jobs:
            return record.job_id
        job = self._fleet.job_of(record.node)
        return job.job_id if job is not None and (record.job_id is None or job.inferred) else record.job_id

    def reports(self) -> list[Printed]:
        """Return the lines since the last point of the grid that may report an iteration."""
        reports, self._reports = self._reports, []
        return reports

    def last(self, job_id: str, *matters: str) -> Instant:
        """Return when a job last spoke of one of `matters`; -1 if never."""
        times = self._jobs.get(job_id, {})
        return max((times.get(matter, -1) for matter in matters), default=-1)

    def cause(self, nodes: Sequence[str], since: Instant) -> str | None:
        """Return a line on one of `nodes` after `since` that explains why their job stands."""
        if not self._nodes:
            return None
        return next((line for node in nodes for at, line in [self._nodes.get(node, (-1, ""))] if at >= since), None)

    def forget(self, now: Instant) -> None:
        """Drop the jobs that are over, and lines that are old."""
        if not self._jobs.keys() <= self._fleet.jobs.keys():
            self._jobs = {job_id: times for job_id, times in self._jobs.items() if job_id in self._fleet.jobs}
        if any(now - at > _KEPT_MS for at, _ in self._nodes.values()):
            self._nodes = {node: entry for node, entry in self._nodes.items() if now - entry[0] <= _KEPT_MS}

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON can say it."""
        return {"jobs": self._jobs, "nodes": self._nodes, "reports": self._reports}

    def load(self, state: dict[str, Any]) -> None:
        """Take what `snapshot` returned."""
        self._jobs = state["jobs"]
        self._nodes = {node: (at, line) for node, (at, line) in state["nodes"].items()}
        self._reports = [Printed(*report) for report in state.get("reports", ())]


def _stops_jobs(record: LogRecord) -> bool:
    if record.source == "kernel":
        xid = parse_line(record.message)
        return xid.code not in _HARMLESS if xid is not None else _KERNEL.search(record.message) is not None
    if record.source == "fabricmanager":
        return record.severity in {"error", "critical"}
    return record.source == "sel" and record.severity == "critical" and "eassert" not in record.message
