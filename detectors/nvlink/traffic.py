"""How much of its job's NVLink traffic every GPU carries: half minute by half minute, against its own share so far.

Steps, checkpoints and slow phases change the traffic of all GPUs of a job alike, so a GPU's share of the job's median
stays what it is; where it sits in the pipeline makes it differ from others', so it is compared with its own share in
this job. A job too young for that is judged within the node. A GPU that is slow, or has just stopped being slow,
carries a changed share, too, but its memory is as much busier or idler: so the traffic for what its memory does must
have fallen as well.
"""

import zlib
from itertools import pairwise
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from detectors.contract import BoolArray, FloatArray, Instant, IntArray
from detectors.fleet import Fleet
from detectors.gpus import GpuColumns, GpuLayout
from detectors.nvlink.config import NvlinkConfig
from detectors.statistics import masked_median

_LEARNING = 0.1
_LEAST_WORK = 0.01
"""Memory that is less active than that does nothing worth dividing by."""


class Traffic(GpuColumns):
    """Columns over all GPUs.

    `sum`, `busy` and number of the `readings` in the present slot (bytes/s; % busy) and the `work` of its memory (0 to
    1); `job` a number for its job, 0 for none; `share` its usual share of the job's traffic, `work_share` the same of
    the traffic for its work, `learnt` over so many slots; `ratio` its share now over that (NaN: unknown),
    `beside_mates` its traffic over that of its node's others; `low` and `young_low` the last slots, newest in bit 0,
    set where it was far too low by history, or by the mates; `low_at` since when; `fine` slots since.
    """

    BLANK: ClassVar[dict[str, tuple[Any, float]]] = {
        "sum": (np.float64, 0),
        "busy": (np.float64, 0),
        "work": (np.float64, 0),
        "readings": (np.int32, 0),
        "job": (np.int64, 0),
        "share": (np.float64, np.nan),
        "work_share": (np.float64, np.nan),
        "learnt": (np.int32, 0),
        "ratio": (np.float64, np.nan),
        "beside_mates": (np.float64, np.nan),
        "rate": (np.float64, np.nan),
        "low": (np.int32, 0),
        "young_low": (np.int32, 0),
        "low_at": (np.int64, -1),
        "fine": (np.int32, 0),
    }
    sum: FloatArray
    busy: FloatArray
    work: FloatArray
    readings: NDArray[np.int32]
    job: IntArray
    share: FloatArray
    work_share: FloatArray
    learnt: NDArray[np.int32]
    ratio: FloatArray
    beside_mates: FloatArray
    rate: FloatArray
    low: NDArray[np.int32]
    young_low: NDArray[np.int32]
    low_at: IntArray
    fine: NDArray[np.int32]

    def __init__(self, config: NvlinkConfig, fleet: Fleet) -> None:
        super().__init__()
        self._config, self._fleet = config, fleet
        self._jobs: tuple[Any, ...] = ()
        self._slot_ms = max(int(config.traffic_slot_s), 1) * 1000

    def take(self, gpus: IntArray, sent: FloatArray, received: FloatArray, busy: FloatArray, work: FloatArray) -> None:
        """Take one reading of each of `gpus`; NaN: not reported.

        Bytes/s either way, utilisation in %, and the part of the time in which the memory was active.
        """
        both = np.where(np.isnan(sent), received, np.where(np.isnan(received), sent, sent + received))
        known = np.isfinite(both)
        if not np.count_nonzero(known):
            return
        those = gpus[known]
        self.sum[those] += both[known]
        self.busy[those] += np.where(np.isnan(busy[known]), 100.0, busy[known])
        self.work[those] += work[known]
        self.readings[those] += 1

    def settle(self, now: Instant, layout: GpuLayout) -> None:
        """At a point of the grid: if a slot is over, compare."""
        if now % self._slot_ms:
            return
        told = self.readings > 0
        if not np.count_nonzero(told):
            return
        self._move_jobs(layout)
        rate = np.divide(self.sum, self.readings, out=np.full(len(self.sum), np.nan), where=told)
        busy = np.divide(self.busy, self.readings, out=np.zeros(len(self.sum)), where=told)
        # Without word of the memory, traffic speaks for itself.
        worked = np.divide(self.work, self.readings, out=np.ones(len(self.sum)), where=told)
        worked = np.where(np.isfinite(worked), np.maximum(worked, _LEAST_WORK), 1.0)
        self.sum[:], self.busy[:], self.work[:], self.readings[:] = 0.0, 0.0, 0.0, 0
        self.rate[told] = rate[told]
        at_work = told & (self.job != 0) & (busy >= self._config.busy_utilisation)
        workers = at_work.nonzero()[0]
        workers = workers[np.lexsort((layout.node[workers], self.job[workers]))]
        if not len(workers):
            return
        traffic, for_work = rate[workers], (rate / worked)[workers]
        job, node = self.job[workers], layout.node[workers]
        begins = np.flatnonzero(np.concatenate([[True], (job[1:] != job[:-1]) | (node[1:] != node[:-1])]))
        beside = [self._beside_mates(begins, figure) for figure in (traffic, for_work)]
        edges = [*np.flatnonzero(np.concatenate([[True], job[1:] != job[:-1]])).tolist(), len(workers)]
        for first, last in pairwise(edges):
            some = slice(first, last)
            few = last - first < self._config.peer_minimum
            if not few and float(np.median(traffic[some])) >= self._config.traffic_floor_bytes_per_s:
                self._compare(now, workers[some], traffic[some], for_work[some], (beside[0][some], beside[1][some]))

    def _compare(
        self,
        now: Instant,
        peers: IntArray,
        rate: FloatArray,
        for_work: FloatArray,
        beside_mates: tuple[FloatArray, FloatArray],
    ) -> None:
        """Compare the GPUs of one job, by traffic and by traffic for the work of the memory; all shaped (peers,)."""
        config = self._config
        known = self.learnt[peers] >= config.traffic_history_slots
        ratio, share = self._against(rate, self.share[peers], known)
        work_ratio, work_share = self._against(for_work, self.work_share[peers], known)
        known &= np.isfinite(ratio) & np.isfinite(work_ratio)
        spread = config.traffic_spread_floor
        if np.count_nonzero(known):
            spread = max(1.4826 * float(np.median(np.abs(ratio[known] - 1.0))), spread)
        low = known & (np.maximum(ratio, work_ratio) <= config.traffic_ratio)
        low &= (1.0 - ratio) / spread >= config.traffic_deviations
        beside, beside_for_work = beside_mates
        # Back among the others, a GPU has lost nothing: it had more than its part while it was slow.
        usual = float(np.median(rate))
        among_others = rate / usual if usual > 0 else np.full_like(rate, np.nan)
        low &= np.fmin(beside, among_others) <= config.traffic_back_ratio
        # A share that has always been low is the GPU's part in the job; one of a young job is not known to be.
        young = ~known & (np.maximum(beside, beside_for_work) <= config.traffic_mates_ratio)
        window = (1 << config.traffic_window) - 1
        begins = (low | young) & (self.low[peers] == 0) & (self.young_low[peers] == 0)
        self.low_at[peers[begins]] = now - self._slot_ms
        self.low[peers] = np.where(known, (self.low[peers] << 1) | low, self.low[peers]) & window
        self.young_low[peers] = np.where(known, 0, (self.young_low[peers] << 1) | young) & window
        self.ratio[peers], self.beside_mates[peers] = ratio, beside
        back = np.where(known, ratio >= config.traffic_back_ratio, beside >= config.traffic_back_ratio)
        self.fine[peers] = np.where(back, np.minimum(self.fine[peers] + 1, 1000), 0)
        steady = (ratio >= config.traffic_back_ratio) & (ratio <= 1.0 / config.traffic_back_ratio)
        learns = np.where(known, steady & ~low, ~young)
        self._learn(peers[learns], share[learns], work_share[learns])

    @staticmethod
    def _against(rate: FloatArray, usual: FloatArray, known: BoolArray) -> tuple[FloatArray, FloatArray]:
        """Return what each GPU's share is of its usual one (NaN: unknown), and its share."""
        ratio, level = np.full(len(rate), np.nan), float(np.median(rate))
        if 2 * np.count_nonzero(known) >= len(rate):
            # The job's level by what each GPU usually carries: a plain median jumps where stages carry unlike loads.
            own = rate[known] / np.maximum(usual[known], 1e-9)
            level = max(float(np.median(own)), 1e-9)
            ratio[known] = own / level
        return ratio, rate / max(level, 1e-9)

    def _learn(self, gpus: IntArray, share: FloatArray, work_share: FloatArray) -> None:
        count = self.learnt[gpus] + 1
        weight = np.maximum(1.0 / count, _LEARNING)
        for column, now in ((self.share, share), (self.work_share, work_share)):
            before = np.where(np.isnan(column[gpus]), now, column[gpus])
            column[gpus] = before + weight * (now - before)
        self.learnt[gpus] = np.minimum(count, 10_000)

    def _beside_mates(self, begins: IntArray, rate: FloatArray) -> FloatArray:
        """Return each GPU's figure over the median of its node's GPUs in the job; NaN where these are too few.

        `rate` (n,) lies in order of job and node, of which each begins at one of `begins`.
        """
        counts = np.diff(np.concatenate([begins, [len(rate)]]))
        row = np.repeat(np.arange(len(counts)), counts)
        column = np.arange(len(rate)) - begins[row]
        grid, there = np.zeros((len(counts), int(counts.max()))), np.zeros((len(counts), int(counts.max())), bool)
        grid[row, column], there[row, column] = rate, True
        middle = masked_median(grid, there)
        middle[(counts < self._config.peer_minimum) | (middle <= 0)] = np.nan
        beside: FloatArray = rate / middle[row]
        return beside

    def forget(self, gpus: IntArray) -> None:
        """Let the slots so far make no finding any more: one of them is over."""
        self.low[gpus], self.young_low[gpus] = 0, 0

    def _move_jobs(self, layout: GpuLayout) -> None:
        """Note which job each GPU works for; what was learnt in another job is forgotten."""
        jobs = (len(self.job), *((running.job_id, running.start) for running in self._fleet.jobs.values()))
        if jobs == self._jobs:
            return
        self._jobs = jobs
        job = np.zeros(len(self.job), np.int64)
        for running in sorted(self._fleet.jobs.values(), key=lambda entry: (entry.start, entry.job_id)):
            number = zlib.crc32(f"{running.job_id}/{running.start}".encode()) + 1
            for node in running.nodes:
                members = layout.members(node)
                parts = running.gpus.get(node)
                job[members if parts is None else members[np.isin(layout.gpu[members], parts)]] = number
        moved = job != self.job
        self.job = job
        if np.count_nonzero(moved):
            for column in (self.share, self.work_share, self.ratio, self.beside_mates):
                column[moved] = np.nan
            self.learnt[moved], self.fine[moved] = 0, 0
            self.low[moved], self.young_low[moved], self.low_at[moved] = 0, 0, -1

    def lost(self) -> tuple[IntArray, IntArray]:
        """Return the GPUs whose traffic has been too low for long enough, and since when."""
        suspects = np.flatnonzero((self.low != 0) | (self.young_low != 0))
        if not len(suspects):
            return suspects, suspects
        config = self._config
        enough = self._slots(self.low[suspects]) >= config.traffic_low_slots
        enough |= self._slots(self.young_low[suspects]) >= config.traffic_window
        gpus = suspects[enough & (self.fine[suspects] == 0)]
        return gpus, self.low_at[gpus]

    def _slots(self, register: NDArray[np.int32]) -> IntArray:
        bits: IntArray = np.array([(register >> bit) & 1 for bit in range(self._config.traffic_window)]).sum(axis=0)
        return bits

    def says(self, gpu: int) -> dict[str, float | int | str]:
        """Return what a GPU's traffic was in its last slot, for evidence, with its peers' beside it."""
        peers = (self.job == self.job[gpu]) & (self.job != 0) & np.isfinite(self.rate)
        figures = {
            "nvlink_bytes_per_s": self.rate[gpu],
            "nvlink_bytes_per_s_peers": float(np.median(self.rate[peers])) if peers.any() else np.nan,
            "nvlink_share_now_over_usual": self.ratio[gpu],
            "nvlink_over_node_median": self.beside_mates[gpu],
        }
        return {name: float(value) for name, value in figures.items() if np.isfinite(value)}
