"""What DCGM reads of GPUs, as means over windows of a minute: what stragglers are looked for by."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, IntArray
from detectors.core.columns import Columns, column
from detectors.fleet.gpus import reported
from detectors.signals.energy import Meter

WINDOW_S: Final = 60
"""Long enough for several steps and for a reading at 60 s scrapes."""
CLOCK, POWER, TENSOR, MEMORY, BUSY, UTIL, SM, SPENT = range(8)
"""What is compared; the last is the power by the energy that was used in the window."""
_INTERFACE: Final = 7
"""The place among the fields of what says something of memory where `MEMORY` is not read."""
_INSTEAD: Final = ((MEMORY, _INTERFACE), (BUSY, UTIL))
"""What profiling measures, and what stands for it where it never did: another measure, which no habit passes on to."""
_FIELDS: Final = (
    "DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "DCGM_FI_PROF_DRAM_ACTIVE", "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_PROF_SM_ACTIVE",
    "DCGM_FI_DEV_MEM_COPY_UTIL",
)  # fmt: skip
SIGNALS: Final = 8
_ENERGY: Final = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"
_MEMORY_CLOCK: Final = "DCGM_FI_DEV_MEM_CLOCK"
_WORKING: Final = 0.3
"""Below this share of the time at work a GPU says nothing of a job's pace."""
LEAST: Final = 1e-3


class Sums(Columns):
    """By GPU: the sum of each signal's readings since the window began, and their number; the energy it had used when
    it was last read before (`used`, mJ, at `since`, ms), what of `_INSTEAD` was ever `profiled`, and the highest
    `memory_clock` of the window, MHz, for it falls while a GPU idles.

    Readings that an exporter repeats count once: what stands still is no news of the GPU. The clock counts while there
    is work: an idle GPU lowers its own.
    """

    axis = "dcgm"
    used: FloatArray = column(np.nan)
    since: IntArray = column(-1)
    total: NDArray[np.float32] = column(0.0, len(_FIELDS), dtype=np.float32)
    read: NDArray[np.int16] = column(0, len(_FIELDS), dtype=np.int16)
    profiled: BoolArray = column(False, len(_INSTEAD))
    memory_clock: NDArray[np.float32] = column(np.nan, dtype=np.float32)
    BESIDE = ("meter",)

    def __init__(self) -> None:
        super().__init__()
        self.meter = Meter()

    def take(self, batch: Batch) -> None:
        """Add the readings of a batch."""
        known = [(row, batch.sound[name]) for row, name in enumerate(_FIELDS) if name in batch.sound]
        for tick, here in batch.ticks():
            gpus = batch.index(here, len(self))
            fresh = self.meter.power(gpus, batch.at[tick, here], reported(batch, _ENERGY, tick, here)) != 0
            idle = reported(batch, _FIELDS[UTIL], tick, here) == 0
            for row, values in known:
                now = values[tick][here]
                finite, total, read = np.isfinite(now) & fresh, self.total[row], self.read[row]
                if row == CLOCK and np.count_nonzero(idle):
                    finite &= ~idle
                whole = np.count_nonzero(finite) == len(finite)
                total[gpus] += now if whole else np.where(finite, now, 0.0)
                read[gpus] += 1 if whole else finite
            if _MEMORY_CLOCK in batch.sound:
                clock = batch.sound[_MEMORY_CLOCK][tick][here]
                self.memory_clock[gpus] = np.fmax(self.memory_clock[gpus], clock)

    def means(self) -> FloatArray:
        """Return the means (8, GPUs) of the window that ends, NaN where nothing was read, and begin the next."""
        with np.errstate(invalid="ignore", divide="ignore"):
            read = np.where(self.read > 0, self.total / self.read, np.nan)
            spent = np.where(self.since >= 0, (self.meter.used - self.used) / (self.meter.at - self.since), np.nan)
        self.used[:], self.since[:] = self.meter.used, self.meter.at
        read[[UTIL, _INTERFACE]] /= 100
        for place, (row, instead) in enumerate(_INSTEAD):
            self.profiled[place] |= np.isfinite(read[row])
            read[row] = np.where(self.profiled[place], read[row], read[instead])
        means = np.concatenate([read[:_INTERFACE], spent[None]])
        self.total[:], self.read[:], self.memory_clock[:] = 0.0, 0, np.nan
        return means


def logarithms(means: FloatArray) -> FloatArray:
    """Return the logarithms (8, GPUs) of what is compared, NaN of GPUs that are not at work."""
    with np.errstate(invalid="ignore"):
        compared = np.where((means > LEAST) & ~(means[BUSY] < _WORKING), means, np.nan)
    result: FloatArray = np.log(compared)
    return result
