"""Reads ibdiagnet2.db_csv: a fabric's devices, ports, links and counters at one moment, a table a section.

Columns are known by their names, which differ from release to release (``LinkDownedCounterExt``); sections and counters
without a place in a recording are named to the caller.
"""

import re
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import datetime

from services.kit.times import epoch_ms
from services.recording.importers.parts.fabric.ib_counters import PortCounters, take_value
from services.recording.importers.parts.fabric.ib_fabric import Fabric
from services.recording.importers.parts.moments import plausible
from services.recording.importers.parts.source_files import cells_of

_SECTION = re.compile(r"START_(?P<name>[A-Z][A-Z0-9_]{1,60})")
_STAMP = re.compile(
    r"#\s*(?:Running timestamp|Timestamp|File created at)\s*:\s*\"?"
    r"(?P<time>\d{4}-\d\d-\d\d \d\d:\d\d:\d\d)(?: [A-Z]{1,5})? (?P<zone>[+-]\d{4})"
)
_ADAPTER, _SWITCH = "1", "2"  # NodeType
_ACTIVE = "4"  # PortState
_LANES = {1: 1, 2: 4, 4: 8, 8: 12, 16: 2}
_GBPS = {1: 2.5, 2: 5, 4: 10, 256: 14.0625, 512: 25, 1024: 50, 2048: 100, 4096: 200, 65536: 10.3125}
"""Of a lane, by LinkSpeedActv: SDR, DDR, QDR, FDR, EDR, HDR, NDR, XDR; FDR10 behind the extended speeds."""
_KEYS = {"nodeguid", "portguid", "portnumber", "portnum"}


@dataclass
class Diagnet:
    """What one run of ibdiagnet found: when, where the file says so, and the values of each port."""

    at: int | None = None
    ports: dict[tuple[int, int], PortCounters] = field(default_factory=dict)
    """By the device's GUID and the port's number."""
    links: list[tuple[int, int, int, int]] = field(default_factory=list)
    rates: dict[tuple[int, int], float] = field(default_factory=dict)
    left: Counter[str] = field(default_factory=Counter)
    """Rows of sections, and values of counters, that have no place, by name."""
    broken: int = 0
    """Rows with more or fewer cells than their heading, or of no port."""


def is_diagnet(head: str) -> bool:
    """Whether a file begins as ibdiagnet2.db_csv does."""
    return re.search(r"^START_(?:NODES|INDEX_TABLE)\r?$", head, re.MULTILINE) is not None


def read_diagnet(lines: Iterable[tuple[int, str]], fabric: Fabric) -> Diagnet:
    """Return what a file holds; its devices and cables go into `fabric`."""
    found = Diagnet()
    section, heading = "", list[str]()
    for _, line in lines:
        text = line.strip()
        stamp = None if found.at is not None else _STAMP.match(text)
        if stamp is not None:
            found.at = _moment(stamp)
        begin = _SECTION.fullmatch(text)
        if begin is not None:
            section, heading = begin["name"], []
        elif section and text == f"END_{section}":
            section = ""
        elif section and text and not text.startswith("#"):
            cells = cells_of(text)
            if not heading:
                heading = [cell.strip().lower() for cell in cells]
            elif len(cells) != len(heading):
                found.broken += 1
            else:
                _take(found, section, dict(zip(heading, cells, strict=True)), fabric)
    for near, near_port, far, far_port in found.links:
        if near in fabric.devices and far in fabric.devices:
            rate = found.rates.get((near, near_port)) or found.rates.get((far, far_port))
            fabric.wire((near, near_port), (far, far_port), rate)
    return found


def _moment(stamp: re.Match[str]) -> int | None:
    try:
        at = epoch_ms(datetime.strptime(f"{stamp['time']} {stamp['zone']}", "%Y-%m-%d %H:%M:%S %z"))
    except ValueError:
        return None
    return at if plausible(at) else None


def _take(found: Diagnet, section: str, row: Mapping[str, str], fabric: Fabric) -> None:
    match section:
        case "NODES":
            guid, kind = _whole(row.get("nodeguid")), row.get("nodetype", "").strip()
            if guid is None or kind not in {_ADAPTER, _SWITCH}:
                found.left["routers and devices of no kind"] += 1
            else:
                fabric.device(guid, kind == _SWITCH, row.get("nodedesc", ""))
        case "LINKS":
            ends = [_whole(row.get(name)) for name in ("nodeguid1", "portnum1", "nodeguid2", "portnum2")]
            if None in ends:
                found.broken += 1
            else:
                found.links.append(tuple(end or 0 for end in ends))  # type: ignore[arg-type]  # four of them
        case "PORTS" | "PM_INFO":
            guid, number = _whole(row.get("nodeguid")), _whole(row.get("portnum", row.get("portnumber")))
            if guid is None or number is None or number > 255:
                found.broken += 1
            elif number or section == "PORTS":
                (_state if section == "PORTS" else _count)(found, (guid, number), row, fabric)
        case _:
            found.left[section] += 1


def _state(found: Diagnet, place: tuple[int, int], row: Mapping[str, str], fabric: Fabric) -> None:
    """Take what a port is: its address, its rate, and whether it is active."""
    guid, number = place
    device, lid = fabric.devices.get(guid), _whole(row.get("lid"))
    if device is not None and lid:
        fabric.address(device, lid)
    if device is None or not number:
        return
    lanes, speed = _LANES.get(_whole(row.get("linkwidthactv")) or 0), _GBPS.get(_whole(row.get("linkspeedactv")) or 0)
    active = row.get("portstate", "").strip() == _ACTIVE
    if lanes and speed:
        found.rates[place] = lanes * speed
    values = found.ports.setdefault(place, PortCounters(number, guid=guid)).values
    values["oper_up" if device.is_switch else "state"] = float(active)
    if not device.is_switch and active and place in found.rates:
        values["speed_gbps"] = found.rates[place]


def _count(found: Diagnet, place: tuple[int, int], row: Mapping[str, str], _fabric: Fabric) -> None:
    """Take a port's counters: of two widths of one, the wider."""
    port = found.ports.setdefault(place, PortCounters(place[1], guid=place[0]))
    for name in sorted(row, key=len, reverse=True):
        value = _whole(row[name])
        if name in _KEYS or value is None:
            continue
        base = name.removesuffix("extended").removesuffix("ext")
        if not take_value(port, base, value, wide=base != name):
            found.left[name] += 1


def _whole(text: str | None) -> int | None:
    """Return a number in decimal or, with 0x, in hex; None for what is none, and for one of more than 64 bits."""
    text = (text or "").strip()
    try:
        number = int(text, 16 if text.lower().startswith("0x") else 10)
    except ValueError:
        return None
    return number if 0 <= number < 2**64 and text.isascii() and "_" not in text else None
