"""What a GPU's NVLinks carry by the one field that has all of them: a rate, or a counter."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import BoolArray, FloatArray, IntArray
from detectors.core.columns import Columns, column

_UNKNOWN, _COUNTER, _RATE = 0, 1, 2
_A_FALL: Final = 3
"""A fall weighs as much as three rises: a rate falls about as often as it rises, a counter only where copies of it come
late now and then. What falls by more than half may be a counter that begins anew."""
_GROWS, _VARIES, _MOST = -6, 9, 30
"""Six rises more than falls come by make a counter, three falls a rate."""


class Carried(Columns):
    """By GPU: `value` and `at` (ms) of the last reading, NaN and -1 before; whether the field is a counter or a rate
    (`kind`), by how often it falls rather than rises (`balance`); whether traffic was ever `profiled`, which counts
    both directions: the field may have one of them, and stands in for nothing while a user's profiler has the counters.

    DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL is called a counter by dcgm-exporter, and is the growth of NVML's counters a
    second in MB, by DCGM itself (DcgmCacheManager.cpp, ReadAndCacheNvLinkBandwidth; dcgm-exporter issue 417). Other
    exporters give what it was called. A rate goes up and down with the work; a counter of bytes or MB does not.
    """

    axis = "dcgm"
    value: FloatArray = column(np.nan)
    at: IntArray = column(-1)
    balance: NDArray[np.int8] = column(0, dtype=np.int8)
    kind: NDArray[np.int8] = column(_UNKNOWN, dtype=np.int8)
    profiled: BoolArray = column(False)

    def beside(self, gpus: IntArray, at: IntArray, value: FloatArray, profiled: FloatArray) -> FloatArray:
        """Take readings (n,), and what is `profiled` (MB/s); return what was carried: that, or where it never was known
        what the field says, in MB/s (n,), NaN where that is unknown.
        """
        known = np.isfinite(profiled)
        if np.count_nonzero(known) == len(known):
            self.profiled[gpus] = True
            return profiled
        self.profiled[gpus] |= known
        return np.where(self.profiled[gpus], profiled, self.take(gpus, at, value))

    def take(self, gpus: IntArray, at: IntArray, value: FloatArray) -> FloatArray:
        """Take readings (n,); return what was carried, in MB/s (n,), NaN where that is unknown."""
        known = np.isfinite(value)
        if not np.count_nonzero(known):  # as where nobody reports it
            return np.full(len(gpus), np.nan)
        before, since = self.value[gpus], self.at[gpus]
        fell = (value < before) & (2 * value > before)
        balance = np.clip(self.balance[gpus] + np.where(fell, _A_FALL, 0) - (value > before), _GROWS, _MOST)
        self.balance[gpus] = balance
        kind = np.where(balance >= _VARIES, _RATE, np.where(balance <= _GROWS, _COUNTER, self.kind[gpus]))
        self.kind[gpus] = kind
        grows = (value >= before) & (at > since) & (kind == _COUNTER)
        grown = np.divide((value - before) * 1000, at - since, out=np.full(len(gpus), np.nan), where=grows)
        self.value[gpus], self.at[gpus] = np.where(known, value, before), np.where(known, at, since)
        return np.where(kind == _RATE, value, grown)
