"""Which jobs run where no list of them is gathered: from the scheduler's log, ranks' steps, else from work in step.

The scheduler's list of jobs counts alone for the nodes that it has named in a week. For others, work in step does; and
without a list:

- *the scheduler's log*: slurmctld writes which job starts where, and its end (`detectors.fleet.job_lines`);
- *steps*: ranks that report their steps name their job and their node, as do those that write lines, where these
  nodes, and those in step with them, are all that the job has by its highest rank;
- *work in step*: GPUs of a synchronous job rise and fall together, so the half-minute means of their nodes' activity
  are correlated. Scrapes of nodes fall into different phases of a step, and steps alias with scrapes: so two nodes of
  a job may as well be correlated negatively, and the absolute value counts. Levels that change within the same hour,
  as they do in any two jobs, are taken out before. Two nodes are linked where it is too high for chance (Fisher's z
  transform, corrected for all pairs of a day), and what is linked, by however many others, is one job, until nothing
  has linked two parts of it for forty minutes.

A process that ends frees its GPUs' memory, which checkpoints and evaluations do not: a node most of whose GPUs hold
hardly any memory any more leaves its job, is known anew from there on, and with most of its nodes a job is over.
Where an exporter names a GPU's job (`hpc_job`), capture and import have made a job of it before.
What was inferred is approximate: a job is known some minutes after its start, and one smaller than a node is that node.
It is called `inferred-` and a node that it had.
"""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any, Final

import numpy as np

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray, LogRecord
from detectors.core.columns import GPU_NODES, Columns, column
from detectors.core.survivors import Survivors
from detectors.engine.rows import Rows
from detectors.fleet.fleet import INFERRED, Fleet, Job, JobEvent
from detectors.fleet.in_step import FEWEST, linked, merged
from detectors.fleet.named_jobs import GONE_S, NamedJobs

MEMORY: Final = "DCGM_FI_DEV_FB_USED"
FIELDS: Final = ("DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", MEMORY)
_SUMMED: Final = FIELDS[:3]
_WINDOW_MS: Final = 30_000
_WINDOWS: Final = 80
"""Forty minutes: checkpoints of every half hour, which all nodes of a job share, are in it."""
_EVERY: Final = 10
"""Links are looked for every so many windows."""
_LOOKS: Final = 8
"""Parts of a job that so many looks linked nowhere, forty minutes, were linked by chance: in them all was read anew."""
_BUSY_UTIL: Final = 20.0
"""Per cent: below lies what idles."""
_IDLE_WINDOWS: Final = 10
"""So long most of a job's nodes must idle before it is over: checkpoints and evaluations take up to four minutes."""
_FREED: Final = 0.1
"""Of the memory in use: idle GPUs hold some MiB, a process with a CUDA context half a GiB, a model tens."""
_REMEMBERED_MS: Final = 7 * 86_400_000
"""A node that the scheduler's list has not named for a week is none of its own."""
_LOOKS_A_DAY: Final = 86_400_000 / (_WINDOW_MS * _EVERY)


class _Gpus(Columns):
    """By GPU: sums and counts of the readings in this window, of utilisation, power and tensor activity; the most
    memory in use since it was last freed (MiB), and whether it was freed in this window; whether its node is `outside`
    of what a scheduler lists, as all are where there is none.
    """

    axis = "dcgm"
    sums: FloatArray = column(0.0, 3)
    counts: IntArray = column(0, 3)
    memory: FloatArray = column(0.0)
    freed: BoolArray = column(False)
    node: IntArray = column(-1)
    outside: BoolArray = column(True)


class _Nodes(Columns):
    """By node: its activity in the last `_WINDOWS` windows (NaN unknown), how long it has idled (windows), and in each
    of the last `_LOOKS` looks for links the number of the lot that it was linked into (-1: with none).
    """

    axis = GPU_NODES
    activity: Any = column(np.nan, _WINDOWS, dtype=np.float32)
    idle: IntArray = column(0)
    lots: Any = column(-1, _LOOKS, dtype=np.int16)


class JobFinder:
    """Finds the jobs of a unit whose scheduler is silent; the engine applies its events at points of the grid."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._scheduled = False
        self._gpus, self._nodes = _Gpus(), _Nodes()
        self._names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._jobs: dict[str, Job] = {}
        self._named = NamedJobs()
        self._listed: dict[str, int] = {}
        """When the scheduler's list last gave a node to a job, ms."""
        self._infers = True
        """Whether there are nodes whose job no list names."""

    def scheduler_speaks(self) -> list[JobEvent]:
        """Note that there is a scheduler: what was inferred is over; more is inferred of nodes that it never names."""
        if self._scheduled:
            return []
        self._scheduled = True
        events = [JobEvent(job.start, "end", job) for job in self._jobs.values()]
        self._jobs.clear()
        self._named.keep_steps()
        self._gpus, self._nodes = _Gpus(), _Nodes()
        self._names, self._numbers, self._infers = [], {}, False
        return events

    def take_rows(self, rows: Rows, after: Instant) -> None:
        """Take rows of ranks as they arrive, for the nodes that these run on; those up to `after` are too late."""
        self._named.take_rows(rows, after)

    def take_lines(self, records: Iterable[LogRecord]) -> None:
        """Take log lines in order of time."""
        if not self._scheduled:
            self._named.take_lines(records)

    def observe(self, batch: Batch) -> None:
        """Take readings of GPUs."""
        if batch.kind != "dcgm" or not len(batch.entities) or not self._infers:
            return
        self._extend(batch.reach)
        counted = self._gpus.outside
        for row, name in enumerate(_SUMMED):
            column = batch.sound.get(name)
            if column is None:
                continue
            for tick, here in batch.ticks():
                value, those = column[tick][here], batch.entities[here]
                known = np.isfinite(value) & counted[those]
                self._gpus.sums[row, those[known]] += value[known]
                self._gpus.counts[row, those[known]] += 1
        for tick, here in batch.ticks() if MEMORY in batch.sound else ():
            used, those = batch.sound[MEMORY][tick][here], batch.entities[here]
            used = np.where(counted[those], used, np.nan)
            freed = used < _FREED * self._gpus.memory[those]
            self._gpus.freed[those] |= freed
            self._gpus.memory[those] = np.where(freed, used, np.fmax(used, self._gpus.memory[those]))

    def _extend(self, count: int) -> None:
        before = len(self._gpus)
        if count <= before:
            return
        self._gpus.grow(count)
        for index, key in enumerate(self._fleet.entities("dcgm")[before:count], start=before):
            node = str(key[0])
            if node not in self._numbers:
                self._numbers[node] = len(self._names)
                self._names.append(node)
            self._gpus.node[index] = self._numbers[node]
        self._nodes.grow(len(self._names))

    def advance(self, now: Instant) -> list[JobEvent]:
        """Return, at a point of the grid, which jobs began or ended by all that is known."""
        if self._scheduled:
            if now % _WINDOW_MS:
                return []
            self._named.forget_old(now, self._fleet.jobs)
            return self._in_order_of_ranks(now) + self._outside_jobs(now)
        events = self._logged_jobs(now) + self._applied(self._named_jobs(now))
        if now % _WINDOW_MS == 0 and len(self._nodes):
            events += self._applied(self._left(now, self._close_window()))
            events += self._applied(self._over(now))
            events += self._applied(self._in_order_of_ranks(now))
            if now // _WINDOW_MS % _EVERY == 0:
                events += self._begun(now)
            gpus = np.bincount(self._gpus.node, minlength=len(self._names)).tolist()
            lots = [job.nodes for name, job in self._jobs.items() if name not in self._named]
            self._named.name_speakers(now, lots, dict(zip(self._names, gpus, strict=True)))
        return events

    def _outside_jobs(self, now: Instant) -> list[JobEvent]:
        """Return the jobs of nodes that the scheduler does not know: people log in and start them by hand."""
        events: list[JobEvent] = []
        if self._infers:
            events += self._applied(self._left(now, self._close_window()))
            events += self._applied(self._over(now))
        if now // _WINDOW_MS % _EVERY == 0:
            known = {node: at for node, at in self._listed.items() if now - at <= _REMEMBERED_MS}
            listed = [node for name, job in self._fleet.jobs.items() if name not in self._jobs for node in job.nodes]
            self._listed = known | dict.fromkeys(listed, now)
            events += self._applied(self._taken_over(now, tuple(listed)))
            outside = np.array([str(node) not in self._listed for node, _ in self._fleet.entities("dcgm")], bool)
            self._infers = bool(outside.any())
            if self._infers:
                self._extend(len(outside))
                self._gpus.outside[:] = outside
                events += self._begun(now)
        return events

    def _applied(self, events: list[JobEvent]) -> list[JobEvent]:
        for event in events:
            if event.event == "start":
                self._jobs[event.job.job_id] = event.job
            else:
                self._jobs.pop(event.job.job_id, None)
        return events

    def _logged_jobs(self, now: Instant) -> list[JobEvent]:
        """Return what the scheduler's log has reported by now."""
        events: list[JobEvent] = []
        for reported in self._named.reported(now):
            if reported.event == "start":
                events += self._applied([*self._taken_over(now, reported.job.nodes), reported])
            elif (job := self._jobs.get(reported.job.job_id)) is not None:
                events += self._applied([JobEvent(now, "end", job)])
        return events

    def _named_jobs(self, now: Instant) -> list[JobEvent]:
        events = []
        for job_id, nodes in self._named.by_nodes(now):
            job = self._jobs.get(job_id)
            if job is None or job.nodes != nodes:
                events += self._taken_over(now, nodes)
                events.append(JobEvent(now, "start", Job(job_id, nodes, now if job is None else job.start)))
        return events

    def _in_order_of_ranks(self, now: Instant) -> list[JobEvent]:
        """Return the jobs of which a list or a log gives the nodes in another order than that of their ranks."""
        events = []
        for job in self._fleet.jobs.values():
            nodes = self._named.by_rank(job, now)
            if nodes != job.nodes and set(nodes) == set(job.nodes):
                events.append(JobEvent(now, "start", replace(job, nodes=nodes)))
        return events

    def _taken_over(self, now: Instant, nodes: tuple[str, ...]) -> list[JobEvent]:
        """Return the ends of inferred jobs on nodes whose job is known by name by now."""
        inferred = [job for name, job in self._jobs.items() if name not in self._named]
        return [JobEvent(now, "end", job) for job in inferred if set(job.nodes) & set(nodes)]

    def _close_window(self) -> set[str]:
        """End the window; return the nodes whose processes ended in it, of which nothing is known any more."""
        gpus, nodes, count = self._gpus, self._nodes, len(self._nodes)
        means = np.where(gpus.counts > 0, gpus.sums / np.maximum(gpus.counts, 1), np.nan)
        gpus.sums[:], gpus.counts[:] = 0.0, 0
        util, power, tensor = (_node_means(values, gpus.node, count) for values in means)
        activity = np.where(np.isfinite(tensor), 1000 * tensor, power)
        nodes.activity[:-1] = nodes.activity[1:]
        nodes.activity[-1] = activity
        works = np.where(np.isfinite(util), util >= _BUSY_UTIL, tensor > 0)
        silent = ~np.isfinite(util) & ~np.isfinite(tensor)
        nodes.idle = np.where(silent, nodes.idle, np.where(works, 0, nodes.idle + 1))
        freed = np.bincount(gpus.node[gpus.freed], minlength=count)
        anew = np.flatnonzero(2 * freed > np.bincount(gpus.node, minlength=count))
        gpus.freed[:] = False
        nodes.activity[:, anew], nodes.lots[:, anew] = np.nan, -1
        return {self._names[node] for node in anew.tolist()}

    def _left(self, now: Instant, anew: set[str]) -> list[JobEvent]:
        """Return how inferred jobs go on without the nodes whose processes ended, or that they are over."""
        events = []
        for name, job in self._jobs.items():
            if name in self._named or not anew & set(job.nodes):
                continue
            nodes = tuple(node for node in job.nodes if node not in anew)
            over = 2 * len(nodes) < len(job.nodes) or not nodes
            events.append(JobEvent(now, "end" if over else "start", job if over else Job(name, nodes, job.start)))
        return events

    def _over(self, now: Instant) -> list[JobEvent]:
        """Return the ends of jobs whose nodes idle, or that others have by name, and that are not heard of any more."""
        newest: dict[str, Job] = {}
        for job in sorted(self._jobs.values(), key=lambda job: (job.start, job.job_id)):
            newest |= dict.fromkeys(job.nodes, job)
        events = []
        for name, job in list(self._jobs.items()):
            logged, silent_s = self._named.logged(name), self._named.silent_s(name, now)
            windows = GONE_S * 1000 // _WINDOW_MS if logged else _IDLE_WINDOWS
            idle = sum(self._idles(node, windows) or (newest[node] is not job and not logged) for node in job.nodes)
            lasting = silent_s is not None and silent_s < _IDLE_WINDOWS * _WINDOW_MS / 1000
            if (silent_s or 0.0) > GONE_S or (not lasting and 2 * idle > len(job.nodes)):
                events.append(JobEvent(now, "end", job))
                self._named.forget(name)
        self._named.forget_old(now, self._jobs)
        return events

    def _idles(self, node: str, windows: int) -> bool:
        number = self._numbers.get(node)
        return number is not None and bool(self._nodes.idle[number] >= windows)

    def _begun(self, now: Instant) -> list[JobEvent]:
        """Return the jobs that nodes at work make up whose job nothing names, and jobs that got more nodes."""
        with_named = {node for name, job in self._jobs.items() if name in self._named for node in job.nodes}
        latest = self._nodes.activity[-FEWEST:]
        known = np.isfinite(latest).any(axis=0)
        mine = np.array([name in with_named for name in self._names], bool)
        candidates = np.flatnonzero((self._nodes.idle == 0) & known & ~mine)  # listed nodes are not read
        lots = self._nodes.lots
        lots[:-1], lots[-1] = lots[1:].copy(), -1
        if not len(candidates):
            return []
        lot = linked(self._nodes.activity[:, candidates].astype(np.float64), _LOOKS_A_DAY)
        several = np.bincount(lot)[lot] > 1
        lots[-1, candidates[several]] = np.unique(lot[several], return_inverse=True)[1]
        events: list[JobEvent] = []
        for group in np.unique(lot).tolist():
            those = candidates[lot == group]
            windows = np.isfinite(self._nodes.activity[:, those]).any(axis=1).sum()
            if windows >= (FEWEST if len(those) > 1 else _WINDOWS // 2):
                events += self._applied(self._joined(now, {self._names[node] for node in those.tolist()}))
        return events + self._applied(self._taken_apart(now))

    def _taken_apart(self, now: Instant) -> list[JobEvent]:
        """Return what makes several jobs of one whose parts have not been linked for long, while each is by itself."""
        events = []
        for name, job in self._jobs.items():
            if name in self._named:
                continue
            lots = self._nodes.lots[:, [self._numbers[node] for node in job.nodes]]
            parts = sorted(_parts(lots), key=len, reverse=True)[1:]
            if not (parts and (lots[0] >= 0).any()):  # all looks must know the job
                continue
            others = [tuple(job.nodes[place] for place in part.tolist()) for part in parts]
            left = tuple(sorted(set(job.nodes).difference(*others)))
            events.append(JobEvent(now, "start", Job(name, left, job.start)))
            events += [JobEvent(now, "start", Job(self._new_name(nodes, now), nodes, job.start)) for nodes in others]
        return events

    def _new_name(self, nodes: tuple[str, ...], now: Instant) -> str:
        """Return a name that no job has: one may go on without the node that it is called after."""
        names = (f"{INFERRED}{node}" for node in (*nodes, f"{nodes[0]}-{now // 1000}"))
        return next(name for name in names if name not in self._jobs)

    def _joined(self, now: Instant, names: set[str]) -> list[JobEvent]:
        """Return what makes one job of the nodes that are linked and of the jobs that they were found in before."""
        inferred = [job for name, job in self._jobs.items() if name not in self._named]
        having = sorted((j for j in inferred if names & set(j.nodes)), key=lambda job: (-len(job.nodes), job.start))
        nodes = tuple(sorted(names.union(*(job.nodes for job in having))))
        if not having:
            return [JobEvent(now, "start", Job(self._new_name(nodes, now), nodes, now))]
        if nodes == having[0].nodes:
            return []
        ends = [JobEvent(now, "end", job) for job in having[1:]]
        return [*ends, JobEvent(now, "start", Job(having[0].job_id, nodes, having[0].start))]

    def without(self, nodes: frozenset[str], now: Instant) -> list[JobEvent]:
        """Return how inferred jobs go on without nodes that are gone, or that they are over."""
        return self._applied(self._left(now, set(nodes)))

    def go_on_with(self, survivors: Survivors) -> None:
        """Give the nodes new numbers; their columns are by `GPU_NODES`, the same numbers."""
        gone = survivors.names("machine")
        number = np.cumsum([name not in gone for name in self._names]) - 1
        if len(number):
            self._gpus.node = number[self._gpus.node]
        self._names = [name for name in self._names if name not in gone]

    def snapshot(self) -> tuple[dict[str, Any], dict[str, Any]]:
        """Return the state as JSON can say it, and arrays."""
        jobs = [[job.job_id, job.nodes, job.start] for job in self._jobs.values()]
        document = {"scheduled": self._scheduled, "names": self._names, "jobs": jobs, **self._named.snapshot()}
        document |= {"listed": self._listed, "infers": self._infers}
        return document, self._gpus.arrays("jobs_gpu_") | self._nodes.arrays("jobs_node_")

    def load(self, document: Mapping[str, Any], arrays: Mapping[str, Any]) -> None:
        """Take what `snapshot` returned."""
        self._scheduled, self._names = document["scheduled"], list(document["names"])
        self._numbers = {name: number for number, name in enumerate(self._names)}
        self._jobs = {job_id: Job(job_id, tuple(nodes), start) for job_id, nodes, start in document["jobs"]}
        self._named.load(document)
        self._listed = dict(document.get("listed", {}))  # older versions did not keep it
        self._infers = document.get("infers", not self._scheduled)
        self._gpus.load(arrays, "jobs_gpu_")
        self._nodes.load(arrays, "jobs_node_")
        if not len(self._nodes):  # as older versions kept it where there is a scheduler
            self._names, self._numbers = [], {}


def _parts(lots: Any) -> list[IntArray]:
    """Return the places of nodes that some looks linked, directly or by way of others; `lots` is (looks, nodes)."""
    one, two = [], []
    for look in lots:
        linked_ones = np.flatnonzero(look >= 0)
        _, first, lot = np.unique(look[linked_ones], return_index=True, return_inverse=True)
        one.append(linked_ones)
        two.append(linked_ones[first][lot])
    part = merged(np.arange(lots.shape[1]), np.concatenate(one), np.concatenate(two))
    numbers, sizes = np.unique(part, return_counts=True)
    return [np.flatnonzero(part == number) for number in numbers[sizes > 1]]


def _node_means(values: FloatArray, node: IntArray, count: int) -> FloatArray:
    known = np.isfinite(values)
    sums = np.bincount(node[known], values[known], minlength=count)
    counts = np.bincount(node[known], minlength=count)
    return np.where(counts > 0, sums / np.maximum(counts, 1), np.nan)
