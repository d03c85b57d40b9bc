"""Which cable goes where: the leaves, spines, ports and cables of a cluster, by index, as its profile describes them.

A cable's lower end is a node's port or a leaf's uplink, its upper end the leaf's or the spine's port that it is in.
Cables of nodes come first, node-major; then those of storage servers; then those between leaves and spines.
"""

from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING

import numpy as np

from services.kit.errors import UsageError
from services.synth.physics.effects import Floats, Ints

if TYPE_CHECKING:
    from services.synth.cluster.profile import ClusterProfile, NetworkProfile

_LETTERS = "abcdefghijklmnop"


@dataclass(frozen=True)
class Leaf:
    """A switch that nodes hang on: of the `group`-th lot of nodes, the `plane`-th beside others; pod as in topology."""

    name: str
    group: int
    plane: int
    pod: str


@dataclass(frozen=True, eq=False)
class Fabric:
    """The wiring. ``host_``: of cables to machines, shape (N,); ``up_``: of cables from leaf to spine, shape (L,).

    Switches are leaves first, then spines. A machine's index counts nodes first, then storage servers.
    """

    leaves: list[Leaf]
    spines: list[str]
    machines: list[str]
    host_machine: Ints
    host_number: Ints
    host_leaf: Ints
    host_port: list[str]
    host_gbps: Floats
    up_leaf: Ints
    up_spine: Ints
    up_port: list[str]
    up_spine_port: list[str]
    up_gbps: float
    nodes: int
    nics: int
    network: "NetworkProfile"
    _place: dict[str, int] = field(default_factory=dict)

    @property
    def switches(self) -> list[str]:
        """Names of all switches, by index."""
        return [leaf.name for leaf in self.leaves] + self.spines

    @property
    def hosts(self) -> int:
        """How many cables go to machines."""
        return len(self.host_leaf)

    @property
    def cables(self) -> int:
        """How many cables there are."""
        return len(self.host_leaf) + len(self.up_leaf)

    @cached_property
    def gbps(self) -> Floats:
        """Speed of every cable."""
        return np.concatenate([self.host_gbps, np.full(len(self.up_leaf), self.up_gbps)])

    @cached_property
    def port_switch(self) -> Ints:
        """The switch of every switch port: upper ends of host cables, lower ends of uplinks, their upper ends."""
        return np.concatenate([self.host_leaf, self.up_leaf, len(self.leaves) + self.up_spine])

    @cached_property
    def port_cable(self) -> Ints:
        """The cable in every switch port."""
        uplinks = self.hosts + np.arange(len(self.up_leaf))
        return np.concatenate([np.arange(self.hosts), uplinks, uplinks])

    @cached_property
    def port_names(self) -> list[str]:
        """Name of every switch port, in the order of `port_switch`."""
        return [*self.host_port, *self.up_port, *self.up_spine_port]

    @cached_property
    def group_of(self) -> Ints:
        """The group of leaves that every machine hangs on."""
        groups = np.array([leaf.group for leaf in self.leaves])
        found = np.zeros(len(self.machines), dtype=np.int64)
        found[self.host_machine] = groups[self.host_leaf]
        return found

    def nic(self, number: int) -> str:
        """Return the name of a machine's port by its number."""
        return self.network.nic_name.format(number)

    def host_cable(self, node: int, nic: int) -> int:
        """Return the cable of a node's port."""
        return node * self.nics + nic % self.nics

    def uplinks(self, switch: int) -> Ints:
        """Return the cables between leaf and spine that end at a switch."""
        at = self.up_leaf == switch if switch < len(self.leaves) else self.up_spine == switch - len(self.leaves)
        return self.hosts + np.flatnonzero(at)

    def cables_of(self, switch: int) -> Ints:
        """Return all cables that end at a switch."""
        return np.concatenate([np.flatnonzero(self.host_leaf == switch), self.uplinks(switch)])

    def nodes_at(self, switch: int) -> list[int]:
        """Return the nodes whose traffic a switch may carry: those of a leaf's group, all for a spine."""
        if switch >= len(self.leaves):
            return list(range(self.nodes))
        mine = np.unique(self.host_machine[self.host_leaf == switch])
        return [int(machine) for machine in mine if machine < self.nodes]

    def nodes_on(self, cable: int) -> list[int]:
        """Return the nodes whose traffic a cable may carry."""
        if cable < self.hosts:
            machine = int(self.host_machine[cable])
            return [machine] if machine < self.nodes else list(range(self.nodes))
        return self.nodes_at(int(self.up_leaf[cable - self.hosts]))

    def ends(self, cable: int) -> list[dict[str, str | int]]:
        """Return a cable's two ends as labels name them, lower end first."""
        if cable < self.hosts:
            nic = self.nic(int(self.host_number[cable]))
            lower: dict[str, str | int] = {"node": self.machines[int(self.host_machine[cable])], "nic": nic}
            return [lower, {"switch": self.leaves[int(self.host_leaf[cable])].name, "port": self.host_port[cable]}]
        number = cable - self.hosts
        return [
            {"switch": self.leaves[int(self.up_leaf[number])].name, "port": self.up_port[number]},
            {"switch": self.spines[int(self.up_spine[number])], "port": self.up_spine_port[number]},
        ]

    def switch_index(self, name: str) -> int:
        """Return a switch's index; UserError if there is none of that name."""
        if not self._place:
            self._place.update((switch, index) for index, switch in enumerate(self.switches))
        if name not in self._place:
            there = f"switches are {', '.join(self.switches[:4])} ... {self.switches[-1]}" if self._place else "none"
            raise UsageError(f"the cluster has no switch {name!r}", remedy=there)
        return self._place[name]

    def likeness(self, written_for: "Fabric", name: str) -> int:
        """Return the switch that stands where `name` stands in another cluster: same plane, same part of the way."""
        index = written_for.switch_index(name)
        if index >= len(written_for.leaves):
            if not self.spines:
                raise UsageError(f"{name}: this cluster has no spines", remedy="choose another profile")
            spine = index - len(written_for.leaves)
            return len(self.leaves) + spine * len(self.spines) // len(written_for.spines)
        leaf = written_for.leaves[index]
        groups = 1 + max(one.group for one in self.leaves)
        their_groups = 1 + max(one.group for one in written_for.leaves)
        group = leaf.group * groups // their_groups
        mine = [number for number, one in enumerate(self.leaves) if one.group == group]
        return mine[leaf.plane % len(mine)]


def fabric_of(profile: "ClusterProfile") -> Fabric | None:
    """Return the wiring of a profile; None where it has no network.

    In a cluster too small for two groups of leaves, the groups are made smaller, and their uplinks fewer in
    proportion: traffic crosses the spines in a small copy too, and they are as tight as in the large one.
    """
    network = profile.network
    if network is None or profile.node.nics == 0:
        return None
    per_rack = network.nodes_per_leaf or profile.nodes_per_rack
    crossing = network.spines > 0 and network.storage_leaves == 0
    size = min(per_rack, max(1, -(-profile.nodes // 2)) if crossing else profile.nodes)
    planes = network.leaves_per_group or profile.node.nics
    groups = -(-profile.nodes // size)
    spines, links = _uplinks(network.spines, network.links_per_spine, size / per_rack)
    servers, server_leaves = network.storage_servers, network.storage_leaves
    leaves = []
    for group in range(groups):
        rack = group * size // profile.nodes_per_rack
        pod = f"su{rack // profile.racks_per_pod + 1}"
        for plane in range(planes):
            name = network.leaf_name.format(group=group + 1, plane=plane + 1, letter=_LETTERS[plane])
            leaves.append(Leaf(name, group, plane, pod))
    for number in range(server_leaves):
        name = network.leaf_name.format(group=groups + 1, plane=number + 1, letter=_LETTERS[number])
        leaves.append(Leaf(name, groups, number, "storage"))
    node, nic = np.divmod(np.arange(profile.nodes * profile.node.nics), profile.node.nics)
    leaf = node // size * planes + nic % planes
    server, port = np.divmod(np.arange(servers * network.storage_server_nics), max(network.storage_server_nics, 1))
    first = groups * planes
    at = first + (server + port) % server_leaves if server_leaves else (server + port) % first
    host_leaf = np.concatenate([leaf, at]).astype(np.int64)
    taken = np.zeros(len(leaves), dtype=np.int64)
    seats = np.empty(len(host_leaf), dtype=np.int64)
    for cable, owner in enumerate(host_leaf):
        seats[cable] = taken[owner]
        taken[owner] += 1
    most = max(int(taken.max()), per_rack * -(-profile.node.nics // planes))
    up_leaf, up_number = np.divmod(np.arange(len(leaves) * spines * links), max(spines * links, 1))
    up_spine = up_number % max(spines, 1)
    return Fabric(
        leaves=leaves,
        spines=[network.spine_name.format(number + 1) for number in range(spines)],
        machines=profile.node_names + [network.storage_server_name.format(n + 1) for n in range(servers)],
        host_machine=np.concatenate([node, profile.nodes + server]).astype(np.int64),
        host_number=np.concatenate([nic, port]).astype(np.int64),
        host_leaf=host_leaf,
        host_port=[network.port_name(int(seat)) for seat in seats],
        host_gbps=np.concatenate(
            [np.full(len(node), profile.node.nic_gbps), np.full(len(server), network.storage_nic_gbps)]
        ),
        up_leaf=up_leaf.astype(np.int64),
        up_spine=up_spine.astype(np.int64),
        up_port=[network.port_name(most + int(number)) for number in up_number],
        up_spine_port=[
            network.port_name(int(owner) * links + int(number) // max(spines, 1))
            for owner, number in zip(up_leaf, up_number, strict=True)
        ],
        up_gbps=network.uplink_gbps or profile.node.nic_gbps,
        nodes=profile.nodes,
        nics=profile.node.nics,
        network=network,
    )


def _uplinks(spines: int, links: int, share: float) -> tuple[int, int]:
    """Return spines, and links to each, of a leaf with only a `share` of its nodes."""
    wanted = max(1, round(spines * links * min(share, 1.0)))
    fewer = min(spines, max(2, wanted))
    return fewer, max(1, round(wanted / fewer)) if fewer else 0
