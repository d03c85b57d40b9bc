"""What the GPUs of jobs do: work, spin in a collective, idle, or are not heard."""

from typing import Final

import numpy as np

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import REUSED, Columns, column
from detectors.core.slots import Slots
from detectors.fleet.fleet import Fleet, Job
from detectors.fleet.gpu_work import SPINNING_PERCENT, SPINS
from detectors.fleet.gpus import GpuLayout, reported
from detectors.fleet.presence import Attendance
from detectors.signals.energy import Draw

FIELDS: Final = {
    "power": "DCGM_FI_DEV_POWER_USAGE",
    "util": "DCGM_FI_DEV_GPU_UTIL",
    "tensor": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "memory": "DCGM_FI_DEV_FB_USED",
    "clock": "DCGM_FI_DEV_SM_CLOCK",
}
_ENERGY: Final = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
_STEP = 0.05
"""How far one point of the grid moves a job's level of power: a minute and a half of steps makes it."""
_LONG_STEP_MS = 20_000.0
"""Of a job with longer steps, five of them make its level: else the wait for one that never ends would become usual."""
_WORKING = 0.75
"""Of the power in steps: GPUs that wait in a collective draw a third to a half, an evaluation nearly all of it."""
_COMPUTES_NOTHING = 0.85
"""Of it, at most, where tensor cores do nothing any more: chips differ in what they draw besides."""
_AS_BEFORE = 0.9
"""Of the power in steps: a GPU that draws so much computes on, slower than ever or not, and the others wait for it."""
_IDLE_PERCENT = 5.0
"""Of the time: with nothing to do GPUs read 0 to 4; those that wait for slow storage do a little, 6 to 10 (seen)."""
_NO_TENSOR = 0.1
"""Of the tensor activity at work: NCCL's kernels do not use the tensor cores at all."""
_LEAST_TENSOR = 5e-3
"""Who reads less at work uses no tensor cores, as most simulations do: their activity says nothing of what they do."""
_TWO_GO_ON = 0.25
"""Of the tensor activity at work: two ranks of eight go on."""
_COMPUTES = 0.5
"""Of the tensor activity in steps: so much does an evaluation, which draws less; of a job that hangs, a rank or two."""
_WHOLE = 4
"""GPUs of a node: of fewer, all may be the ranks that go on in a hang."""
_HELD = 0.95
"""Of the clock in steps: who spins draws little, and so runs as fast as ever; a lower clock holds down who works."""
_STEADY = 0.05
"""Power of GPUs that only spin is constant; a load that is lower wanders."""
_READ_AGAIN: Final = 13
"""So many points of the grid after a job began to spin all its GPUs have been read again, at 60 s scrapes too."""
_FREED = 0.5
"""Of the memory in use at work: a process that ends gives all of it back, one that hangs none. Others may follow it."""
_FRESH_INTERVALS, _FRESH_MS = 3.5, 12_000
_TOGETHER_MS = 60_000
"""A reading of 60 s scrapes: what stops within it stops at once."""
_RECENT_MS = 600_000
"""A GPU last heard longer before the job's last step than this has nothing to do with its standing still."""


class _Readings(Columns):
    power: FloatArray = column(np.nan)
    util: FloatArray = column(np.nan)
    tensor: FloatArray = column(np.nan)
    memory: FloatArray = column(np.nan)
    clock: FloatArray = column(np.nan)
    BESIDE = ("draw",)

    def __init__(self) -> None:
        super().__init__()
        self.draw = Draw()


class Activity(_Readings):
    """By job: means of its GPUs that are heard (`power`, W, by energy where it is read; `util`, %; `tensor`, 0 to 1;
    `memory`, MiB; `clock`, MHz); NaN unknown.

    `power_level`, `tensor_level`, `memory_level` and `clock_level` are these while it works; `spun` is for how many
    points of the grid it has spun, `low` and `high` bound its power since all its GPUs have been read in that; `busy`
    is when (ms) its GPUs last did anything else than to spin or to idle, `alone` when one node was last seen to work,
    `ended` when its processes had ended, `shown` when the latest reading was made by which it works.
    """

    axis = REUSED
    power_level: FloatArray = column(np.nan)
    tensor_level: FloatArray = column(np.nan)
    memory_level: FloatArray = column(np.nan)
    clock_level: FloatArray = column(np.nan)
    spun: IntArray = column(0)
    busy: IntArray = column(-1)
    low: FloatArray = column(np.nan)
    high: FloatArray = column(np.nan)
    alone: IntArray = column(-1)
    ended: IntArray = column(-1)
    shown: IntArray = column(-1)
    heard: IntArray = column(0)
    KEPT = ("_attendance", "_last")

    def __init__(self, fleet: Fleet, slots: Slots) -> None:
        super().__init__()
        self._fleet, self._slots = fleet, slots
        self.layout = GpuLayout(fleet)
        self._attendance = Attendance("dcgm")
        self._last = _Readings().along("dcgm")
        self._known: tuple[object, ...] = ()
        self._gpu: IntArray = np.empty(0, np.int64)
        self._job: IntArray = np.empty(0, np.int64)
        self._starts: IntArray = np.empty(0, np.int64)
        """Of every GPU that a job has: which it is, the number of the job, and its start (ms)."""
        self.freed: BoolArray = np.empty(0, bool)
        """Half of its GPUs hold far less memory than they had in use at work: its processes ended."""
        self.shared: BoolArray = np.empty(0, bool)
        """Another job runs on nodes of this one, and whose the GPUs are is not known: what they do proves nothing."""
        self.one_works: BoolArray = np.empty(0, bool)
        """A GPU of it draws what they all did in steps."""
        self.none_works: BoolArray = np.empty(0, bool)
        """Each of its GPUs idles, or is busy at a fraction of the power in steps: some wait for a node that stopped."""
        self._seen = self._gpu, self._job
        """The same, of the GPUs that were heard at the last point of the grid."""

    def take(self, batch: Batch) -> None:
        """Take note of the GPUs' readings."""
        self._attendance.readings.take(batch)
        self._last.grow(len(self._attendance.readings))
        for tick, here in batch.ticks():
            where = batch.index(here, len(self._last))
            for name, field in FIELDS.items():
                if field not in batch.sound:
                    continue
                value, kept = reported(batch, field, tick, here), getattr(self._last, name)
                if name == "power" and _ENERGY in batch.sound:
                    used = reported(batch, _ENERGY, tick, here)
                    value = self._last.draw.power(where, batch.at[tick, here], used, value)
                fits = value < 1e6  # NaN does not
                kept[where] = value if np.count_nonzero(fits) == len(fits) else np.where(fits, value, kept[where])

    def look(self, now: Instant) -> None:
        """At a point of the grid: see what the GPUs of every running job do."""
        self._attendance.look(now)
        self._assign()
        count = len(self)
        fresh = self._attendance.fresh(now, _FRESH_INTERVALS, _FRESH_MS)[self._gpu]
        fresh &= self._attendance.last[self._gpu] >= self._starts  # else it is of the job before
        gpu, job = self._gpu, self._job
        if np.count_nonzero(fresh) < len(fresh):
            gpu, job = gpu[fresh], job[fresh]
        self._seen = gpu, job
        self.heard = np.bincount(job, minlength=count)
        latest = {name: getattr(self._last, name).take(gpu) for name in FIELDS}
        for name, value in latest.items():
            known = np.isfinite(value)
            of, read, heads = job, value, self.heard
            if np.count_nonzero(known) < len(value):
                of, read = job[known], value[known]
                heads = np.bincount(of, minlength=count)
            total = np.bincount(of, read, minlength=count)
            setattr(self, name, np.where(heads > 0, total / np.maximum(heads, 1), np.nan))
        util, power, level = latest["util"], latest["power"], self.power_level.take(job)
        works = power >= _AS_BEFORE * level
        self.one_works = np.bincount(job[works], minlength=count) > 0
        rests = (util < _IDLE_PERCENT) | ((util >= SPINNING_PERCENT) & (power < SPINS * level))
        self.none_works = np.bincount(job[rests], minlength=count) == np.maximum(self.heard, 1)
        self.busy[~(self._waiting() | self.idle())] = now
        free = np.zeros(len(gpu), bool)
        if np.count_nonzero(self.memory_level >= 0):
            free = latest["memory"] < _FREED * self.memory_level.take(job)
        self.freed = 2 * np.bincount(job[free], minlength=count) >= np.maximum(self.heard, 1)
        self.ended[self.freed] = now

    def note_work(self, jobs: IntArray) -> None:
        """Note when the latest readings of jobs (n,) that work now were made."""
        gpu, job = self._seen
        stamps = np.full(len(self), -1)
        np.maximum.at(stamps, job, self._attendance.last[gpu])
        self.shown[jobs] = stamps[jobs]

    def worked_until(self, number: int, settled: Instant) -> Instant:
        """Return until when a job is known to have worked whose GPUs last did so at `settled`, a point of the grid.

        A reading shows what was until it was made, not until the next one. Who is slow, or was not heard since, may
        have gone on.
        """
        busy, shown = int(self.busy[number]), int(self.shown[number])
        return busy if busy > settled else min(settled, shown if shown >= 0 else settled)

    def one_node_works(self, number: int, now: Instant) -> bool:
        """Return, and note, whether all GPUs of a job on a node, four or more, compute as in steps: an evaluation, that
        the others wait for. In a hang a rank or two go on.
        """
        gpu, job = self._seen
        its = gpu[job == number]
        usual, node = self.tensor_level[number], self.layout.node[its]
        works = self._last.power[its] >= _AS_BEFORE * self.power_level[number]
        works = works if np.isnan(usual) else self._last.tensor[its] >= _COMPUTES * usual
        heard = np.bincount(node)
        works_alone = bool(((heard >= _WHOLE) & (np.bincount(node[works], minlength=len(heard)) == heard)).any())
        if works_alone:
            self.alone[number] = now
        return works_alone

    def first_node_idles(self, number: int) -> bool:
        """Return whether all GPUs of a job's first node idle, and others do not."""
        gpu, job = self._seen
        its, name = gpu[job == number], self._fleet.jobs[str(self._slots.names[number])].nodes[0]
        idle, first = self._last.util[its] < _IDLE_PERCENT, self.layout.node[its] == self.layout.number(name)
        return bool(first.any() and idle[first].all() and not idle.all())

    def nodes_of(self, jobs: BoolArray) -> BoolArray:
        """Return which nodes, as they are numbered in the layout, have GPUs of some of the jobs, (jobs,)."""
        nodes: BoolArray = np.zeros(len(self.layout.names), bool)
        nodes[self.layout.node[self._gpu[jobs[self._job]]]] = True
        return nodes

    def lost(self, jobs: IntArray, now: Instant, since: IntArray) -> IntArray:
        """Return how many GPUs of each of `jobs` (n,) fell silent about when it did (`since`, (n,), ms), or after."""
        last, silent = self._attendance.last, ~self._attendance.fresh(now, _FRESH_INTERVALS, _FRESH_MS)
        moment = np.full(len(self), np.iinfo(np.int64).max)
        moment[jobs] = since - _RECENT_MS
        gone = silent[self._gpu] & (last[self._gpu] >= np.maximum(moment[self._job], self._starts))
        lost: IntArray = np.bincount(self._job[gone], minlength=len(self))[jobs]
        return lost

    def any_fell_silent(self, now: Instant, at: Instant) -> bool:
        """Return whether any GPU at all fell silent within a minute of `at` (ms), and still is."""
        silent = ~self._attendance.fresh(now, _FRESH_INTERVALS, _FRESH_MS)
        return bool((silent & (np.abs(self._attendance.last - at) <= _TOGETHER_MS)).any())

    def learn(self, jobs: IntArray, step_ms: FloatArray) -> None:
        """Learn what the GPUs of jobs that work draw; a step of theirs takes `step_ms`, (n,), NaN unknown."""
        much = _STEP * np.fmin(1.0, _LONG_STEP_MS / step_ms)
        for name in ("power", "tensor", "memory", "clock"):
            seen, level = getattr(self, name)[jobs], getattr(self, f"{name}_level")[jobs]
            moved = np.where(np.isnan(level), seen, level + much * (seen - level))
            moved = np.where(np.isnan(seen), level, moved)
            getattr(self, f"{name}_level")[jobs] = np.where(moved < _LEAST_TENSOR, np.nan, moved)

    def working(self) -> BoolArray:
        """Return which jobs' GPUs draw nearly what they do in steps, or compute half as much; a job that was never seen
        works as it ever did.
        """
        works: BoolArray = self.power >= self._least_at_work() * np.where(
            np.isnan(self.power_level), 0.0, self.power_level
        )
        return works | (self.tensor >= _COMPUTES * self.tensor_level)

    def _least_at_work(self) -> FloatArray:
        """Return what part of the power that they draw in steps jobs' GPUs draw at least while they compute."""
        nothing = (self.tensor < _NO_TENSOR * self.tensor_level) & (self.util >= SPINNING_PERCENT)
        return np.where(nothing, _COMPUTES_NOTHING, _WORKING)

    def computing(self) -> BoolArray:
        """Return which jobs' GPUs do tensor work, whatever they draw at the moment of a scrape; none where unknown."""
        computes: BoolArray = self.tensor >= _NO_TENSOR * self.tensor_level
        return computes

    def spinning(self) -> BoolArray:
        """Return which jobs' GPUs are busy at a fraction of the power they draw in steps, and do no tensor work; or
        little, at a power that stands still, as where a rank or two go on by themselves.
        """
        steady = self.high <= (1 + _STEADY) * self.low
        return self._waiting() & (~self.computing() | steady)

    def busy_with_less(self) -> BoolArray:
        """Return which jobs' GPUs are busy at less power than in steps, and at more than who spins, as in evaluations;
        none where tensor activity is read, which shows better what they do.
        """
        part = (self.power >= SPINS * self.power_level) & (self.power < _WORKING * self.power_level)
        return part & (self.util >= SPINNING_PERCENT) & np.isnan(self.tensor_level)

    def idle(self) -> BoolArray:
        """Return which jobs' GPUs have nothing to do, at a fraction of the power they draw in steps.

        All idle; or some do, a fifth and more, and the others wait for them.
        """
        some: BoolArray = (self.util < _IDLE_PERCENT) | (self.none_works & (self.util < SPINNING_PERCENT))
        idles = some & (self.power < _WORKING * self.power_level) & (self.heard > 1)
        return idles & ~(self.tensor >= _NO_TENSOR * self.tensor_level)

    def _waiting(self) -> BoolArray:
        """Return which jobs' GPUs are busy at a fraction of the power, and do little of the work that they do in steps.

        An evaluation draws less than a step, and computes; so do GPUs that a power cap or heat holds down. Where steps
        are light, who spins draws more of their power: it is enough that nothing is computed.
        """
        part = np.where(self.tensor < _NO_TENSOR * self.tensor_level, self._least_at_work(), SPINS)
        waits: BoolArray = (self.power < part * self.power_level) & (self.util >= SPINNING_PERCENT)
        return waits & ~(self.tensor >= _TWO_GO_ON * self.tensor_level) & ~(self.clock < _HELD * self.clock_level)

    def stuck(self) -> BoolArray:
        """Return which jobs' GPUs do nothing but spin, as far as they alone can show it."""
        waits = self._waiting()
        self.spun = np.where(waits, self.spun + 1, 0)
        known = self.spun >= _READ_AGAIN
        self.low = np.where(known, np.fmin(self.low, self.power), np.nan)
        self.high = np.where(known, np.fmax(self.high, self.power), np.nan)
        idle = self.tensor < _NO_TENSOR * self.tensor_level
        steady = np.isnan(self.tensor_level) & (self.high <= (1 + _STEADY) * self.low)
        return waits & ~self.one_works & (idle | steady) & (self.heard > 1)

    def _assign(self) -> None:
        """Find which GPUs are whose, where jobs or GPUs are new."""
        jobs = self._fleet.jobs
        heard = len(self._attendance)
        known = (heard, *((job.job_id, job.start, self._slots.find(job.job_id)) for job in jobs.values()))
        if known == self._known and len(self.shared) == len(self):
            return
        self._known = known
        self.layout.extend()
        parts = [(self._slots.find(job.job_id), self._members(job)) for job in jobs.values()]
        self._gpu = np.concatenate([np.empty(0, np.int64), *(gpus[gpus < heard] for _, gpus in parts)])
        sizes = [np.count_nonzero(gpus < heard) for _, gpus in parts]
        self._job = np.repeat(np.array([number for number, _ in parts], np.int64), sizes)
        claims = np.bincount(self._gpu, minlength=heard)
        self.shared = np.bincount(self._job[claims[self._gpu] > 1], minlength=len(self)) > 0
        self._starts = np.repeat(np.array([job.start for job in jobs.values()], np.int64), sizes)

    def _members(self, job: Job) -> IntArray:
        parts = [np.empty(0, np.int64)]
        for node in job.nodes:
            members = self.layout.members(node)
            parts.append(members[np.isin(self.layout.gpu[members], job.gpus[node])] if node in job.gpus else members)
        return np.concatenate(parts)
