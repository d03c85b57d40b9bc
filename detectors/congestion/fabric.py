"""Where every port is in the fabric: on which switch, of what role, and what is at the other end of its cable."""

from collections.abc import Iterable

import numpy as np

from detectors.contract import IntArray
from detectors.fleet import Fleet

Port = tuple[str, str]
"""(switch, port)."""


class Fabric:
    """The switches and cables of the topology, and what its ports are by index."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._role = {str(s.get("name")): str(s.get("role") or "") for s in fleet.topology.get("switches") or ()}
        self.host: dict[Port, str] = {}
        self._port_of_nic: dict[tuple[str, str], Port] = {}
        self.far: dict[Port, Port] = {}
        self._beside: dict[str, set[str]] = {}
        for node, told in fleet.nodes.items():
            for nic in told.get("nics") or ():
                if nic.get("switch") and nic.get("port"):
                    port = str(nic["switch"]), str(nic["port"])
                    self.host[port] = node
                    self._port_of_nic[node, str(nic.get("nic"))] = port
        for link in fleet.topology.get("links") or ():
            a, b = (str(link.get(end, "")).partition(":") for end in ("a", "b"))
            self.far[a[0], a[2]], self.far[b[0], b[2]] = (b[0], b[2]), (a[0], a[2])
            self._beside.setdefault(a[0], set()).add(b[0])
            self._beside.setdefault(b[0], set()).add(a[0])
        self.ports: list[Port] = []
        self.group: IntArray = np.empty(0, np.int64)
        self.switch: IntArray = np.empty(0, np.int64)
        self.nics: list[Port | None] = []
        self.nic_group: IntArray = np.empty(0, np.int64)
        self.nic_switch: IntArray = np.empty(0, np.int64)
        self._numbers: dict[str, int] = {}

    def sync(self, switch_ports: int, nics: int) -> None:
        """Take note of the first so many ports and NICs of the fleet."""
        fresh = self._fleet.entities("switch")[len(self.ports) : switch_ports]
        if fresh:
            ports = [(str(switch), str(port)) for switch, port in fresh]
            self.ports += ports
            kinds = [f"{self._role.get(port[0], '')}/{'host' if port in self.host else 'fabric'}" for port in ports]
            self.group = np.concatenate([self.group, self._number(kinds)])
            self.switch = np.concatenate([self.switch, self._number([switch for switch, _ in ports])])
        fresh = self._fleet.entities("nic")[len(self.nics) : nics]
        if fresh:
            places = [self._port_of_nic.get((str(node), str(nic))) for node, nic in fresh]
            self.nics += places
            self.nic_group = np.concatenate([self.nic_group, self._number(["nic"] * len(fresh))])
            on = [place[0] if place else str(node) for place, (node, _) in zip(places, fresh, strict=True)]
            self.nic_switch = np.concatenate([self.nic_switch, self._number(on)])

    def _number(self, names: Iterable[str]) -> IntArray:
        return np.array([self._numbers.setdefault(name, len(self._numbers)) for name in names], np.int64)

    def near(self, switch: str) -> set[str]:
        """Return a switch and those that it has cables to."""
        return {switch, *self._beside.get(switch, ())}

    def size(self, switch: str) -> int:
        """Return how many ports of a switch are known to be in use."""
        told = sum(port[0] == switch for port in self.host) + sum(port[0] == switch for port in self.far)
        return max(told, sum(port[0] == switch for port in self.ports))
