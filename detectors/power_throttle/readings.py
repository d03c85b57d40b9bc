"""What is known of every GPU: its last reading, its own level while at work, and whether it reads as braked.

All arrays are by entity index. A row is judged with nothing but the row and what that GPU showed before.
"""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray
from detectors.power_throttle.config import PowerThrottleConfig
from detectors.statistics import CounterRate, highest, masked_median

# Bits of DCGM_FI_DEV_CLOCK_THROTTLE_REASONS (DCGM dcgm_fields.h; NVML has the same).
GPU_IDLE: Final = 0x001
SW_POWER_CAP: Final = 0x004
SW_THERMAL: Final = 0x020
HW_THERMAL: Final = 0x040
HW_POWER_BRAKE: Final = 0x080

_VIOLATION_HOLD_MS = 30_000
"""The collection interval of dcgm-exporter's defaults: a counter may repeat for so long while it grows."""
_NS_PER_MS = 1e6
_PLAUSIBLE = 1e18
"""No power, clock or counter of ns is beyond it (thirty years of ns); what is, infinity included, is a misreading."""
_US_COUNTERS_READ_AT_MOST = 1.05e-3
"""A counter of throttled time that counts us (older DCGM) gains at most this many ns a ns, with room for jitter."""

_BLANK: dict[str, tuple[Any, Any]] = {
    "at": (np.int64, -1),
    "power": (np.float64, np.nan),
    "clock": (np.float64, np.nan),
    "reasons": (np.int64, -1),
    "violation": (np.float64, np.nan),
    "busy": (np.bool_, False),
    "judged": (np.bool_, False),
    "register": (np.int64, 0),
    "first_braked": (np.int64, -1),
    "last_free": (np.int64, -1),
    "free_since": (np.int64, -1),
    "watched": (np.bool_, False),
    "learnt": (np.int64, 0),
    "limit": (np.float64, np.nan),
}


class GpuReadings:
    """Columns over all GPUs.

    `at` last reading (ms; -1 none yet); `power` W, `clock` MHz, `reasons` bits (-1 not reported), `violation` ns of
    throttling a ns since the reading before; `busy`; `judged` whether the GPU's own level sufficed to judge the last
    reading; `register` the last readings, newest in bit 0, set where braked; `first_braked` when the present run of
    braked readings began and `last_free` the reading before it; `free_since` the first of the latest readings without
    brake (-1: braked); `watched` whether a finding on it is open; `limit` the power limit it should have, W.
    """

    at: IntArray
    power: FloatArray
    clock: FloatArray
    reasons: IntArray
    violation: FloatArray
    busy: BoolArray
    judged: BoolArray
    register: IntArray
    first_braked: IntArray
    last_free: IntArray
    free_since: IntArray
    watched: BoolArray
    learnt: IntArray
    limit: FloatArray

    def __init__(self, config: PowerThrottleConfig) -> None:
        self._config = config
        for name, (dtype, _) in _BLANK.items():
            setattr(self, name, np.empty(0, dtype))
        self._history = np.empty((2, 0, config.history_readings))
        self._counter = CounterRate.empty(0, _VIOLATION_HOLD_MS)
        self._violation_seen = 0.0
        self._violation_scale = 1.0

    def __len__(self) -> int:
        return len(self.at)

    def grow(self, count: int) -> None:
        """Make room for GPUs that were not known before."""
        more = count - len(self)
        if more <= 0:
            return
        for name, (dtype, blank) in _BLANK.items():
            setattr(self, name, np.concatenate([getattr(self, name), np.full(more, blank, dtype)]))
        fresh = np.full((2, more, self._config.history_readings), np.nan)
        self._history = np.concatenate([self._history, fresh], axis=1)
        self._counter.grow(count)

    def take(self, batch: Batch) -> None:
        """Take a batch, row after row of each GPU."""
        if len(batch.entities):
            self.grow(int(batch.entities.max()) + 1)
        for tick in range(len(batch.at)):
            here = batch.present[tick]
            self._take_tick(batch.entities[here], batch.at[tick, here], _Fields(batch, tick, here))

    def _take_tick(self, gpus: IntArray, at: IntArray, fields: "_Fields") -> None:
        power = fields.of("DCGM_FI_DEV_POWER_USAGE")
        clock = fields.of("DCGM_FI_DEV_SM_CLOCK")
        reported = fields.of("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS")
        util = fields.of("DCGM_FI_DEV_GPU_UTIL")
        counted = fields.of("DCGM_FI_DEV_POWER_VIOLATION")
        telling = np.isfinite(power) | np.isfinite(clock) | np.isfinite(reported)
        if np.count_nonzero(telling) < len(telling):
            gpus, at, power, clock = gpus[telling], at[telling], power[telling], clock[telling]
            reported, util, counted = reported[telling], util[telling], counted[telling]
        if not len(gpus):
            return
        has_bits = np.isfinite(reported) & (reported >= 0) & (reported < 2**53)
        reasons = np.where(has_bits, reported, -1).astype(np.int64)
        bits = np.where(has_bits, reasons, 0)
        violation = self._counter.update(gpus, at, counted, np.isfinite(counted)) / _NS_PER_MS
        self._violation_seen = highest(violation, self._violation_seen)
        busy = ((bits & GPU_IDLE) == 0) & ~(util < self._config.idle_utilisation)

        brake = (bits & HW_POWER_BRAKE) != 0
        otherwise = (bits & (SW_POWER_CAP | SW_THERMAL | HW_THERMAL)) != 0
        held = (violation * self._violation_scale >= self._config.violation_fraction) & ~otherwise
        cause = busy & (brake | held)
        look = cause | self.watched[gpus]
        fallen, known, back = self._against_own_level(gpus, power, clock, look)
        # Only the bit can speak for itself: at full load counters of throttled time grow on every healthy GPU.
        braked = cause & (fallen | (brake & ~known))

        learn = busy & ~brake & ~(cause & fallen) & (np.isfinite(power) | np.isfinite(clock))
        self._learn(gpus[learn], power[learn], clock[learn])
        begins = braked & (self.register[gpus] == 0)
        self.first_braked[gpus[begins]] = at[begins]
        self.last_free[gpus[begins]] = self.at[gpus[begins]]
        window = (1 << self._config.window_readings) - 1
        self.register[gpus] = ((self.register[gpus] << 1) | braked) & window
        free = ~brake & ~braked & (back | ~busy)
        since = self.free_since[gpus]
        self.free_since[gpus] = np.where(free, np.where(since < 0, at, since), -1)
        self.at[gpus], self.power[gpus], self.clock[gpus] = at, power, clock
        self.reasons[gpus], self.violation[gpus] = reasons, violation
        self.busy[gpus], self.judged[gpus] = busy, known

    def _against_own_level(
        self, gpus: IntArray, power: FloatArray, clock: FloatArray, look: BoolArray
    ) -> tuple[BoolArray, BoolArray, BoolArray]:
        """Return whether clock and power fell, whether the own level is known, and whether the clock is back."""
        fallen, known, back = np.zeros(len(gpus), bool), np.zeros(len(gpus), bool), np.ones(len(gpus), bool)
        if not np.count_nonzero(look):
            return fallen, known, back
        those = gpus[look]
        level_power, level_clock = self.level(those)
        fallen[look], known[look] = self.fell(those, power[look], clock[look], level_power, level_clock)
        known[look] &= self.learnt[those] >= self._config.history_minimum
        fallen &= known
        back[look] = ~(clock[look] < self._config.release_clock_ratio * level_clock)
        return fallen, known, back

    def level(self, gpus: IntArray) -> tuple[FloatArray, FloatArray]:
        """Return the median power (W) and clock (MHz) of each GPU's last readings at work; NaN: none."""
        recent = self._history[:, gpus]
        power, clock = masked_median(recent, np.isfinite(recent))
        return power, clock

    def fell(
        self, gpus: IntArray, power: FloatArray, clock: FloatArray, was_power: FloatArray, was_clock: FloatArray
    ) -> tuple[BoolArray, BoolArray]:
        """Return whether clock and power both lie far below what they were, and whether that can be told.

        A GPU that has waited for others has a low power level of its own: the bar for its power is not set lower
        than `power_ratio` of its limit would.
        """
        ratio = self._config.power_ratio
        was_power = np.where(np.isfinite(was_power), np.fmax(was_power, ratio * self.limit[gpus]), np.nan)
        low_clock, low_power = clock <= self._config.clock_ratio * was_clock, power <= ratio * was_power
        has_clock = np.isfinite(clock) & np.isfinite(was_clock)
        has_power = np.isfinite(power) & np.isfinite(was_power)
        return (low_clock | ~has_clock) & (low_power | ~has_power) & (has_clock | has_power), has_clock | has_power

    def _learn(self, gpus: IntArray, power: FloatArray, clock: FloatArray) -> None:
        place = self.learnt[gpus] % self._config.history_readings
        self._history[0, gpus, place] = power
        self._history[1, gpus, place] = clock
        self.learnt[gpus] += 1

    def settle(self) -> None:
        """At a point of the grid: decide what unit the counters of throttled time have."""
        counts_us = self._violation_seen <= _US_COUNTERS_READ_AT_MOST
        self._violation_scale = 1000.0 if counts_us else 1.0

    def throttled(self, gpus: IntArray) -> FloatArray:
        """Return the fraction of the time that GPUs were throttled for power by their last reading; NaN: unknown."""
        return np.minimum(self.violation[gpus] * self._violation_scale, 1.0)

    def fresh(self, now: Instant) -> BoolArray:
        """Return which GPUs reported lately."""
        return (self.at >= 0) & (now - self.at <= self._config.stale_s * 1000)

    def snapshot(self) -> tuple[dict[str, float], dict[str, NDArray[Any]]]:
        """Return the state as numbers and arrays."""
        arrays: dict[str, NDArray[Any]] = {name: getattr(self, name) for name in _BLANK}
        arrays |= {"history": self._history, "counter_at": self._counter.at, "counter_value": self._counter.value}
        return {"seen": self._violation_seen, "scale": self._violation_scale}, arrays

    def load(self, numbers: dict[str, float], arrays: dict[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        for name in _BLANK:
            setattr(self, name, arrays[name])
        self._history = arrays["history"]
        self._counter = CounterRate(arrays["counter_at"], arrays["counter_value"], _VIOLATION_HOLD_MS)
        self._violation_seen, self._violation_scale = numbers["seen"], numbers["scale"]


class _Fields:
    """The fields of one tick; NaN where a field was not reported, or is no plausible number."""

    def __init__(self, batch: Batch, tick: int, here: BoolArray) -> None:
        self._batch, self._tick, self._here = batch, tick, here

    def of(self, name: str) -> FloatArray:
        if name not in self._batch.values:
            return np.full(int(self._here.sum()), np.nan)
        value = self._batch.values[name][self._tick, self._here]
        valid = self._batch.valid[name][self._tick, self._here] & (np.abs(value) < _PLAUSIBLE)
        return np.where(valid, value, np.nan)
