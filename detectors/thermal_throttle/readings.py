"""What is known of every GPU: its last reading, and for how long heat has held its clock down.

All arrays are by entity index. A row is judged with nothing but the row, what that GPU showed before, and the bars
that its peers set at the last point of the grid.
"""

from typing import Any, ClassVar, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray
from detectors.gpus import GpuColumns, reported
from detectors.statistics import CounterRate, clamp, highest
from detectors.thermal_throttle.config import ThermalThrottleConfig

# Bits of DCGM_FI_DEV_CLOCK_THROTTLE_REASONS (DCGM dcgm_fields.h; NVML has the same).
GPU_IDLE: Final = 0x001
SW_THERMAL: Final = 0x020
HW_THERMAL: Final = 0x040
THERMAL: Final = SW_THERMAL | HW_THERMAL

_VIOLATION_HOLD_MS = 30_000
"""The collection interval of dcgm-exporter's defaults: a counter may repeat for so long while it grows."""
_NS_PER_MS = 1e6
_US_COUNTERS_READ_AT_MOST = 1.05e-3
"""A counter of throttled time that counts us (older DCGM) gains at most this many ns a ns, with room for jitter."""
_MOST_SPENT_MS = 180_000.0
_LEAK = 0.5
_CLOCK_LEARN = 0.05
_DEGREES = (5.0, 150.0)
"""A chip at work reads something between these; anything else is a misreading."""


class GpuHeat(GpuColumns):
    """Columns over all GPUs.

    `at` last reading (ms; -1 none yet); `temp`, `memory` degrees; `clock` MHz; `power` W; `reasons` bits (-1 not
    reported); `violation` part of the time since the reading before, in the counter's own unit a ns; `busy`; `asks`
    whether peers must say if it is slow or hot; `held` whether the last reading was throttled by heat; `spent_ms`
    for how long it was of late (leaks away while it is not); `run` throttled readings in this run; `since` the
    run's first, `free_at` the reading before; `last_at` the last throttled one; `free_ms` time without since then,
    an idle GPU's counted in part; `clock_level` MHz at work without heat; `chip_limit`, `memory_limit` degrees;
    `clock_bar`, `heat_bar` what the peers say is too slow, too hot.
    """

    BLANK: ClassVar[dict[str, tuple[Any, float]]] = {
        "at": (np.int64, -1),
        "temp": (np.float64, np.nan),
        "memory": (np.float64, np.nan),
        "clock": (np.float64, np.nan),
        "power": (np.float64, np.nan),
        "reasons": (np.int64, -1),
        "violation": (np.float64, np.nan),
        "busy": (np.bool_, False),
        "asks": (np.bool_, False),
        "held": (np.bool_, False),
        "spent_ms": (np.float64, 0.0),
        "run": (np.int64, 0),
        "since": (np.int64, -1),
        "free_at": (np.int64, -1),
        "last_at": (np.int64, -1),
        "free_ms": (np.float64, 0.0),
        "clock_level": (np.float64, np.nan),
        "chip_limit": (np.float64, np.nan),
        "memory_limit": (np.float64, np.nan),
        "clock_bar": (np.float64, np.nan),
        "heat_bar": (np.float64, np.nan),
    }
    at: IntArray
    temp: FloatArray
    memory: FloatArray
    clock: FloatArray
    power: FloatArray
    reasons: IntArray
    violation: FloatArray
    busy: BoolArray
    asks: BoolArray
    held: BoolArray
    spent_ms: FloatArray
    run: IntArray
    since: IntArray
    free_at: IntArray
    last_at: IntArray
    free_ms: FloatArray
    clock_level: FloatArray
    chip_limit: FloatArray
    memory_limit: FloatArray
    clock_bar: FloatArray
    heat_bar: FloatArray

    def __init__(self, config: ThermalThrottleConfig) -> None:
        super().__init__()
        self._config = config
        self._counter = CounterRate.empty(0, _VIOLATION_HOLD_MS)
        self._violation_seen = 0.0
        self._violation_scale = 1.0

    def grow(self, count: int) -> None:
        """Make room for `count` GPUs."""
        super().grow(count)
        self._counter.grow(count)

    def take(self, batch: Batch) -> None:
        """Take a batch, row after row of each GPU."""
        self.grow(int(batch.entities.max(initial=-1)) + 1)
        for tick, here in batch.ticks():
            self._take_tick(batch, tick, here)

    def _take_tick(self, batch: Batch, tick: int, here: Any) -> None:
        gpus, at = batch.entities[here], batch.at[tick, here]

        def of(name: str) -> FloatArray:
            return reported(batch, f"DCGM_FI_DEV_{name}", tick, here)

        temp, memory = _degrees(of("GPU_TEMP")), _degrees(of("MEMORY_TEMP"))
        clock, power, util, bits = of("SM_CLOCK"), of("POWER_USAGE"), of("GPU_UTIL"), of("CLOCK_THROTTLE_REASONS")
        counted = of("THERMAL_VIOLATION")
        chip_limit, memory_limit = _degrees(of("GPU_MAX_OP_TEMP")), _degrees(of("MEM_MAX_OP_TEMP"))
        telling = np.isfinite(temp) | np.isfinite(clock) | np.isfinite(bits)
        if np.count_nonzero(telling) < len(telling):
            gpus, at = gpus[telling], at[telling]
            temp, memory, clock, power = temp[telling], memory[telling], clock[telling], power[telling]
            util, bits, counted = util[telling], bits[telling], counted[telling]
            chip_limit, memory_limit = chip_limit[telling], memory_limit[telling]
        if not len(gpus):
            return
        for mine, told in ((self.chip_limit, chip_limit), (self.memory_limit, memory_limit)):
            known = np.isfinite(told)
            if np.count_nonzero(known):
                mine[gpus[known]] = told[known]
        has_bits = np.isfinite(bits)
        reasons = np.where(has_bits, bits, -1).astype(np.int64)
        set_bits = np.where(has_bits, reasons, 0)
        rate = self._counter.update(gpus, at, counted, np.isfinite(counted)) / _NS_PER_MS
        # A reading that repeats the one before has no rate of its own: the last one holds for so long.
        repeats = np.isnan(rate) & np.isfinite(counted) & (at - self._counter.at[gpus] <= _VIOLATION_HOLD_MS)
        violation = np.where(repeats, self.violation[gpus], rate)
        self._violation_seen = highest(violation, self._violation_seen)
        busy = ((set_bits & GPU_IDLE) == 0) & ~(util < self._config.idle_utilisation)
        hot, asks, held = self._judge(gpus, temp, memory, clock, set_bits, has_bits, violation, busy)
        self._count(gpus, at, busy, held)
        free = busy & ~held & ~hot & ((set_bits & THERMAL) == 0) & np.isfinite(clock)
        level = self.clock_level[gpus]
        learnt = np.where(np.isfinite(level), level + _CLOCK_LEARN * (clock - level), clock)
        self.clock_level[gpus] = np.where(free, learnt, level)
        self.at[gpus], self.temp[gpus], self.memory[gpus] = at, temp, memory
        self.clock[gpus], self.power[gpus], self.reasons[gpus] = clock, power, reasons
        self.violation[gpus], self.busy[gpus], self.asks[gpus], self.held[gpus] = violation, busy, asks, held

    def _judge(
        self,
        gpus: IntArray,
        temp: FloatArray,
        memory: FloatArray,
        clock: FloatArray,
        bits: IntArray,
        has_bits: BoolArray,
        violation: FloatArray,
        busy: BoolArray,
    ) -> tuple[BoolArray, BoolArray, BoolArray]:
        """Return which are near a limit, which the peers must be asked about, and which heat holds down."""
        near = self._config.near_limit_k
        hot = (temp >= self.chip_limit[gpus] - near) | (memory >= self.memory_limit[gpus] - near)
        says = (bits & THERMAL) != 0
        counts = violation * self._violation_scale >= self._config.violation_fraction
        asks = busy & ((says & ~hot) | (hot & ~has_bits))
        beyond = hot | (temp >= self.heat_bar[gpus])
        bar = np.where(
            np.isfinite(self.clock_bar[gpus]), self.clock_bar[gpus], self._config.clock_ratio * self.clock_level[gpus]
        )
        slow = clock <= bar
        # A bit alone may be stuck: the temperature or the clock must bear it out, where either is known.
        blind = ~np.isfinite(temp) & ~np.isfinite(memory) & ~np.isfinite(clock)
        # A counter that creeps, in a unit that nothing tells, may look like a third of the time: the driver's word of
        # late, or a low clock, must bear it out.
        sure = self._violation_scale == 1.0
        moves = counts & hot & np.where(has_bits, self.run[gpus] > 0, slow | sure)
        held = busy & ((says & (beyond | slow | blind)) | moves | (hot & slow & ~has_bits))
        return hot, asks, held

    def _count(self, gpus: IntArray, at: IntArray, busy: BoolArray, held: BoolArray) -> None:
        most = self._config.stale_s * 1000
        elapsed = np.where(self.at[gpus] >= 0, clamp(at - self.at[gpus], 0, most), 0.0)
        spent, run = self.spent_ms[gpus], self.run[gpus]
        starts = held & (spent <= 0)
        self.since[gpus[starts]] = at[starts]
        self.free_at[gpus[starts]] = self.at[gpus[starts]]
        # A run's first reading may be the sample of a moment: from then on the time between readings counts.
        gain = np.where(starts, np.minimum(elapsed, 1.0), elapsed)
        spent = clamp(spent + np.where(held, np.maximum(gain, 1.0), -_LEAK * elapsed), 0.0, _MOST_SPENT_MS)
        self.spent_ms[gpus] = spent
        self.run[gpus] = np.where(spent > 0, np.minimum(run + held, 2**31), 0)
        part = np.where(busy, 1.0, self._config.release_s / self._config.release_idle_s)
        self.free_ms[gpus] = np.where(held, 0.0, np.minimum(self.free_ms[gpus] + part * elapsed, 1e9))
        self.last_at[gpus] = np.where(held, at, self.last_at[gpus])

    def forget(self, gpus: IntArray) -> None:
        """Let a run end: what comes after is another."""
        self.spent_ms[gpus], self.run[gpus] = 0.0, 0

    def settle(self) -> None:
        """At a point of the grid: decide what unit the counters of throttled time have."""
        counts_us = self._violation_seen <= _US_COUNTERS_READ_AT_MOST
        self._violation_scale = 1000.0 if counts_us else 1.0

    def throttled(self, gpus: IntArray) -> FloatArray:
        """Return the part of the time that heat held GPUs down by their last reading; NaN: not known."""
        return np.minimum(self.violation[gpus] * self._violation_scale, 1.0)

    def fresh(self, now: Instant) -> BoolArray:
        """Return which GPUs reported lately."""
        return (self.at >= 0) & (now - self.at <= self._config.stale_s * 1000)

    def snapshot(self) -> tuple[dict[str, float], dict[str, NDArray[Any]]]:
        """Return the state as numbers and arrays."""
        counter = {"counter_at": self._counter.at, "counter_value": self._counter.value}
        return {"seen": self._violation_seen, "scale": self._violation_scale}, self.arrays("gpu_") | counter

    def restore(self, numbers: dict[str, float], arrays: dict[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self.load(arrays, "gpu_")
        self._counter = CounterRate(arrays["counter_at"], arrays["counter_value"], _VIOLATION_HOLD_MS)
        self._violation_seen, self._violation_scale = numbers["seen"], numbers["scale"]


def _degrees(value: FloatArray) -> FloatArray:
    return np.where((value >= _DEGREES[0]) & (value <= _DEGREES[1]), value, np.nan)
