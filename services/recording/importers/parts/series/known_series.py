"""What a series of the usual exporters is in a recording: stream and column by its name, and the value's unit.

hindcast's own names come from the table that its sink names series by, read backwards; beside it, the other names
under which exporters give the same readings.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache

from services.kit.series import table
from services.recording.importers.parts.series import amd_series

RENAMED_FIELDS: Mapping[str, str] = {
    # DCGM 4.6 and its alias section "renamed per DCGM Field Naming Standard": new name to classic one.
    "DEV_GPU_TEMP_CELSIUS": "DEV_GPU_TEMP",
    "DEV_MEMORY_TEMP_CELSIUS": "DEV_MEMORY_TEMP",
    "DEV_GPU_TEMP_MARGIN_CELSIUS": "DEV_GPU_TEMP_LIMIT",
    "DEV_GPU_TEMP_SLOWDOWN_CELSIUS": "DEV_SLOWDOWN_TEMP",
    "DEV_GPU_TEMP_SHUTDOWN_CELSIUS": "DEV_SHUTDOWN_TEMP",
    "DEV_BOARD_POWER_WATTS": "DEV_POWER_USAGE",
    "DEV_BOARD_POWER_RAW_WATTS": "DEV_POWER_USAGE_INSTANT",
    "DEV_BOARD_POWER_LIMIT_REQUESTED_WATTS": "DEV_POWER_MGMT_LIMIT",
    "DEV_BOARD_POWER_LIMIT_ENFORCED_WATTS": "DEV_ENFORCED_POWER_LIMIT",
    "DEV_XID_ERROR": "DEV_XID_ERRORS",
    "DEV_PCIE_REPLAY_TOTAL": "DEV_PCIE_REPLAY_COUNTER",
    # The same field under another name, so percent still, whatever the name says.
    "DEV_GPU_UTIL_RATIO": "DEV_GPU_UTIL",
    "DEV_ROW_REMAP_UNCORRECTABLE_TOTAL": "DEV_UNCORRECTABLE_REMAPPED_ROWS",
    "DEV_ROW_REMAP_CORRECTABLE_TOTAL": "DEV_CORRECTABLE_REMAPPED_ROWS",
    "DEV_ROW_REMAP_FAILED": "DEV_ROW_REMAP_FAILURE",
    "DEV_PAGE_RETIRED_SBE_TOTAL": "DEV_RETIRED_SBE",
    "DEV_PAGE_RETIRED_DBE_TOTAL": "DEV_RETIRED_DBE",
    "DEV_PAGE_RETIRED_PENDING": "DEV_RETIRED_PENDING",
    "DEV_CLOCKS_EVENT_REASONS": "DEV_CLOCK_THROTTLE_REASONS",
    "DEV_NVLINK_RECOVERY_EVENT_TOTAL": "DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS",
    "DEV_NVLINK_THROUGHPUT_TOTAL": "DEV_NVLINK_BANDWIDTH_TOTAL",
    "PROF_GR_ENGINE_UTIL_RATIO": "PROF_GR_ENGINE_ACTIVE",
    "PROF_SM_UTIL_RATIO": "PROF_SM_ACTIVE",
    "PROF_SM_OCCUPANCY_RATIO": "PROF_SM_OCCUPANCY",
    "PROF_TENSOR_UTIL_RATIO": "PROF_PIPE_TENSOR_ACTIVE",
    "PROF_DRAM_UTIL_RATIO": "PROF_DRAM_ACTIVE",
}
"""DCGM fields that have two names, without ``DCGM_FI_``."""

_MEGA, _MEBI = 1e6, 1 << 20
_BASE_UNITS: Mapping[str, tuple[str, float]] = {
    # DCGM 4.7, fields 1600 to 1612, which dcgm-exporter 4.9 exports: new name to classic one, and what one of the
    # classic field's units is in the new one's (hertz a megahertz, joules a millijoule, bytes a mebibyte).
    "DEV_SM_CLOCK_HERTZ": ("DEV_SM_CLOCK", _MEGA),
    "DEV_MEMORY_CLOCK_HERTZ": ("DEV_MEM_CLOCK", _MEGA),
    "DEV_VIDEO_CLOCK_HERTZ": ("DEV_VIDEO_CLOCK", _MEGA),
    "DEV_SM_APP_CLOCK_HERTZ": ("DEV_APP_SM_CLOCK", _MEGA),
    "DEV_MEMORY_APP_CLOCK_HERTZ": ("DEV_APP_MEM_CLOCK", _MEGA),
    "DEV_SM_MAX_CLOCK_HERTZ": ("DEV_MAX_SM_CLOCK", _MEGA),
    "DEV_MEMORY_MAX_CLOCK_HERTZ": ("DEV_MAX_MEM_CLOCK", _MEGA),
    "DEV_VIDEO_MAX_CLOCK_HERTZ": ("DEV_MAX_VIDEO_CLOCK", _MEGA),
    "DEV_GPU_ENERGY_JOULES_TOTAL": ("DEV_TOTAL_ENERGY_CONSUMPTION", 1e-3),
    "DEV_FAN_SPEED_RATIO": ("DEV_FAN_SPEED", 0.01),
    "DEV_BAR1_CAPACITY_BYTES": ("DEV_BAR1_TOTAL", _MEBI),
    "DEV_BAR1_USED_BYTES": ("DEV_BAR1_USED", _MEBI),
    "DEV_BAR1_FREE_BYTES": ("DEV_BAR1_FREE", _MEBI),
    "DEV_FB_CAPACITY_BYTES": ("DEV_FB_TOTAL", _MEBI),
    "DEV_FB_USED_BYTES": ("DEV_FB_USED", _MEBI),
    "DEV_FB_FREE_BYTES": ("DEV_FB_FREE", _MEBI),
    "DEV_FB_RESERVED_BYTES": ("DEV_FB_RESERVED", _MEBI),
}

_OLD_NAMESPACE: Mapping[str, str] = {
    # dcgm-exporter before version 2 (and `--use-old-namespace`): dcgm_NAME.
    "sm_clock": "DEV_SM_CLOCK",
    "memory_clock": "DEV_MEM_CLOCK",
    "memory_temp": "DEV_MEMORY_TEMP",
    "gpu_temp": "DEV_GPU_TEMP",
    "power_usage": "DEV_POWER_USAGE",
    "total_energy_consumption": "DEV_TOTAL_ENERGY_CONSUMPTION",
    "pcie_replay_counter": "DEV_PCIE_REPLAY_COUNTER",
    "gpu_utilization": "DEV_GPU_UTIL",
    "mem_copy_utilization": "DEV_MEM_COPY_UTIL",
    "enc_utilization": "DEV_ENC_UTIL",
    "dec_utilization": "DEV_DEC_UTIL",
    "xid_errors": "DEV_XID_ERRORS",
    "power_violation": "DEV_POWER_VIOLATION",
    "thermal_violation": "DEV_THERMAL_VIOLATION",
    "sync_boost_violation": "DEV_SYNC_BOOST_VIOLATION",
    "board_limit_violation": "DEV_BOARD_LIMIT_VIOLATION",
    "low_util_violation": "DEV_LOW_UTIL_VIOLATION",
    "reliability_violation": "DEV_RELIABILITY_VIOLATION",
    "fb_free": "DEV_FB_FREE",
    "fb_used": "DEV_FB_USED",
    "ecc_sbe_volatile_total": "DEV_ECC_SBE_VOL_TOTAL",
    "ecc_dbe_volatile_total": "DEV_ECC_DBE_VOL_TOTAL",
    "ecc_sbe_aggregate_total": "DEV_ECC_SBE_AGG_TOTAL",
    "ecc_dbe_aggregate_total": "DEV_ECC_DBE_AGG_TOTAL",
    "retired_pages_sbe": "DEV_RETIRED_SBE",
    "retired_pages_dbe": "DEV_RETIRED_DBE",
    "retired_pages_pending": "DEV_RETIRED_PENDING",
}

_SYSFS_NAMES: Mapping[str, str] = {
    # node_exporter's names of port counters that the table does not list, without node_infiniband_ and _total.
    "multicast_packets_received": "multicast_rcv_packets",
    "multicast_packets_transmitted": "multicast_xmit_packets",
    "unicast_packets_received": "unicast_rcv_packets",
    "unicast_packets_transmitted": "unicast_xmit_packets",
    "port_constraint_errors_received": "port_rcv_constraint_errors",
    "port_constraint_errors_transmitted": "port_xmit_constraint_errors",
    "port_receive_remote_physical_errors": "port_rcv_remote_physical_errors",
    "port_receive_switch_relay_errors": "port_rcv_switch_relay_errors",
}

_DCMI_POWER = ("ipmi_dcmi_power_consumption_current_watts", "ipmi_dcmi_power_consumption_watts")
_FIELD = re.compile(r"DCGM_FI_(?P<name>(?:DEV|PROF)_[A-Z0-9_]+)")
_GROUP = re.compile(r"\(\?P<(\w+)>[^)]*\)")
_SAI = re.compile(r"(if|ether|ip|ipv6|pfc|pause|wred|green|yellow|red|ecn|in|out|no|eee|trim)_")
"""How SAI port statistics begin: what a name without its upper-case prefix is recognised by."""


@dataclass(frozen=True)
class Reading:
    """Where a metric's samples go: the column's value is ``(sample - offset) / scale``.

    `unit` and `sensor` are given for a management controller's: the unit comes from the metric, and a metric that is
    itself a sensor names it.
    """

    stream: str
    column: str
    scale: float = 1.0
    offset: float = 0.0
    unit: str = ""
    sensor: str = ""


_HEADS = ("DCGM_FI", "DCGM_EXP_XID_ERRORS", "dcgm", "node_infiniband", "sonic_interface", "ipmi", "hindcast_job")
KNOWN_METRICS = "|".join(f"{head}_.+" for head in _HEADS) + f"|hindcast_storage_.+|{amd_series.NAMES}"
"""A regular expression of the metric names that are worth asking a server for."""


@cache
def stream_of(metric: str) -> str | None:
    """Return the stream that a metric belongs to, None where a recording has no place for it."""
    if metric in _patterns():
        return _patterns()[metric][0]
    if amd_series.is_amd(metric):
        return "dcgm"
    found = reading_of(metric)
    return found.stream if found else None


@cache
def reading_of(metric: str, more: tuple[tuple[str, str], ...] = ()) -> Reading | None:
    """Return what a metric's samples are, None where a recording has no place for them.

    `more` are those labels that are part of the column's name (see `naming_labels`).
    """
    patterns = _patterns().get(metric)
    if patterns:
        stream, match = patterns
        column = _GROUP.sub(lambda group: dict(more).get(group[1], "?"), match)
        return Reading(stream, column) if re.fullmatch(match, column) else None
    known = _columns().get(metric)
    if known:
        return known
    if metric in _DCMI_POWER:
        return Reading("bmc", "reading", unit="W", sensor="dcmi_power")
    if amd_series.is_amd(metric):
        found = amd_series.column_of(metric, dict(more).get(amd_series.naming_label(metric) or "", ""))
        return Reading("dcgm", *found) if found else None
    return _dcgm(metric) or _by_rule(metric)


def naming_labels(metric: str, labels: Mapping[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the labels of a series that say which column it is, such as the priority of a PFC counter."""
    patterns = _patterns().get(metric)
    if patterns is None:
        label = amd_series.naming_label(metric)
        return ((label, labels.get(label, "")),) if label else ()
    return tuple((name, labels.get(name, "")) for name in _GROUP.findall(patterns[1]))


def _dcgm(metric: str) -> Reading | None:
    field = _FIELD.fullmatch(metric)
    if field and field["name"] in _BASE_UNITS:
        classic, scale = _BASE_UNITS[field["name"]]
        return Reading("dcgm", f"DCGM_FI_{classic}", scale)
    if field:
        return Reading("dcgm", f"DCGM_FI_{RENAMED_FIELDS.get(field['name'], field['name'])}")
    old = _OLD_NAMESPACE.get(metric.removeprefix("dcgm_")) if metric.startswith("dcgm_") else None
    return Reading("dcgm", f"DCGM_FI_{old}") if old else None


def _by_rule(metric: str) -> Reading | None:
    """Return what a metric is by the name that columns get which the table does not list."""
    for name, stream in table().streams.items():
        head, _, tail = stream.otherwise.partition("{snake}")
        if not tail and not stream.otherwise.endswith("{snake}"):
            continue
        snake = metric[len(head) : len(metric) - len(tail)]
        if name == "bmc" or not (metric.startswith(head) and metric.endswith(tail) and snake):
            continue
        sai = name == "switch" and _SAI.match(snake)
        return Reading(name, f"SAI_PORT_STAT_{snake.upper()}" if sai else _SYSFS_NAMES.get(snake, snake))
    return None


@cache
def _columns() -> dict[str, Reading]:
    """Return the table's columns by metric."""
    found: dict[str, Reading] = {}
    for name, stream in table().streams.items():
        for column, rule in stream.columns.items():
            if column not in ("reading", "state") or name != "bmc":
                found[rule.metric] = Reading(name, column, rule.scale, rule.offset)
        for unit, metrics in stream.by_unit.items():
            for column, metric in metrics.items():
                found[metric] = Reading(name, column, unit=unit)
    return found


@cache
def _patterns() -> dict[str, tuple[str, str]]:
    """Return stream and regular expression of the columns that share a metric."""
    return {rule.metric: (name, rule.match) for name, stream in table().streams.items() for rule in stream.patterns}
