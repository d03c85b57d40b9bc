"""What AMD's device-metrics-exporter gives, under the DCGM field that means the same.

Its metrics (docs/configuration/metricslist.md of its repository) are written in small letters, with a prefix where one
is configured (``amd_``). A reading that means something else than any DCGM field has no place.

Some fields are made of several series: the reasons for held-down clocks of the residency of each limit, a link's
generation of its speed, the traffic of all links of that of each. They wait in columns of their own until `folded`.
"""

import re
from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from detectors.signals.throttle_bits import HW_SLOWDOWN, HW_THERMAL, SW_POWER_CAP, SW_THERMAL

_SAME: Mapping[str, tuple[str, float]] = {
    # metric: DCGM field without DCGM_FI_, and how many of the metric's units are one of the field's
    "gpu_package_power": ("DEV_POWER_USAGE", 1),
    "gpu_average_package_power": ("DEV_POWER_USAGE", 1),
    "gpu_power_usage": ("DEV_POWER_USAGE", 1),
    "gpu_energy_consumed": ("DEV_TOTAL_ENERGY_CONSUMPTION", 1000),  # uJ
    # What limits is the hot spot; the MI200 series reports the edge alone.
    "gpu_junction_temperature": ("DEV_GPU_TEMP", 1),
    "gpu_edge_temperature": ("DEV_GPU_TEMP", 1),
    "gpu_memory_temperature": ("DEV_MEMORY_TEMP", 1),
    "gpu_gfx_activity": ("DEV_GPU_UTIL", 1),
    "gpu_umc_activity": ("DEV_MEM_COPY_UTIL", 1),
    "gpu_used_vram": ("DEV_FB_USED", 1),
    "gpu_free_vram": ("DEV_FB_FREE", 1),
    "gpu_ecc_uncorrect_total": ("DEV_ECC_DBE_VOL_TOTAL", 1),
    "gpu_ecc_correct_total": ("DEV_ECC_SBE_VOL_TOTAL", 1),
    "pcie_replay_count": ("DEV_PCIE_REPLAY_COUNTER", 1),
    "gpu_prof_gui_util_percent": ("PROF_GR_ENGINE_ACTIVE", 100),
    "gpu_prof_sm_active": ("PROF_SM_ACTIVE", 100),
    "gpu_prof_occupancy_percent": ("PROF_SM_OCCUPANCY", 100),
    "gpu_prof_tensor_active_percent": ("PROF_PIPE_TENSOR_ACTIVE", 100),
}
_CLOCKS = {"system": "DEV_SM_CLOCK", "memory": "DEV_MEM_CLOCK"}
"""By label; one of each XCD of a GPU, of which the first stands."""
_WAITING = "amd:"
_LIMITS: Mapping[str, int] = {
    # Percent of the time since the reading before that a limit held clocks down: NVML's bit of the same reason.
    "gpu_violation_ppt_residency_percentage": SW_POWER_CAP,  # package power tracking
    "gpu_violation_processor_hot_residency_percentage": HW_SLOWDOWN,  # PROCHOT, from outside
    "gpu_violation_socket_thermal_residency_percentage": SW_THERMAL,
    "gpu_violation_vr_thermal_residency_percentage": HW_THERMAL,
    "gpu_violation_hbm_thermal_residency_percentage": SW_THERMAL,
}
_SPEEDS = {"pcie_speed": "DEV_PCIE_LINK_GEN", "pcie_max_speed": "DEV_PCIE_MAX_LINK_GEN"}
"""GT/s of a lane."""
_LINKS = ("gpu_xgmi_link_rx", "gpu_xgmi_link_tx")
"""Counters of each link, with the label `link_index`."""
_PARTS = {"gpu_clock": "clock_type", **dict.fromkeys(_LINKS, "link_index")}
_PREFIX = "amd_"
_REASONS, _TRAFFIC = "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL"
_FIRST_GT_S = 2.5
"""A lane of the first generation; each later one has about twice as much."""

NAMES = f"(?:{_PREFIX})?(?:{'|'.join(sorted([*_SAME, *_LIMITS, *_SPEEDS, *_PARTS]))})"
"""A regular expression of the metrics."""
_NAME = re.compile(NAMES)


def is_amd(metric: str) -> bool:
    """Whether a metric is one of AMD's that has a place in a recording."""
    return _NAME.fullmatch(metric) is not None


def naming_label(metric: str) -> str | None:
    """Return the label that says which reading a series of a metric is; None where the metric alone does."""
    return _PARTS.get(metric.removeprefix(_PREFIX))


def column_of(metric: str, part: str = "") -> tuple[str, float] | None:
    """Return column and divisor of a metric's samples, or None; `part` is the value of its `naming_label`."""
    name = metric.removeprefix(_PREFIX)
    if name in _SAME:
        column, units = _SAME[name]
        return f"DCGM_FI_{column}", units
    if name == "gpu_clock":
        clock = _CLOCKS.get(part.lower().removeprefix("gpu_clock_type_"))
        return (f"DCGM_FI_{clock}", 1) if clock else None
    if name in _LINKS:
        return (f"{_WAITING}{name}/{part}", 1) if part else None
    return (f"{_WAITING}{name}", 1) if name in _LIMITS or name in _SPEEDS else None


def generation_of(speed: float) -> int | None:
    """Return the generation of a PCIe link by the speed of its lanes in GT/s; None where that is none."""
    generation = float(_generations(np.array([speed]))[0])
    return int(generation) if 1 <= generation < 10 else None


def _generations(speeds: Any) -> Any:
    with np.errstate(divide="ignore", invalid="ignore"):
        return np.rint(np.log2(speeds / _FIRST_GT_S) + 1)


def folded(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return a batch of dcgm rows with the columns that waited made into the fields that they are parts of."""
    waiting = [name for name in batch.schema.names if name.startswith(_WAITING)]
    if not waiting:
        return batch
    made: dict[str, tuple[Any, Any]] = {}
    for column in waiting:
        cells: Any = batch.column(column)
        there = cells.is_valid().to_numpy(zero_copy_only=False)
        values = np.asarray(cells.fill_null(0).to_numpy(zero_copy_only=False), np.float64)
        name = column.removeprefix(_WAITING)
        if name in _SPEEDS:
            generation = _generations(values)
            made[f"DCGM_FI_{_SPEEDS[name]}"] = generation, there & (generation >= 1)
        elif name in _LIMITS:
            bits, known = made.get(_REASONS, (np.zeros(len(values), np.int64), np.zeros(len(values), np.bool_)))
            made[_REASONS] = bits | np.where(there & (values > 0), _LIMITS[name], 0), known | there
        else:
            total, known = made.get(_TRAFFIC, (np.zeros(len(values)), np.zeros(len(values), np.bool_)))
            made[_TRAFFIC] = total + values, known | there
    columns = {name: batch.column(name) for name in batch.schema.names if name not in waiting}
    for name, (values, there) in made.items():
        columns.setdefault(name, pa.array(np.where(there, values, 0).astype(np.float64), mask=~there))
    return pa.RecordBatch.from_pydict(columns)
