"""Which DCGM field holds the same as a reading of amd-smi, under the names that its JSON and its CSV have.

`metric` nests its JSON in groups (``power.socket_power``) and flattens them for its CSV (``socket_power``); `monitor`
is flat in both, and has other names. Units stand in the JSON alone; the CSV has those that the JSON would name.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from services.recording.importers.parts.series import amd_series
from services.recording.importers.parts.source_files import number_of

_EXPORTED: Mapping[str, tuple[str, str, float]] = {
    # amd-smi's name: the metric of the device-metrics-exporter that is the same reading, the label of its part, and
    # how many of the metric's units are one of amd-smi's
    "power.socket_power": ("gpu_package_power", "", 1),
    "energy.total_energy_consumption": ("gpu_energy_consumed", "", 1e6),  # J, and uJ
    "temperature.hotspot": ("gpu_junction_temperature", "", 1),
    "temperature.mem": ("gpu_memory_temperature", "", 1),
    "clock.gfx_0.clk": ("gpu_clock", "system", 1),
    "clock.mem_0.clk": ("gpu_clock", "memory", 1),
    "usage.gfx_activity": ("gpu_gfx_activity", "", 1),
    "usage.umc_activity": ("gpu_umc_activity", "", 1),
    "mem_usage.used_vram": ("gpu_used_vram", "", 1),
    "mem_usage.free_vram": ("gpu_free_vram", "", 1),
    "ecc.total_correctable_count": ("gpu_ecc_correct_total", "", 1),
    "ecc.total_uncorrectable_count": ("gpu_ecc_uncorrect_total", "", 1),
    "pcie.replay_count": ("pcie_replay_count", "", 1),
    "pcie.speed": ("pcie_speed", "", 1),
    **{
        # 6.3 calls them percent, later releases activity
        f"throttle.{limit}_violation_{word}": (f"gpu_violation_{metric}_residency_percentage", "", 1)
        for limit, metric in (
            ("prochot", "processor_hot"), ("ppt", "ppt"), ("socket_thermal", "socket_thermal"),
            ("vr_thermal", "vr_thermal"), ("hbm_thermal", "hbm_thermal"),
        )
        for word in ("percent", "activity")
    },
}  # fmt: skip
_EDGE = "temperature.edge"
"""What limits is the hot spot; the MI200 series reports the edge alone."""
_DIRECT: Mapping[str, str] = {
    # What the exporter has no metric for.
    "pcie.width": "DCGM_FI_DEV_PCIE_LINK_WIDTH",
    "mem_usage.total_vram": "DCGM_FI_DEV_FB_TOTAL",
    "clock.gfx_0.max_clk": "DCGM_FI_DEV_MAX_SM_CLOCK",
    "clock.mem_0.max_clk": "DCGM_FI_DEV_MAX_MEM_CLOCK",
    "max_power": "DCGM_FI_DEV_ENFORCED_POWER_LIMIT",
}
_MONITOR: Mapping[str, str] = {
    # What monitor calls it: what metric does.
    "power_usage": "power.socket_power", "hotspot_temperature": "temperature.hotspot",
    "memory_temperature": "temperature.mem", "gfx_clk": "clock.gfx_0.clk", "gfx": "usage.gfx_activity",
    "mem": "usage.umc_activity", "mem_clock": "clock.mem_0.clk", "single_bit_ecc": "ecc.total_correctable_count",
    "double_bit_ecc": "ecc.total_uncorrectable_count", "pcie_replay": "pcie.replay_count",
    "vram_used": "mem_usage.used_vram", "vram_free": "mem_usage.free_vram", "vram_total": "mem_usage.total_vram",
    "max_power": "max_power", "pviol": "throttle.ppt_violation_activity",
    "tviol": "throttle.socket_thermal_violation_activity", "phot_tviol": "throttle.prochot_violation_activity",
    "vr_tviol": "throttle.vr_thermal_violation_activity", "hbm_tviol": "throttle.hbm_thermal_violation_activity",
}  # fmt: skip
_UNITS = {"W": 1.0, "MHz": 1.0, "C": 1.0, "%": 1.0, "MB": 1.0, "GB": 1024.0, "GT/s": 1.0, "J": 1.0, "": 1.0}
_AMBIGUOUS = {"speed", "max", "usage", "bandwidth"}
"""Columns of a flattened table that more than one group has: a fan's speed overwrites that of the link."""
KEYS = {"gpu", "timestamp", "xcp"}
NOT_THERE = {"N/A", "", None}

_KNOWN = {*_EXPORTED, *_DIRECT, _EDGE}


def _flattened(name: str) -> str:
    """Return what the CSV calls a reading of metric: a clock keeps its group's member, all else its last part."""
    group, _, rest = name.partition(".")
    return rest.replace(".", "_") if group == "clock" else rest or group


_BY_COLUMN = {_flattened(name): name for name in sorted(_KNOWN) if _flattened(name) not in _AMBIGUOUS}


def is_table(header: list[str]) -> bool:
    """Whether a line's cells are the header of a table of metric or monitor."""
    names = {cell.strip() for cell in header}
    return "gpu" in names and bool(names & (_BY_COLUMN.keys() | _MONITOR.keys()))


def named(header: list[str]) -> list[str]:
    """Return by which of metric's names the columns of a CSV are known; as they are, where by none."""
    cells = [cell.strip() for cell in header]
    monitors = not {"hotspot", "socket_power", "gfx_activity"} & set(cells)
    # monitor prints memory in MB beside what is free, and else, without saying so, in GB or MB by its release
    whole = "vram_free" in cells or "vram_percent" in cells
    known = {name: full for name, full in _MONITOR.items() if whole or not name.startswith("vram_")}
    return [(known if monitors else _BY_COLUMN).get(cell, cell) for cell in cells]


def leaves(entry: Mapping[str, Any], above: str = "") -> Iterator[tuple[str, object, str]]:
    """Yield name, value and unit of what a GPU's entry in the JSON holds, under the names of metric."""
    for key, value in entry.items():
        name = f"{above}{key}"
        if isinstance(value, dict) and "value" in value:
            yield _MONITOR.get(name, name), value["value"], str(value.get("unit", ""))
        elif isinstance(value, dict):
            yield from leaves(value, f"{name}.")
        elif not isinstance(value, list):
            yield _MONITOR.get(name, name), value, ""


def reading(name: str, value: object, unit: str = "") -> tuple[str, float] | str | None:
    """Return column and value of a reading; why it is left out; None where amd-smi has no value itself.

    Columns are those of `amd_series`, whose `folded` makes fields of those that wait.
    """
    if name in KEYS or (isinstance(value, str) and value.strip() in NOT_THERE) or value is None:
        return None
    if name not in _KNOWN:
        return "" if number_of(value) is None else re.sub(r"\d+", "*", name)
    number = number_of(value)
    if number is None or unit not in _UNITS:
        return f"a reading that is no number in a unit that is known: {name}"
    number *= _UNITS[unit]
    if name in _DIRECT:
        return _DIRECT[name], number
    metric, part, factor = _EXPORTED[name] if name != _EDGE else ("gpu_edge_temperature", "", 1.0)
    found = amd_series.column_of(metric, part)
    return None if found is None else (found[0], number * factor / found[1])
