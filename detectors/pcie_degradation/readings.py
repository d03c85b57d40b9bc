"""What is known of every GPU's host link: generation, width, and the rate at which packets are sent again.

All arrays are by entity index; a row is judged with nothing but the row and what that GPU showed before.
"""

from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray
from detectors.gpus import GpuColumns, reported
from detectors.pcie_degradation.config import PcieDegradationConfig
from detectors.statistics import CounterRate, clamp

_HOLD_MS = 30_000
"""The collection interval of dcgm-exporter's defaults: a counter may repeat for so long while it grows."""
_LANE_GBPS = (0.0, 2.5, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0)
"""Gb/s of a lane by generation."""
_REPLAYS_PER_MIN = 0.06
"""DCGM's bar, packets sent again a minute, for a lane's Gb/s (DcgmGPUHardwareLimits.h, bit error rate 1e-12)."""
_MOST_MS = 180_000.0
_BUSY_ENGINE = 0.1
_BUSY_BYTES = 1e8
_GEN_ELSE, _WIDTH_ELSE = 4.0, 16.0
"""For the bar of replays where neither topology nor DCGM tells what a link should be."""


class Links(GpuColumns):
    """Columns over all GPUs.

    `at` last reading (ms; -1 none yet); `busy`; `gen`, `width` as read, `should_gen`, `should_width`; `low` whether
    the last reading was below what it should be; `low_ms` for how long of late, at work, `low_run` in how many
    readings, `low_since` from when, `low_at` the last; `well_ms` for how long since then the link was as it should
    be. `rate` packets sent again a minute; `over_ms`, `over_run`, `over_since`, `over_at` the same of its bar.
    `returned_at` when it last came back from a silence, or its counters began anew.
    """

    BLANK: ClassVar[dict[str, tuple[Any, float]]] = {
        "at": (np.int64, -1),
        "busy": (np.bool_, False),
        "gen": (np.float64, np.nan),
        "width": (np.float64, np.nan),
        "should_gen": (np.float64, np.nan),
        "should_width": (np.float64, np.nan),
        "low": (np.bool_, False),
        "low_ms": (np.float64, 0.0),
        "low_run": (np.int64, 0),
        "low_since": (np.int64, -1),
        "low_at": (np.int64, -1),
        "well_ms": (np.float64, 0.0),
        "rate": (np.float64, np.nan),
        "over_ms": (np.float64, 0.0),
        "over_run": (np.int64, 0),
        "over_since": (np.int64, -1),
        "over_at": (np.int64, -1),
        "returned_at": (np.int64, -1),
    }
    at: IntArray
    busy: BoolArray
    gen: FloatArray
    width: FloatArray
    should_gen: FloatArray
    should_width: FloatArray
    low: BoolArray
    low_ms: FloatArray
    low_run: IntArray
    low_since: IntArray
    low_at: IntArray
    well_ms: FloatArray
    rate: FloatArray
    over_ms: FloatArray
    over_run: IntArray
    over_since: IntArray
    over_at: IntArray
    returned_at: IntArray

    def __init__(self, config: PcieDegradationConfig) -> None:
        super().__init__()
        self._config = config
        self._counter = CounterRate.empty(0, _HOLD_MS)

    def grow(self, count: int) -> None:
        """Make room for `count` GPUs."""
        super().grow(count)
        self._counter.grow(count)

    def take(self, batch: Batch, tick: int, here: Any, moved: FloatArray) -> None:
        """Take one reading each of the GPUs `here`; `moved` is what their links carry, bytes/s."""
        gpus, at = batch.entities[here], batch.at[tick, here]

        def of(name: str) -> FloatArray:
            return reported(batch, name, tick, here)

        util, engine = of("DCGM_FI_DEV_GPU_UTIL"), of("DCGM_FI_PROF_GR_ENGINE_ACTIVE")
        known = np.isfinite(util)
        busy = np.where(known, util >= self._config.busy_utilisation, (engine >= _BUSY_ENGINE) | (moved >= _BUSY_BYTES))
        elapsed = np.where(self.at[gpus] >= 0, at - self.at[gpus], 0)
        self._take_link(gpus, at, elapsed, busy, of)
        self._take_replays(gpus, at, of("DCGM_FI_DEV_PCIE_REPLAY_COUNTER"))
        away = elapsed > self._config.absent_s * 1000
        self.returned_at[gpus[away]] = at[away]
        self.at[gpus], self.busy[gpus] = at, busy

    def _take_link(self, gpus: IntArray, at: IntArray, elapsed: IntArray, busy: BoolArray, of: Any) -> None:
        gen, width = _plausible(of("DCGM_FI_DEV_PCIE_LINK_GEN"), 8), _plausible(of("DCGM_FI_DEV_PCIE_LINK_WIDTH"), 32)
        for should, name, most in ((self.should_gen, "GEN", 8), (self.should_width, "WIDTH", 32)):
            told = _plausible(of(f"DCGM_FI_DEV_PCIE_MAX_LINK_{name}"), most)
            better = np.isnan(should[gpus]) & np.isfinite(told)
            if np.count_nonzero(better):
                should[gpus[better]] = told[better]
        seen = np.isfinite(gen) | np.isfinite(width)
        low = (gen < self.should_gen[gpus]) | (width < self.should_width[gpus])
        spent = np.minimum(elapsed, self._config.stale_s * 1000).astype(np.float64)
        counts = low & busy
        before = self.low_ms[gpus]
        starts = counts & (before <= 0)
        self.low_since[gpus[starts]] = at[starts]
        gain = np.where(starts, 1.0, np.maximum(spent, 1.0))
        now = before + np.where(counts, gain, np.where(seen & busy, -spent, 0.0))
        self.low_ms[gpus] = clamp(now, 0.0, _MOST_MS)
        self.low_run[gpus] = np.where(self.low_ms[gpus] > 0, np.minimum(self.low_run[gpus] + counts, 2**31), 0)
        self.low_at[gpus] = np.where(counts, at, self.low_at[gpus])
        # A link that is low while its GPU idles says nothing; one that is as it should be is well in any case.
        well = seen & ~low
        self.well_ms[gpus] = np.where(counts, 0.0, np.minimum(self.well_ms[gpus] + np.where(well, spent, 0.0), 1e9))
        self.gen[gpus], self.width[gpus], self.low[gpus] = gen, width, low

    def _take_replays(self, gpus: IntArray, at: IntArray, counted: FloatArray) -> None:
        since, before = self._counter.at[gpus], self._counter.value[gpus]
        told = np.isfinite(counted)
        rate = self._counter.update(gpus, at, counted, told) * 60_000
        fell = told & (since >= 0) & (counted < before)
        self.returned_at[gpus[fell]] = at[fell]
        judged = np.isfinite(rate)
        over = judged & (rate > self.replay_bar(gpus))
        spent = clamp(at - since, 0, 60_000).astype(np.float64)
        had = self.over_ms[gpus]
        starts = over & (had <= 0)
        self.over_since[gpus[starts]] = since[starts]
        self.over_ms[gpus] = clamp(had + np.where(over, spent, np.where(judged, -spent, 0.0)), 0.0, _MOST_MS)
        self.over_run[gpus] = np.where(self.over_ms[gpus] > 0, np.minimum(self.over_run[gpus] + over, 2**31), 0)
        self.over_at[gpus] = np.where(over, at, self.over_at[gpus])
        self.rate[gpus] = np.where(judged, rate, self.rate[gpus])

    def replay_bar(self, gpus: IntArray) -> FloatArray:
        """Return DCGM's bar for the links that GPUs should have, packets a minute."""
        gen = np.where(np.isfinite(self.should_gen[gpus]), self.should_gen[gpus], _GEN_ELSE)
        width = np.where(np.isfinite(self.should_width[gpus]), self.should_width[gpus], _WIDTH_ELSE)
        lane = np.array(_LANE_GBPS)[clamp(gen, 0, len(_LANE_GBPS) - 1).astype(np.int64)]
        return np.asarray(np.ceil(_REPLAYS_PER_MIN * lane * width) * self._config.replay_factor)

    def fresh(self, now: Instant) -> BoolArray:
        """Return which GPUs reported lately."""
        return (self.at >= 0) & (now - self.at <= self._config.stale_s * 1000)

    def link_suspects(self, now: Instant) -> BoolArray:
        """Return which links have been low for long enough; none where most of the fleet's are."""
        config, fresh = self._config, self.fresh(now)
        found = fresh & (self.low_run >= config.confirm_readings)
        found &= self.low_ms >= config.link_confirm_s * 1000 - 1000  # less the jitter of scrapes
        if not np.count_nonzero(found):
            return found
        told = fresh & self.busy & (np.isfinite(self.gen) | np.isfinite(self.width))
        if told.sum() >= config.peer_minimum and (told & self.low).sum() > config.wrong_share * told.sum():
            return np.zeros_like(found)
        return found

    def replay_suspects(self, now: Instant) -> BoolArray:
        """Return which links have sent packets again above the bar for long enough."""
        enough = self.over_ms >= self._config.replay_confirm_s * 1000 - 1000
        return self.fresh(now) & enough & (self.over_run >= self._config.confirm_readings)

    def forget(self, gpu: int) -> None:
        """Let what was counted of a GPU end: what comes after is another event."""
        self.low_ms[gpu], self.low_run[gpu] = 0.0, 0
        self.over_ms[gpu], self.over_run[gpu] = 0.0, 0

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays."""
        return self.arrays("link_") | {"counter_at": self._counter.at, "counter_value": self._counter.value}

    def restore(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self.load(arrays, "link_")
        self._counter = CounterRate(arrays["counter_at"], arrays["counter_value"], _HOLD_MS)


def _plausible(value: FloatArray, most: int) -> FloatArray:
    return np.where((value >= 1) & (value <= most), value, np.nan)
