"""What the memory counters and gauges of every GPU say, reading by reading: what grew, what was set, what was reset."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, IntArray
from detectors.core.columns import Columns, column
from detectors.core.counting import Counter
from detectors.fleet.gpus import reported

_LOST, _WORN = (f"DCGM_FI_DEV_{what}_REMAPPED_ROWS" for what in ("UNCORRECTABLE", "CORRECTABLE"))
_ABSENT_MS = 180_000
"""A GPU that was silent for so long has been reset, most likely, and rows given up before are counted when it is
back."""


class MemoryReadings(Columns):
    """Columns over all GPUs; times in ms, -1: never.

    `at` the last reading, `first_at` the first. `uncorrected` new uncorrectable errors since `forget`, the first
    between the readings at `doubtful` and `uncorrected_at`, the last at `uncorrected_last`; `worn` rows newly remapped
    for corrected errors. `reset_at` when the GPU was last seen to have been reset. `pending_at` and `failure_at` when
    the gauge was set, -1 if it is not; `pending_clear` and `failure_clear` its readings at 0 since; `pending_known` and
    `failure_known` whether it was ever reported. `volatile` whether counts since the driver's load were.
    """

    axis = "dcgm"
    at: IntArray = column(-1)
    first_at: IntArray = column(-1)
    uncorrected: NDArray[np.float32] = column(0.0, dtype=np.float32)
    uncorrected_at: IntArray = column(-1)
    uncorrected_last: IntArray = column(-1)
    doubtful: IntArray = column(-1)
    worn: NDArray[np.float32] = column(0.0, dtype=np.float32)
    reset_at: IntArray = column(-1)
    pending_at: IntArray = column(-1)
    failure_at: IntArray = column(-1)
    pending_clear: NDArray[np.int8] = column(0, dtype=np.int8)
    failure_clear: NDArray[np.int8] = column(0, dtype=np.int8)
    pending_known: BoolArray = column(False)
    failure_known: BoolArray = column(False)
    volatile_double: BoolArray = column(False)
    volatile_single: BoolArray = column(False)

    def __init__(self) -> None:
        super().__init__()
        self.double, self.lost_rows, self.spare_rows = Counter(), Counter(), Counter()

    def grow(self, count: int) -> None:
        """Make room for `count` GPUs."""
        super().grow(count)
        for _, counter in self._counters():
            counter.grow(count)

    def take(self, batch: Batch, tick: int, here: Any, single: Counter) -> None:
        """Take one reading of each of the GPUs `here`; single-bit errors into `single`.

        Counts since the driver's load where there are any, else lifetime ones: these are written when the driver
        unloads, so growth there repeats an old event.
        """
        gpus, at, where = batch.entities[here], batch.at[tick, here], batch.index(here, len(self))
        before = self.at[where]
        doubles = self._errors(batch, tick, here, where, "DBE", self.volatile_double)
        singles = self._errors(batch, tick, here, where, "SBE", self.volatile_single)
        reset = self._gauges(batch, tick, here, gpus, at) | ((before >= 0) & (at - before > _ABSENT_MS))
        for counted, counter, volatile in (
            (doubles, self.double, self.volatile_double), (singles, single, self.volatile_single),
        ):  # fmt: skip
            fell = np.flatnonzero(counted < counter.value[where])
            reset[fell] |= volatile[gpus[fell]]
        if np.count_nonzero(reset):
            self.reset_at[gpus[reset]] = at[reset]

        single.take(where, at, singles)
        growth = self.double.take(where, at, doubles)
        if _LOST in batch.sound:
            lost = self.lost_rows.take(where, at, reported(batch, _LOST, tick, here))
            growth += np.where(reset, 0.0, lost)
        if (grew := growth > 0).any():
            self._uncorrected(gpus[grew], at[grew], before[grew], growth[grew])
        if _WORN in batch.sound:
            worn = np.where(reset, 0.0, self.spare_rows.take(where, at, reported(batch, _WORN, tick, here)))
            self.worn[gpus[worn > 0]] += worn[worn > 0]
        first = np.flatnonzero(before < 0)
        self.first_at[gpus[first]] = at[first]
        self.at[where] = at

    @staticmethod
    def _errors(batch: Batch, tick: int, here: Any, where: Any, kind: str, volatile: BoolArray) -> FloatArray:
        counted = reported(batch, f"DCGM_FI_DEV_ECC_{kind}_VOL_TOTAL", tick, here)
        since_load = np.isfinite(counted)
        if np.count_nonzero(since_load) == len(since_load):
            volatile[where] = True
            return counted
        volatile[where] |= since_load
        return np.where(volatile[where], counted, reported(batch, f"DCGM_FI_DEV_ECC_{kind}_AGG_TOTAL", tick, here))

    def _uncorrected(self, gpus: IntArray, at: IntArray, before: IntArray, growth: FloatArray) -> None:
        first = self.uncorrected_at[gpus] < 0
        self.uncorrected_at[gpus[first]], self.doubtful[gpus[first]] = at[first], before[first]
        self.uncorrected_last[gpus] = at
        self.uncorrected[gpus] += growth

    def _gauges(self, batch: Batch, tick: int, here: Any, gpus: IntArray, at: IntArray) -> BoolArray:
        """Take the two gauges; return where a pending remap is pending no more: the GPU was reset."""
        pending = reported(batch, "DCGM_FI_DEV_ROW_REMAP_PENDING", tick, here)
        failure = reported(batch, "DCGM_FI_DEV_ROW_REMAP_FAILURE", tick, here)
        cleared = np.zeros(len(gpus), bool)
        if self.pending_at.max(initial=-1) >= 0:
            cleared = (pending == 0) & (self.pending_at[gpus] >= 0) & (self.pending_clear[gpus] == 0)
        for since, clear, known, value in (
            (self.pending_at, self.pending_clear, self.pending_known, pending),
            (self.failure_at, self.failure_clear, self.failure_known, failure),
        ):
            if np.count_nonzero(known) < len(known):
                known[gpus[np.isfinite(value)]] = True
            if since.max(initial=-1) < 0 and not np.count_nonzero(value >= 1):
                continue  # none is set
            concerned = np.flatnonzero((value >= 1) | ((value == 0) & (since.take(gpus) >= 0)))  # mostly few
            those, on = gpus[concerned], value[concerned] >= 1
            begins = on & (since[those] < 0)
            since[those[begins]] = at[concerned[begins]]
            clear[those] = np.where(on, 0, np.minimum(clear[those] + 1, 100))
        return cleared

    def forget(self, gpus: Any) -> None:
        """Forget the new uncorrectable errors of some GPUs, which have been dealt with."""
        self.uncorrected_at[gpus], self.uncorrected_last[gpus], self.doubtful[gpus] = -1, -1, -1
        self.uncorrected[gpus] = 0.0

    def onset(self, gpu: int) -> int:
        """Return the best estimate of when the first of the new errors came: midway between two readings."""
        first, before = int(self.uncorrected_at[gpu]), int(self.doubtful[gpu])
        return (first + before) // 2 if before >= 0 and first - before <= _ABSENT_MS else first

    def says(self, gpu: int, single: Counter) -> dict[str, float | int | str]:
        """Return what a GPU last reported, for evidence."""
        doubles = "since_driver_load" if self.volatile_double[gpu] else "lifetime"
        singles = "since_driver_load" if self.volatile_single[gpu] else "lifetime"
        counts = {
            f"double_bit_errors_{doubles}": self.double.value[gpu],
            f"single_bit_errors_{singles}": single.value[gpu],
            "rows_remapped_uncorrectable": self.lost_rows.value[gpu],
            "rows_remapped_correctable": self.spare_rows.value[gpu],
        }
        figures: dict[str, float | int | str] = {
            name: float(value) for name, value in counts.items() if np.isfinite(value)
        }
        for name, known, since in (
            ("pending", self.pending_known, self.pending_at), ("failure", self.failure_known, self.failure_at),
        ):  # fmt: skip
            if known[gpu]:
                figures[f"row_remap_{name}"] = int(since[gpu] >= 0)
        return figures

    def arrays(self, prefix: str = "") -> dict[str, NDArray[Any]]:
        """Return the arrays by name, for a snapshot."""
        own = super().arrays(prefix)
        for name, counter in self._counters():
            own |= counter.arrays(f"{prefix}{name}_")
        return own

    def load(self, arrays: Any, prefix: str = "") -> "MemoryReadings":
        """Take what `arrays` returned."""
        super().load(arrays, prefix)
        for name, counter in self._counters():
            counter.load(arrays, f"{prefix}{name}_")
        return self

    def _counters(self) -> tuple[tuple[str, Counter], ...]:
        return ("double", self.double), ("lost", self.lost_rows), ("spare", self.spare_rows)
