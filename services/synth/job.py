"""A synchronous training job: every rank computes, the slowest sets the step, the others wait in collectives.

A run is laid out once, step by step, before any telemetry is made from it; all else asks it what a rank did when.
"""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.synth.effects import Effects, Floats
from services.synth.power import Activity, PowerModel
from services.synth.profile import ClusterProfile
from services.synth.scenario import JobSpec, Training
from services.synth.world import World

_RANK_SPREAD = 0.003  # how much ranks differ for good: memory speed, place in the pipeline; relative deviation
_COLLECTIVE_NOISE = 0.04  # step to step, relative deviation
_AFTER_CHECKPOINT = 1.25  # the first step after a checkpoint finds cold caches
_LOSS_NOISE, _NORM_NOISE = 0.004, 0.06  # batch to batch, relative deviation
_INSIDE_S = 0.002  # so far after an edge a stretch is asked for its level: past the edge's own jump
_SLOW_READ_RATE, _SLOW_READ_S = 0.004, 0.8  # now and then a rank's next batch is late: share of steps, mean delay


class Speeds:
    """How fast each rank computes, piecewise constant in time; 1 is the speed at full clock."""

    def __init__(self, edges: Sequence[float], rates: NDArray[np.float64]) -> None:
        """Take the times at which speeds change (the first is minus infinity) and rates of shape (edges, ranks)."""
        self._edges, self._rates = list(edges), rates

    @classmethod
    def of(cls, power: PowerModel, effects: Effects, gpus: NDArray[np.int64], clock_bound: float) -> "Speeds":
        """Return the speeds of the GPUs ``gpus`` (rank order) under their limits and all that slows them."""
        slow = [effect for effect in effects.of("gpu.work_factor") if np.isin(effect.columns, gpus).any()]
        held = [cap for cap in power.caps if np.isin(cap.gpus, gpus).any()]
        courses = [cap.course for cap in held] + [effect.course for effect in slow]
        edges = sorted({-np.inf, *(edge for course in courses for edge in course.edges())})
        rank_of = np.full(int(gpus.max()) + 1, -1)
        rank_of[gpus] = np.arange(len(gpus))
        free = power.working_clock()[gpus]
        rates = np.empty((len(edges), len(gpus)))
        for row, edge in enumerate(edges):
            inside = edge + _INSIDE_S
            clock, longer = free.copy(), np.ones(len(gpus))
            for cap in held:
                if np.isfinite(edge) and cap.course.level(np.array(inside)) > 0:
                    _at_ranks(clock, rank_of, cap.gpus, np.minimum, power.working_clock(cap.watts, cap.gpus))
            for effect in slow:
                level = float(effect.course.level(np.array(inside))) if np.isfinite(edge) else 0.0
                _at_ranks(longer, rank_of, effect.columns, np.multiply, 1.0 + (effect.size - 1.0) * level)
            rates[row] = 1.0 / ((1.0 - clock_bound + clock_bound / clock) * longer)
        return cls(edges, rates)

    def elapsed(self, start: float, work: Floats) -> Floats:
        """Return how long each rank needs, from ``start``, for ``work`` seconds of computation at full clock."""
        segment = bisect_right(self._edges, start) - 1
        if segment == len(self._edges) - 1:
            return np.asarray(work / self._rates[segment])
        taken, left = np.zeros_like(work), work.copy()
        while True:
            need = left / self._rates[segment]
            span = self._edges[segment + 1] - start if segment + 1 < len(self._edges) else np.inf
            done = need <= span
            taken += np.where(done, need, span)
            if done.all():
                return taken
            left = np.where(done, 0.0, left - span * self._rates[segment])
            start, segment = self._edges[segment + 1], segment + 1


def _at_ranks(
    values: Floats,
    rank_of: NDArray[np.int64],
    columns: NDArray[np.int64],
    combine: np.ufunc,
    other: Floats | float,
) -> None:
    """Combine the ranks' values of some GPUs with others, in place; GPUs of other jobs are left out."""
    mine = (columns < len(rank_of)) & (rank_of[np.minimum(columns, len(rank_of) - 1)] >= 0)
    ranks = rank_of[columns[mine]]
    values[ranks] = combine(values[ranks], np.broadcast_to(other, columns.shape)[mine])


@dataclass(frozen=True)
class Run:
    """A job's life. Times are seconds since the recording's start; ``steps`` is the first axis of step arrays.

    ``compute`` and ``data_wait`` have shape (steps, ranks). A step starts at ``start``, its ranks have computed by
    ``start + main``, and it ends after ``total`` seconds; ``loss`` and ``grad_norm`` are the job's, per step.
    ``checkpoints`` are the (start, end) of pauses.
    """

    spec: JobSpec
    nodes: list[int]
    gpus: NDArray[np.int64]
    loading: tuple[float, float]
    start: Floats
    main: Floats
    total: Floats
    compute: NDArray[np.float32]
    data_wait: NDArray[np.float32]
    loss: Floats
    grad_norm: Floats
    checkpoints: list[tuple[float, float]]
    end: float

    @property
    def iterations(self) -> NDArray[np.int64]:
        """The iteration number of each step."""
        return self.spec.training.first_iteration + np.arange(len(self.start))

    @property
    def warm(self) -> float:
        """When the first steps, which are slow, are over."""
        done = len(self.spec.training.warm_up)
        return float(self.start[done]) if done < len(self.start) else self.end


def simulate(spec: JobSpec, world: World, power: PowerModel, effects: Effects, rng: np.random.Generator) -> Run:
    """Lay out a job's steps until its end or the recording's, whichever comes first."""
    nodes, horizon = world.nodes(spec.nodes), world.duration_s
    gpus = np.concatenate([world.gpus(node) for node in nodes])
    training = spec.training
    speeds = Speeds.of(power, effects, gpus, training.clock_bound)
    own = training.compute_s * (1 + _RANK_SPREAD * rng.standard_normal(len(gpus)))
    end = min(horizon, spec.end if spec.end is not None else horizon)
    now = spec.start + training.launch_s + training.load_s
    loading = (spec.start + training.launch_s, now)
    starts: list[float] = []
    mains: list[float] = []
    totals: list[float] = []
    computes: list[NDArray[np.float32]] = []
    waits: list[NDArray[np.float32]] = []
    checkpoints: list[tuple[float, float]] = []
    cold, iteration = 1.0, training.first_iteration
    while now < end and iteration <= training.last_iteration:
        warm_up = training.warm_up[len(starts)] if len(starts) < len(training.warm_up) else 1.0
        work = own * (1 + training.jitter * rng.standard_normal(len(gpus))) * (warm_up * cold)
        wait = _data_wait(training, rng, len(gpus))
        compute = speeds.elapsed(now + float(wait.mean()), work)
        main = float((wait + compute).max())
        total = main + training.collective_s * float(np.exp(_COLLECTIVE_NOISE * rng.standard_normal()))
        starts.append(now)
        mains.append(main)
        totals.append(total)
        computes.append(compute.astype(np.float32))
        waits.append(wait.astype(np.float32))
        now, cold = now + total, 1.0
        if iteration % training.checkpoint_every == 0:
            pause = training.checkpoint_s * float(np.exp(0.08 * rng.standard_normal()))
            checkpoints.append((now, now + pause))
            now, cold = now + pause, _AFTER_CHECKPOINT
        iteration += 1
    shape = (len(starts), len(gpus))
    noise = rng.standard_normal((2, len(starts)))
    trend = training.loss - training.loss_per_1000_steps * np.arange(len(starts)) / 1000
    return Run(
        spec=spec,
        nodes=nodes,
        gpus=gpus,
        loading=loading,
        start=np.array(starts),
        main=np.array(mains),
        total=np.array(totals),
        compute=np.array(computes, dtype=np.float32).reshape(shape),
        data_wait=np.array(waits, dtype=np.float32).reshape(shape),
        loss=trend * (1 + _LOSS_NOISE * noise[0]),
        grad_norm=training.grad_norm * np.exp(_NORM_NOISE * noise[1]),
        checkpoints=checkpoints,
        end=end,
    )


def _data_wait(training: Training, rng: np.random.Generator, ranks: int) -> Floats:
    wait = training.data_wait_s * np.exp(0.35 * rng.standard_normal(ranks))
    if rng.random() < _SLOW_READ_RATE:
        wait[rng.integers(ranks)] += rng.exponential(_SLOW_READ_S)
    return wait


class Workload:
    """What every GPU of a cluster does, from the runs of its jobs: those that are on the stage now."""

    def __init__(self, profile: ClusterProfile) -> None:
        self._runs: list[_Cumulative] = []
        self._per_node, self._gpus = profile.node.gpus, profile.gpu_count

    @property
    def runs(self) -> list[Run]:
        """The runs on the stage; `running` gives places in this list."""
        return [entry.run for entry in self._runs]

    def add(self, run: Run) -> None:
        """Put a run on the stage."""
        self._runs.append(_Cumulative(run))

    def drop(self, run: Run) -> None:
        """Take a run off: nothing of the time before its end will be asked for any more."""
        self._runs = [entry for entry in self._runs if entry.run is not run]

    def activity(self, times: Floats, window: float) -> Activity:
        """Return what GPUs did in the ``window`` seconds before ``times`` (ticks, nodes)."""
        resident, busy, collective, copying = np.zeros((4, len(times), self._gpus))
        for run in self._runs:
            at = times[:, run.run.nodes]
            spread = np.repeat(np.arange(len(run.run.nodes)), self._per_node)
            computed = (run.computed(at, spread) - run.computed(at - window, spread)) / window
            stepping = (run.stepping(at) - run.stepping(at - window))[:, spread] / window
            gpus = run.run.gpus
            busy[:, gpus] += np.clip(computed, 0.0, 1.0)
            collective[:, gpus] += np.clip(stepping - computed, 0.0, 1.0)
            copying[:, gpus] += (run.copied(at) - run.copied(at - window))[:, spread] / window
            resident[:, gpus] += (run.held(at) - run.held(at - window))[:, spread] / window
        return Activity(resident, busy, collective, copying)

    def running(self, times: Floats) -> NDArray[np.int64]:
        """Return which run holds each GPU at ``times`` (ticks, nodes): its place in the list plus 1, or 0 for none."""
        holder = np.zeros((len(times), self._gpus), dtype=np.int64)
        for number, run in enumerate(self._runs, start=1):
            at = times[:, run.run.nodes]
            held = (at >= run.run.spec.start) & (at < run.run.end)
            columns = run.run.gpus
            holder[:, columns] = np.where(np.repeat(held, self._per_node, axis=1), number, holder[:, columns])
        return holder


class _Cumulative:
    """Seconds a run's ranks have spent on something up to a time; a window's share is a difference of two."""

    def __init__(self, run: Run) -> None:
        self.run = run
        zero = np.zeros((1, len(run.gpus)))
        self._computed = np.concatenate([zero, np.cumsum(run.compute, axis=0, dtype=np.float64)])
        self._stepped = np.concatenate([[0.0], np.cumsum(run.total)])
        pauses = [run.loading, *run.checkpoints]
        self._pause_edges = np.array([edge for pause in pauses for edge in pause])
        lengths = np.array([[0.0, end - start] for start, end in pauses]).ravel()
        self._paused = np.cumsum(lengths)

    def computed(self, at: Floats, spread: NDArray[np.int64]) -> Floats:
        """Seconds of computation by ``at`` (ticks, nodes), shape (ticks, ranks).

        Within a step, working and waiting alternate layer by layer, faster than any sensor sees: a rank is busy with
        the share of the step's main part that it needs itself.
        """
        step, progress = self._progress(at)
        ranks = np.arange(len(self.run.gpus))[None, :]
        own = self.run.compute[step[:, spread], ranks]
        return np.asarray(self._computed[step[:, spread], ranks] + own * progress[:, spread])

    def _progress(self, at: Floats) -> tuple[NDArray[np.int64], Floats]:
        step = np.clip(np.searchsorted(self.run.start, at, side="right") - 1, 0, None)
        return step, np.clip((at - self.run.start[step]) / self.run.main[step], 0.0, 1.0)

    def stepping(self, at: Floats) -> Floats:
        """Seconds inside steps by ``at``."""
        step = np.clip(np.searchsorted(self.run.start, at, side="right") - 1, 0, None)
        return np.asarray(self._stepped[step] + np.clip(at - self.run.start[step], 0.0, self.run.total[step]))

    def copied(self, at: Floats) -> Floats:
        """Seconds in checkpoints, read or written, by ``at``."""
        return np.asarray(np.interp(at, self._pause_edges, self._paused))

    def held(self, at: Floats) -> Floats:
        """Seconds for which the job has held its GPUs by ``at``."""
        return np.clip(at, self.run.spec.start, self.run.end) - self.run.spec.start
