"""Where every port is in the fabric: on which switch, of what kind and speed, and what is at its cable's other end."""

from collections import Counter
from collections.abc import Collection
from typing import Final

import numpy as np

from detectors.congestion.flows import Peers
from detectors.contract import BoolArray, Entity, FloatArray, IntArray, Kind
from detectors.fleet.cabling import cables
from detectors.fleet.fleet import Fleet

Port = tuple[str, str]
"""(switch, port), or (node, NIC) of a NIC whose cable is not in the topology."""
_SLOWEST_GBPS: Final = 100.0
"""Of a port whose speed is not known: RoCE and InfiniBand fabrics of GPU clusters have 100 Gb/s and more."""
_WHOLE_PORTS, _WHOLE_SHARE = 4, 0.5
"""A switch that marks or pauses wrongly does so on most of its ports; fewer are a few flows."""


def is_most(ports: int, size: int) -> bool:
    """Return whether so many of the ports of a switch are the switch itself."""
    return ports >= max(_WHOLE_PORTS, _WHOLE_SHARE * size)


class Side:
    """The switch ports, or the NICs, that have reported: columns by their index in the fleet."""

    def __init__(self) -> None:
        self.places: list[Port] = []
        """The port that each speaks of: a NIC of the switch port that it is plugged into."""
        self.hosts: list[str] = []
        """The node at each; "" at cables between switches."""
        self._gbps: list[float] = []
        self._unit: list[int] = []
        self._kind_of: list[int] = []
        self._units: dict[tuple[str, str], int] = {}
        self._kinds: dict[str, int] = {}
        nothing = np.empty(0, np.int64)
        self._arrays: tuple[IntArray, IntArray, FloatArray] = nothing, nothing, np.empty(0)
        self._compared: tuple[dict[str, int], int, Peers] = {}, 0, Peers(nothing, nothing, nothing)
        """Of which jobs, and of how many ports, the peers were last asked for, and these."""

    def add(self, place: Port, owner: str, kind: str, host: str, gbps: float) -> None:
        """Take note of the next port, which is of a kind and on `owner`."""
        unit = self._units.setdefault((kind, owner), len(self._units))
        if unit == len(self._kind_of):
            self._kind_of.append(self._kinds.setdefault(kind, len(self._kinds)))
        self.places.append(place)
        self.hosts.append(host)
        self._gbps.append(gbps)
        self._unit.append(unit)

    def peers(self, job_of: dict[str, int]) -> Peers:
        """Return who is compared with whom; `job_of` numbers the jobs, by node."""
        if self._compared[:2] != (job_of, len(self.hosts)):
            units, kinds, _ = self._settled()
            peers = Peers(units, kinds, np.array([job_of.get(host, -1) for host in self.hosts], np.int64))
            self._compared = job_of, len(self.hosts), peers
        return self._compared[2]

    @property
    def gbps(self) -> FloatArray:
        """The speed of each, (ports,)."""
        return self._settled()[2]

    def on(self, switches: Collection[str]) -> BoolArray:
        """Return which of them are on some switches, (ports,)."""
        if not switches:
            return np.zeros(len(self.places), bool)
        return np.array([place[0] in switches for place in self.places], bool)

    def _settled(self) -> tuple[IntArray, IntArray, FloatArray]:
        """Return each port's unit, each unit's kind, and each port's speed, as arrays."""
        if len(self._arrays[0]) < len(self._unit):
            self._arrays = np.array(self._unit), np.array(self._kind_of), np.array(self._gbps)
        return self._arrays


class Fabric:
    """The switches and cables of the topology, and what its ports are by index."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._role = {str(s.get("name")): str(s.get("role") or "") for s in fleet.topology.get("switches") or ()}
        self.host: dict[Port, str] = {}
        self.far: dict[Port, Port] = {}
        self.nics: set[Port] = set()
        """The places that are NICs themselves, as their switch is not in the topology."""
        self._port_of_nic: dict[Port, Port] = {}
        self._gbps: dict[Port, float] = {}
        self._beside: dict[str, set[str]] = {}
        for ends, gbps in cables(fleet):
            places = [(owner, name) for _, owner, name in ends]
            self._gbps |= dict.fromkeys(places, gbps or _SLOWEST_GBPS)
            if len(ends) < 2:
                continue
            one, other = places
            if ends[0][0] == "nic":
                self.host[other], self._port_of_nic[one] = one[0], other
                continue
            self.far[one], self.far[other] = other, one
            self._beside.setdefault(one[0], set()).add(other[0])
            self._beside.setdefault(other[0], set()).add(one[0])
        self.sides: dict[Kind, Side] = {"switch": Side(), "nic": Side()}

    def sync(self, kind: Kind, count: int) -> None:
        """Take note of the first `count` entities of a kind."""
        side = self.sides[kind]
        for owner, name in self._fleet.entities(kind)[len(side.places) : count]:
            end = str(owner), str(name)
            gbps = self._gbps.get(end, _SLOWEST_GBPS)
            if kind == "switch":
                host = self.host.get(end, "")
                side.add(end, end[0], f"{self._role.get(end[0], '')}/{'host' if host else 'fabric'}", host, gbps)
                continue
            place = self._port_of_nic.get(end)
            if place is None:
                self.nics.add(end)
                self.host[end] = end[0]
            side.add(place or end, (place or end)[0], "nic", end[0], gbps)

    def entity(self, switch: str, port: str) -> Entity:
        """Return how findings name a port; with "" for the port, its switch."""
        if (switch, port) in self.nics:
            return {"node": switch, "nic": port}
        return {"switch": switch, "port": port} if port else {"switch": switch}

    def jobs(self) -> dict[str, int]:
        """Return which of the jobs that run each node has, by number."""
        ranked = sorted(self._fleet.jobs.values(), key=lambda job: (job.start, job.job_id))
        return {node: number for number, job in enumerate(ranked) for node in job.nodes}

    def used_by(self, kind: Kind, nodes: Collection[str]) -> BoolArray:
        """Return which ports of a kind some nodes are at, or may send through: cables of their switches."""
        side = self.sides[kind]
        if not nodes:
            return np.zeros(len(side.places), bool)
        switches = {port[0] for port, host in self.host.items() if host in nodes}
        reached = {place for place, far in self.far.items() if place[0] in switches or far[0] in switches}
        pairs = zip(side.hosts, side.places, strict=True)
        return np.array([host in nodes if host else place in reached for host, place in pairs], bool)

    def reaches(self, nodes: Collection[str], switches: Collection[str]) -> bool:
        """Return whether any of some nodes is plugged into one of some switches."""
        return any(port[0] in switches and host in nodes for port, host in self.host.items())

    def near(self, switch: str) -> set[str]:
        """Return a switch and those that it has cables to."""
        return {switch, *self._beside.get(switch, ())}

    def mostly(self, ports: BoolArray) -> set[str]:
        """Return the switches most of whose ports are among some of all that have reported, (ports,)."""
        many = Counter(self.sides["switch"].places[number][0] for number in np.flatnonzero(ports).tolist())
        return {switch for switch, count in many.items() if is_most(count, self.size(switch))}

    def size(self, switch: str) -> int:
        """Return how many ports of a switch are known to be in use."""
        cabled = sum(port[0] == switch for port in self.host) + sum(port[0] == switch for port in self.far)
        return max(cabled, sum(port[0] == switch for port in self.sides["switch"].places))
