"""All jobs' GPUs and nodes, window by window: who is slow by their readings, and what it does to the job."""

import math
import zlib
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property
from typing import Final

import numpy as np

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import GPU_NODES
from detectors.core.evidence import odds_in_words, threshold
from detectors.core.kept import Kept
from detectors.core.residuals import Groups
from detectors.core.statistics import median_of
from detectors.core.tails import Tails
from detectors.fleet.fleet import Fleet, Job
from detectors.fleet.gpus import GpuLayout
from detectors.straggler.comparison import DUTY, Look
from detectors.straggler.config import StragglerConfig
from detectors.straggler.job_pace import MOST_FELT, History, NodePaces
from detectors.straggler.readings import LONG_WORK, PAIR, SILENT, SLOW_CLOCK, STARVED, Readings
from detectors.straggler.shared_gpus import SharedGpus
from detectors.straggler.silent_chips import SINCE, SilentChips
from detectors.straggler.suspects import PAGE_SHARE, Suspect, moves_its_job
from detectors.straggler.windows import BUSY, LEAST, MEMORY, POWER, SPENT, TENSOR, WINDOW_S, Sums, logarithms

_MATES: Final = 4
"""GPUs of a node that are compared with each other: of fewer the median is nobody's."""
_READS: Final = 4.0
"""Readings of activity alias with the steps: a mean of fewer scatters by as much as work is uneven (a tenth)."""
_STARVED_TOO: Final = 5.0
"""Wealth (natural logarithm) from which on another host waits too: chance brings it once in a hundred and fifty."""
_STARVES: Final = 0.5
"""Of the time at least: pauses of the whole job that scrapes saw unevenly, and of a rank, come once in some minutes."""
_LASTS: Final = 8
"""Windows in which somebody works longer, where nothing says how much there is to do: what is given to each (experts,
lengths of sequences) changes within minutes, and who waits for data by turns has waited by then (policy)."""
_BY_TURNS: Final = np.uint64(0xFF)
"""Who waits by turns did so in two of the last eight windows; a pause of the job that scrapes saw unevenly is one."""


@dataclass(frozen=True)
class _Compared:
    """Entities that are compared, `who` (n,): the place of each one's `job` in the cast, the `number` of that job, that
    no other has had, its `peers`, and of how many it moves the median as one (`sizes`); inf where it moves none.
    """

    who: IntArray
    job: IntArray
    number: IntArray
    peers: Groups
    sizes: FloatArray


@dataclass(frozen=True)
class _Cast:
    """Who works in which job now, until jobs or GPUs come and go: by GPU its `node`, out of `nodes`, its place in
    `jobs` or -1, and the group of its `mates`, with `many` in its node or all of its model in the job; by node its
    `model`, whether one job has it `alone`, and whether it is the first or last of one, at the `ends` of a pipeline.
    """

    jobs: tuple[Job, ...]
    node: IntArray
    nodes: int
    job: IntArray
    mates: IntArray
    groups: int
    many: BoolArray
    model: IntArray
    alone: BoolArray
    ends: BoolArray

    @cached_property
    def _number(self) -> IntArray:
        """By GPU, the number of its job."""
        numbers = [zlib.crc32(f"{job.job_id}@{job.start}".encode()) for job in self.jobs]
        return np.array([*numbers, 0])[self.job]

    @cached_property
    def by_gpu(self) -> _Compared:
        """All GPUs at work. Among many mates, a GPU does not move the median of its node."""
        who = np.flatnonzero(self.job >= 0)
        mates = self.mates[who]
        sizes = np.where(self.many[who], np.inf, np.bincount(mates, minlength=self.groups)[mates])
        return _Compared(who, self.job[who], self._number[who], Groups(mates, self.groups), sizes)

    @cached_property
    def by_job_and_model(self) -> Groups:
        """All GPUs at work, by job and model."""
        who = self.by_gpu.who
        pairs = self.job[who] * (self.model.max(initial=0) + 1) + self.model[self.node[who]]
        groups, group = np.unique(pairs, return_inverse=True)
        return Groups(group, len(groups))

    @cached_property
    def of_one_job(self) -> Groups:
        """The GPUs at work of the nodes that one job has alone, by node."""
        return Groups(np.where((self.job >= 0) & self.alone[self.node], self.node, -1), self.nodes)

    @cached_property
    def by_node(self) -> _Compared:
        """Those of these nodes that have two such GPUs or more."""
        member = np.flatnonzero(self.of_one_job.group >= 0)
        node = self.node[member]
        who = np.flatnonzero(np.bincount(node, minlength=self.nodes) >= 2)
        job, number = np.zeros(self.nodes, np.int64), np.zeros(self.nodes, np.int64)
        job[node], number[node] = self.job[member], self._number[member]
        groups, group = np.unique(job[who] * self.nodes + self.model[who], return_inverse=True)
        sizes = np.bincount(group)[group].astype(float)
        return _Compared(who, job[who], number[who], Groups(group, len(groups)), sizes)

    @cached_property
    def by_job_and_node(self) -> Groups:
        """The GPUs at work, by job and node."""
        pair = np.where(self.job >= 0, self.job * self.nodes + self.node, -1)
        return Groups(pair, len(self.jobs) * self.nodes)


@dataclass(frozen=True)
class _Window:
    """A minute that has ended: by GPU the logarithms `x` of what it read, and of how many `reads` they are, and of its
    memory's clock; when it had `begun`, the `histories` of the jobs, and the GPUs that are `held` under a finding.
    """

    x: FloatArray
    reads: FloatArray
    memory_clocks: FloatArray
    begun: Instant
    histories: Mapping[str, History]
    held: IntArray


class Watch(Kept):
    """See the module."""

    KEPT = ("sums", "gpus", "nodes", "silent", "shared", "_paces", "_window", "_reads")

    def __init__(self, config: StragglerConfig, fleet: Fleet, layout: GpuLayout) -> None:
        self._config, self._fleet, self._layout = config, fleet, layout
        self.tails = Tails(config.calibration)
        self.sums = Sums()
        self.gpus = Readings("gpu", 3, self.tails, config.effect_share).along("dcgm")
        self.nodes = Readings("node", 3, self.tails, config.effect_share).along(GPU_NODES)
        self.silent = SilentChips().along("dcgm")
        self.shared = SharedGpus()
        self._paces = NodePaces()
        self._window: int | None = None
        self._reads = 0.0
        """How often GPUs at work were read in the last window."""
        self._cast: _Cast | None = None

    def extend(self) -> None:
        """Make room for GPUs that are new."""
        for columns in (self.sums, self.gpus, self.silent, self.shared):
            columns.grow(len(self._layout))
        self.nodes.grow(len(self._layout.names))

    def take(self, batch: Batch) -> None:
        """Take readings of GPUs."""
        self.sums.take(batch)
        self.shared.read(batch)

    def close(self, now: Instant, histories: Mapping[str, History], held: IntArray) -> list[Suspect] | None:
        """End the window if it is time to, and return who is slow; None within a window.

        GPUs that are `held` under a finding teach nobody what is usual.
        """
        number, before = now // (1000 * WINDOW_S), self._window
        self._window = number
        if before is None or before == number:
            return None
        self.extend()
        cast = self._cast = self._casting()
        reads = self.sums.read.max(axis=0).astype(np.float64)
        self._reads = median_of(reads[reads > 0]) if reads.any() else 0.0
        memory_clocks = np.log(self.sums.memory_clock.astype(np.float64))
        means = self.sums.means()
        self._end_histories(cast, means, histories)
        window = _Window(logarithms(means), reads, memory_clocks, now - 1000 * WINDOW_S, histories, held)
        return self._gpus_look(cast, window) + self._nodes_look(cast, window)

    def stands_out(self, gpus: IntArray) -> int | None:
        """Return which one of a node's GPUs its own readings make the culprit; None where none does."""
        odd = np.flatnonzero(self.gpus.evidence.wealth[gpus] > 2.0)
        return int(gpus[odd[0]]) if len(odd) == 1 else None

    def slow_clocks(self, gpus: IntArray) -> FloatArray:
        """Return what speaks for a slow clock of each of `gpus`, (n,), a logarithm: 0 where nothing does now."""
        slow = (self.gpus.how[gpus] == SLOW_CLOCK) & (self.gpus.odd[gpus] & np.uint64(1) > 0)
        return np.where(slow, self.gpus.wealth(gpus), 0.0)

    def works_more(self, node: str, gpus: IntArray, since: Instant, began: Instant) -> float:
        """Return by how much more than its peers a node, or one of its GPUs (indices), worked since then, a logarithm.

        Beside what was usual before it `began` to be slow, if that is known.

        NaN where that is not known; inf where it will be within some windows.
        """
        number, window_end = self._layout.number(node), 1000 * WINDOW_S * (self._window or 0)
        if number < 0:
            return float("nan")
        members = self._layout.members(node)
        is_read = bool((self.sums.total[TENSOR, members] > LEAST * self.sums.read[TENSOR, members]).any())

        def by(compared: Readings, who: IntArray, at_once: int) -> FloatArray:
            fewest = math.ceil(_READS / (max(self._reads, 1.0) * max(at_once, 1)))
            return compared.works_more(who, since, began, window_end, fewest=fewest, is_read=is_read)

        more = float(by(self.nodes, np.array([number]), len(members))[0])
        if not len(gpus):
            return more
        # Its mates may have more than other nodes' GPUs, and it more than they.
        beside = by(self.gpus, gpus, 1)
        return float(np.fmax.reduce(beside)) + (max(more, 0.0) if np.isfinite(more) else 0.0)

    def _casting(self) -> _Cast:
        layout = self._layout
        jobs = tuple(sorted(self._fleet.jobs.values(), key=lambda job: (job.start, job.job_id)))
        if self._cast is not None and self._cast.jobs == jobs and len(self._cast.job) == len(layout):
            return self._cast
        job_of = np.full(len(layout), -1)
        for place, job in enumerate(jobs):
            job_of[layout.of_job(job)] = place
        models = [str(self._fleet.nodes.get(name, {}).get("gpu_model", "")) for name in layout.names]
        model = np.unique(models, return_inverse=True)[1] if models else np.empty(0, np.int64)
        nodes = max(len(layout.names), 1)
        pair = np.where(job_of >= 0, job_of * nodes + layout.node, -1)
        sizes = np.bincount(pair[pair >= 0], minlength=max(len(jobs), 1) * nodes)
        alone = (sizes.reshape(-1, nodes) > 0).sum(axis=0) <= 1
        many = sizes[np.maximum(pair, 0)] >= _MATES
        wide = max(len(jobs), 1) * nodes + job_of * nodes + model[layout.node]
        named = {name for job in jobs if not job.inferred for name in (*job.nodes[:1], *job.nodes[-1:])}
        ends = np.array([name in named for name in layout.names], bool)
        names, mates = np.unique(np.where(pair < 0, -1, np.where(many, pair, wide)), return_inverse=True)
        return _Cast(jobs, layout.node, nodes, job_of, mates, len(names), many, model, alone, ends)

    def _gpus_look(self, cast: _Cast, window: _Window) -> list[Suspect]:
        them = cast.by_gpu
        if not len(them.who):
            return []
        held, x = np.isin(them.who, window.held), window.x[:, them.who]
        new = self.gpus.job[them.who] != them.number
        self.silent.take(them.who, them.who[new], cast.by_job_and_model, x)
        self.shared.close(them.who, new, them.peers)
        found = self._suspects(self.gpus, them, x, window.reads[them.who], held, cast, window)
        return found + self._silent(cast, window)

    def _silent(self, cast: _Cast, window: _Window) -> list[Suspect]:
        them, found = cast.by_gpu, []
        x, share, peers = window.x[:, them.who], self._config.effect_share, cast.by_job_and_model
        moved = self.gpus.work_moved
        blamed = self.silent.blamed(cast.jobs, window.histories, them.who, peers, x, moved, them.job, share)
        for job, one in blamed:
            effect = window.histories[job.job_id].effect((1 << SINCE) - 1, SINCE + 1, 0.0)
            if effect is None or effect.slower < share:
                continue
            place = int(np.searchsorted(them.who, one.gpu))
            found.append(
                Suspect(
                    job=job,
                    entity=self._layout.entity(one.gpu),
                    gpus=np.array([one.gpu]),
                    how=SILENT,
                    lag=effect.slower,
                    since=max(window.begun - 1000 * WINDOW_S * (SINCE - 1), job.start),
                    looks=SINCE,
                    odd=SINCE,
                    crowd=1,
                    sure=True,
                    clock=1.0,
                    own=np.exp(x[:, place]),
                    peers=np.exp(peers.medians(x)[0][:, peers.group[place]]),
                    by_chance=f"{one.deviations:.0f} deviations of its peers'",
                    effect=effect,
                    silent=one,
                )
            )
        return found

    def _nodes_look(self, cast: _Cast, window: _Window) -> list[Suspect]:
        them = cast.by_node
        if len(them.who) < 2:
            return []
        held = np.isin(them.who, self._layout.node[window.held])
        signals, known = cast.of_one_job.medians(window.x)
        members = np.bincount(cast.of_one_job.group[cast.of_one_job.group >= 0], minlength=cast.nodes)
        signals = np.where(2 * known > members, signals, np.nan)[:, them.who]  # one GPU at work is not its node
        reads = cast.of_one_job.medians(window.reads[None])[0][:, them.who]
        return self._suspects(self.nodes, them, signals, reads[0], held, cast, window)

    def _suspects(
        self, comparison: Readings, them: _Compared, signals: FloatArray, reads: FloatArray, held: BoolArray,
        cast: _Cast, window: _Window,
    ) -> list[Suspect]:  # fmt: skip
        who, job, layout, whole = them.who, them.job, self._layout, comparison is self.nodes
        ends, clocks = (cast.ends[who], np.full(len(who), np.nan)) if whole else (None, window.memory_clocks[who])
        grew = np.zeros(len(who)) if whole else self.shared.grew[who]
        look = Look(
            who, them.number, them.peers, signals, reads, held, window.begun, WINDOW_S, WINDOW_S, ends, clocks,
            grew > 0, np.isnan(signals[TENSOR]),
        )  # fmt: skip
        comparison.look(look)
        odd = comparison.odd[who] & np.uint64(1) > 0
        budget = self._config.false_alarms_per_100_node_days / 2
        enough = threshold(budget, len(who), len(layout.names), WINDOW_S)
        found, alike = [], look.are_alike(BUSY)
        # A reading is a moment: of pauses, some nodes' scrapes see several in a row that others' do not. What rests on
        # few readings a window has to be odd in more of the windows.
        duty = np.fmax(1 / (1 + reads), np.where(comparison.how[who] == STARVED, _STARVES, DUTY))
        for place in comparison.over(who, enough - MOST_FELT, WINDOW_S, duty).tolist():
            entity, running = int(who[place]), cast.jobs[job[place]]
            gpus = np.flatnonzero((cast.job >= 0) & (layout.node == entity)) if whole else np.array([entity])
            bits, looks = comparison.bits(entity)
            wealth = float(comparison.wealth(who[[place]])[0])
            how, lag = int(comparison.how[entity]), float(np.expm1(comparison.least[entity]))
            plain = how == LONG_WORK and np.isnan(look.signals[TENSOR, place])
            if plain and (bits.bit_count() < _LASTS or (not grew[place] and comparison.is_one_of_several(look, place))):
                continue
            own, peers = look.signals[:, place], look.usual[:, place]
            if how != LONG_WORK and look.middles[1][:, place].max() == PAIR:
                peers = 2 * peers - own  # the middle lies between it and the other one
            moves, watts = moves_its_job(how, lag, own, peers, float(them.sizes[place]))
            effect = window.histories[running.job_id].effect(bits, looks, moves, own_power=watts)
            if running.inferred and not whole:  # of several jobs that were taken for one it is its mates that wait
                effect = self._paces.effect(int(layout.node[entity]), bits, looks) or effect
            if wealth + (effect.felt if effect is not None else 0.0) < enough:
                continue
            with_it = odd & (job == job[place])
            if how == STARVED:  # hosts that wait for one file system do so by turns, of whatever job
                by_turns = np.bitwise_count(comparison.odd[who] & _BY_TURNS) > 1
                too = odd | (by_turns & (comparison.evidence.wealth[who] >= _STARVED_TOO))
                with_it |= too & (comparison.how[who] == STARVED)
                if lag >= PAGE_SHARE and bits.bit_count() >= _LASTS:  # who waits far less has no part in it
                    with_it &= comparison.least[who] >= comparison.least[entity] / 2
            beside = who[with_it]
            if how == LONG_WORK and not whole and self._began_together(entity, beside):
                continue
            found.append(
                Suspect(
                    job=running,
                    entity={"node": layout.names[entity]} if whole else layout.entity(entity),
                    gpus=gpus,
                    how=how,
                    lag=lag,
                    since=max(int(comparison.since[entity]), running.start),
                    looks=looks,
                    odd=bits.bit_count(),
                    crowd=len(np.unique(beside if whole else layout.node[beside])),
                    sure=wealth >= enough,
                    clock=float(np.exp(comparison.lowest[entity])),
                    own=np.exp(own),
                    peers=np.exp(peers),
                    by_chance=odds_in_words(wealth, len(who), WINDOW_S),
                    effect=effect,
                    always=bool(comparison.early[entity]),
                    memory_clocks=tuple(np.exp([clocks, look.usual_memory_clocks[0]])[:, place].tolist()),
                    grew_mib=float(grew[place]) if how == LONG_WORK else 0.0,
                    alike=bool(alike[place]),
                )
            )
        return found

    def _began_together(self, gpu: int, others: IntArray) -> bool:
        """Return whether a GPU of another node came to work longer within the same window: work was given out anew."""
        compared, node = self.gpus, self._layout.node
        others = others[(node[others] != node[gpu]) & (compared.how[others] == LONG_WORK)]
        return bool((np.abs(compared.since[others] - compared.since[gpu]) < 1000 * WINDOW_S).any())

    def _end_histories(self, cast: _Cast, means: FloatArray, histories: Mapping[str, History]) -> None:
        """End the window of every job: the mean over its nodes of their median GPU, for scrapes of a node see one phase
        of a step, and those of all nodes all of them.
        """
        power = np.where(np.isnan(means[SPENT]), means[POWER], means[SPENT])
        medians, _ = cast.by_job_and_node.medians(np.concatenate([means[[TENSOR, MEMORY]], power[None]]))
        by_node = medians.reshape(3, -1, cast.nodes)
        known = np.isfinite(by_node)
        total = np.where(known, by_node, 0.0).sum(axis=2)
        activity = np.where(total > 0, total / np.maximum(known.sum(axis=2), 1), np.nan)
        for place, job in enumerate(cast.jobs):
            histories[job.job_id].end(activity[:, place])
        inferred = np.flatnonzero([job.inferred and len(job.nodes) > 1 for job in cast.jobs])
        with_some: BoolArray = np.asarray(known[:, inferred].any(axis=0))
        nodes = np.flatnonzero(with_some.any(axis=0))
        its = inferred[with_some[:, nodes].argmax(axis=0)] if len(nodes) else nodes
        self._paces.end(nodes, by_node[:, its, nodes])
