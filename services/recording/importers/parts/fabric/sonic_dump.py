"""Takes a SONiC switch's ports out of JSON: dumps of its databases in their several forms, and gNMI answers.

Database: ``COUNTERS:oid:…`` hashes beside ``COUNTERS_PORT_NAME_MAP`` and ``COUNTERS_QUEUE_NAME_MAP``, plain or as
redis-dump wraps them (``{"type": "hash", "value": {…}}``), one database a document or a list of them. gNMI: counters
under a port's name, with or without the notification around them; OpenConfig interfaces.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from services.recording.importers.parts.source_files import clean, number_of

_PORT_STAT, _QUEUE_STAT = "SAI_PORT_STAT_", ("SAI_QUEUE_STAT_", "PFC_WD_QUEUE_STATS_")
_MAX_DEPTH = 16  # of nesting; a gNMI notification of OpenConfig interfaces has 9
_PORT = re.compile(r"(?:Ethernet(?:-[A-Z]+)?[\d/]+|PORT\d+)")
_QUEUE = re.compile(r"(?:[\w.-]+\|)*(?P<port>Ethernet(?:-[A-Z]+)?[\d/]+|PORT\d+):\d{1,2}")
_OID = re.compile(r"(?:COUNTERS:)?(?P<oid>oid:(?:0x)?[0-9a-fA-F]{1,20})")
_TABLES = ("PORT_TABLE", "LLDP_ENTRY_TABLE", "DEVICE_NEIGHBOR", "DEVICE_METADATA")
_TABLE = re.compile(rf"(?P<table>{'|'.join(_TABLES)})[:|](?P<key>.+)")
_NAME_MAPS = {"COUNTERS_PORT_NAME_MAP", "COUNTERS_FABRIC_PORT_NAME_MAP"}
_QUEUE_MAPS = {"COUNTERS_QUEUE_NAME_MAP", "COUNTERS_FABRIC_QUEUE_NAME_MAP"}
_PERIODS = ("PERIODIC_WATERMARKS", "PERSISTENT_WATERMARKS", "USER_WATERMARKS", "RATES")
# By queue; summed over a port's queues.
_SUMMED = {
    "SAI_QUEUE_STAT_WRED_ECN_MARKED_PACKETS": "SAI_PORT_STAT_ECN_MARKED_PACKETS",
    "PFC_WD_QUEUE_STATS_DEADLOCK_DETECTED": "PFC_WD_QUEUE_STATS_DEADLOCK_DETECTED",
}
# OpenConfig's names of what SONiC itself takes from these counters.
_OPENCONFIG = {
    "in-octets": "IF_IN_OCTETS", "out-octets": "IF_OUT_OCTETS", "in-errors": "IF_IN_ERRORS",
    "out-errors": "IF_OUT_ERRORS", "in-discards": "IF_IN_DISCARDS", "out-discards": "IF_OUT_DISCARDS",
    "in-unicast-pkts": "IF_IN_UCAST_PKTS", "out-unicast-pkts": "IF_OUT_UCAST_PKTS",
    "in-multicast-pkts": "IF_IN_MULTICAST_PKTS", "out-multicast-pkts": "IF_OUT_MULTICAST_PKTS",
    "in-broadcast-pkts": "IF_IN_BROADCAST_PKTS", "out-broadcast-pkts": "IF_OUT_BROADCAST_PKTS",
}  # fmt: skip
_ROLES = (("spine", "spine"), ("leaf", "leaf"), ("tor", "leaf"))


@dataclass
class SwitchDump:
    """What documents of one switch and moment say, before names and objects are put together."""

    at: int | None = None
    """Milliseconds, where a gNMI notification or redis-dump says it."""
    host: str | None = None
    role: str | None = None
    by_object: dict[str, dict[str, float]] = field(default_factory=dict)
    by_port: dict[str, dict[str, float]] = field(default_factory=dict)
    queues: dict[str, dict[str, float]] = field(default_factory=dict)
    """By the queue's name (``Ethernet0:3``) or object."""
    ports: dict[str, str] = field(default_factory=dict)
    """Object of each port's name."""
    queue_objects: dict[str, str] = field(default_factory=dict)
    """Object of each queue's name."""
    oper_up: dict[str, int] = field(default_factory=dict)
    speed_gbps: dict[str, float] = field(default_factory=dict)
    neighbours: dict[str, tuple[str, str]] = field(default_factory=dict)
    """Device and port at the other end of a port's cable, as LLDP or the configuration says."""

    def take(self, document: Any, port: str | None = None) -> None:
        """Take a JSON document; `port` is the one it is of, where it does not say itself."""
        self._walk(document, port or "", 0)

    def has_counters(self) -> bool:
        """Whether there are counters of ports at all."""
        return bool(self.by_object or self.by_port)

    def repeats(self, other: "SwitchDump") -> bool:
        """Whether both have counters of the same port or object: then they are of two moments."""
        return bool(self.by_object.keys() & other.by_object.keys() or self.by_port.keys() & other.by_port.keys())

    def merge(self, other: "SwitchDump") -> None:
        """Add what another document of the same moment says."""
        self.at, self.host, self.role = self.at or other.at, self.host or other.host, self.role or other.role
        self.by_object |= other.by_object
        self.by_port |= other.by_port
        self.queues |= other.queues
        self.merge_names(other)

    def merge_names(self, other: "SwitchDump") -> None:
        """Add the names, states and cables, which hold for other moments too."""
        self.ports |= other.ports
        self.queue_objects |= other.queue_objects
        self.oper_up |= other.oper_up
        self.speed_gbps |= other.speed_gbps
        self.neighbours |= other.neighbours

    def rows(self) -> tuple[dict[str, dict[str, float]], int]:
        """Return the values of each port by name, and how many objects with port counters have no name."""
        found: dict[str, dict[str, float]] = {port: dict(stats) for port, stats in self.by_port.items()}
        named = set()
        for port, oid in self.ports.items():
            if oid in self.by_object:
                found.setdefault(port, {}).update(self.by_object[oid])
                named.add(oid)
        sums: dict[str, dict[str, float]] = {}
        for queue, stats in self.queues.items():
            match = _QUEUE.fullmatch(queue)
            if match is not None:
                self._add(sums, match["port"], stats)
        for queue, oid in self.queue_objects.items():
            match = _QUEUE.fullmatch(queue)
            if match is not None and oid in self.queues and queue not in self.queues:
                self._add(sums, match["port"], self.queues[oid])
        for port, total in sums.items():
            if port in found:
                found[port] = total | found[port]  # a port's own counter goes before the sum of its queues
        for port, up in self.oper_up.items():
            if port in found:
                found[port]["oper_up"] = up
        return {port: values for port, values in found.items() if values}, len(self.by_object.keys() - named)

    @staticmethod
    def _add(sums: dict[str, dict[str, float]], port: str, stats: Mapping[str, float]) -> None:
        for name, column in _SUMMED.items():
            if name in stats:
                of_port = sums.setdefault(port, {})
                of_port[column] = of_port.get(column, 0.0) + stats[name]

    def _walk(self, value: Any, name: str, depth: int) -> None:
        if depth > _MAX_DEPTH or not isinstance(value, dict | list):
            return
        if isinstance(value, list):
            for item in value:
                self._walk(item, name, depth + 1)
            return
        if "type" in value and isinstance(value.get("value"), dict):
            self._dumped(value)
            value = value["value"]
        self._notification(value)
        stats = {key: number for key, text in value.items() if (number := number_of(text)) is not None}
        if any(key.startswith(_PORT_STAT) for key in value):
            self._port(name, {clean(key): number for key, number in stats.items() if key.startswith(_PORT_STAT)})
        elif any(key.startswith(_QUEUE_STAT) for key in value):
            oid = _OID.fullmatch(name)
            self.queues.setdefault(_last(name) if oid is None else oid["oid"], {}).update(
                {key: stats[key] for key in _SUMMED if key in stats}
            )
        elif isinstance(value.get("state"), dict) and isinstance(value["state"].get("counters"), dict):
            self._openconfig(value)
        else:
            for key, inner in value.items():
                self._entry(clean(key), inner, name, depth)

    def _entry(self, key: str, inner: Any, name: str, depth: int) -> None:
        """Take one key of a database or answer."""
        if key.startswith(_PERIODS):
            return
        table = _TABLE.fullmatch(key) or _TABLE.fullmatch(f"{name}:{key}")
        fields = inner.get("value", inner) if isinstance(inner, dict) and "type" in inner else inner
        if key in _NAME_MAPS and isinstance(fields, dict):
            self.ports |= {clean(port): oid for port, oid in fields.items() if port and isinstance(oid, str)}
        elif key in _QUEUE_MAPS and isinstance(fields, dict):
            self.queue_objects |= {clean(queue): oid for queue, oid in fields.items() if isinstance(oid, str)}
        elif table is not None and isinstance(fields, dict):
            self._table(table["table"], table["key"], fields)
        else:
            keep = _PORT.search(key) is None and _OID.search(key) is None and key not in _TABLES
            self._walk(inner, name if keep else key, depth + 1)

    def _port(self, name: str, stats: dict[str, float]) -> None:
        oid = _OID.fullmatch(_last(name))
        if oid is not None:
            self.by_object.setdefault(oid["oid"], {}).update(stats)
        else:
            port = _PORT.search(_last(name))
            # Without a name for it, it is counted with the objects that no map names.
            target = self.by_object if port is None else self.by_port
            target.setdefault(name if port is None else port[0], {}).update(stats)

    def _openconfig(self, value: dict[str, Any]) -> None:
        state, port = value["state"], value.get("name") or value["state"].get("name")
        if not isinstance(port, str) or not port:
            return
        stats = {
            _PORT_STAT + _OPENCONFIG[key]: number
            for key, text in state["counters"].items()
            if key in _OPENCONFIG and (number := number_of(text)) is not None
        }
        self.by_port.setdefault(clean(port), {}).update(stats)
        self._state(clean(port), state.get("oper-status"))

    def _notification(self, value: dict[str, Any]) -> None:
        stamp = value.get("timestamp")
        if isinstance(stamp, int | str) and ("updates" in value or "update" in value):
            nanoseconds = number_of(stamp)
            if nanoseconds is not None and 0 < nanoseconds < 4e18:
                self.at = int(nanoseconds // 1_000_000)

    def _dumped(self, value: dict[str, Any]) -> None:
        """Take the time of a redis-dump: of a key that never expires it gives now plus a time to live of -1 ms."""
        left, until = number_of(value.get("ttl")), number_of(value.get("expireat"))
        if left is not None and until is not None and left < 0 and 0 < until < 4.1e9:
            self.at = max(self.at or 0, int((until - left) * 1000))

    def _table(self, table: str, key: str, fields: dict[str, Any]) -> None:
        text = {name: clean(value) for name, value in fields.items() if isinstance(value, str)}
        if table == "PORT_TABLE":
            self._state(key, text.get("oper_status"))
            speed = number_of(text.get("speed"))
            if speed is not None and 0 < speed < 1e8:
                self.speed_gbps[key] = speed / 1000
        elif table == "LLDP_ENTRY_TABLE" and text.get("lldp_rem_sys_name"):
            far = text.get("lldp_rem_port_desc") or text.get("lldp_rem_port_id") or ""
            self.neighbours[key] = text["lldp_rem_sys_name"], far
        elif table == "DEVICE_NEIGHBOR" and text.get("name"):
            self.neighbours.setdefault(key, (text["name"], text.get("port", "")))
        elif table == "DEVICE_METADATA":
            self.host = text.get("hostname") or self.host
            kind = text.get("type", "").lower()
            self.role = next((role for word, role in _ROLES if word in kind), self.role)

    def _state(self, port: str, status: Any) -> None:
        if isinstance(status, str) and status.lower() in {"up", "down"}:
            self.oper_up[port] = int(status.lower() == "up")


def port_in(name: str) -> str | None:
    """Return the port that a file's name is about (``COUNTERS:Ethernet68.txt``)."""
    found = _PORT.search(name)
    return None if found is None else found[0]


def _last(name: str) -> str:
    """Return the part of a gNMI path that names the port."""
    return name.rpartition("/COUNTERS/")[2].removeprefix("COUNTERS/")
