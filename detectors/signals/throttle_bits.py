"""Why a GPU's clock is held down, as DCGM says it: the bits of its reasons, and the counters of throttled time."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import BoolArray, FloatArray, IntArray
from detectors.core.columns import Columns, column

_EVENT: Final = "DCGM_FI_DEV_CLOCKS_EVENT_REASON_"
POWER_BRAKE_NS: Final = f"{_EVENT}HW_POWER_BRAKE_SLOWDOWN_NS"
POWER_CAP_NS: Final = f"{_EVENT}SW_POWER_CAP_NS"
"""NVML counts it in the field that POWER_VIOLATION is made of (nvml.h, NVML_FI_DEV_PERF_POLICY_POWER)."""
HW_THERMAL_NS: Final = f"{_EVENT}HW_THERM_SLOWDOWN_NS"
SW_THERMAL_NS: Final = f"{_EVENT}SW_THERM_SLOWDOWN_NS"

# DCGM_FI_DEV_CLOCK_THROTTLE_REASONS (DCGM dcgm_fields.h; NVML has the same).
GPU_IDLE: Final = 0x001
CLOCKS_SETTING: Final = 0x002
SW_POWER_CAP: Final = 0x004
HW_SLOWDOWN: Final = 0x008
SW_THERMAL: Final = 0x020
HW_THERMAL: Final = 0x040
HW_POWER_BRAKE: Final = 0x080
THERMAL: Final = SW_THERMAL | HW_THERMAL

_HOLD_MS: Final = 30_000
"""The collection interval of dcgm-exporter's defaults: a counter may repeat for so long while it grows."""
_NS_PER_MS: Final = 1e6
_US_COUNTERS_READ_AT_MOST: Final = 1.05e-3
"""A counter of throttled time that counts us (older DCGM) gains at most this many ns a ns, with room for jitter."""


def bits_of(reported: FloatArray) -> IntArray:
    """Return reasons (n,) as bits, -1 where none were reported."""
    stated = np.isfinite(reported)
    whole = np.count_nonzero(stated) == len(stated)
    return (reported if whole else np.where(stated, reported, -1)).astype(np.int64)


def named(bits: int) -> str:
    """Return bits as nvidia-smi and DCGM's documentation write them."""
    return f"0x{max(bits, 0):x}"


class ThrottledTime(Columns):
    """For which part of the time each GPU was held down, by a counter of ns (or, in older DCGM, of us).

    `at` and `value` of the last reading that differed, or that showed that it stands (-1: none yet), `rate` ns a ns. A
    counter that fell was reset: that interval has no rate. A reading that repeats the one before may be a collector's
    cached copy: the last rate holds, and only when the counter has stood for the collector's interval is it 0.
    """

    at: IntArray = column(-1)
    value: FloatArray = column(0.0)
    rate: FloatArray = column(np.nan)

    def __init__(self) -> None:
        super().__init__()
        self.fastest = 0.0

    def take(self, new: BoolArray, at: IntArray, counted: FloatArray) -> None:
        """Take a reading of each of the GPUs that are `new`, at `at` (ms); NaN where the counter was not reported.

        All (count,).
        """
        reported = new & np.isfinite(counted)
        self.rate[new & ~reported] = np.nan
        if not np.count_nonzero(reported):
            return
        growth, elapsed = counted - self.value, at - self.at
        news = reported & ((growth != 0) | (elapsed >= _HOLD_MS) | (self.at < 0))
        if not np.count_nonzero(news):
            return
        known = news & (growth >= 0) & (self.at >= 0) & (elapsed > 0)
        np.divide(growth, elapsed * _NS_PER_MS, out=self.rate, where=known)
        np.copyto(self.at, at, where=news)
        np.copyto(self.value, counted, where=news)
        self.fastest = float(np.fmax.reduce(self.rate, axis=None, initial=self.fastest))

    @property
    def in_ns(self) -> bool:
        """Whether the counters have shown that they count ns."""
        return self.fastest > _US_COUNTERS_READ_AT_MOST

    def share(self, gpus: Any = slice(None)) -> FloatArray:
        """Return the part of the time (n,), 0 to 1, by the last reading; NaN where it is not known."""
        return np.asarray(np.minimum(self.rate[..., gpus] * (1.0 if self.in_ns else 1000.0), 1.0))

    def snapshot(self, prefix: str) -> dict[str, NDArray[Any]]:
        """Return the state as arrays."""
        return self.arrays(prefix) | {f"{prefix}fastest": np.array([self.fastest])}

    def restore(self, arrays: dict[str, NDArray[Any]], prefix: str) -> None:
        """Take what `snapshot` returned."""
        self.load(arrays, prefix)
        self.fastest = float(arrays[f"{prefix}fastest"][0])


class TimeByReason(ThrottledTime):
    """The same of two reasons, each by a counter of its own: ns in every version of DCGM that has them (1420 to 1424).

    Columns, and what `take` is given as counted, are (2, count); `share` is (2, n).
    """

    rows = (2,)

    def __init__(self) -> None:
        super().__init__()
        self.reported = False
        """Whether anybody has reported them."""

    def take(self, new: BoolArray, at: IntArray, counted: FloatArray) -> None:
        """Take a reading of each of the GPUs that are `new` (count,); mostly nobody reports these counters."""
        if self.reported:
            super().take(new, at, counted)

    @property
    def in_ns(self) -> bool:
        """Whether the counters count ns."""
        return True

    def restore(self, arrays: dict[str, NDArray[Any]], prefix: str) -> None:
        """Take what `snapshot` returned; a version that did not have these counters kept nothing of them."""
        if f"{prefix}fastest" in arrays:
            super().restore(arrays, prefix)
            self.reported = bool(self.at.max(initial=-1) >= 0)
