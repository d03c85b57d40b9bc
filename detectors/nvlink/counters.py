"""The error counters of every GPU's NVLinks, as rates: through resets, copies that repeat, and lost scrapes."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, IntArray
from detectors.gpus import GpuColumns, reported
from detectors.nvlink.config import NvlinkConfig
from detectors.statistics import clamp

_FLIT, _DATA = "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL"
_REPLAY = "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL"
_RECOVERY = "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"
_LONGEST_MS = 60_000
"""Errors after a long quiet time came in the last minute, as far as a rate is concerned."""
_ABSENT_MS = 180_000


class LinkErrors(GpuColumns):
    """Columns over all GPUs; times in ms, -1: never.

    `at` last reading; `crc`, `replay`, `recovery` counts (NaN: not reported), `crc_moved` when the first of them last
    moved; `rate` of CRC errors (errors/s) at the last growth; `slow` the last readings, newest in bit 0, set where CRC
    errors came at a rate, since `slow_at`; `retries`, `recovered` and `retry_readings` in the present burst, which
    began at `burst_at` and goes on at `retry_at`; `bad_onset` when errors began that decide by themselves, since `bad`
    was last asked; `error_at` the last error of any kind; `reset_at` when the counters last began anew, or the GPU came
    back after a long absence.
    """

    BLANK: ClassVar[dict[str, tuple[Any, float]]] = {
        "at": (np.int64, -1),
        "crc": (np.float64, np.nan),
        "crc_moved": (np.int64, -1),
        "replay": (np.float64, np.nan),
        "recovery": (np.float64, np.nan),
        "rate": (np.float64, 0),
        "slow": (np.int32, 0),
        "slow_at": (np.int64, -1),
        "retries": (np.float64, 0),
        "recovered": (np.float64, 0),
        "retry_readings": (np.int32, 0),
        "burst_at": (np.int64, -1),
        "retry_at": (np.int64, -1),
        "bad_onset": (np.int64, -1),
        "error_at": (np.int64, -1),
        "reset_at": (np.int64, -1),
    }
    at: IntArray
    crc: FloatArray
    crc_moved: IntArray
    replay: FloatArray
    recovery: FloatArray
    rate: FloatArray
    slow: NDArray[np.int32]
    slow_at: IntArray
    retries: FloatArray
    recovered: FloatArray
    retry_readings: NDArray[np.int32]
    burst_at: IntArray
    retry_at: IntArray
    bad_onset: IntArray
    error_at: IntArray
    reset_at: IntArray

    def __init__(self, config: NvlinkConfig) -> None:
        super().__init__()
        self._config = config

    def take(self, batch: Batch, tick: int, here: Any, gpus: IntArray, at: IntArray) -> None:
        """Take one reading of each of `gpus`."""
        before = self.at[gpus]
        self.at[gpus] = at
        flit, data = reported(batch, _FLIT, tick, here), reported(batch, _DATA, tick, here)
        crc = np.where(np.isnan(flit), data, np.where(np.isnan(data), flit, flit + data))
        replay, recovery = reported(batch, _REPLAY, tick, here), reported(batch, _RECOVERY, tick, here)
        away = (before >= 0) & (at - before > _ABSENT_MS)
        counted = np.isfinite(crc) | np.isfinite(replay) | np.isfinite(recovery)
        if not np.count_nonzero(counted):
            if np.count_nonzero(away):
                self.reset_at[gpus[away]] = at[away]
            return
        was_crc, was_replay, was_recovery = self.crc[gpus], self.replay[gpus], self.recovery[gpus]
        fell = (crc < was_crc) | (replay < was_replay) | (recovery < was_recovery)
        # Counters that hold their counts over an absence were not reset in it.
        kept = (crc > 0) | (replay > 0) | (recovery > 0)
        if (reset := fell | (away & ~kept)).any():
            self.reset_at[gpus[reset]] = at[reset]
        self._count_crc(gpus, at, before, crc - was_crc, crc)
        self._count_retries(gpus, at, before, replay - was_replay, recovery - was_recovery)
        for column, value in ((self.replay, replay), (self.recovery, recovery)):
            known = np.isfinite(value)
            column[gpus[known]] = value[known]

    def _count_crc(self, gpus: IntArray, at: IntArray, before: IntArray, growth: FloatArray, crc: FloatArray) -> None:
        known = np.isfinite(crc)
        since = self.crc_moved[gpus]
        growth = np.where(np.isfinite(growth), growth, 0.0)
        grew = growth > 0
        moved = known & ((growth != 0) | (since < 0))
        still = known & ~moved & (at - since >= self._config.hold_ms)
        if np.count_nonzero(grew):
            elapsed = clamp(at[grew] - since[grew], 1, _LONGEST_MS)
            rate = growth[grew] * 1000 / elapsed
            those = gpus[grew]
            self.rate[those] = rate
            self.error_at[those] = at[grew]
            fatal = rate >= self._config.crc_fatal_per_s
            onset = np.maximum((at[grew] + before[grew]) // 2, at[grew] - _LONGEST_MS)
            self._bad(those[fatal], onset[fatal])
            self._shift(those, rate >= self._config.crc_slow_per_s, onset)
        if np.count_nonzero(still):
            quiet = gpus[still]
            waiting = quiet[self.slow[quiet] != 0]
            self.slow[waiting] = (self.slow[waiting] << 1) & ((1 << self._config.slow_window) - 1)
            self.rate[quiet] = 0.0
        self.crc_moved[gpus[moved]] = at[moved]
        self.crc[gpus[known]] = crc[known]

    def _shift(self, gpus: IntArray, slow: BoolArray, onset: IntArray) -> None:
        begins = slow & (self.slow[gpus] == 0)
        self.slow_at[gpus[begins]] = onset[begins]
        self.slow[gpus] = ((self.slow[gpus] << 1) | slow) & ((1 << self._config.slow_window) - 1)

    def _count_retries(
        self, gpus: IntArray, at: IntArray, before: IntArray, replays: FloatArray, recoveries: FloatArray
    ) -> None:
        replays, recoveries = np.where(replays > 0, replays, 0.0), np.where(recoveries > 0, recoveries, 0.0)
        came = (replays > 0) | (recoveries > 0)
        if not np.count_nonzero(came):
            return
        gpus, at, before = gpus[came], at[came], before[came]
        begins = (self.retry_at[gpus] < 0) | (at - self.retry_at[gpus] > self._config.retry_window_s * 1000)
        fresh = gpus[begins]
        self.burst_at[fresh] = np.maximum((at[begins] + before[begins]) // 2, at[begins] - _LONGEST_MS)
        self.retries[fresh], self.recovered[fresh], self.retry_readings[fresh] = 0.0, 0.0, 0
        self.retries[gpus] += replays[came]
        self.recovered[gpus] += recoveries[came]
        self.retry_readings[gpus] += 1
        self.retry_at[gpus] = at
        self.error_at[gpus] = at
        on = (at - self.burst_at[gpus] >= self._config.replay_span_s * 1000) & (
            self.retry_readings[gpus] >= self._config.replay_readings
        )
        bad = on | (self.retries[gpus] >= self._config.replays) | (self.recovered[gpus] >= self._config.recoveries)
        self._bad(gpus[bad], self.burst_at[gpus[bad]])

    def _bad(self, gpus: IntArray, onset: IntArray) -> None:
        first = self.bad_onset[gpus] < 0
        self.bad_onset[gpus[first]] = onset[first]

    def bad(self) -> tuple[IntArray, IntArray]:
        """At a point of the grid: return the GPUs whose errors make a finding, and since when each; forget them."""
        width = self._config.slow_window
        often = np.flatnonzero(self.slow != 0)
        if len(often):
            bits = np.array([(self.slow[often] >> bit) & 1 for bit in range(width)]).sum(axis=0)
            often = often[bits >= self._config.slow_readings]
            # What most GPUs count is how this fleet's counters are, and no link's fault.
            reporting = int(np.isfinite(self.crc).sum())
            if 2 * len(often) > reporting > self._config.peer_minimum:
                often = often[:0]
        sudden = np.flatnonzero(self.bad_onset >= 0)
        gpus = np.union1d(often, sudden)
        onset = np.where(self.bad_onset[gpus] >= 0, self.bad_onset[gpus], self.slow_at[gpus])
        self.bad_onset[sudden] = -1
        return gpus, onset

    def forget(self, gpus: IntArray) -> None:
        """Let what was counted so far make no finding any more: one is over, and a silent GPU counts no further."""
        self.slow[gpus], self.bad_onset[gpus] = 0, -1

    def says(self, gpu: int) -> dict[str, float | int | str]:
        """Return what a GPU's counters last said, for evidence."""
        figures = {
            "nvlink_crc_errors": self.crc[gpu],
            "nvlink_crc_errors_per_s": self.rate[gpu],
            "nvlink_replays": self.replay[gpu],
            "nvlink_recoveries": self.recovery[gpu],
            "nvlink_replays_in_burst": self.retries[gpu],
            "nvlink_recoveries_in_burst": self.recovered[gpu],
        }
        counted = np.isfinite([self.crc[gpu], self.replay[gpu], self.recovery[gpu]]).any()
        return {name: float(value) for name, value in figures.items() if counted and np.isfinite(value)}
