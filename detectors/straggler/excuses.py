"""Other faults that make a GPU slow and have a name: then that is the finding, and the straggler its consequence.

The GPU itself says most of it (throttled by hardware or by heat, a power limit below its peers', a host link trained
down, NVLink errors); the kernel's and the fabric manager's logs say the rest, of a node.
"""

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray, LogRecord
from detectors.core.columns import Columns, column
from detectors.fleet import Fleet
from detectors.gpus import GpuLayout, reported
from detectors.statistics import median_of
from detectors.throttle_bits import HW_POWER_BRAKE, HW_SLOWDOWN, THERMAL, bits_of
from detectors.xid import XIDS, parse_line

_NAMED: Final = HW_SLOWDOWN | THERMAL | HW_POWER_BRAKE
_HALVED: Final = 0.55
"""A hardware slowdown divides the clock by two or more (NVML); peers under a power cap run below the full clock."""
_HOT_C: Final = 85.0
"""The highest temperature at which A100s run at full clocks (nvidia-smi's "max operating")."""
_WARMER_C: Final = 10.0
"""GPUs of a kind under one load are up to 8 degrees apart for good, and a slow one draws less and so is cooler."""
_LOWERED: Final = 0.95
"""At full load software caps all GPUs alike, and nodes' clocks differ by a few per cent."""
_LIMIT_LEFT, _LINK_LEFT = 0.95, 0.9
_CRC_PER_S: Final = 1.0
"""NVLink CRC errors: DCGM warns of any and calls 100 a second a failure; links lose bandwidth in between."""
_HOLDS_MS: Final = 180_000
"""Throttling by heat comes and goes within some scrapes; three minutes hold at 60 s scrapes."""
_MEAN_MS: Final = 60_000.0
"""Clocks under a cap, or in heat, move by some per cent from one reading to the next."""
_LINES_MS: Final = 600_000
"""A line about a fault comes minutes before or after what it does to a job."""
_KEEP_MS: Final = 86_400_000
_QUIET: Final = frozenset({"follow_on", "application", "information", "remap_recorded", "correctable_memory"})
"""Classes of XIDs that explain no slowness."""
_TOLD: Final = frozenset({"error", "critical"})
_WHY: Final = ("", "throttled by hardware or heat", "host link trained down", "NVLink errors")
_RETRIES: Final = (
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL",
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL",
)


class Excuses(Columns):
    """Columns over all GPUs.

    `at` last reading (ms); `clock` its mean over a minute (MHz) and its `peak`; `heat` its temperature
    (degrees); `named_at` when it last read as held by something that has
    a name, and `why`; `told` whether it ever gave its reasons; `limit` of its power (W); `link` what its host link
    should carry (2^generation times lanes) or once did; `crc` and `retries` NVLink's counts.
    """

    at: IntArray = column(-1)
    clock: NDArray[np.float32] = column(np.nan, dtype=np.float32)
    peak: NDArray[np.float32] = column(np.nan, dtype=np.float32)
    heat: NDArray[np.float32] = column(np.nan, dtype=np.float32)
    named_at: IntArray = column(-(2**61))
    why: NDArray[np.int8] = column(0, dtype=np.int8)
    told: BoolArray = column(False)
    limit: NDArray[np.float32] = column(np.nan, dtype=np.float32)
    link: NDArray[np.float32] = column(np.nan, dtype=np.float32)
    crc: FloatArray = column(np.nan)
    retries: FloatArray = column(np.nan)

    def __init__(self, fleet: Fleet, layout: GpuLayout) -> None:
        super().__init__()
        self._fleet, self._layout = fleet, layout
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
        self.extend()
        for tick, here in batch.ticks():
            gpus, at = batch.entities[here], batch.at[tick, here]
            reasons = reported(batch, "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", tick, here)
            told = np.isfinite(reasons)
            self._mark(gpus, at, told & ((bits_of(reasons) & _NAMED) != 0), 1)
            self.told[gpus] |= told
            clock = reported(batch, "DCGM_FI_DEV_SM_CLOCK", tick, here)
            moved = -np.expm1(-np.clip(at - self.at[gpus], 0, _HOLDS_MS) / _MEAN_MS) * (clock - self.clock[gpus])
            _keep(self.clock, gpus, np.where(np.isfinite(moved), self.clock[gpus] + moved, clock))
            _keep(self.peak, gpus, np.fmax(self.peak[gpus], clock))
            _keep(self.heat, gpus, reported(batch, "DCGM_FI_DEV_GPU_TEMP", tick, here))
            _keep(self.limit, gpus, reported(batch, "DCGM_FI_DEV_ENFORCED_POWER_LIMIT", tick, here))
            gen = reported(batch, "DCGM_FI_DEV_PCIE_LINK_GEN", tick, here)
            lanes = reported(batch, "DCGM_FI_DEV_PCIE_LINK_WIDTH", tick, here)
            busy = ~(reported(batch, "DCGM_FI_DEV_GPU_UTIL", tick, here) < 50)  # idle links train down
            carries = np.where(busy, np.exp2(np.minimum(gen, 16)) * lanes, np.nan)
            self._mark(gpus, at, carries < _LINK_LEFT * self.link[gpus], 2)
            _keep(self.link, gpus, np.fmax(self.link[gpus], carries))
            self._count(batch, tick, here, gpus, at)
            self.at[gpus] = at

    def _mark(self, gpus: IntArray, at: IntArray, which: BoolArray, why: int) -> None:
        if np.count_nonzero(which):
            self.named_at[gpus[which]] = at[which]
            self.why[gpus[which]] = why

    def _count(self, batch: Batch, tick: int, here: Any, gpus: IntArray, at: IntArray) -> None:
        crc = reported(batch, "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL", tick, here)
        retries = np.array([reported(batch, name, tick, here) for name in _RETRIES])
        retried = np.where(np.isfinite(retries).any(axis=0), np.nan_to_num(retries).sum(axis=0), np.nan)
        seconds = np.clip((at - self.at[gpus]) / 1000, 1.0, 60.0)
        self._mark(gpus, at, crc - self.crc[gpus] >= _CRC_PER_S * seconds, 3)
        self._mark(gpus, at, retried > self.retries[gpus], 3)
        _keep(self.crc, gpus, crc)
        _keep(self.retries, gpus, retried)

    def extend(self) -> None:
        """Make room for GPUs that are new."""
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

    def of(self, node: str, those: IntArray, peers: IntArray, onset: Instant, now: Instant) -> str | None:
        """Return what else explains that some GPUs of a node (indices) have been slow since `onset`; None: nothing.

        `peers` are indices of all GPUs of the job.
        """
        line = self._lines.get(node)
        if line is not None and line[0] >= onset - _LINES_MS:
            return line[1]
        if not len(those):
            return None
        named = self.named_at[those] >= now - _HOLDS_MS
        limits = self.limit[peers]
        usual = float(np.median(limits[np.isfinite(limits)])) if np.isfinite(limits).any() else np.nan
        lowered = self.limit[those] < _LIMIT_LEFT * usual
        if 2 * np.count_nonzero(named | lowered) >= len(those):
            return _WHY[int(self.why[those[named][0]])] if named.any() else "its power limit is below its peers'"
        mates = self._layout.members(node)
        mates = mates[mates < self.count]
        if ((self.named_at[mates] >= now - _HOLDS_MS) & (self.why[mates] == 3)).any():
            return _WHY[3]
        return None

    def unread(self, those: IntArray, peers: IntArray, clock_mhz: float, clock_ratio: float, now: Instant) -> bool:
        """Return whether something else may hold the clock of GPUs that give no reasons: hardware that halves it, heat,
        or, of a whole node, its power. It is as good as named then, and holds for as long. `clock_ratio` is theirs to
        that of `peers`.
        """
        if not len(those) or self.told[those].any():
            return False
        halved = min(clock_ratio, clock_mhz / float(np.median(self.peak[those]))) <= _HALVED
        heat = median_of(self.heat[those].astype(np.float64))
        others = np.setdiff1d(peers, those)
        hotter = heat - median_of(self.heat[others].astype(np.float64)) >= _WARMER_C
        held = halved or heat >= _HOT_C or (clock_ratio <= _LOWERED and (hotter or len(those) > 1))
        if held:
            self.named_at[those], self.why[those] = now, 1
        return held

    def to_come(self, those: IntArray, onset: Instant, now: Instant) -> bool:
        """Return whether GPUs that do report have not done so since `onset`, and may still give a reason."""
        at = self.at[those]
        return bool((at >= 0).any() and int(at.max()) < onset and now - onset < _HOLDS_MS)

    def forget(self, now: Instant) -> None:
        """Drop the lines that nothing will ask for any more."""
        self._lines = {node: line for node, line in self._lines.items() if now - line[0] <= _KEEP_MS}

    def snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state as JSON can say it, and arrays."""
        return {node: list(line) for node, line in self._lines.items()}, self.arrays("gpu/")

    def restore(self, lines: dict[str, Any], arrays: dict[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self._layout.extend()
        self.load(arrays, "gpu/")
        self._lines = {node: (at, text) for node, (at, text) in lines.items()}


def _keep(column: NDArray[Any], gpus: IntArray, values: Any) -> None:
    known = np.isfinite(values)
    if np.count_nonzero(known) < len(known):
        gpus, values = gpus[known], values[known]
    column[gpus] = values
