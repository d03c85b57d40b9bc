"""All jobs' GPUs and nodes, window by window: who is slow by their readings, and what it does to the job."""

import zlib
from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import BoolArray, FloatArray, Instant, IntArray
from detectors.core.evidence import odds_in_words, threshold
from detectors.core.residuals import group_medians
from detectors.core.tails import Tails
from detectors.fleet import Fleet, Job
from detectors.gpus import GpuLayout
from detectors.statistics import median_of
from detectors.straggler.activity import (
    MEMORY,
    POWER,
    STARVED,
    TENSOR,
    WINDOW_S,
    Comparison,
    Look,
    Sums,
    logarithms,
)
from detectors.straggler.config import StragglerConfig
from detectors.straggler.effect import KEPT, Effect, History

_MATES: Final = 4
"""GPUs of a node that are compared with each other: of fewer the median is nobody's."""
Held = tuple[str, int | None]
"""A node, and the index of its GPU or None for all of it, on which a finding is open."""


@dataclass(frozen=True)
class Suspect:
    """A GPU (its index), or a node (`gpu` None), that is slow in its job: what its readings and the job's tell.

    It has been suspected for `windows`, at most the last 64, and was slow in `odd` of them. `lag` is by how much longer
    its work takes, a share; `own` and `peers` the window's means by signal (clock MHz, power W, tensor, memory, busy
    share); `clock` the lowest of its peers' it had since it is odd, a share. `effect` is None where nothing is known of
    before.
    """

    job: Job
    node: str
    gpu: int | None
    how: int
    lag: float
    since: Instant
    windows: int
    odd: int
    own: FloatArray
    peers: FloatArray
    clock: float
    by_chance: str
    effect: Effect | None


@dataclass(frozen=True)
class _Cast:
    """Who works in which job now: by GPU its place in `jobs` or -1, that job's `number`, the group of its `mates`."""

    jobs: tuple[Job, ...]
    job: IntArray
    number: IntArray
    mates: IntArray
    groups: int
    many: BoolArray
    """By GPU: whether its node has mates enough; else all of the job's GPUs of its model are."""
    model: IntArray
    alone: BoolArray
    """By node: whether one job has it."""


class Watch:
    """See the module."""

    def __init__(self, config: StragglerConfig, fleet: Fleet, layout: GpuLayout) -> None:
        self._config, self._fleet, self._layout = config, fleet, layout
        self.tails = Tails(config.calibration)
        self.sums = Sums()
        self._gpus = Comparison("gpu", self.tails, 2, config.effect_share)
        self._nodes = Comparison("node", self.tails, 3, config.effect_share)
        self.histories: dict[str, History] = {}
        self._starts: dict[str, Instant] = {}
        self._window: int | None = None
        self._cast: _Cast | None = None

    def extend(self) -> None:
        """Make room for GPUs that are new."""
        count = len(self._layout)
        if count > len(self.sums):
            self.sums.grow(count)
            self._gpus.grow(count)
        self._nodes.grow(len(self._layout.names))

    def history(self, job: Job) -> History:
        """Return what is known of a job's pace."""
        if self._starts.get(job.job_id) != job.start:
            self._starts[job.job_id] = job.start
            self.histories[job.job_id] = History()
        return self.histories[job.job_id]

    def close(self, now: Instant, held: AbstractSet[Held]) -> list[Suspect] | None:
        """End the window if it is time to, and return who is slow; None within a window.

        What is `held` under a finding teaches nobody what is usual.
        """
        window = now // (1000 * WINDOW_S)
        if self._window == window:
            return None
        first, self._window = self._window is None, window
        if first:
            return None
        self.extend()
        self._forget_ended()
        cast = self._casting()
        means = self.sums.means()
        x = logarithms(means)
        found = self._look_at_gpus(now, cast, means, x, held)
        found += self._look_at_nodes(now, cast, means, x, held)
        self._cast = cast
        return found

    def slow_now(self, node: str, gpu: int | None) -> bool:
        """Return whether a GPU, or a node, was slow in the window that ended last."""
        if gpu is None:
            return bool(self._nodes.marks.odd[self._layout.number(node)] & np.uint64(1))
        return bool(self._gpus.marks.odd[gpu] & np.uint64(1))

    def absolve(self, node: str, gpu: int | None) -> None:
        """Begin anew with a GPU, or a node: what it is like now is its habit."""
        (self._nodes if gpu is None else self._gpus).absolve(
            np.array([self._layout.number(node) if gpu is None else gpu])
        )

    def stands_out(self, gpus: IntArray) -> int | None:
        """Return which one of a node's GPUs its own readings make the culprit; None where none does."""
        wealth = self._gpus.evidence.wealth[gpus]
        odd = np.flatnonzero(wealth > 2.0)
        return int(gpus[odd[0]]) if len(odd) == 1 else None

    def _forget_ended(self) -> None:
        for job_id in [name for name, at in self._starts.items() if not self._runs(name, at)]:
            del self._starts[job_id], self.histories[job_id]

    def _runs(self, job_id: str, start: Instant) -> bool:
        job = self._fleet.jobs.get(job_id)
        return job is not None and job.start == start

    def _casting(self) -> _Cast:
        layout = self._layout
        jobs = tuple(sorted(self._fleet.jobs.values(), key=lambda job: (job.start, job.job_id)))
        if self._cast is not None and self._cast.jobs == jobs and len(self._cast.job) == len(layout):
            return self._cast
        job_of = np.full(len(layout), -1)
        for place, job in enumerate(jobs):
            job_of[gpus_of(job, layout)] = place
        numbers = np.array([zlib.crc32(f"{job.job_id}@{job.start}".encode()) for job in jobs] or [0])
        models = [str(self._fleet.nodes.get(name, {}).get("gpu_model", "")) for name in layout.names]
        model = np.unique(models, return_inverse=True)[1] if models else np.empty(0, np.int64)
        nodes = max(len(layout.names), 1)
        pair = np.where(job_of >= 0, job_of * nodes + layout.node, -1)
        sizes = np.bincount(pair[pair >= 0], minlength=max(len(jobs), 1) * nodes)
        alone = (sizes.reshape(-1, nodes) > 0).sum(axis=0) <= 1
        many = sizes[np.maximum(pair, 0)] >= _MATES
        wide = max(len(jobs), 1) * nodes + job_of * nodes + model[layout.node]
        names, mates = np.unique(np.where(pair < 0, -1, np.where(many, pair, wide)), return_inverse=True)
        return _Cast(jobs, job_of, numbers[np.maximum(job_of, 0)], mates, len(names), many, model, alone)

    def _look_at_gpus(
        self, now: Instant, cast: _Cast, means: FloatArray, x: FloatArray, held: AbstractSet[Held]
    ) -> list[Suspect]:
        who = np.flatnonzero(cast.job >= 0)
        if not len(who):
            return []
        look = Look(who, cast.number[who], cast.mates[who], cast.groups, x[:, who])
        self._gpus.look(now, look, np.isin(who, [gpu for _, gpu in held if gpu is not None]))
        self._end_histories(cast, means)
        found = []
        for place, wealth in self._over(self._gpus, who, len(who)):
            gpu = int(who[place])
            peers = np.flatnonzero((cast.mates == cast.mates[gpu]) & (np.arange(len(cast.job)) != gpu))
            alike = int(np.count_nonzero(cast.job == cast.job[gpu]))
            share = 0.0 if cast.many[gpu] else 1 / alike  # among many, it does not move the median of its node
            found.append(self._suspect(cast, self._gpus, gpu, gpu, peers, means, share, len(who), wealth))
        return found

    def _look_at_nodes(
        self, now: Instant, cast: _Cast, means: FloatArray, x: FloatArray,
        held: AbstractSet[Held],
    ) -> list[Suspect]:  # fmt: skip
        layout, nodes = self._layout, len(self._layout.names)
        member = np.flatnonzero((cast.job >= 0) & cast.alone[layout.node])
        sizes = np.bincount(layout.node[member], minlength=nodes)
        who = np.flatnonzero(sizes >= 2)
        if len(who) < 2:
            return []
        job = np.zeros(nodes, np.int64)
        job[layout.node[member]] = cast.job[member]
        number = np.zeros(nodes, np.int64)
        number[layout.node[member]] = cast.number[member]
        signals = np.array([group_medians(row[member], layout.node[member], nodes)[0][who] for row in x])
        groups, group = np.unique(job[who] * nodes + cast.model[who], return_inverse=True)
        look = Look(who, number[who], group, len(groups), signals)
        self._nodes.look(now, look, np.isin(who, [layout.number(node) for node, gpu in held if gpu is None]))
        found = []
        for place, wealth in self._over(self._nodes, who, len(who)):
            node = int(who[place])
            own = member[layout.node[member] == node]
            peers = member[(cast.job[member] == job[node]) & (layout.node[member] != node)]
            share = 1 / np.count_nonzero(group == group[place])
            found.append(self._suspect(cast, self._nodes, node, None, peers, means, share, len(who), wealth, own))
        return found

    def _over(self, comparison: Comparison, who: IntArray, entities: int) -> list[tuple[int, float]]:
        nodes = len(self._layout.names)
        enough = threshold(self._config.false_alarms_per_100_node_days / 2, entities, nodes, WINDOW_S)
        return [(int(place), float(comparison.evidence.wealth[who[place]])) for place in comparison.over(who, enough)]

    def _suspect(
        self, cast: _Cast, comparison: Comparison, entity: int, gpu: int | None, peers: IntArray,
        means: FloatArray, share: float, entities: int, wealth: float, own: IntArray | None = None,
    ) -> Suspect:  # fmt: skip
        marks, evidence = comparison.marks, comparison.evidence
        those = np.array([gpu]) if own is None else own
        job = cast.jobs[cast.job[those[0]]]
        windows = min(int(evidence.looks[entity]), KEPT)
        bits = int(marks.odd[entity]) & ((1 << windows) - 1)
        lag, how = float(marks.lag[entity]), int(marks.how[entity])
        effect = self.history(job).effect(bits, windows, share, 0.0 if how == STARVED else lag)
        return Suspect(
            job, self._layout.names[self._layout.node[those[0]]], gpu, how, float(np.expm1(lag)),
            max(int(evidence.since[entity]) - 1000 * WINDOW_S, job.start), windows, bits.bit_count(),
            _medians(means, those), _medians(means, peers),
            float(np.exp(marks.lowest[entity])),
            odds_in_words(wealth, entities, WINDOW_S), effect,
        )  # fmt: skip

    def _end_histories(self, cast: _Cast, means: FloatArray) -> None:
        """End the window of every job: the mean over its nodes of their median GPU, for scrapes of a node see one phase
        of a step, and those of all nodes all of them.
        """
        layout, nodes = self._layout, len(self._layout.names)
        member = np.flatnonzero(cast.job >= 0)
        pair = cast.job[member] * nodes + layout.node[member]
        activity = np.full((3, len(cast.jobs)), np.nan)
        for row, signal in enumerate((TENSOR, MEMORY, POWER)):
            medians, _ = group_medians(means[signal][member], pair, len(cast.jobs) * nodes)
            by_node = medians.reshape(-1, nodes)
            known = np.isfinite(by_node)
            total = np.where(known, by_node, 0.0).sum(axis=1)
            activity[row] = np.where(known.any(axis=1) & (total > 0), total / np.maximum(known.sum(axis=1), 1), np.nan)
        for place, job in enumerate(cast.jobs):
            self.history(job).end(activity[:, place])

    def snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state as JSON can say it, and arrays."""
        arrays = self.sums.arrays("sums/") | self._gpus.arrays("gpus/") | self._nodes.arrays("nodes/")
        steps = {}
        for place, (job_id, history) in enumerate(self.histories.items()):
            steps[job_id], arrays[f"history/{place}"] = history.snapshot()
        told = {"tails": self.tails.document(), "starts": self._starts, "window": self._window}
        return told | {"steps": [[job_id, values] for job_id, values in steps.items()]}, arrays

    def restore(self, told: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self.sums.load(arrays, "sums/")
        self._gpus.load(arrays, "gpus/")
        self._nodes.load(arrays, "nodes/")
        self.tails = self._gpus.tails = self._nodes.tails = Tails(told["tails"])
        self._starts, self._window = dict(told["starts"]), told["window"]
        for place, (job_id, steps) in enumerate(told["steps"]):
            self.histories[job_id] = History.restore(steps, arrays[f"history/{place}"])


def gpus_of(job: Job, layout: GpuLayout) -> IntArray:
    """Return the indices of a job's GPUs."""
    parts = []
    for node in job.nodes:
        members = layout.members(node)
        parts.append(members[np.isin(layout.gpu[members], job.gpus[node])] if node in job.gpus else members)
    return np.concatenate(parts) if parts else np.empty(0, np.int64)


def _medians(means: FloatArray, gpus: IntArray) -> FloatArray:
    result = np.full(len(means), np.nan)
    for row, values in enumerate(means[:, gpus]):
        result[row] = median_of(values)
    return result
