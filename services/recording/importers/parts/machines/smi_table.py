"""Reads tables of nvidia-smi: ``--query-gpu=... --format=csv`` and ``dmon``, whatever columns they have, row by row.

Columns are known by their names, in every spelling that drivers gave them; a column that holds none of DCGM's fields is
named to the caller, never guessed. Units are DCGM's: MHz, °C, W, MiB, %, and ns where nvidia-smi counts us.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import UTC, datetime

from services.recording.importers.parts.machines.clock_reasons import BIT_OF
from services.recording.importers.parts.machines.smi_fields import NOT_THERE, value_of

_ALIASES = {
    "gpu_name": "name", "gpu_uuid": "uuid", "gpu_bus_id": "pci.bus_id", "clocks.sm": "clocks.current.sm",
    "clocks.mem": "clocks.current.memory", "pcie.link.gen.gpucurrent": "pcie.link.gen.current",
    "pcie.link.gen.hostmax": "pcie.link.gen.host", "clocks.max.mem": "clocks.max.memory",
}  # fmt: skip
_FACTS = {"index": "index", "uuid": "uuid", "pci.bus_id": "pci_bus_id", "name": "model"}
_QUERY: Mapping[str, str] = {
    # What --query-gpu calls it: DCGM's field without DCGM_FI_DEV_.
    "clocks.current.sm": "SM_CLOCK", "clocks.current.memory": "MEM_CLOCK", "clocks.max.sm": "MAX_SM_CLOCK",
    "clocks.max.memory": "MAX_MEM_CLOCK", "temperature.gpu": "GPU_TEMP", "temperature.memory": "MEMORY_TEMP",
    "temperature.gpu.tlimit": "GPU_TEMP_LIMIT", "power.draw": "POWER_USAGE", "power.draw.average": "POWER_USAGE",
    "power.draw.instant": "POWER_USAGE_INSTANT", "power.limit": "POWER_MGMT_LIMIT",
    "enforced.power.limit": "ENFORCED_POWER_LIMIT", "pcie.link.gen.current": "PCIE_LINK_GEN",
    "pcie.link.gen.max": "PCIE_MAX_LINK_GEN", "pcie.link.width.current": "PCIE_LINK_WIDTH",
    "pcie.link.width.max": "PCIE_MAX_LINK_WIDTH", "utilization.gpu": "GPU_UTIL",
    "utilization.memory": "MEM_COPY_UTIL", "utilization.encoder": "ENC_UTIL", "utilization.decoder": "DEC_UTIL",
    "memory.total": "FB_TOTAL", "memory.free": "FB_FREE", "memory.used": "FB_USED", "memory.reserved": "FB_RESERVED",
    "fan.speed": "FAN_SPEED", "pstate": "PSTATE", "clocks_event_reasons.active": "CLOCK_THROTTLE_REASONS",
    "retired_pages.single_bit_ecc.count": "RETIRED_SBE", "retired_pages.double_bit.count": "RETIRED_DBE",
    "retired_pages.pending": "RETIRED_PENDING", "remapped_rows.correctable": "CORRECTABLE_REMAPPED_ROWS",
    "remapped_rows.uncorrectable": "UNCORRECTABLE_REMAPPED_ROWS", "remapped_rows.pending": "ROW_REMAP_PENDING",
    "remapped_rows.failure": "ROW_REMAP_FAILURE", "ecc.errors.corrected.volatile.total": "ECC_SBE_VOL_TOTAL",
    "ecc.errors.corrected.aggregate.total": "ECC_SBE_AGG_TOTAL",
    "ecc.errors.uncorrected.volatile.total": "ECC_DBE_VOL_TOTAL",
    "ecc.errors.uncorrected.aggregate.total": "ECC_DBE_AGG_TOTAL",
    "clocks_event_reasons_counters.sw_power_cap": "POWER_VIOLATION",
    "clocks_event_reasons_counters.sw_thermal_slowdown": "CLOCKS_EVENT_REASON_SW_THERM_SLOWDOWN_NS",
    "clocks_event_reasons_counters.hw_thermal_slowdown": "CLOCKS_EVENT_REASON_HW_THERM_SLOWDOWN_NS",
    "clocks_event_reasons_counters.hw_power_brake_slowdown": "CLOCKS_EVENT_REASON_HW_POWER_BRAKE_SLOWDOWN_NS",
    "clocks_event_reasons_counters.sync_boost": "CLOCKS_EVENT_REASON_SYNC_BOOST_NS",
}  # fmt: skip
_DMON: Mapping[str, tuple[str, float]] = {
    # dmon's column: DCGM's field without DCGM_FI_, and what its value is multiplied by.
    "pwr": ("DEV_POWER_USAGE", 1), "gtemp": ("DEV_GPU_TEMP", 1), "mtemp": ("DEV_MEMORY_TEMP", 1),
    "sm": ("DEV_GPU_UTIL", 1), "mem": ("DEV_MEM_COPY_UTIL", 1), "enc": ("DEV_ENC_UTIL", 1), "dec": ("DEV_DEC_UTIL", 1),
    "mclk": ("DEV_MEM_CLOCK", 1), "pclk": ("DEV_SM_CLOCK", 1), "fb": ("DEV_FB_USED", 1),
    "sbecc": ("DEV_ECC_SBE_AGG_TOTAL", 1), "dbecc": ("DEV_ECC_DBE_AGG_TOTAL", 1), "pci": ("DEV_PCIE_REPLAY_COUNTER", 1),
    "gract": ("PROF_GR_ENGINE_ACTIVE", 0.01), "smutil": ("PROF_SM_ACTIVE", 0.01), "smocc": ("PROF_SM_OCCUPANCY", 0.01),
    "mmaact": ("PROF_PIPE_TENSOR_ACTIVE", 0.01), "dram": ("PROF_DRAM_ACTIVE", 0.01),
    "fp64": ("PROF_PIPE_FP64_ACTIVE", 0.01), "fp32": ("PROF_PIPE_FP32_ACTIVE", 0.01),
    "fp16": ("PROF_PIPE_FP16_ACTIVE", 0.01), "pcitx": ("PROF_PCIE_TX_BYTES", 2**20),
    "pcirx": ("PROF_PCIE_RX_BYTES", 2**20), "nvltx": ("PROF_NVLINK_TX_BYTES", 2**20),
    "nvlrx": ("PROF_NVLINK_RX_BYTES", 2**20),
}  # fmt: skip
_UNIT = re.compile(r"(?P<name>[\w.]+)(?: \[(?P<unit>[^\]]*)\])?")
_STAMP = re.compile(r"(\d{4})[/-](\d\d)[/-](\d\d) (\d\d):(\d\d):(\d\d)(?:\.(\d{1,6}))?")
_DAY = re.compile(r"(\d{4})(\d\d)(\d\d)")
_CLOCK = re.compile(r"(\d\d):(\d\d):(\d\d)")
_LOST = re.compile(r"GPU is lost|requires reset|[Uu]nable to determine the device handle")
_EPOCH = re.compile(r"1\d{9}(?:\d{3})?(?:\.\d{1,9})?")
_NO_TIME = "a row whose time cannot be read"
_LOST_GPU = "nvidia-smi could not read a GPU (lost, or it requires a reset)"


@dataclass
class SmiRow:
    """One row: `at` without a zone, None where the table has no times; a `clock` without its day is there alone."""

    at: datetime | None = None
    clock: int | None = None
    """Seconds since midnight."""
    facts: dict[str, str] = field(default_factory=dict)
    """``index``, ``uuid``, ``pci_bus_id``, ``model``, as far as the columns have them."""
    values: dict[str, float] = field(default_factory=dict)


Found = tuple[int, SmiRow | str]
"""The line's number, and the row or why there is none."""


def is_dmon(head: str) -> bool:
    """Whether a file begins as what ``nvidia-smi dmon`` prints."""
    return re.match(r"\s*#(?:Date|Time|\s)+.*\bgpu\b", head) is not None


def is_query(head: str) -> bool:
    """Whether a file's first line names fields of ``--query-gpu``."""
    names = [query_name(cell) for cell in head.partition("\n")[0].split(",")]
    return any(name in _QUERY or name.startswith("clocks_event_reasons.") for name in names)


def query_name(cell: str) -> str:
    """Return a column of ``--query-gpu`` by the name that the newest driver gives it, without its unit."""
    found = _UNIT.fullmatch(cell.strip())
    name = "" if found is None else found["name"].replace("clocks_throttle_reasons", "clocks_event_reasons")
    return _ALIASES.get(name, name)


def query_rows(lines: Iterable[tuple[int, str]], fields: Sequence[str]) -> Iterator[Found]:
    """Yield the rows of a CSV; `fields` are its columns where it has no header (``--format=csv,noheader``)."""
    names = [query_name(cell) for cell in fields]
    for number, line in lines:
        if not line.strip():
            continue
        cells = [cell.strip() for cell in line.split(",")]
        heads = [query_name(cell) for cell in cells]
        if heads == names and fields:
            continue
        if cells and is_query(line):
            names = heads
            for name in names:
                if name not in _QUERY and name not in _FACTS and name != "timestamp" and not _bit(name):
                    yield number, f"a column that holds no field of DCGM: {name or 'without a name'}"
        elif len(cells) != len(names):
            yield number, _LOST_GPU if _LOST.search(line) else "a row with more or fewer columns than its header"
        else:
            problems: list[str] = []
            row = _query_row(names, cells, problems)
            yield from ((number, problem) for problem in problems)
            yield number, row


def _bit(name: str) -> int:
    head, _, end = name.partition(".")
    return BIT_OF.get(end, 0) if head == "clocks_event_reasons" else 0


def _query_row(names: Sequence[str], cells: Sequence[str], problems: list[str]) -> SmiRow | str:
    """Return a row, or why there is none; in `problems`, what could not be read in it."""
    row, reasons = SmiRow(), list[float]()
    for name, cell in zip(names, cells, strict=True):
        if name == "timestamp":
            row.at = _time_of(cell)
            if row.at is None:
                return _NO_TIME
        elif NOT_THERE.fullmatch(cell):
            continue
        elif name in _FACTS:
            row.facts[_FACTS[name]] = cell
        elif name in _QUERY or _bit(name):
            value = _value(name, cell)
            if value is None:
                problems.append(f"a reading that is no number: {name}")
            elif _bit(name):
                reasons.append(value)
            else:
                row.values[f"DCGM_FI_DEV_{_QUERY[name]}"] = value
    if reasons:
        row.values.setdefault("DCGM_FI_DEV_CLOCK_THROTTLE_REASONS", sum(reasons))
    return row


def _time_of(cell: str) -> datetime | None:
    """Return the time of a row as nvidia-smi prints it, or as a script that wrote the table anew does."""
    found = _STAMP.fullmatch(cell)
    if found is not None:
        return _moment(found.groups())
    try:
        if _EPOCH.fullmatch(cell):
            return datetime.fromtimestamp(float(cell) / (1 if cell[10:11] in {"", "."} else 1000), UTC)
        return datetime.fromisoformat(cell) if "-" in cell else None
    except ValueError:
        return None


def _value(name: str, cell: str) -> float | None:
    """Return a reading in DCGM's unit; a reason's own bit where it is active."""
    if name == "clocks_event_reasons.active":
        return float(int(cell, 16)) if re.fullmatch(r"0x[0-9a-fA-F]{1,16}", cell) else None
    value = value_of(cell)
    if value is None:
        return None
    if name.startswith("clocks_event_reasons_counters."):
        return value * 1000
    return value * _bit(name) if _bit(name) else value


def _moment(parts: Sequence[str | None]) -> datetime | None:
    year, month, day, hour, minute, second = (int(part or 0) for part in parts[:6])
    try:
        return datetime(year, month, day, hour, minute, second, int((parts[6] or "0").ljust(6, "0")))  # noqa: DTZ001 - its zone is the caller's
    except ValueError:
        return None


def dmon_rows(lines: Iterable[tuple[int, str]]) -> Iterator[Found]:
    """Yield the rows of ``nvidia-smi dmon``; it prints its two lines of heading again and again."""
    names: list[str] = []
    for number, line in lines:
        words = line.lstrip("# \t").split()
        if line.lstrip().startswith("#"):
            if "gpu" in words and words != names:
                names = [word.lower() if word in {"Date", "Time"} else word for word in words]
                for name in names:
                    if name not in _DMON and name not in {"gpu", "date", "time"}:
                        yield number, f"a column that holds no field of DCGM: {name}"
        elif words and len(words) != len(names):
            yield number, _LOST_GPU if _LOST.search(line) else "a row with more or fewer columns than its header"
        elif words:
            problems: list[str] = []
            row = _dmon_row(dict(zip(names, words, strict=True)), problems)
            yield from ((number, problem) for problem in problems)
            yield number, row


def _dmon_row(cells: dict[str, str], problems: list[str]) -> SmiRow | str:
    row = SmiRow(facts={"index": cells["gpu"]})
    day, clock = _DAY.fullmatch(cells.get("date", "")), _CLOCK.fullmatch(cells.get("time", ""))
    if ("date" in cells and day is None) or ("time" in cells and clock is None) or (day and not clock):
        return _NO_TIME
    if clock is not None:
        row.clock = sum(int(part) * unit for part, unit in zip(clock.groups(), (3600, 60, 1), strict=True))
    if clock is not None and day is not None:
        row.at = _moment((*day.groups(), *clock.groups(), None))
        if row.at is None:
            return _NO_TIME
    for name, cell in cells.items():
        if name in _DMON and cell != "-" and not NOT_THERE.fullmatch(cell):
            value = value_of(cell)
            column, scale = _DMON[name]
            if value is None:
                problems.append(f"a reading that is no number: {name}")
            else:
                row.values[f"DCGM_FI_{column}"] = value * scale
    return row
