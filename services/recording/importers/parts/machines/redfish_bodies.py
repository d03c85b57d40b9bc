"""What single Redfish resources say: readings of sensors and supplies, entries of logs, fields of GPUs.

Sources: the DMTF schemas (Sensor, Thermal, Power, PowerSubsystem, EnvironmentMetrics, LogEntry, Processor, Memory and
their metrics) and NVIDIA's extensions to the last four.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

from detectors.signals.throttle_bits import CLOCKS_SETTING, GPU_IDLE, HW_POWER_BRAKE
from services.recording.importers.parts.machines.clock_reasons import BIT_OF
from services.recording.importers.parts.source_files import clean, number_of

Body = dict[str, Any]

# Units as Redfish writes them (UCUM); energy, frequency and the like have no place in the format.
_UNITS = {
    "cel": "Cel", "w": "W", "v": "V", "a": "A", "rpm": "RPM", "{rev}/min": "RPM", "%": "%", "percent": "%",
}  # fmt: skip
_HEALTH = {"ok": 0, "warning": 1, "critical": 2}
_ABSENT = {"absent", "disabled", "unavailableoffline", "standbyoffline"}
_GPU = re.compile(r"/(?:Processors|Memory)/(?:[A-Za-z]+_)*?GPU_(?:SXM_)?(?P<number>\d{1,3})(?:_DRAM_\d+)?(?:/|$)")
_UUID = re.compile(r"[0-9a-fA-F]{8}(?:-[0-9a-fA-F]{4}){3}-[0-9a-fA-F]{12}")
_DURATION = re.compile(
    r"P(?:(?P<days>\d{1,9})D)?(?:T(?:(?P<hours>\d{1,9})H)?(?:(?P<minutes>\d{1,9})M)?(?:(?P<seconds>\d{1,9}(?:\.\d*)?)S)?)?"
)
# Redfish's words are NVML's run together; firmware has shortened some.
_REASONS = {name.replace("_", ""): bit for name, bit in BIT_OF.items()} | {
    "idle": GPU_IDLE, "appclock": CLOCKS_SETTING, "appclocksetting": CLOCKS_SETTING, "hwpowerbrake": HW_POWER_BRAKE,
}  # fmt: skip
_ACTIVITY = {
    "GraphicsEngineActivityPercent": "DCGM_FI_PROF_GR_ENGINE_ACTIVE",
    "SMActivityPercent": "DCGM_FI_PROF_SM_ACTIVE",
    "SMOccupancyPercent": "DCGM_FI_PROF_SM_OCCUPANCY",
    "TensorCoreActivityPercent": "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE",
    "FP64ActivityPercent": "DCGM_FI_PROF_PIPE_FP64_ACTIVE",
    "FP32ActivityPercent": "DCGM_FI_PROF_PIPE_FP32_ACTIVE",
    "FP16ActivityPercent": "DCGM_FI_PROF_PIPE_FP16_ACTIVE",
}
_ROWS = {
    "CorrectableRowRemappingCount": "DCGM_FI_DEV_CORRECTABLE_REMAPPED_ROWS",
    "UncorrectableRowRemappingCount": "DCGM_FI_DEV_UNCORRECTABLE_REMAPPED_ROWS",
    "MaxAvailabilityBankCount": "DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_MAX",
    "HighAvailabilityBankCount": "DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_HIGH",
    "PartialAvailabilityBankCount": "DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_PARTIAL",
    "LowAvailabilityBankCount": "DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_LOW",
    "NoAvailabilityBankCount": "DCGM_FI_DEV_BANKS_REMAP_ROWS_AVAIL_NONE",
}

NO_READING = "a sensor without a reading"
NO_UNIT = "a sensor in a unit that the format does not have"


@dataclass(frozen=True, slots=True)
class Reading:
    """One reading; `uri` is the sensor resource it is a copy of, where the body says so."""

    sensor: str
    reading: float
    unit: str
    state: int | None
    uri: str | None = None


@dataclass(frozen=True, slots=True)
class GpuFields:
    """DCGM fields of one GPU, and what it should be."""

    gpu: int
    fields: dict[str, float]
    of_baseboard: bool
    """Whether the baseboard itself says so, and not the host that carries it."""
    facts: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class LogEntry:
    """One entry of a log: its time as written, by the BMC's clock."""

    created: str
    severity: str
    message: str


Found = Reading | GpuFields | LogEntry | str
"""What a body holds; a text says why a part of it was left out."""


def read_body(body: Body) -> Iterator[Found]:
    """Yield what one resource holds; nothing where it is of a kind that holds nothing for a recording."""
    reader = _READERS.get(kind_of(body))
    if reader is not None:
        yield from reader(body)


def kind_of(body: Body) -> str:
    """Return a resource's type without its version: ``Sensor`` of ``#Sensor.v1_6_0.Sensor``.

    What an event service sends, and entries of vendors' exports, often name none: they are entries of a log.
    """
    text = body.get("@odata.type")
    if (
        "Events" not in body
        and (text is None or "EventTimestamp" in body)
        and {"EntryType", "EventTimestamp"} & set(body)
    ):
        return "LogEntry"
    return text.lstrip("#").partition(".")[0] if isinstance(text, str) else ""


def _sensor(body: Body) -> Iterator[Found]:
    name = _text(body.get("Id")) or _text(body.get("Name"))
    uri = _text(body.get("@odata.id"))
    if name and _text(body.get("ReadingBasis")) == "Headroom":
        name = f"{name} headroom"  # degrees left to a limit: no temperature, though its unit is one's
    if name:
        yield _reading(name, body.get("Reading"), _unit(body.get("ReadingUnits"), body.get("ReadingType")), body, uri)


def _thermal(body: Body) -> Iterator[Found]:
    for item in _items(body, "Temperatures"):
        yield _reading(_name(item, "Temperature"), item.get("ReadingCelsius"), "Cel", item)
    for item in _items(body, "Fans"):
        unit = _unit(item.get("ReadingUnits") or item.get("Units"), None)
        yield _reading(_name(item, "Fan"), item.get("Reading", item.get("CurrentReading")), unit, item)
    yield from _redundancy(body, "Redundancy")


def _power(body: Body) -> Iterator[Found]:
    for item in _items(body, "PowerControl"):
        yield _reading(_name(item, "Power Control"), item.get("PowerConsumedWatts"), "W", item)
    for item in _items(body, "Voltages"):
        yield _reading(_name(item, "Voltage"), item.get("ReadingVolts"), "V", item)
    many = len(list(_items(body, "PowerSupplies"))) > 1
    for item in _items(body, "PowerSupplies"):
        name = _name(item, "Power Supply")
        # HPE gives all its supplies one name.
        name = f"{name} {_text(item.get('MemberId'))}".strip() if many and not re.search(r"\d", name) else name
        name = name.removesuffix(" Status")
        yield from _status(f"{name} Status", item)
        for key, what, unit in (
            ("LineInputVoltage", "Input Voltage", "V"),
            ("PowerInputWatts", "Input Power", "W"),
            ("PowerOutputWatts", "Output Power", "W"),
            ("LastPowerOutputWatts", "Last Output Power", "W"),
        ):
            if number_of(item.get(key)) is not None:
                yield _reading(f"{name} {what}", item[key], unit, item)
    yield from _redundancy(body, "Redundancy")


def _power_subsystem(body: Body) -> Iterator[Found]:
    yield from _redundancy(body, "PowerSupplyRedundancy")


def _power_supply(body: Body) -> Iterator[Found]:
    name = _name(body, "Power Supply")
    yield from _status(f"{name} Status", body)


def _supply_metrics(body: Body) -> Iterator[Found]:
    parts = _text(body.get("@odata.id")).split("/")
    bay = parts[-2] if len(parts) > 2 and parts[-3] == "PowerSupplies" else _name(body, "Power Supply")
    for key, what, unit in (
        ("InputVoltage", "Input Voltage", "V"),
        ("InputCurrentAmps", "Input Current", "A"),
        ("InputPowerWatts", "Input Power", "W"),
        ("OutputPowerWatts", "Output Power", "W"),
        ("TemperatureCelsius", "Temperature", "Cel"),
    ):
        yield from _excerpt(f"{bay} {what}", body.get(key), unit)
    yield from _fan(f"{bay} Fan", body.get("FanSpeedPercent"))


def _environment(body: Body) -> Iterator[Found]:
    parts = [part for part in _text(body.get("@odata.id")).split("/") if part]
    of = parts[-2] if len(parts) > 1 else "Environment"
    yield from _excerpt(f"{of} Temperature", body.get("TemperatureCelsius"), "Cel")
    yield from _excerpt(f"{of} Power", body.get("PowerWatts"), "W")
    for index, item in enumerate(_items(body, "FanSpeedsPercent")):
        yield from _fan(_text(item.get("DeviceName")) or f"{of} Fan {index}", item)


def _thermal_metrics(body: Body) -> Iterator[Found]:
    summary = body.get("TemperatureSummaryCelsius")
    for place, item in summary.items() if isinstance(summary, dict) else ():
        yield from _excerpt(f"{clean(place)} Temperature", item, "Cel")
    for index, item in enumerate(_items(body, "TemperatureReadingsCelsius")):
        yield from _excerpt(_text(item.get("DeviceName")) or f"Temperature {index}", item, "Cel")


def _fan_body(body: Body) -> Iterator[Found]:
    name = _name(body, "Fan")
    yield from _fan(name, body.get("SpeedPercent"))
    yield from _status(f"{name} Status", body)


def _log_entry(body: Body) -> Iterator[Found]:
    created = _text(body.get("Created")) or _text(body.get("EventTimestamp"))
    message = _text(body.get("Message"))
    if not created or not (message or _text(body.get("MessageId"))):
        yield "a log entry without a time or a message"
        return
    sensor, number = _text(body.get("SensorType")), number_of(body.get("SensorNumber"))
    place = f"{sensor} #0x{int(number):02x}" if sensor and number is not None and 0 <= number < 65536 else sensor
    words = (
        _text(body.get("Id")) or _text(body.get("EventId")),
        created,
        place,
        message,
        _text(body.get("EntryCode")),
        _text(body.get("MessageId")),
    )
    severity = _text(body.get("Severity")).lower() or _text(body.get("MessageSeverity")).lower()
    yield LogEntry(created, severity, " | ".join(word for word in words if word))


def _processor(body: Body) -> Iterator[Found]:
    gpu = _gpu(body)
    if gpu is None or _text(body.get("ProcessorType")) not in {"GPU", ""}:
        return
    interface = body.get("SystemInterface")
    link = interface.get("PCIe") if isinstance(interface, dict) else None
    link = link if isinstance(link, dict) else {}
    fields = {
        "DCGM_FI_DEV_PCIE_LINK_GEN": _generation(link.get("PCIeType")),
        "DCGM_FI_DEV_PCIE_LINK_WIDTH": number_of(link.get("LanesInUse")),
        "DCGM_FI_DEV_PCIE_MAX_LINK_GEN": _generation(link.get("MaxPCIeType")),
        "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": number_of(link.get("MaxLanes")),
    }
    uuid, width = _text(body.get("UUID")), number_of(link.get("MaxLanes"))
    generation = _generation(link.get("MaxPCIeType"))
    facts = {
        "uuid": f"GPU-{uuid.lower()}" if _UUID.fullmatch(uuid) else uuid or None,
        "model": _text(body.get("Model")) or None,
        "pcie_gen": None if generation is None else int(generation),
        "pcie_width": int(width) if width is not None and 0 < width < 1000 else None,
    }
    yield GpuFields(gpu, _given(fields), _of_baseboard(body), facts)


def _processor_metrics(body: Body) -> Iterator[Found]:
    gpu = _gpu(body)
    if gpu is None:
        return
    nvidia = _nvidia(body)
    errors = body.get("PCIeErrors")
    fields: dict[str, float | None] = {
        "DCGM_FI_DEV_SM_CLOCK": number_of(body.get("OperatingSpeedMHz")),
        "DCGM_FI_DEV_PCIE_REPLAY_COUNTER": number_of(errors.get("ReplayCount")) if isinstance(errors, dict) else None,
        "DCGM_FI_DEV_POWER_VIOLATION": _nanoseconds(body.get("PowerLimitThrottleDuration")),
        "DCGM_FI_DEV_THERMAL_VIOLATION": _nanoseconds(body.get("ThermalLimitThrottleDuration")),
    }
    for key, name in _ACTIVITY.items():
        percent = number_of(nvidia.get(key))
        fields[name] = None if percent is None else percent / 100
    reasons = nvidia.get("ThrottleReasons")
    if isinstance(reasons, list) and reasons:
        words = [_text(word).lower() for word in reasons]
        if all(word in _REASONS for word in words):
            mask = 0
            for word in words:
                mask |= _REASONS[word]
            fields["DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"] = float(mask)
        elif words != ["na"]:  # which may mean none or not known
            yield "reasons of throttling that are not known here"
    yield GpuFields(gpu, _given(fields), _of_baseboard(body))


def _memory(body: Body) -> Iterator[Found]:
    gpu, nvidia = _gpu(body), _nvidia(body)
    if gpu is not None:
        failed, pending = nvidia.get("RowRemappingFailed"), nvidia.get("RowRemappingPending")
        fields = {
            "DCGM_FI_DEV_ROW_REMAP_FAILURE": float(failed) if isinstance(failed, bool) else None,
            "DCGM_FI_DEV_ROW_REMAP_PENDING": float(pending) if isinstance(pending, bool) else None,
        }
        yield GpuFields(gpu, _given(fields), _of_baseboard(body))


def _memory_metrics(body: Body) -> Iterator[Found]:
    gpu, rows = _gpu(body), _nvidia(body).get("RowRemapping")
    if gpu is not None:
        fields = {"DCGM_FI_DEV_MEM_CLOCK": number_of(body.get("OperatingSpeedMHz"))}
        if isinstance(rows, dict):
            fields |= {name: number_of(rows.get(key)) for key, name in _ROWS.items()}
        yield GpuFields(gpu, _given(fields), _of_baseboard(body))


_READERS: dict[str, Callable[[Body], Iterator[Found]]] = {
    "Sensor": _sensor, "Thermal": _thermal, "Power": _power, "PowerSubsystem": _power_subsystem,
    "PowerSupply": _power_supply, "PowerSupplyMetrics": _supply_metrics, "EnvironmentMetrics": _environment,
    "ThermalMetrics": _thermal_metrics, "Fan": _fan_body, "LogEntry": _log_entry, "Processor": _processor,
    "ProcessorMetrics": _processor_metrics, "Memory": _memory, "MemoryMetrics": _memory_metrics,
}  # fmt: skip


def _reading(name: str, value: Any, unit: str | None, body: Body, uri: str | None = None) -> Reading | str:
    number, uri = number_of(value), uri or _text(body.get("@odata.id")) or None
    if number is None or _absent(body):
        return NO_READING
    return NO_UNIT if unit is None else Reading(name, number, unit, _state(body), uri)


def _status(name: str, body: Body) -> Iterator[Found]:
    state = _state(body)
    if state is not None and not _absent(body):
        yield Reading(name, float(state), "state", state, _text(body.get("@odata.id")) or None)


def _excerpt(name: str, value: Any, unit: str) -> Iterator[Found]:
    """Yield a copy of a sensor's reading, as metrics hold them."""
    if isinstance(value, dict) and number_of(value.get("Reading")) is not None:
        uri = _text(value.get("DataSourceUri"))
        yield _reading(uri.rpartition("/")[2] or name, value["Reading"], unit, {}, uri or None)


def _fan(name: str, value: Any) -> Iterator[Found]:
    """Yield a fan's speed: turns where they are given, else percent. Its sensor resource may give the other."""
    if isinstance(value, dict):
        if number_of(value.get("SpeedRPM")) is not None:
            yield _reading(name, value["SpeedRPM"], "RPM", {})
        else:
            yield from _excerpt(name, value, "%")


def _redundancy(body: Body, key: str) -> Iterator[Found]:
    for index, item in enumerate(_items(body, key)):
        name = _text(item.get("Name")) or (key if index == 0 else f"{key} {index}")
        yield from _status(name, item)


def _items(body: Body, key: str) -> Iterator[Body]:
    items = body.get(key)
    for item in items if isinstance(items, list) else ():
        if isinstance(item, dict):
            yield item


def _name(item: Body, kind: str) -> str:
    for key in ("Name", "FanName", "Id", "MemberId"):
        if text := _text(item.get(key)):
            return f"{kind} {text}" if text.isdecimal() else text
    return kind


def _text(value: Any) -> str:
    return clean(value).strip()[:1024] if isinstance(value, str) else ""


def _unit(units: Any, kind: Any) -> str | None:
    if _text(units):
        return _UNITS.get(_text(units).lower())
    return "Cel" if kind == "Temperature" else "W" if kind == "Power" else None


def _state(body: Body) -> int | None:
    status = body.get("Status")
    return _HEALTH.get(_text(status.get("Health")).lower()) if isinstance(status, dict) else None


def _absent(body: Body) -> bool:
    status = body.get("Status")
    return isinstance(status, dict) and _text(status.get("State")).lower() in _ABSENT


def _gpu(body: Body) -> int | None:
    match = _GPU.search(_text(body.get("@odata.id")))
    return int(match["number"]) if match is not None and int(match["number"]) < 256 else None


def _of_baseboard(body: Body) -> bool:
    return "/Systems/HGX" in _text(body.get("@odata.id"))


def _nvidia(body: Body) -> Body:
    oem = body.get("Oem")
    nvidia = oem.get("Nvidia") if isinstance(oem, dict) else None
    return nvidia if isinstance(nvidia, dict) else {}


def _generation(text: Any) -> float | None:
    match = re.fullmatch(r"Gen(\d)", _text(text))
    return None if match is None else float(match[1])


def _nanoseconds(duration: Any) -> float | None:
    """Return nanoseconds of an ISO 8601 duration (``P1DT17H41M2.27S``)."""
    match = _DURATION.fullmatch(_text(duration)) if _text(duration) not in {"", "P"} else None
    if match is None:
        return None
    days, hours, minutes, seconds = (float(match[part] or 0) for part in ("days", "hours", "minutes", "seconds"))
    return round((((days * 24 + hours) * 60 + minutes) * 60 + seconds) * 1e9)


def _given(fields: dict[str, float | None]) -> dict[str, float]:
    return {name: value for name, value in fields.items() if value is not None}
