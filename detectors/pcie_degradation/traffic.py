"""What GPUs move over their host links, stretch by stretch, beside their peers and beside themselves.

In a synchronous job every rank moves the same in a step, however slow its link: means hide the culprit. What tells is
the peak of a stretch, which a bad link caps. What a rank moves also goes by its role, so a GPU is compared with those
of the same number on the job's other nodes, if they are enough, and must have moved as much as they before; where it
has no history, all peers must be alike. GPUs of a node that are slow together, or beside one that moves far more than
its peers, share a PCIe switch with somebody's copy: that must last. Where the GPUs of a job work each on its own, as in
inference, one or the other is low in a stretch by chance: the more often, the longer it must last.
"""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from detectors.contract import BoolArray, FloatArray, Instant, IntArray
from detectors.fleet import Fleet
from detectors.gpus import GpuColumns, GpuLayout
from detectors.pcie_degradation.config import PcieDegradationConfig
from detectors.statistics import clamp

_GB = 1e9
_MAD_TO_SIGMA = 1.4826
_SPREAD_FLOOR = 0.08
"""The least spread that peers are given, of their median."""
_USUAL = (0.4, 1.6)
"""Peers that move so many times what they did are in another phase of the job: nothing can be said."""
_NEIGHBOUR = 1.5
"""A GPU that moves so many times what its peers do, and what it did, is what its neighbours wait for."""
_LEARN = 0.1
_LEARN_LOUD = 0.01
"""The part of a new peak that a level takes on; little where only this GPU moves more: a copy is not to be a habit."""
_SLOTS = 64
_LOOK_BACK = 2
"""So many stretches ago a peer may have spoken: scrapes of 60 s, and their jitter."""
_MOST_RUN = 4.0
"""The run of low stretches counts up to so many times what is asked for."""


class Traffic(GpuColumns):
    """Columns over all GPUs.

    `stretch`, `peak` the number of the stretch of the last reading and its peak (bytes/s, either direction, at work;
    NaN: none), `last_stretch`, `last_peak` of the stretch before. `job` a number of the job it was learnt in,
    `learnt` in how many stretches, `own` and `peers` the levels learnt, bytes/s; `now`, `peers_now`, `distance` of
    the stretch judged last; `low_run` how many stretches it has been low, `low_since` (ms), `low_at` the last;
    `judged_at` when it could last be compared, `well_run` how often since then it was not low;
    `shared_run` in how many of the low stretches its neighbours showed that the PCIe switch is shared; `compared` in
    how many stretches of this job it was compared, `lows` in how many of them it was low, of a long run only the first.
    """

    BLANK: ClassVar[dict[str, tuple[Any, float]]] = {
        "stretch": (np.int64, -1),
        "peak": (np.float64, np.nan),
        "last_stretch": (np.int64, -1),
        "last_peak": (np.float64, np.nan),
        "job": (np.int64, -1),
        "learnt": (np.int64, 0),
        "own": (np.float64, np.nan),
        "peers": (np.float64, np.nan),
        "now": (np.float64, np.nan),
        "peers_now": (np.float64, np.nan),
        "distance": (np.float64, np.nan),
        "low_run": (np.float64, 0.0),
        "low_since": (np.int64, -1),
        "low_at": (np.int64, -1),
        "judged_at": (np.int64, -1),
        "well_run": (np.int64, 0),
        "shared_run": (np.float64, 0.0),
        "compared": (np.int64, 0),
        "lows": (np.int64, 0),
    }
    stretch: IntArray
    peak: FloatArray
    last_stretch: IntArray
    last_peak: FloatArray
    job: IntArray
    learnt: IntArray
    own: FloatArray
    peers: FloatArray
    now: FloatArray
    peers_now: FloatArray
    distance: FloatArray
    low_run: FloatArray
    low_since: IntArray
    low_at: IntArray
    judged_at: IntArray
    well_run: IntArray
    shared_run: FloatArray
    compared: IntArray
    lows: IntArray

    def __init__(self, config: PcieDegradationConfig, fleet: Fleet, layout: GpuLayout) -> None:
        super().__init__()
        self._config, self._fleet, self._layout = config, fleet, layout
        self._length = int(config.stretch_s * 1000)
        self._judged = -1
        self._numbers: dict[str, int] = {}
        """Of the jobs that run; a number is never given twice."""
        self._next = 0

    def take(self, gpus: IntArray, at: IntArray, moved: FloatArray, busy: BoolArray) -> None:
        """Take one reading each of some GPUs; a rate of 0 is that of a field that is not measured."""
        number = (at - 1) // self._length  # a reading at the very end of a stretch belongs to it
        rolls = number != self.stretch[gpus]
        old = gpus[rolls]
        self.last_stretch[old], self.last_peak[old] = self.stretch[old], self.peak[old]
        self.stretch[old], self.peak[old] = number[rolls], np.nan
        value = np.where(busy & (moved > 0), moved, np.nan)
        self.peak[gpus] = np.fmax(self.peak[gpus], value)

    def advance(self, now: Instant) -> bool:
        """Judge the stretch that has ended since the last call; return whether there was one."""
        number = now // self._length - 1
        if number <= self._judged or not self.count:
            return False
        self._judged = number
        here, before = self.stretch == number, self.last_stretch == number
        peak = np.where(here, self.peak, np.where(before, self.last_peak, np.nan))
        if np.isfinite(peak).any():
            # Peers that are scraped less often than once a stretch are asked what they last said.
            latest = np.where(self.stretch <= number, self.stretch, self.last_stretch)
            said = np.where(self.stretch <= number, self.peak, self.last_peak)
            self._judge(peak, np.where(number - latest <= _LOOK_BACK, said, np.nan), (number + 1) * self._length)
        return True

    def _judge(self, peak: FloatArray, said: FloatArray, at: Instant) -> None:
        config = self._config
        job = self._jobs()
        usual, spread, several = self._of_peers(said, job)
        moved_on = job != self.job
        self.learnt[moved_on], self.job[moved_on] = 0, job[moved_on]
        self.compared[moved_on], self.lows[moved_on] = 0, 0
        compared = np.isfinite(peak) & several & (usual >= config.bandwidth_floor_gb_s * _GB)
        distance = (peak - usual) / np.maximum(spread, _SPREAD_FLOOR * usual)
        far = compared & (peak <= config.bandwidth_ratio * usual) & (distance <= -config.peer_deviations)
        known = self.learnt >= config.history_stretches
        steady = (usual >= _USUAL[0] * self.peers) & (usual <= _USUAL[1] * self.peers)
        fell = (peak <= config.bandwidth_ratio * self.own) & (self.own >= 0.5 * config.bandwidth_floor_gb_s * _GB)
        alike = spread <= config.peer_spread * usual
        low = far & ((known & steady & fell) | (~known & alike))
        told = compared & (~known | steady)

        begins = low & (self.low_run <= 0)
        self.low_since[begins] = at - self._length
        step = np.where(low, np.where(known, 1.0, 0.5), np.where(told, -2.0, 0.0))
        most = _MOST_RUN * max(config.bandwidth_stretches, config.contention_stretches)
        self.low_run = clamp(self.low_run + step, 0.0, most)
        self.low_at[low], self.judged_at[told] = at, at
        self.compared += told | low
        self.lows += low & (self.low_run <= config.bandwidth_stretches)
        self.well_run = np.where(low, 0, np.minimum(self.well_run + told, 2**31))
        self.now, self.peers_now, self.distance = peak, usual, distance

        learn = compared & ~far & (self.low_run <= 0)
        first = learn & (self.learnt == 0)
        loud = known & steady & (peak >= _NEIGHBOUR * self.own)
        pace = np.where(loud, _LEARN_LOUD, _LEARN)
        for level, value in ((self.own, peak), (self.peers, usual)):
            level[first] = value[first]
            level[learn] += pace[learn] * (value[learn] - level[learn])
        self.learnt[learn] += 1
        if (self.low_run > 0).any():
            self._look_for_sharing(peak, usual)

    def _look_for_sharing(self, peak: FloatArray, usual: FloatArray) -> None:
        suspects = np.flatnonzero(self.low_run > 0)
        node = self._layout.node
        with np.errstate(invalid="ignore"):
            most = np.where(self.learnt >= self._config.history_stretches, self.own, usual)
            loud = (peak >= _NEIGHBOUR * np.fmax(most, usual)) & (peak >= self._config.bandwidth_floor_gb_s * _GB)
        noisy = (self.low_run > 0) | loud
        those = np.isin(node, node[suspects])
        beside = np.bincount(node[those & noisy], minlength=len(self._layout.names))
        # A test on a neighbour takes one stretch, a copy beside it as many as it makes this GPU slow.
        seen = self.shared_run + np.where(beside[node] > 1, 1.0, 0.0)
        self.shared_run = np.minimum(seen, self.low_run)

    def _jobs(self) -> IntArray:
        """Return the number of every GPU's job; a node's own, below 0, where it has none."""
        running = self._fleet.jobs
        self._numbers = {job_id: number for job_id, number in self._numbers.items() if job_id in running}
        for job_id in sorted(running.keys() - self._numbers.keys()):
            self._numbers[job_id] = self._next
            self._next += 1
        found = -2 - self._layout.node
        for job in sorted(running.values(), key=lambda job: (job.start, job.job_id)):
            for name in job.nodes:
                members = self._layout.members(name)
                if name in job.gpus and len(members):
                    members = members[np.isin(self._layout.gpu[members], job.gpus[name])]
                found[members] = self._numbers[job.job_id]
        return found

    def _of_peers(self, peak: FloatArray, job: IntArray) -> tuple[FloatArray, FloatArray, BoolArray]:
        """Return the peers' median, their spread, and whether they are enough, by GPU.

        Peers have the same number on other nodes of the job where those are enough, else all of the job.
        """
        usual, spread = np.full(len(peak), np.nan), np.full(len(peak), np.nan)
        those = np.flatnonzero(np.isfinite(peak))
        slot = job * _SLOTS + np.minimum(self._layout.gpu, _SLOTS - 1)
        for key in (job, slot):
            _, groups, counts = np.unique(key[those], return_inverse=True, return_counts=True)
            mine = counts[groups] >= self._config.peer_minimum
            if np.count_nonzero(mine):
                middle = _medians(peak[those], groups, counts)[groups]
                wide = _MAD_TO_SIGMA * _medians(np.abs(peak[those] - middle), groups, counts)[groups]
                usual[those[mine]], spread[those[mine]] = middle[mine], wide[mine]
        return usual, spread, np.isfinite(usual)

    def shared(self) -> BoolArray:
        """Return which GPUs seem to share their PCIe switch with what makes them slow."""
        return np.asarray((self.low_run > 0) & (self.shared_run >= 0.5 * self.low_run))

    def suspects(self) -> BoolArray:
        """Return which GPUs have moved too little for long enough."""
        config = self._config
        lasting = (self.low_run >= config.bandwidth_stretches) & (self.well_run == 0)
        if not lasting.any():
            return np.asarray(lasting)
        needed = np.where(self.shared(), config.contention_stretches, self._beyond_chance())
        return np.asarray(lasting & (self.low_run >= needed))

    def _beyond_chance(self) -> FloatArray:
        """Return how many low stretches in a row no GPU has by chance, where the others of its job are low at times."""
        config = self._config
        _, groups = np.unique(self.job, return_inverse=True)
        lows = np.bincount(groups, self.lows)[groups] - self.lows
        compared = np.bincount(groups, self.compared)[groups] - self.compared
        often = np.minimum((lows + 0.5) / (compared + 1), 0.9)  # by Jeffreys' prior, as few say little
        row = np.ceil(np.log(config.bandwidth_chance) / np.log(often))
        least, most = config.bandwidth_stretches, config.contention_stretches
        return np.asarray(np.clip(row, least, max(least, most)))

    def forget(self, gpu: int) -> None:
        """Let what was counted of a GPU end: what comes after is another event."""
        self.low_run[gpu], self.shared_run[gpu] = 0.0, 0.0

    def snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state as JSON can say it, and arrays."""
        return {"judged": self._judged, "numbers": self._numbers, "next": self._next}, self.arrays("moved_")

    def restore(self, document: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self.load(arrays, "moved_")
        self._judged, self._numbers, self._next = document["judged"], document["numbers"], document["next"]


def _medians(values: FloatArray, groups: IntArray, counts: IntArray) -> FloatArray:
    """Return the median of each group; `groups` (n,) numbers them, `counts` says how many values each has."""
    ranked = values[np.lexsort((values, groups))]
    ends = np.cumsum(counts)
    starts = ends - counts
    low, high = ranked[starts + (counts - 1) // 2], ranked[starts + counts // 2]
    return np.asarray((low + high) / 2)
