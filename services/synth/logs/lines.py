"""Log lines as their writers write them: ipmitool's SEL list, the scheduler, the trainer, the kernel.

An event's time is when the collector received the line; a BMC's own clock, which drifts, stays in the message.
"""

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import numpy as np

from services.recording.model import Event
from services.synth.cluster.profile import ClusterProfile
from services.synth.jobs.job import Run
from services.synth.logs.schedulers import Dialect, Lsf, Severity, Slurm

_BMC_SKEW_S = 2.5  # standard deviation of a BMC's clock
_SEL_DELAY_S = (0.6, 1.4)  # from the event to the collector; a node's own, so that its lines keep their order
_KERNEL_LINES_PER_NODE_HOUR = 0.6
_KERNEL_LINES = (
    "perf: interrupt took too long ({a} > {b}), lowering kernel.perf_event_max_sample_rate to {c}000",
    "systemd-journald[1187]: Data hash table of system.journal has a fill level at 75.0 ({a} of 233016 items)",
    "TCP: request_sock_TCP: Possible SYN flooding on port {a}. Sending cookies.",
)


class Logs:
    """Makes the log records of a recording."""

    def __init__(self, profile: ClusterProfile, start_ms: int, duration_s: float, rng: np.random.Generator) -> None:
        self._profile, self._start_ms, self._duration = profile, start_ms, duration_s
        self._rng = rng
        self._skew = _BMC_SKEW_S * rng.standard_normal(profile.nodes)
        self._sel_delay = rng.uniform(*_SEL_DELAY_S, profile.nodes)
        self._dialect: Dialect = Lsf(profile) if profile.scheduler == "lsf" else Slurm(profile)
        self._sel_id = rng.integers(40, 900, profile.nodes)

    def _at(self, seconds: float) -> int:
        return self._start_ms + int(seconds * 1000)

    def _clock(self, seconds: float) -> datetime:
        return datetime.fromtimestamp(self._start_ms / 1000, tz=UTC) + timedelta(seconds=seconds)

    def sel(self, node: int, at: float, severity: Severity, sensor: str, text: str, asserted: str) -> Event:
        """Return one SEL record as ``ipmitool sel elist`` prints it, with the BMC's own time."""
        own = self._clock(at + float(self._skew[node]))
        self._sel_id[node] += 1
        fields = f"{self._sel_id[node]:4x}", f"{own:%m/%d/%Y}", f"{own:%H:%M:%S}", sensor, text, asserted
        return Event(
            timestamp=self._at(at + float(self._sel_delay[node])),
            source="sel",
            node=self._profile.node_names[node],
            severity=severity,
            message=" | ".join(fields),
        )

    def kernel(self, node: int, at: float, severity: Severity, message: str) -> Event:
        """Return one line of a node's kernel."""
        name = self._profile.node_names[node]
        return Event(timestamp=self._at(at), source="kernel", node=name, severity=severity, message=message)

    def switch(self, name: str, at: float, severity: Severity, message: str) -> Event:
        """Return one line of a switch's syslog."""
        return Event(timestamp=self._at(at), source="kernel", node=name, severity=severity, message=message)

    def closed(self, node: int, at: float, reason: str) -> Event:
        """Return the scheduler's line of a node that takes no more jobs."""
        return self._dialect.closed(self, node, at, reason)

    def opened(self, node: int, at: float) -> Event:
        """Return the scheduler's line of a node that takes jobs again."""
        return self._dialect.opened(self, node, at)

    def fabric_manager(self, node: int, at: float, severity: Severity, message: str) -> Event:
        """Return one line of a node's fabricmanager.log, with the time that it writes itself."""
        name = self._profile.node_names[node]
        stamped = f"[{self._clock(at):%b %d %Y %H:%M:%S}] [{severity.upper()}] [tid 2147] {message}"
        return Event(timestamp=self._at(at), source="fabricmanager", node=name, severity=severity, message=stamped)

    def scheduler(
        self, at: float, message: str, *, node: int | None = None, job: str | None = None, severity: Severity = "info"
    ) -> Event:
        """Return one line of the scheduler's controller, `message` as it writes it."""
        about: dict[str, str] = {}
        if node is not None:
            about["node"] = self._profile.node_names[node]
        if job is not None:
            about["job_id"] = job
        return Event(timestamp=self._at(at), source="scheduler", severity=severity, message=message, **about)

    def trainer(
        self, at: float, job: str, message: str, *, severity: Severity = "info", rank: int | None = None
    ) -> Event:
        """Return one line of a job's own output; no node stands with it."""
        return Event(timestamp=self._at(at), source="job", job_id=job, rank=rank, severity=severity, message=message)

    def background(self) -> Iterator[Event]:
        """Yield the lines that kernels write on any day."""
        expected = _KERNEL_LINES_PER_NODE_HOUR * self._profile.nodes * self._duration / 3600
        for _ in range(int(self._rng.poisson(expected))):
            line = _KERNEL_LINES[int(self._rng.integers(len(_KERNEL_LINES)))]
            a, c = int(self._rng.integers(2501, 9000)), int(self._rng.integers(20, 80))
            at, node = float(self._rng.uniform(0, self._duration - 1)), int(self._rng.integers(self._profile.nodes))
            yield self.kernel(node, at, "info", line.format(a=a, b=a - 12, c=c))

    def job(self, run: Run) -> Iterator[Event]:
        """Yield the scheduler's and the trainer's lines of a job, as far as the recording goes."""
        yield from self._dialect.job(self, run)
        if not run.spec.training.reports:
            return
        spec, training = run.spec, run.spec.training
        last = len(run.gpus) - 1
        began = spec.start + training.launch_s
        if began < run.end:
            yield self._trainer(run, began, 0, f"> initialized {last + 1} ranks, NCCL ready")
        place = self._profile.mount_of(training.checkpoints_to).mount
        resumed = training.first_iteration - 1
        if resumed and run.loading[1] < run.end:
            text = f"  successfully loaded checkpoint from {place}/ckpt/{spec.name} at iteration {resumed}"
            yield self._trainer(run, run.loading[1], 0, text)
        ends = run.start + run.total
        done = int(np.searchsorted(ends, run.end, side="left"))
        for step in range(training.log_every - 1 - run.skipped % training.log_every, done, training.log_every):
            yield self._trainer(run, float(ends[step]), last, self._iteration(run, step))
        if run.state == "FAILED":
            text = "torch.distributed.elastic.multiprocessing.errors.ChildFailedError: train.py FAILED"
            yield self._trainer(run, run.end - 0.2, 0, text if training.log == "megatron" else "MPI_ABORT was invoked")
        for begin, end in run.checkpoints:
            done = int(np.searchsorted(run.start, begin, side="left"))
            where = f"iteration {run.first_iteration + done - 1:7d} to {place}/ckpt/{spec.name}"
            yield self._trainer(run, begin, 0, f"saving checkpoint at {where}")
            if end < run.end:
                yield self._trainer(run, end, 0, f"  successfully saved checkpoint at {where}")
        for begin, end in run.evaluations:
            done = run.first_iteration + int(np.searchsorted(run.start, begin, side="left")) - 1
            if end < run.end:
                loss = float(run.loss[done - run.first_iteration]) * 1.02
                text = f"validation loss at iteration {done} | lm loss value: {loss:.6E} |"
                yield self._trainer(run, end, last, text)

    def _iteration(self, run: Run, step: int) -> str:
        """Return Megatron's line, or a simulation's; its time is the mean since the line before."""
        training = run.spec.training
        iteration = run.first_iteration + step
        since = slice(max(0, step + 1 - training.log_every), step + 1)
        mean_ms = 1000 * float(run.total[since].mean())
        if training.log == "plain":
            return f" step {iteration:9d}   wall per step {mean_ms / 1000:9.4f} s"
        nans = int(np.isnan(run.loss[since]).sum())
        stamp = self._clock(float(run.start[step] + run.total[step]))
        samples = iteration * (training.tokens_per_step // 8192)
        return (
            f" [{stamp:%Y-%m-%d %H:%M:%S}] iteration {iteration:8d}/{training.last_iteration:8d} |"
            f" consumed samples: {samples:12d} | elapsed time per iteration (ms): {mean_ms:.1f} |"
            f" learning rate: 1.500000E-04 | global batch size: {training.tokens_per_step // 8192:5d} |"
            f" lm loss: {run.loss[step]:.6E} | loss scale: 1.0 | grad norm: {run.grad_norm[step]:.3f} |"
            f" number of skipped iterations: {nans:3d} | number of nan iterations: {nans:3d} |"
        )

    def _trainer(self, run: Run, at: float, rank: int, message: str) -> Event:
        return Event(
            timestamp=self._at(at),
            source="job",
            node=self._profile.node_names[int(run.gpus[rank]) // self._profile.node.gpus],
            job_id=run.spec.id,
            rank=rank,
            severity="info",
            message=message,
        )
