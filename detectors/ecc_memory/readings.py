"""What the memory counters and gauges of every GPU say, reading by reading: what grew, what was set, what was reset."""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, IntArray
from detectors.gpus import GpuColumns, reported

_NONE, _AGGREGATE, _VOLATILE = 0, 1, 2
_APPLIED_AFTER_MS = 180_000
"""A count of remapped rows that is higher after so long a silence was written down when the GPU came back."""


class MemoryReadings(GpuColumns):
    """Columns over all GPUs, NaN or -1 where nothing was reported yet. Times in ms; `first_at` and `at` are readings.

    `double` and `single` are the error counters (volatile ones where there are any, `source` says which), `lost_rows`
    and `spare_rows` the rows remapped for uncorrectable and for correctable errors. `uncorrected_at` and
    `uncorrected_last` are the first and the last growth of `double` or `lost_rows` since the last `settle`,
    `uncorrected` by how much, `doubtful` the reading before the first. `reset_at` is when the GPU was last seen to
    have been reset. `pending_at` and `failure_at` are when the gauge was set, -1 if it is not; `pending_clear` and
    `failure_clear` count readings at 0 since.
    """

    BLANK: ClassVar[dict[str, tuple[Any, float]]] = {
        "at": (np.int64, -1),
        "first_at": (np.int64, -1),
        "source": (np.int8, _NONE),
        "double": (np.float64, np.nan),
        "single": (np.float64, np.nan),
        "lost_rows": (np.float64, np.nan),
        "spare_rows": (np.float64, np.nan),
        "uncorrected_at": (np.int64, -1),
        "uncorrected_last": (np.int64, -1),
        "uncorrected": (np.float64, 0),
        "doubtful": (np.int64, -1),
        "reset_at": (np.int64, -1),
        "pending_at": (np.int64, -1),
        "failure_at": (np.int64, -1),
        "pending_clear": (np.int16, 0),
        "failure_clear": (np.int16, 0),
        "pending_known": (np.bool_, False),
        "failure_known": (np.bool_, False),
    }
    at: IntArray
    first_at: IntArray
    source: NDArray[np.int8]
    double: FloatArray
    single: FloatArray
    lost_rows: FloatArray
    spare_rows: FloatArray
    uncorrected_at: IntArray
    uncorrected_last: IntArray
    uncorrected: FloatArray
    doubtful: IntArray
    reset_at: IntArray
    pending_at: IntArray
    failure_at: IntArray
    pending_clear: NDArray[np.int16]
    failure_clear: NDArray[np.int16]
    pending_known: BoolArray
    failure_known: BoolArray

    def take(self, batch: Batch, tick: int, here: Any, gpus: IntArray, at: IntArray) -> FloatArray:
        """Take one reading of each of `gpus`; return by how many single-bit errors each grew."""
        before = self.at[gpus]
        double, single, source = self._errors(batch, tick, here, gpus)
        same = self.source[gpus] == source
        was_double = np.where(same, self.double[gpus], np.nan)
        was_single = np.where(same, self.single[gpus], np.nan)
        volatile = source == _VOLATILE
        fell = volatile & ((double < was_double) | (single < was_single))
        cleared = self._gauges(batch, tick, here, gpus, at)
        reset = fell | cleared
        if np.count_nonzero(reset):
            self.reset_at[gpus[reset]] = at[reset]

        lost = reported(batch, "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS", tick, here)
        spare = reported(batch, "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS", tick, here)
        applied = reset | (at - before > _APPLIED_AFTER_MS)
        more_lost = np.where((lost > self.lost_rows[gpus]) & ~applied, lost - self.lost_rows[gpus], 0.0)
        growth = np.where(double > was_double, double - was_double, 0.0) + more_lost
        if (grew := growth > 0).any():
            self._uncorrected(gpus[grew], at[grew], before[grew], growth[grew])
        new_errors = np.where(single > was_single, single - was_single, 0.0)

        _keep(self.double, gpus, double)
        _keep(self.single, gpus, single)
        _keep(self.lost_rows, gpus, lost)
        _keep(self.spare_rows, gpus, spare)
        self.source[gpus] = np.where(source == _NONE, self.source[gpus], source)
        self.at[gpus] = at
        new = before < 0
        if np.count_nonzero(new):
            self.first_at[gpus[new]] = at[new]
        return new_errors

    def _errors(self, batch: Batch, tick: int, here: Any, gpus: IntArray) -> tuple[FloatArray, FloatArray, Any]:
        """Return double- and single-bit errors, and by which counters: lifetime ones where there are no others.

        Lifetime counters are written when the driver unloads: growth there may be an old event, told again.
        """
        double = reported(batch, "DCGM_FI_DEV_ECC_DBE_VOL_TOTAL", tick, here)
        single = reported(batch, "DCGM_FI_DEV_ECC_SBE_VOL_TOTAL", tick, here)
        volatile = np.isfinite(double) | np.isfinite(single) | (self.source[gpus] == _VOLATILE)
        source = np.where(volatile, _VOLATILE, _NONE).astype(np.int8)
        if not volatile.all():
            double_ever = reported(batch, "DCGM_FI_DEV_ECC_DBE_AGG_TOTAL", tick, here)
            single_ever = reported(batch, "DCGM_FI_DEV_ECC_SBE_AGG_TOTAL", tick, here)
            lifetime = ~volatile & (np.isfinite(double_ever) | np.isfinite(single_ever))
            double, single = np.where(lifetime, double_ever, double), np.where(lifetime, single_ever, single)
            source[lifetime] = _AGGREGATE
        return double, single, source

    def _uncorrected(self, gpus: IntArray, at: IntArray, before: IntArray, growth: FloatArray) -> None:
        first = self.uncorrected_at[gpus] < 0
        self.uncorrected_at[gpus[first]] = at[first]
        self.doubtful[gpus[first]] = before[first]
        self.uncorrected_last[gpus] = at
        self.uncorrected[gpus] += growth

    def _gauges(self, batch: Batch, tick: int, here: Any, gpus: IntArray, at: IntArray) -> BoolArray:
        """Take the two gauges; return where a pending remap is pending no more: the GPU was reset."""
        pending = reported(batch, "DCGM_FI_DEV_ROW_REMAP_PENDING", tick, here)
        failure = reported(batch, "DCGM_FI_DEV_ROW_REMAP_FAILURE", tick, here)
        cleared: BoolArray = (pending == 0) & (self.pending_at[gpus] >= 0) & (self.pending_clear[gpus] == 0)
        _set(self.pending_at, self.pending_clear, gpus, at, pending)
        _set(self.failure_at, self.failure_clear, gpus, at, failure)
        self.pending_known[gpus] |= np.isfinite(pending)
        self.failure_known[gpus] |= np.isfinite(failure)
        return cleared

    def settle(self) -> IntArray:
        """At a point of the grid: return the GPUs with new uncorrectable errors."""
        return np.flatnonzero(self.uncorrected_at >= 0)

    def forget(self, gpus: IntArray) -> None:
        """Forget the new uncorrectable errors of some GPUs, which have been dealt with."""
        self.uncorrected_at[gpus] = -1
        self.uncorrected_last[gpus] = -1
        self.uncorrected[gpus] = 0
        self.doubtful[gpus] = -1

    def onset(self, gpu: int) -> int:
        """Return the best estimate of when the first of the new errors came: midway between two readings."""
        first, before = int(self.uncorrected_at[gpu]), int(self.doubtful[gpu])
        return (first + before) // 2 if before >= 0 and first - before <= _APPLIED_AFTER_MS else first

    def says(self, gpu: int) -> dict[str, float | int | str]:
        """Return what a GPU last said, for evidence."""
        kind = "since_driver_load" if self.source[gpu] == _VOLATILE else "lifetime"
        said = {
            f"double_bit_errors_{kind}": self.double[gpu],
            f"single_bit_errors_{kind}": self.single[gpu],
            "rows_remapped_uncorrectable": self.lost_rows[gpu],
            "rows_remapped_correctable": self.spare_rows[gpu],
        }
        told: dict[str, float | int | str] = {name: float(value) for name, value in said.items() if np.isfinite(value)}
        if self.pending_known[gpu]:
            told["row_remap_pending"] = int(self.pending_at[gpu] >= 0)
        if self.failure_known[gpu]:
            told["row_remap_failure"] = int(self.failure_at[gpu] >= 0)
        return told


def _keep(column: FloatArray, gpus: IntArray, value: FloatArray) -> None:
    known = np.isfinite(value)
    if known.all():
        column[gpus] = value
    elif np.count_nonzero(known):
        column[gpus[known]] = value[known]


def _set(since: IntArray, clear: NDArray[np.int16], gpus: IntArray, at: IntArray, value: FloatArray) -> None:
    """Note since when a gauge is set, and count its readings at 0; what is not reported changes nothing."""
    on = value >= 1
    if np.count_nonzero(on):
        begins = on & (since[gpus] < 0)
        since[gpus[begins]] = at[begins]
        clear[gpus[on]] = 0
    off = (value == 0) & (since[gpus] >= 0)
    if np.count_nonzero(off):
        clear[gpus[off]] = np.minimum(clear[gpus[off]] + 1, 1000)
