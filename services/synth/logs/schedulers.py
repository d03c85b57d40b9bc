"""What batch schedulers write about jobs and nodes: Slurm's controller, and LSF as bhist and badmin hhist show it."""

from collections.abc import Iterator, Sequence
from typing import Literal, Protocol

from services.recording.model import Event
from services.synth.cluster.profile import ClusterProfile
from services.synth.jobs.job import Run

Severity = Literal["info", "warning", "error", "critical"]

_CPUS = 96  # of a node, as the scheduler counts them
_TERM_DELAY_S = 0.4  # from the order to end a job until it is over


class Writes(Protocol):
    """Makes one line of the scheduler, to be found under `node` (index) or `job`."""

    def scheduler(
        self, at: float, message: str, *, node: int | None = None, job: str | None = None, severity: Severity = "info"
    ) -> Event:
        """Return the line, `message` as it is written, at `at` seconds."""


class Dialect(Protocol):
    """One scheduler's way to say things."""

    def job(self, logs: Writes, run: Run) -> Iterator[Event]:
        """Yield the lines of a job's life, as far as it is known."""

    def closed(self, logs: Writes, node: int, at: float, reason: str) -> Event:
        """Return the line of a node that takes no more jobs."""

    def opened(self, logs: Writes, node: int, at: float) -> Event:
        """Return the line of a node that takes jobs again."""


class Slurm:
    """slurmctld.log. Wordings: job_mgr.c and proc_req.c of SchedMD's slurmctld."""

    def __init__(self, profile: ClusterProfile) -> None:
        self._names = profile.node_names

    def job(self, logs: Writes, run: Run) -> Iterator[Event]:
        """Yield submission, allocation and how it ended."""
        spec, job = run.spec, run.spec.id
        names = [self._names[node] for node in run.nodes]
        where = f"NodeList={compress(names)} #CPUs={_CPUS * len(names)} Partition={spec.partition}"
        submitted = f"_slurm_rpc_submit_batch_job: JobId={job} InitPrio=4294901214 usec=1184"
        yield self._line(logs, spec.submit, submitted, job)
        yield self._line(logs, spec.start, f"sched: Allocate JobId={job} {where}", job)
        if run.ended is None:
            return
        at, state = run.ended.at, run.ended.state
        endings: dict[str, tuple[str, Severity]] = {
            "COMPLETED": (f"_job_complete: JobId={job} WEXITSTATUS 0", "info"),
            "FAILED": (f"_job_complete: JobId={job} WEXITSTATUS 1", "info"),
            "CANCELLED": (f"_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId={job} uid {_uid(spec.user)}", "info"),
            "TIMEOUT": (f"Time limit exhausted for JobId={job}", "warning"),
            "OUT_OF_MEMORY": (f"_job_complete: JobId={job} OOM failure", "warning"),
            "NODE_FAIL": (f"Killing JobId={job} on failed node {self._failed(run)}", "error"),
        }
        message, severity = endings.get(state, (f"_job_complete: JobId={job} {state}", "info"))
        yield self._line(logs, at, message, job, severity)
        if state == "CANCELLED":
            yield self._line(logs, at + _TERM_DELAY_S, f"_job_complete: JobId={job} WTERMSIG 15", job)
        yield self._line(logs, at + _TERM_DELAY_S, f"_job_complete: JobId={job} done", job)

    def _failed(self, run: Run) -> str:
        struck = run.ended.node if run.ended is not None else None
        return self._names[run.nodes[0] if struck is None else struck]

    def _line(self, logs: Writes, at: float, message: str, job: str, severity: Severity = "info") -> Event:
        return logs.scheduler(at, f"slurmctld: {message}", job=job, severity=severity)

    def closed(self, logs: Writes, node: int, at: float, reason: str) -> Event:
        """Return the line of a node that is drained."""
        text = f"slurmctld: update_node: node {self._names[node]} reason set to: {reason}"
        return logs.scheduler(at, f"{text}; state set to DRAINED", node=node)

    def opened(self, logs: Writes, node: int, at: float) -> Event:
        """Return the line of a node that is resumed."""
        return logs.scheduler(at, f"slurmctld: update_node: node {self._names[node]} state set to IDLE", node=node)


class Lsf:
    """LSF's events in the words of bhist -l and badmin hhist; the times are the records' own."""

    def __init__(self, profile: ClusterProfile) -> None:
        self._names, self._slots = profile.node_names, profile.node.gpus

    def job(self, logs: Writes, run: Run) -> Iterator[Event]:
        """Yield submission, dispatch and how it ended."""
        spec, job = run.spec, run.spec.id
        head = f"Job <{job}>"
        queued = f"{head}, User <{spec.user}>, Job Name <{spec.name}>: Submitted to Queue <{spec.partition}>"
        yield logs.scheduler(spec.submit, queued, job=job)
        hosts = [f"{self._slots}*{self._names[node]}" for node in run.nodes]
        shown = " ".join(f"<{host}>" for host in hosts[:4]) + (" ..." if len(hosts) > 4 else "")
        dispatched = f"{head}: Dispatched {self._slots * len(hosts)} Task(s) on Host(s) {shown}"
        yield logs.scheduler(spec.start, dispatched, job=job)
        if run.ended is None:
            return
        endings: dict[str, tuple[str, Severity]] = {
            "COMPLETED": ("Done successfully", "info"),
            "FAILED": ("Exited with exit code 1", "info"),
            "CANCELLED": ("Exited; TERM_OWNER: job killed by owner", "info"),
            "TIMEOUT": ("Exited; TERM_RUNLIMIT: job killed after reaching LSF run time limit", "warning"),
            "OUT_OF_MEMORY": ("Exited; TERM_MEMLIMIT: job killed after reaching LSF memory usage limit", "warning"),
            "NODE_FAIL": ("Exited; TERM_EXTERNAL_SIGNAL: job killed because its execution host is down", "error"),
        }
        message, severity = endings.get(run.ended.state, (f"Exited; {run.ended.state}", "info"))
        yield logs.scheduler(run.ended.at, f"{head}: {message}.", job=job, severity=severity)

    def closed(self, logs: Writes, node: int, at: float, reason: str) -> Event:
        """Return the line of a host that the administrator closed."""
        text = f"Host <{self._names[node]}> closed by administrator <lsfadmin>. {reason}"
        return logs.scheduler(at, text, node=node)

    def opened(self, logs: Writes, node: int, at: float) -> Event:
        """Return the line of a host that the administrator opened."""
        return logs.scheduler(at, f"Host <{self._names[node]}> opened by administrator <lsfadmin>.", node=node)


def _uid(user: str) -> int:
    return 20000 + sum(ord(letter) * (place + 1) for place, letter in enumerate(user)) % 9000


def compress(names: Sequence[str]) -> str:
    """Return Slurm's short form of node names, as in ``v[001-096]``; a single name stays as it is."""
    prefix = names[0].rstrip("0123456789")
    width = len(names[0]) - len(prefix)
    if len(names) == 1 or not width or any(not name.startswith(prefix) or len(name) != len(names[0]) for name in names):
        return ",".join(names)
    numbers = sorted(int(name[len(prefix) :]) for name in names)
    ranges: list[list[int]] = []
    for number in numbers:
        if ranges and number == ranges[-1][1] + 1:
            ranges[-1][1] = number
        else:
            ranges.append([number, number])
    parts = [f"{a:0{width}d}" if a == b else f"{a:0{width}d}-{b:0{width}d}" for a, b in ranges]
    return f"{prefix}[{','.join(parts)}]"
