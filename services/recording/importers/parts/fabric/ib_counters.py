"""Counters of InfiniBand ports as perfquery, ibqueryerrors, ibstat and sysfs print them, under the names of sysfs."""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field

from services.recording.importers.parts.source_files import number_of

# What a switch's port counts is also given under SONiC's name where it means the same; data counts 4-byte words.
SAI_OF = {
    "port_rcv_data": ("SAI_PORT_STAT_IF_IN_OCTETS", 4.0),
    "port_xmit_data": ("SAI_PORT_STAT_IF_OUT_OCTETS", 4.0),
    "unicast_rcv_packets": ("SAI_PORT_STAT_IF_IN_UCAST_PKTS", 1.0),
    "unicast_xmit_packets": ("SAI_PORT_STAT_IF_OUT_UCAST_PKTS", 1.0),
    "port_rcv_errors": ("SAI_PORT_STAT_IF_IN_ERRORS", 1.0),
    "port_xmit_discards": ("SAI_PORT_STAT_IF_OUT_DISCARDS", 1.0),
}
# perfquery's names (those of the plain form after those of -x) by sysfs's.
_SYSFS = {
    "PortXmitData": "port_xmit_data", "XmtData": "port_xmit_data",
    "PortRcvData": "port_rcv_data", "RcvData": "port_rcv_data",
    "PortXmitPkts": "port_xmit_packets", "XmtPkts": "port_xmit_packets",
    "PortRcvPkts": "port_rcv_packets", "RcvPkts": "port_rcv_packets",
    "PortUnicastXmitPkts": "unicast_xmit_packets", "PortUnicastRcvPkts": "unicast_rcv_packets",
    "PortMulticastXmitPkts": "multicast_xmit_packets", "PortMulticastRcvPkts": "multicast_rcv_packets",
    "SymbolErrorCounter": "symbol_error", "SymbolErrors": "symbol_error",
    "LinkErrorRecoveryCounter": "link_error_recovery", "LinkRecovers": "link_error_recovery",
    "LinkDownedCounter": "link_downed", "LinkDowned": "link_downed",
    "PortRcvErrors": "port_rcv_errors", "RcvErrors": "port_rcv_errors",
    "PortRcvRemotePhysicalErrors": "port_rcv_remote_physical_errors",
    "RcvRemotePhysErrors": "port_rcv_remote_physical_errors",
    "PortRcvSwitchRelayErrors": "port_rcv_switch_relay_errors", "RcvSwRelayErrors": "port_rcv_switch_relay_errors",
    "PortXmitDiscards": "port_xmit_discards", "XmtDiscards": "port_xmit_discards",
    "PortXmitConstraintErrors": "port_xmit_constraint_errors", "XmtConstraintErrors": "port_xmit_constraint_errors",
    "PortRcvConstraintErrors": "port_rcv_constraint_errors", "RcvConstraintErrors": "port_rcv_constraint_errors",
    "LocalLinkIntegrityErrors": "local_link_integrity_errors", "LinkIntegrityErrors": "local_link_integrity_errors",
    "ExcessiveBufferOverrunErrors": "excessive_buffer_overrun_errors",
    "ExcBufOverrunErrors": "excessive_buffer_overrun_errors",
    "VL15Dropped": "VL15_dropped", "PortXmitWait": "port_xmit_wait", "XmtWait": "port_xmit_wait",
    # Of PortRcvErrorDetails; sysfs has no such files, the names follow its manner.
    "PortLocalPhysicalErrors": "port_local_physical_errors", "PortMalformedPktErrors": "port_malformed_pkt_errors",
    "PortBufferOverrunErrors": "port_buffer_overrun_errors", "PortDLIDMappingErrors": "port_dlid_mapping_errors",
    "PortVLMappingErrors": "port_vl_mapping_errors", "PortLoopingErrors": "port_looping_errors",
}  # fmt: skip
_BY_NAME = {name.lower(): column for name, column in _SYSFS.items()}
_STUCK = 0xFFFF_FFFF  # where the 32-bit counters of the plain form stop
_STOPPING = {"port_xmit_data", "port_rcv_data", "port_xmit_packets", "port_rcv_packets", "port_xmit_wait"}

_MAX_LINE = 2000  # characters: ibqueryerrors writes a port's counters on one line
_QUERY = re.compile(
    r"# (?P<kind>Port (?P<extended>extended )?counters|PortRcvErrorDetails counters|\S+ counters): "
    r"Lid (?P<lid>\d{1,6})(?: \(DLID \d+\))? port (?P<port>\d{1,3})"
)
_COUNTER = re.compile(r"(?P<name>[A-Za-z0-9]{3,40}):\.+(?P<value>\d{1,20})\s*")
_ERRORS_FOR = re.compile(r'Errors for (?:(?P<guid>0x[0-9a-f]{1,16}) )?"(?P<name>[^"]*)"')
_ERRORS = re.compile(r"\s+GUID (?P<guid>0x[0-9a-f]{1,16}) port (?P<port>\d{1,3}|ALL): *(?P<counters>.*)")
_PAIR = re.compile(r"\[(?P<name>[A-Za-z0-9]{3,40}) == (?P<value>\d{1,20})\b")
_STAMP = re.compile(r"[#=\s]*(?:20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*|1\d{9}(?:\.\d+)?)[=\s]*")
_CA = re.compile(r"CA '(?P<device>[\w.-]{1,64})'")
_CA_PORT = re.compile(r"\s*Port (?P<port>\d{1,3}):")
_CA_FACT = re.compile(r"\s*(?P<key>State|Rate|Base lid|Port GUID): *(?P<value>\S.*?)\s*")
_SYSFS_PATH = re.compile(
    r"(?:^|/)(?P<device>[\w.-]{1,64})/ports/(?P<port>\d{1,3})/(?:(?P<group>counters|hw_counters)/)?(?P<name>\w{1,64})$"
)
_NO_COUNTERS = {"lifespan"}  # of hw_counters: how often they are refreshed, in ms
_RATE = re.compile(r"(?P<gbps>\d+(?:\.\d+)?) Gb/sec\b.*", re.DOTALL)


@dataclass
class PortCounters:
    """What is printed of one port: which it is (LID, GUID, or device of the node), and its values by name."""

    port: int
    lid: int | None = None
    guid: int | None = None
    name: str | None = None
    is_switch: bool | None = None
    device: str | None = None
    values: dict[str, float] = field(default_factory=dict)
    stuck: int = 0
    """32-bit counters that have stopped at their end: left out."""


def read_text(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, PortCounters | str]]:
    """Yield the ports of perfquery, ibqueryerrors or ibstat output, with the line where each begins.

    A text is a line with a time, as collectors write it between several outputs in one file.
    """
    open_port: PortCounters | None = None
    begun, device, extended = 0, "", True
    header: re.Match[str] | None = None
    for number, text in lines:
        line = text[:_MAX_LINE]
        match = _QUERY.match(line)
        ca, ca_port = _CA.fullmatch(line.strip()), _CA_PORT.fullmatch(line)
        errors = _ERRORS.fullmatch(line)
        begins = match or ca or ca_port or errors or _STAMP.fullmatch(line)
        if begins is not None and open_port is not None:
            yield begun, open_port
            open_port = None
        if match is not None:
            open_port, begun = PortCounters(int(match["port"]), lid=int(match["lid"])), number
            extended = match["kind"] != "Port counters"
        elif ca is not None:
            device = ca["device"]
        elif ca_port is not None and device:
            open_port, begun = PortCounters(int(ca_port["port"]), device=device), number
        elif _STAMP.fullmatch(line):
            yield number, line
        elif errors is not None:
            if errors["port"] != "ALL":
                yield number, _of_errors(errors, header)
        elif (heading := _ERRORS_FOR.match(line.strip())) is not None:
            header = heading
        elif open_port is not None and open_port.device is not None:
            _take_fact(open_port, line)
        elif open_port is not None:
            _take_counter(open_port, line, extended=extended)
    if open_port is not None:
        yield begun, open_port


def _take_counter(port: PortCounters, line: str, *, extended: bool) -> None:
    match = _COUNTER.fullmatch(line)
    name = None if match is None else _SYSFS.get(match["name"])
    if match is None or name is None:
        return
    value = int(match["value"])
    if not extended and name in _STOPPING and value == _STUCK:
        port.stuck += 1
    else:
        port.values[name] = float(value)


def take_value(port: PortCounters, name: str, value: int, *, wide: bool) -> bool:
    """Take a counter by its name in any case; the first of several of one name stays. False where it has no column.

    `wide`: it has 64 bits, and does not stop where one of 32 does.
    """
    column = _BY_NAME.get(name)
    if column is not None and not wide and column in _STOPPING and value == _STUCK:
        port.stuck += column not in port.values
    elif column is not None:
        port.values.setdefault(column, float(value))
    return column is not None


def _take_fact(port: PortCounters, line: str) -> None:
    match = _CA_FACT.fullmatch(line)
    if match is None:
        return
    key, value = match["key"], match["value"]
    number = number_of(value)
    if key == "State":
        port.values["state"] = float(value == "Active")
    elif key == "Rate" and number is not None and number >= 0:
        port.values["speed_gbps"] = number
    elif key == "Base lid" and number is not None and 0 < number < 65536:
        port.lid = int(number)
    elif key == "Port GUID" and re.fullmatch(r"0x[0-9a-f]{1,16}", value):
        port.guid = int(value, 16)


def _of_errors(errors: re.Match[str], header: re.Match[str] | None) -> PortCounters:
    port = PortCounters(int(errors["port"]), guid=int(errors["guid"], 16))
    if header is not None:
        # ibqueryerrors names a switch with its GUID, an adapter without.
        port.name, port.is_switch = header["name"], header["guid"] is not None
    for match in _PAIR.finditer(errors["counters"]):
        if match["name"] in _SYSFS:
            port.values[_SYSFS[match["name"]]] = float(int(match["value"]))
    return port


def sysfs_place(path: str) -> tuple[str, int, str] | None:
    """Return device, port and name of a file of ``/sys/class/infiniband``; None where it is not of a port."""
    match = _SYSFS_PATH.search(path)
    if match is None or match["name"] in _NO_COUNTERS:
        return None
    if match["group"] is None and match["name"] not in {"state", "rate"}:
        return None
    return match["device"], int(match["port"]), match["name"]


def sysfs_value(name: str, text: str) -> Mapping[str, float]:
    """Return the column and value of a file of a port: a counter, its state or its rate; nothing where it has none."""
    text = text.strip()
    if name == "state":
        return {"state": float("ACTIVE" in text.upper())} if ":" in text else {}
    if name == "rate":
        match = _RATE.fullmatch(text)
        return {} if match is None else {"speed_gbps": float(match["gbps"])}
    return {name: float(int(text))} if text.isascii() and text.isdecimal() and len(text) <= 20 else {}
