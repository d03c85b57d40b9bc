"""How fast a job gets on: its GPUs' speeds, and what multiplies its communication, reading and writing, all in time.

Everything here is laid out once for a job, piecewise constant between the edges of what acts on it.
"""

from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from services.synth.physics.effects import Effect, Effects, Floats, Ints, of_job
from services.synth.physics.power import PowerModel

_INSIDE_S = 0.002  # so far after an edge a stretch is asked for its level: past the edge's own jump


def _edges(effects: Iterable[Effect]) -> list[float]:
    return sorted({-np.inf, *(edge for effect in effects for edge in effect.course.edges())})


def _factor(effect: Effect, edge: float) -> float:
    """Return what an effect multiplies by just after an edge."""
    if not np.isfinite(edge):
        return 1.0
    return 1.0 + (effect.size - 1.0) * float(effect.course.level(np.array(edge + _INSIDE_S)))


class Speeds:
    """How fast each rank computes, piecewise constant in time; 1 is the speed at full clock."""

    def __init__(self, edges: Sequence[float], rates: NDArray[np.float64]) -> None:
        """Take the times at which speeds change (the first is minus infinity) and rates of shape (edges, ranks)."""
        self._edges, self._rates = list(edges), rates

    @classmethod
    def of(cls, power: PowerModel, effects: Effects, gpus: Ints, clock_bound: float, own: list[Effect]) -> "Speeds":
        """Return the speeds of the GPUs ``gpus`` (rank order) under their limits and all that slows them.

        ``own`` are the effects that slow all ranks alike (job.work_factor).
        """
        longer_by = (*effects.of("gpu.work_factor"), *effects.of("gpu.more_work"))
        slow = [effect for effect in longer_by if np.isin(effect.columns, gpus).any()]
        held = [cap for cap in power.caps if np.isin(cap.gpus, gpus).any()]
        edges = sorted({*_edges([*slow, *own]), *(edge for cap in held for edge in cap.edges())})
        rank_of = np.full(int(gpus.max()) + 1, -1)
        rank_of[gpus] = np.arange(len(gpus))
        free = power.working_clock()[gpus]
        rates = np.empty((len(edges), len(gpus)))
        for row, edge in enumerate(edges):
            inside = edge + _INSIDE_S
            clock, longer = free.copy(), np.ones(len(gpus))
            for cap in held:
                if np.isfinite(edge):
                    at = np.array([inside])
                    most = np.where(cap.reasons(at)[0] > 0, cap.watts(at)[0], np.inf)
                    _at_ranks(clock, rank_of, cap.gpus, np.minimum, power.working_clock(most, cap.gpus))
            for effect in slow:
                _at_ranks(longer, rank_of, effect.columns, np.multiply, _factor(effect, edge))
            for effect in own:
                longer *= _factor(effect, edge)
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


def _at_ranks(values: Floats, rank_of: Ints, columns: Ints, combine: np.ufunc, other: Floats | float) -> None:
    """Combine the ranks' values of some GPUs with others, in place; GPUs of other jobs are left out."""
    mine = (columns < len(rank_of)) & (rank_of[np.minimum(columns, len(rank_of) - 1)] >= 0)
    ranks = rank_of[columns[mine]]
    values[ranks] = combine(values[ranks], np.broadcast_to(other, columns.shape)[mine])


class Factor:
    """A factor of each of a job's nodes, piecewise constant in time."""

    def __init__(self, effects: Sequence[Effect], nodes: Ints) -> None:
        """Take effects whose columns are nodes, and the job's nodes in their order."""
        mine = [effect for effect in effects if np.isin(effect.columns, nodes).any()]
        self._edges = _edges(mine)
        self._values = np.ones((len(self._edges), len(nodes)))
        for row, edge in enumerate(self._edges):
            for effect in mine:
                self._values[row, np.isin(nodes, effect.columns)] *= _factor(effect, edge)
        self._worst = self._values.max(axis=1)

    def at(self, when: float) -> Floats:
        """Return the nodes' factors at a time, shape (nodes,)."""
        return np.asarray(self._values[bisect_right(self._edges, when) - 1])

    def worst(self, when: float) -> float:
        """Return the greatest of them."""
        return float(self._worst[bisect_right(self._edges, when) - 1])


@dataclass(frozen=True)
class End:
    """Why and when a job ended: seconds, a state as in jobs.jsonl, and the node (index) it was for, if any."""

    at: float
    state: str
    node: int | None = None


class Fate:
    """What is in store for one job: all effects on it that are not on its GPUs."""

    def __init__(self, effects: Effects, job: str, nodes: Ints, reads_from: str, checkpoints_to: str) -> None:
        """Take the job's id, its nodes in their order, and the mounts that it reads from and writes to."""

        def mine(quantity: str) -> list[Effect]:
            return of_job(effects, quantity, job, nodes)

        def over(quantity: str, mount: str) -> list[Effect]:
            return [effect for effect in effects.of(quantity) if effect.detail.get("mount", mount) == mount]

        self.work = mine("job.work_factor")
        self.collective = Factor(effects.of("node.collective_factor"), nodes)
        self.data_wait = Factor(over("node.data_wait_factor", reads_from), nodes)
        self.checkpoint = Factor(over("node.checkpoint_factor", checkpoints_to), nodes)
        self._loss, self._grad, self._nan = mine("job.loss_factor"), mine("job.grad_factor"), mine("job.loss_nan")
        spans = sorted(span for effect in mine("job.halted") for span in effect.course.spans())
        self.halts = _merged(spans)
        self._ends = sorted((_end(effect, nodes) for effect in mine("job.ended")), key=lambda end: (end.at, end.state))

    def first_end(self, after: float) -> End | None:
        """Return the first end that is in store after a time, if there is one."""
        return next((end for end in self._ends if end.at > after), None)

    def resumed(self, begin: float, end: float) -> float:
        """Return when a collective of a step from ``begin`` ends that should at ``end``: later, if halted before."""
        for halt, release in self.halts:
            if halt < end and release > begin:
                end = release + (end - max(halt, begin))
        return end

    def loss(self, at: float) -> tuple[float, float]:
        """Return what loss and gradient norm are multiplied by at a time; NaN where they are none."""
        if not (self._loss or self._grad or self._nan):
            return 1.0, 1.0
        if any(_level(effect, at) > 0 for effect in self._nan):
            return np.nan, np.nan
        return _product(self._loss, at), _product(self._grad, at)


def _level(effect: Effect, at: float) -> float:
    return float(effect.course.level(np.array(at)))


def _product(effects: list[Effect], at: float) -> float:
    return float(np.prod([1.0 + (effect.size - 1.0) * _level(effect, at) for effect in effects]))


def _merged(spans: list[tuple[float, float]]) -> list[tuple[float, float]]:
    found: list[tuple[float, float]] = []
    for begin, end in spans:
        if found and begin <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        else:
            found.append((begin, end))
    return found


def _end(effect: Effect, nodes: Ints) -> End:
    struck = np.intersect1d(effect.columns, nodes)
    return End(effect.course.start, str(effect.detail["state"]), int(struck[0]) if len(struck) else None)
