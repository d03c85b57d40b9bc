"""The wiring of an InfiniBand fabric, from ibnetdiscover output: blocks of devices, or a list of ports (-p)."""

import re
from collections.abc import Iterable
from dataclasses import dataclass, field

from services.recording.importers.parts.source_files import clean
from services.recording.model import Link, Nic, Node, Switch, Topology

_SPEEDS = {"SDR": 10, "DDR": 20, "QDR": 40, "FDR10": 40, "FDR": 56, "EDR": 100, "HDR": 200, "NDR": 400, "XDR": 800}
"""Gb/s of four lanes."""
_MAX_LINE = 2000  # characters: no device or port has a longer one
_RATE = re.compile(r"(?P<lanes>\d{1,2})x ?(?P<speed>[A-Z]{3}(?:10)?)")
_DEVICE = re.compile(
    r'(?P<kind>Switch|Ca|Rt)\s+\d+\s+"[SHR]-(?P<guid>[0-9a-f]{1,16})"\s*#\s*"(?P<name>[^"]*)"(?P<rest>.*)'
)
_PORT = re.compile(
    r'\[(?P<port>\d{1,3})\](?:\([0-9a-f]+\))?\s*"(?P<kind>[SHR])-(?P<guid>[0-9a-f]{1,16})"\[(?P<far>\d{1,3})\](?P<rest>.*)'
)
_LID = re.compile(r"\blid (?P<lid>\d{1,6})\b")
_FAR_END = re.compile(r'"(?P<name>[^"]*)" lid (?P<lid>\d{1,6})\b')
_GUID = r"(?P<guid>0x[0-9a-f]{1,16})"
_LISTED = re.compile(
    rf"(?P<kind>CA|SW|RT)\s+(?P<lid>\d{{1,6}})\s+(?P<port>\d{{1,3}})\s+{_GUID}\s+(?P<rate>\d{{1,2}}x \S+)(?P<rest>.*)"
)
_FAR = re.compile(
    rf"\s*- (?P<kind>CA|SW|RT)\s+(?P<lid>\d{{1,6}})\s+(?P<port>\d{{1,3}})\s+{_GUID}\s+"
    r"\( '(?P<name>.*)' - '(?P<far_name>.*)' \)\s*"
)
_ALONE = re.compile(r"\s*'?(?P<name>.*?)'?\s*")
# The reduction trees inside of switches answer like adapters and are none.
_NO_ADAPTER = re.compile(r"aggregation node", re.IGNORECASE)


@dataclass
class Device:
    """A switch, or an adapter of a node (one HCA); ports by number to (GUID, port, Gb/s) of the other end."""

    guid: int
    is_switch: bool
    name: str = ""
    lid: int | None = None
    ports: dict[int, tuple[int, int, float | None]] = field(default_factory=dict)


class Fabric:
    """The devices of a fabric, by GUID and by LID, and what a recording calls them."""

    def __init__(self) -> None:
        self.devices: dict[int, Device] = {}
        self._by_lid: dict[int, Device] = {}
        self._names: dict[str, int] = {}
        self._current: Device | None = None

    def read(self, lines: Iterable[str]) -> int:
        """Take what ibnetdiscover printed; return how many lines were devices or ports."""
        self._current = None
        return sum(self._block(line) or self._listed(line) for line in (text[:_MAX_LINE] for text in lines))

    def _block(self, line: str) -> bool:
        match = _DEVICE.match(line)
        if match is not None:
            device = self.device(int(match["guid"], 16), match["kind"] == "Switch", match["name"])
            lid = _LID.search(match["rest"])
            self._set_lid(device, lid)
            self._current = device
            return True
        match = _PORT.match(line)
        if match is None or self._current is None:
            return False
        rest = match["rest"]
        far = _FAR_END.search(rest)
        other = self.device(int(match["guid"], 16), match["kind"] == "S", "" if far is None else far["name"])
        self._set_lid(other, far)
        if not self._current.is_switch:
            # An adapter's own LID stands before the other end's name, the other's after it.
            self._set_lid(self._current, _LID.search(rest.partition('"')[0]))
        rate = _gbps(rest)
        self._current.ports[int(match["port"])] = int(match["guid"], 16), int(match["far"]), rate
        return True

    def _listed(self, line: str) -> bool:
        match = _LISTED.match(line)
        if match is None:
            return False
        far = _FAR.fullmatch(match["rest"])
        alone = _ALONE.fullmatch(match["rest"])
        name = far["name"] if far is not None else alone["name"] if alone is not None else ""
        device = self.device(int(match["guid"], 16), match["kind"] == "SW", name)
        self._by_lid[int(match["lid"])] = device
        device.lid = int(match["lid"])
        if far is not None:
            other = self.device(int(far["guid"], 16), far["kind"] == "SW", far["far_name"])
            other.lid = int(far["lid"])
            self._by_lid[other.lid] = other
            rate = _gbps(match["rate"])
            device.ports[int(match["port"])] = other.guid, int(far["port"]), rate
            other.ports.setdefault(int(far["port"]), (device.guid, int(match["port"]), rate))
        return True

    def _set_lid(self, device: Device, match: re.Match[str] | None) -> None:
        if match is not None:
            device.lid = int(match["lid"])
            self._by_lid[device.lid] = device

    def device(self, guid: int, is_switch: bool, name: str) -> Device:
        """Return a device by its GUID; a new one is taken in."""
        device = self.devices.setdefault(guid, Device(guid, is_switch))
        device.name = device.name or clean(name).strip()
        return device

    def address(self, device: Device, lid: int) -> None:
        """Take the LID of a device, that of its first port where it has several."""
        device.lid = device.lid or lid
        self._by_lid[lid] = device

    def wire(self, near: tuple[int, int], far: tuple[int, int], rate: float | None) -> None:
        """Take the cable between two ports, each the GUID of a known device and a number; `rate` in Gb/s."""
        self.devices[near[0]].ports[near[1]] = *far, rate
        self.devices[far[0]].ports[far[1]] = *near, rate

    def find(self, lid: int | None, guid: int | None) -> Device | None:
        """Return the device with a LID, or else with a GUID."""
        if lid is not None and lid in self._by_lid:
            return self._by_lid[lid]
        return None if guid is None else self.devices.get(guid)

    def switch_names(self) -> set[str]:
        """Return the names of all switches."""
        return {self.switch_name(device) for device in self.devices.values() if device.is_switch}

    def switch_name(self, device: Device) -> str:
        """Return a switch's name: without colons, which part switch from port, and only its own."""
        name = device.name.replace(":", "/") or hex_guid(device.guid)
        return name if self._names.setdefault(name, device.guid) == device.guid else f"{name} {hex_guid(device.guid)}"

    def adapter_name(self, device: Device) -> tuple[str, str]:
        """Return node and NIC of an adapter, whose description is ``node HCA-1`` or ``node mlx5_0``."""
        node, _, nic = device.name.partition(" ")
        node = (
            f"{node} (node)" if any(node == other.name and other.is_switch for other in self.devices.values()) else node
        )
        return node or hex_guid(device.guid), nic.strip() or hex_guid(device.guid)

    def is_adapter(self, device: Device) -> bool:
        """Whether a device is a node's network card."""
        return not device.is_switch and _NO_ADAPTER.search(device.name) is None

    def topology(self) -> Topology:
        """Return nodes with their NICs, switches (leaf where nodes hang on them, else spine), and the cables."""
        nodes: dict[str, dict[str, Nic]] = {}
        cable: dict[str, object]
        leaves, links = set(), {}
        for device in self.devices.values():
            if not self.is_adapter(device):
                continue
            node, name = self.adapter_name(device)
            nics = nodes.setdefault(node, {})
            for port, (far, far_port, rate) in sorted(device.ports.items()) or [(1, (-1, 0, None))]:
                switch = self.devices.get(far)
                if switch is not None and switch.is_switch:
                    leaves.add(far)
                    cable = {"switch": self.switch_name(switch), "port": str(far_port), "gbps": rate}
                else:
                    cable = {}
                nic = nic_name(name, port)
                nics[nic] = Nic.model_validate({"nic": nic, "guid": hex_guid(device.guid), **cable})
        switches = [device for device in self.devices.values() if device.is_switch]
        for device in switches:
            for port, (far, far_port, rate) in device.ports.items():
                other = self.devices.get(far)
                if other is not None and other.is_switch:
                    ends = sorted((f"{self.switch_name(device)}:{port}", f"{self.switch_name(other)}:{far_port}"))
                    links[tuple(ends)] = Link(a=ends[0], b=ends[1], gbps=rate)
        return Topology(
            nodes=[Node(name=name, nics=list(nics.values())) for name, nics in sorted(nodes.items())],
            switches=[
                Switch(name=self.switch_name(device), role="leaf" if device.guid in leaves else "spine")
                for device in sorted(switches, key=lambda device: device.guid)
            ],
            links=[links[ends] for ends in sorted(links)],
        )


def hex_guid(guid: int) -> str:
    """Return a GUID as the tools write it."""
    return f"{guid:#018x}"


def nic_name(device: str, port: int) -> str:
    """Return what a recording calls an adapter's port: ``mlx5_0``, and ``mlx5_0/2`` for one that is not the first."""
    return device if port == 1 else f"{device}/{port}"


def _gbps(text: str) -> float | None:
    match = _RATE.search(text)
    if match is None or match["speed"] not in _SPEEDS:
        return None
    return _SPEEDS[match["speed"]] * int(match["lanes"]) / 4
