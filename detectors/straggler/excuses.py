"""Other faults that make a GPU slow and have a name: then that is the finding, and the straggler its consequence.

The GPU itself says most of it (throttled by hardware or by heat, capped below its peers, a host link trained down,
NVLink errors); the kernel's and the fabric manager's logs say the rest, of a node.
"""

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray, LogRecord
from detectors.fleet import Fleet
from detectors.gpus import GpuColumns, GpuLayout, reported
from detectors.statistics import clamp
from detectors.straggler.config import StragglerConfig
from detectors.xid import XIDS, parse_line

# Bits of DCGM_FI_DEV_CLOCK_THROTTLE_REASONS (DCGM dcgm_fields.h; NVML has the same).
_IDLE, _SW_POWER_CAP, _HW_SLOWDOWN = 0x01, 0x04, 0x08
_SW_THERMAL, _HW_THERMAL, _HW_BRAKE = 0x20, 0x40, 0x80
_NAMED = _HW_SLOWDOWN | _SW_THERMAL | _HW_THERMAL | _HW_BRAKE
_SMOOTH_MS = 60_000
_BUSY_UTIL = 50.0
_LINK_LEFT = 0.9
_CRC_PER_S = 1.0
"""NVLink CRC errors: DCGM warns of any and calls 100 a second a failure; links lose bandwidth in between."""
_QUIET = frozenset({"follow_on", "application", "information", "remap_recorded", "correctable_memory"})
"""Classes of XIDs that explain no slowness."""
_TOLD = frozenset({"error", "critical"})
_WHY = ("", "throttled by hardware or heat", "host link trained down", "NVLink errors")
_ERRORS = (
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
)


class Excuses(GpuColumns):
    """Columns over all GPUs.

    `at` last reading (ms); `clock` MHz while at work, smoothed; `named_at` when it last read as held by something that
    has a name, and `why`; `capped_at` when software last capped its power; `held_at` when any reason for a low clock
    was last given; `told_at` when it last gave its reasons at all, `busy_at` when it was last at work; `link` what its
    host link should carry (2^generation times lanes) or once did; `crc`, `replay` and `recovery` NVLink's counts.
    """

    BLANK: ClassVar[dict[str, tuple[Any, float]]] = {
        "at": (np.int64, -1),
        "clock": (np.float64, np.nan),
        "named_at": (np.int64, -(2**61)),
        "why": (np.int8, 0),
        "capped_at": (np.int64, -(2**61)),
        "held_at": (np.int64, -(2**61)),
        "told_at": (np.int64, -(2**61)),
        "busy_at": (np.int64, -(2**61)),
        "link": (np.float64, np.nan),
        "crc": (np.float64, np.nan),
        "replay": (np.float64, np.nan),
        "recovery": (np.float64, np.nan),
    }
    at: IntArray
    clock: FloatArray
    named_at: IntArray
    why: NDArray[np.int8]
    capped_at: IntArray
    held_at: IntArray
    told_at: IntArray
    busy_at: IntArray
    link: FloatArray
    crc: FloatArray
    replay: FloatArray
    recovery: FloatArray

    def __init__(self, config: StragglerConfig, fleet: Fleet, layout: GpuLayout) -> None:
        super().__init__()
        self._config, self._fleet, self._layout = config, fleet, layout
        self._lines: dict[str, tuple[Instant, str]] = {}

    def take_lines(self, records: Sequence[LogRecord]) -> None:
        """Note the lines that tell of a node's hardware."""
        for record in records:
            if record.node is None:
                continue
            if record.source == "kernel":
                line = parse_line(record.message)
                known = XIDS.get(line.code) if line else None
                if "SXid" not in record.message and (known is None or known.group in _QUIET):
                    continue
            elif record.source != "fabricmanager" or record.severity not in _TOLD:
                continue
            self._lines[record.node] = (record.at, record.message.strip()[:160])

    def take(self, batch: Batch) -> None:
        """Take readings of GPUs."""
        self._extend()
        for tick in range(len(batch.at)):
            here = batch.present[tick]
            gpus, at = batch.entities[here], batch.at[tick, here]
            clock = reported(batch, "DCGM_FI_DEV_SM_CLOCK", tick, here)
            reasons = reported(batch, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", tick, here)
            util = reported(batch, "DCGM_FI_DEV_GPU_UTIL", tick, here)
            told = np.isfinite(reasons)
            bits = np.where(told, reasons, 0).astype(np.int64)
            busy = ~(util < _BUSY_UTIL) & ((bits & _IDLE) == 0)
            self._mark(gpus, at, told & ((bits & _NAMED) != 0), 1)
            self.capped_at[gpus[(bits & _SW_POWER_CAP) != 0]] = at[(bits & _SW_POWER_CAP) != 0]
            held = (bits & ~_IDLE) != 0
            self.held_at[gpus[held]] = at[held]
            self.told_at[gpus[told]] = at[told]
            self.busy_at[gpus[busy]] = at[busy]
            self._smooth(gpus, at, clock, busy)
            gen = reported(batch, "DCGM_FI_DEV_PCIE_LINK_GEN", tick, here)
            lanes = reported(batch, "DCGM_FI_DEV_PCIE_LINK_WIDTH", tick, here)
            carries = np.exp2(np.minimum(gen, 16)) * lanes
            with np.errstate(invalid="ignore"):
                self._mark(gpus, at, busy & (carries < _LINK_LEFT * self.link[gpus]), 2)
            self.link[gpus] = np.fmax(self.link[gpus], np.where(busy, carries, np.nan))
            self._count(batch, tick, here, gpus, at)
            self.at[gpus] = at

    def _mark(self, gpus: IntArray, at: IntArray, which: BoolArray, why: int) -> None:
        if np.count_nonzero(which):
            self.named_at[gpus[which]] = at[which]
            self.why[gpus[which]] = why

    def _smooth(self, gpus: IntArray, at: IntArray, clock: FloatArray, busy: BoolArray) -> None:
        use = busy & np.isfinite(clock)
        those, before = gpus[use], self.clock[gpus[use]]
        since = np.where(np.isfinite(before), clamp((at[use] - self.at[those]) / _SMOOTH_MS, 0.0, 1.0), 1.0)
        self.clock[those] = np.where(np.isfinite(before), before, 0.0) * (1 - since) + since * clock[use]

    def _count(self, batch: Batch, tick: int, here: BoolArray, gpus: IntArray, at: IntArray) -> None:
        seconds = np.maximum(at - self.at[gpus], 1) / 1000
        for name, column in zip(_ERRORS, (self.crc, self.replay, self.recovery), strict=True):
            if name not in batch.values:
                continue
            value = reported(batch, name, tick, here)
            with np.errstate(invalid="ignore"):
                more = value - column[gpus]
                bad = more >= np.maximum(_CRC_PER_S * np.minimum(seconds, 60.0), 1) if column is self.crc else more > 0
            self._mark(gpus, at, bad, 3)
            known = np.isfinite(value)
            column[gpus[known]] = value[known]

    def _extend(self) -> None:
        self._layout.extend()
        start = self.count
        if len(self._layout) <= start:
            return
        self.grow(len(self._layout))
        for index in range(start, self.count):
            entity = self._layout.entity(index)
            for told in self._fleet.nodes.get(str(entity["node"]), {}).get("gpus", ()):
                if int(told["gpu"]) == entity["gpu"] and told.get("pcie_gen") and told.get("pcie_width"):
                    self.link[index] = 2.0 ** float(told["pcie_gen"]) * float(told["pcie_width"])

    def gpus_of(self, node: str, gpus: IntArray) -> IntArray:
        """Return the indices of some GPUs (by their numbers) of a node, as far as they have been heard of."""
        members = self._layout.members(node)
        members = members[members < self.count]
        return members[np.isin(self._layout.gpu[members], gpus)]

    def of(self, node: str, gpus: IntArray, peers: IntArray, onset: Instant, now: Instant) -> str | None:
        """Return what else explains that GPUs of a node (their numbers) have been slow since `onset`; None: nothing.

        `peers` are indices of all GPUs of the job.
        """
        line = self._lines.get(node)
        if line is not None and line[0] >= onset - self._config.excuse_lines_s * 1000:
            return line[1]
        those = self.gpus_of(node, gpus)
        if not len(those):
            return None
        horizon = now - self._config.excuse_s * 1000
        named = self.named_at[those] >= horizon
        capped = self.capped_at[those] >= horizon
        clocks = self.clock[peers]
        usual = float(np.median(clocks[np.isfinite(clocks)])) if np.isfinite(clocks).any() else np.nan
        with np.errstate(invalid="ignore"):
            capped &= self.clock[those] <= self._config.capped_clock_ratio * usual
        if 2 * np.count_nonzero(named | capped) >= len(those):
            return _WHY[int(self.why[those[named][0]])] if named.any() else "power capped below its peers"
        mates = self._layout.members(node)
        mates = mates[mates < self.count]
        if ((self.named_at[mates] >= horizon) & (self.why[mates] == 3)).any():
            return _WHY[3]
        return None

    def to_come(self, node: str, gpus: IntArray, onset: Instant, now: Instant) -> bool:
        """Return whether GPUs of a node that do report have not done so since `onset`, and may still give a reason."""
        at = self.at[self.gpus_of(node, gpus)]
        heard = at >= 0
        return bool(heard.any() and int(at.max()) < onset and now - onset < self._config.excuse_s * 1000)

    def forget(self, now: Instant) -> None:
        """Drop the lines that nothing will ask for any more."""
        keep_ms = 86_400_000
        self._lines = {node: line for node, line in self._lines.items() if now - line[0] <= keep_ms}

    def snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state as JSON can say it, and arrays."""
        return {node: list(line) for node, line in self._lines.items()}, self.arrays("gpu/")

    def restore(self, lines: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self._layout.extend()
        self.load(arrays, "gpu/")
        self._lines = {node: (at, text) for node, (at, text) in lines.items()}
