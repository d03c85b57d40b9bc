"""Which DCGM field holds the same as a line of nvidia-smi's log, in all the forms that the log has had.

Names of the XML (driver 430 to 595: ``clocks_throttle_reasons`` became ``clocks_event_reasons``, ``power_readings``
became ``gpu_power_readings``, error counts were split) and of the text. Units are DCGM's: MHz, °C, W, MiB, %, and ns
where nvidia-smi counts us.
"""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from services.recording.importers.parts.machines.clock_reasons import REASONS
from services.recording.importers.parts.machines.smi_log import SmiLog
from services.recording.importers.parts.moments import MONTH, MONTHS

_POWER = ("gpu_power_readings", "GPU Power Readings", "power_readings", "Power Readings")
_GEN = ("pci/pci_gpu_link_info/pcie_gen/{}_link_gen", "PCI/GPU Link Info/PCIe Generation/{}")
_WIDTH = ("pci/pci_gpu_link_info/link_widths/{}_link_width", "PCI/GPU Link Info/Link Width/{}")

FIELDS: Mapping[str, Sequence[str]] = {
    "SM_CLOCK": ("clocks/sm_clock", "Clocks/SM"),
    "MEM_CLOCK": ("clocks/mem_clock", "Clocks/Memory"),
    "MAX_SM_CLOCK": ("max_clocks/sm_clock", "Max Clocks/SM"),
    "MAX_MEM_CLOCK": ("max_clocks/mem_clock", "Max Clocks/Memory"),
    "GPU_TEMP": ("temperature/gpu_temp", "Temperature/GPU Current Temp"),
    "MEMORY_TEMP": ("temperature/memory_temp", "Temperature/Memory Current Temp"),
    "GPU_TEMP_LIMIT": ("temperature/gpu_temp_tlimit", "Temperature/GPU T.Limit Temp"),
    "SLOWDOWN_TEMP": ("temperature/gpu_temp_slow_threshold", "Temperature/GPU Slowdown Temp"),
    "SHUTDOWN_TEMP": ("temperature/gpu_temp_max_threshold", "Temperature/GPU Shutdown Temp"),
    "GPU_MAX_OP_TEMP": ("temperature/gpu_temp_max_gpu_threshold", "Temperature/GPU Max Operating Temp"),
    "MEM_MAX_OP_TEMP": ("temperature/gpu_temp_max_mem_threshold", "Temperature/Memory Max Operating Temp"),
    "POWER_USAGE": tuple(
        f"{group}/{name}"
        for group in _POWER
        for name in ("average_power_draw", "Average Power Draw", "power_draw", "Power Draw")
    ),
    "POWER_USAGE_INSTANT": (
        "gpu_power_readings/instant_power_draw",
        "GPU Power Readings/Instantaneous Power Draw",
        "GPU Power Readings/Instant Power Draw",
    ),
    "POWER_MGMT_LIMIT": tuple(
        f"{group}/{name}"
        for group in _POWER
        for name in ("requested_power_limit", "Requested Power Limit", "power_limit", "Power Limit")
    ),
    "ENFORCED_POWER_LIMIT": tuple(
        f"{group}/{name}"
        for group in _POWER
        for name in ("enforced_power_limit", "Enforced Power Limit", "current_power_limit", "Current Power Limit")
    ),
    "PCIE_LINK_GEN": (_GEN[0].format("current"), _GEN[1].format("Current")),
    "PCIE_LINK_WIDTH": (_WIDTH[0].format("current"), _WIDTH[1].format("Current")),
    "PCIE_MAX_LINK_GEN": (_GEN[0].format("max"), _GEN[1].format("Max")),
    "PCIE_MAX_LINK_WIDTH": (_WIDTH[0].format("max"), _WIDTH[1].format("Max")),
    "PCIE_REPLAY_COUNTER": ("pci/replay_counter", "PCI/Replays Since Reset"),
    "PCIE_TX_THROUGHPUT": ("pci/tx_util", "PCI/Tx Throughput"),
    "PCIE_RX_THROUGHPUT": ("pci/rx_util", "PCI/Rx Throughput"),
    "GPU_UTIL": ("utilization/gpu_util", "Utilization/Gpu", "Utilization/GPU"),
    "MEM_COPY_UTIL": ("utilization/memory_util", "Utilization/Memory"),
    "ENC_UTIL": ("utilization/encoder_util", "Utilization/Encoder"),
    "DEC_UTIL": ("utilization/decoder_util", "Utilization/Decoder"),
    "FB_TOTAL": ("fb_memory_usage/total", "FB Memory Usage/Total"),
    "FB_FREE": ("fb_memory_usage/free", "FB Memory Usage/Free"),
    "FB_USED": ("fb_memory_usage/used", "FB Memory Usage/Used"),
    "FB_RESERVED": ("fb_memory_usage/reserved", "FB Memory Usage/Reserved"),
    "FAN_SPEED": ("fan_speed", "Fan Speed"),
    "PSTATE": ("performance_state", "Performance State"),
    "RETIRED_SBE": (
        "retired_pages/multiple_single_bit_retirement/retired_count",
        "Retired Pages/Single Bit ECC",
    ),
    "RETIRED_DBE": ("retired_pages/double_bit_retirement/retired_count", "Retired Pages/Double Bit ECC"),
    "RETIRED_PENDING": (
        "retired_pages/pending_retirement",
        "retired_pages/pending_blacklist",
        "Retired Pages/Pending Page Blacklist",
    ),
    "CORRECTABLE_REMAPPED_ROWS": ("remapped_rows/remapped_row_corr", "Remapped Rows/Correctable Error"),
    "UNCORRECTABLE_REMAPPED_ROWS": ("remapped_rows/remapped_row_unc", "Remapped Rows/Uncorrectable Error"),
    "ROW_REMAP_PENDING": ("remapped_rows/remapped_row_pending", "Remapped Rows/Pending"),
    "ROW_REMAP_FAILURE": ("remapped_rows/remapped_row_failure", "Remapped Rows/Remapping Failure Occurred"),
} | {
    f"BANKS_REMAP_ROWS_AVAIL_{level.upper()}": (
        f"remapped_rows/row_remapper_histogram/row_remapper_histogram_{level}",
        f"Remapped Rows/Bank Remap Availability Histogram/{level.capitalize()}",
    )
    for level in ("max", "high", "partial", "low", "none")
}
"""DCGM field (without ``DCGM_FI_DEV_``) to the paths that may have it, the first that is there counts."""

_ERRORS = ("ecc_errors", "ECC Errors", "Ecc Errors")
_SPANS = {"VOL": ("volatile", "Volatile"), "AGG": ("aggregate", "Aggregate")}
_COUNTS: Mapping[str, Sequence[Sequence[str]]] = {
    # One total of older drivers, or the sum of what newer ones list.
    "SBE": (
        ("single_bit/total", "Single Bit/Total"),
        ("sram_correctable", "dram_correctable", "SRAM Correctable", "DRAM Correctable"),
    ),
    "DBE": (
        ("double_bit/total", "Double Bit/Total"),
        (
            "sram_uncorrectable", "sram_uncorrectable_parity", "sram_uncorrectable_secded", "dram_uncorrectable",
            "SRAM Uncorrectable", "SRAM Uncorrectable Parity", "SRAM Uncorrectable SEC-DED", "DRAM Uncorrectable",
        ),
    ),
}  # fmt: skip

_REASON_GROUPS = (
    "clocks_event_reasons/clocks_event_reason_",
    "clocks_throttle_reasons/clocks_throttle_reason_",
    "Clocks Event Reasons/",
    "Clocks Throttle Reasons/",
)
_COUNTERS: Mapping[str, Sequence[str]] = {
    # DCGM counts the first of them in POWER_VIOLATION too.
    "POWER_VIOLATION": ("sw_power_cap", "SW Power Capping"),
    "CLOCKS_EVENT_REASON_SW_POWER_CAP_NS": ("sw_power_cap", "SW Power Capping"),
    "CLOCKS_EVENT_REASON_SYNC_BOOST_NS": ("sync_boost", "Sync Boost"),
    "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS": ("sw_therm_slowdown", "SW Thermal Slowdown"),
    "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS": ("hw_therm_slowdown", "HW Thermal Slowdown"),
    "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS": ("hw_power_brake", "HW Power Braking"),
}
_COUNTER_GROUPS = (
    "clocks_event_reasons_counters/clocks_event_reasons_counters_",
    "Clocks Event Reasons Counters/",
)
NOT_THERE = re.compile(
    r"|\[?(?:N/A|Not Supported|Not Available|GPU requires reset|Insufficient Permissions)\]?"
    r"|Requested functionality has been deprecated|None",
    re.IGNORECASE,
)
_NUMBER = re.compile(r"P?(-?\d{1,18}(?:\.\d{1,9})?)(?:x|(?: (?:C|W|MHz|MiB|%|KB/s|us|bank\(s\))))?")
_FLAGS = {"yes": 1.0, "no": 0.0, "active": 1.0, "not active": 0.0}
_TIME = re.compile(
    rf"[A-Za-z]{{3}} {MONTH} {{1,2}}(?P<day>\d{{1,2}}) (?P<h>\d\d):(?P<m>\d\d):(?P<s>\d\d) (?P<year>\d{{4}})"
)


def moment_of(log: SmiLog) -> datetime | None:
    """Return when a log was printed, by the machine's clock; None where it does not say so."""
    found = _TIME.fullmatch(log.fields.get("timestamp") or log.fields.get("Timestamp") or "")
    if found is None:
        return None
    day, hour, minute, second = (int(found[name]) for name in ("day", "h", "m", "s"))
    try:
        return datetime(int(found["year"]), MONTHS[found["month"]], day, hour, minute, second)  # noqa: DTZ001 - its zone is the caller's
    except ValueError:
        return None


def is_whole(log: SmiLog) -> bool:
    """Return whether a log has all GPUs of the machine, so that a GPU's place is its number."""
    stated = log.fields.get("attached_gpus") or log.fields.get("Attached GPUs") or ""
    return not stated.isdigit() or stated == str(len(log.gpus))


def readings_of(fields: Mapping[str, str], left: Counter[str]) -> dict[str, float]:
    """Return a GPU's readings by DCGM field; in `left`, what could not be read and how often."""
    found: dict[str, float | None] = {}
    for name, paths in FIELDS.items():
        found[name] = _first(fields, paths, left)
    for span, words in _SPANS.items():
        for kind, ways in _COUNTS.items():
            found[f"ECC_{kind}_{span}_TOTAL"] = _errors(fields, words, ways, left)
    found["CLOCK_THROTTLE_REASONS"] = _reasons(fields, left)
    for name, ends in _COUNTERS.items():
        us = _first(fields, [group + end for group in _COUNTER_GROUPS for end in ends], left)
        found[name] = None if us is None else us * 1000
    return {f"DCGM_FI_DEV_{name}": value for name, value in found.items() if value is not None}


def facts_of(fields: Mapping[str, str]) -> dict[str, Any]:
    """Return what topology.json says of a GPU, and its ``minor`` number and ``model``, where the log has them."""
    quiet: Counter[str] = Counter()
    texts = {
        "uuid": ("uuid", "GPU UUID"),
        "pci_bus_id": ("pci/pci_bus_id", "PCI/Bus Id", "id"),
        "model": ("product_name", "Product Name"),
    }
    numbers: dict[str, Sequence[str]] = {
        "minor": ("minor_number", "Minor Number"),
        "pcie_gen": FIELDS["PCIE_MAX_LINK_GEN"],
        "pcie_width": FIELDS["PCIE_MAX_LINK_WIDTH"],
        "power_limit_w": [
            f"{group}/{name}" for group in _POWER for name in ("default_power_limit", "Default Power Limit")
        ],
    }
    found: dict[str, Any] = {}
    for name, paths in texts.items():
        value = next((fields[path] for path in paths if fields.get(path)), "")
        if not NOT_THERE.fullmatch(value):
            found[name] = value[:200]
    for name, wanted in numbers.items():
        number = _first(fields, wanted, quiet)
        if number is not None and 0 <= number < 2**31:
            found[name] = number if name == "power_limit_w" else int(number)
    return found


def _first(fields: Mapping[str, str], paths: Sequence[str], left: Counter[str]) -> float | None:
    for path in paths:
        if path in fields:
            number = _number(fields[path], path, left)
            if number is not None:
                return number
    return None


def value_of(text: str) -> float | None:
    """Return a reading as nvidia-smi prints it, with its unit or without; None where it is neither number nor flag."""
    if text.lower() in _FLAGS:
        return _FLAGS[text.lower()]
    found = _NUMBER.fullmatch(text)
    return None if found is None else float(found[1])


def _number(text: str, path: str, left: Counter[str]) -> float | None:
    if NOT_THERE.fullmatch(text):
        return None
    number = value_of(text)
    if number is None:
        left[f"a reading that is no number: {path}"] += 1
    return number


def _errors(
    fields: Mapping[str, str], spans: Sequence[str], ways: Sequence[Sequence[str]], left: Counter[str]
) -> float | None:
    for ends in ways:
        counts = [
            _number(fields[path], path, left)
            for group in _ERRORS
            for span in spans
            for end in ends
            if (path := f"{group}/{span}/{end}") in fields
        ]
        there = [count for count in counts if count is not None]
        if there:
            return sum(there)
    return None


def _reasons(fields: Mapping[str, str], left: Counter[str]) -> float | None:
    mask: int | None = None
    for bit, ends in REASONS.items():
        active = _first(fields, [group + end for group in _REASON_GROUPS for end in ends], left)
        if active is not None:
            mask = (mask or 0) | (bit if active else 0)
    return None if mask is None else float(mask)
