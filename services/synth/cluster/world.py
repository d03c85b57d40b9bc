"""The stage of one recording: the cluster as it is made now, and where a scenario's names lie on it.

A scenario is written for its own profile at full size. Made at another scale, or on another cluster, a node keeps its
place: the one a third of the way along stays a third of the way along, and in the jobs that it is written in.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field

import numpy as np

from services.kit.errors import UsageError
from services.synth.cluster.fabric import Fabric
from services.synth.cluster.profile import ClusterProfile
from services.synth.physics.effects import Ints


@dataclass
class World:
    """`profile` is the cluster that is made, `written_for` the one that the scenario's names are of.

    `jobs` are the nodes of the scenario's own jobs, as written.
    """

    profile: ClusterProfile
    written_for: ClusterProfile
    start_ms: int
    duration_s: float
    jobs: Sequence[str] = ()
    _nodes: dict[str, int] = field(default_factory=dict)
    _switches: dict[str, int] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Names of the nodes, by index."""
        return self.profile.node_names

    def node(self, name: str) -> int:
        """Return the index of a node by its name in the scenario; two names never fall on one node.

        UserError: the scenario's own profile has no such node, or the cluster has fewer nodes than the scenario names.
        """
        if name not in self._nodes:
            written = self.written_for.node_index(name)
            index = self._place(written)
            taken = set(self._nodes.values())
            if len(taken) >= self.profile.nodes:
                raise UsageError(
                    f"profile {self.profile.name}: has {self.profile.nodes} nodes, and the scenario names more",
                    remedy="choose a larger scale, or a larger profile",
                )
            free = [one for one in range(self.profile.nodes) if one not in taken]
            stretches = self._stretches()
            self._nodes[name] = min(
                free,
                key=lambda one: (
                    sum((written in before) is not (one in now) for before, now in stretches),
                    abs(one - index),
                ),
            )
        return self._nodes[name]

    def by_index(self, index: int) -> str:
        """Return a name under which `node` finds the node of that index; the scenario's own keep clear of it."""
        name = f"#{index}"
        self._nodes[name] = index
        return name

    def nodes(self, given: str | list[str] | list[int]) -> list[int]:
        """Return the indices of ``all`` nodes, of a range ``first..last``, or of nodes by name; numbers are indices.

        Ranges and names may be joined by commas, and ``not NAME`` takes one out: ``v001..v086, not v041, v090``.

        UserError: a name that the scenario's profile does not have, or no node that is left at this size.
        """
        if isinstance(given, list):
            return [name if isinstance(name, int) else self.node(name) for name in given]
        if given == "all":
            return list(range(self.profile.nodes))
        found: list[int] = []
        for part in given.split(","):
            name = part.strip()
            if name.startswith("not "):
                out = self.node(name.removeprefix("not ").strip())
                found = [node for node in found if node != out]
            elif ".." in name:
                found += self._range(name)
            else:
                found.append(self.node(name))
        if not found:
            raise UsageError(f"nodes {given}: none is left", remedy="choose a larger scale")
        return list(dict.fromkeys(found))

    def _stretches(self) -> list[tuple[range, range]]:
        """Return the stretches of nodes that jobs are written for, and where these lie: rounding may part the two."""
        found = []
        for part in ",".join(self.jobs).split(","):
            first, dots, last = part.strip().partition("..")
            if dots:
                written = range(self.written_for.node_index(first), self.written_for.node_index(last) + 1)
                made = self._range(part.strip())
                found.append((written, range(made[0], made[-1] + 1)))
        return found

    def _range(self, given: str) -> list[int]:
        first, _, last = given.partition("..")
        begin = self._place(self.written_for.node_index(first))
        end = self._place(self.written_for.node_index(last or first) + 1)
        return list(range(begin, max(end, begin + 1)))

    def gpus(self, node: int, gpu: int | None = None) -> Ints:
        """Return the columns of a node's GPUs, or of one of them. UserError: it has no such GPU."""
        count = self.profile.node.gpus
        if gpu is None:
            return np.arange(node * count, (node + 1) * count)
        return np.array([node * count + gpu % count])

    def rack_of(self, node: int) -> list[int]:
        """Return the indices of all nodes in a node's rack."""
        return self._block(node, self.profile.nodes_per_rack)

    def nvlink_domain_of(self, node: int) -> list[int]:
        """Return the indices of all nodes that a node's GPUs reach over NVLink, itself among them."""
        return self._block(node, self.profile.nvlink_domain_nodes)

    def _block(self, node: int, size: int) -> list[int]:
        first = node // size * size
        return list(range(first, min(first + size, self.profile.nodes)))

    @property
    def fabric(self) -> Fabric:
        """The wiring. UserError: the profile has no network."""
        found = self.profile.fabric
        if found is None:
            raise UsageError(
                f"profile {self.profile.name}: has no network, and the scenario needs one",
                remedy="add a `network` to the profile, or choose another",
            )
        return found

    def watts(self, written: float) -> float:
        """Return what a scenario's watts are for a GPU of this cluster: the same share of its card's power limit."""
        return written * self.profile.gpu.power_limit_w / self.written_for.gpu.power_limit_w

    def needs_ethernet(self, kind: str) -> None:
        """Refuse what only an Ethernet fabric has. UserError: this one is InfiniBand."""
        if self.fabric.network.fabric == "infiniband":
            raise UsageError(
                f"profile {self.profile.name}: its network is InfiniBand, which has no PFC and no ECN marks: no {kind}",
                remedy="choose a profile whose network is roce, or leave the happening out",
            )

    def switch(self, name: str) -> int:
        """Return the index of a switch by its name in the scenario; two names fall on two switches, if there are two.

        UserError: the scenario's own profile has no such switch.
        """
        if name not in self._switches:
            written = self.written_for.fabric
            fabric = self.fabric
            index = fabric.switch_index(name) if written is None else fabric.likeness(written, name)
            leaves = len(fabric.leaves)
            alike = range(leaves) if index < leaves else range(leaves, leaves + len(fabric.spines))
            taken = set(self._switches.values())
            free = [one for one in alike if one not in taken]
            self._switches[name] = (
                index if index not in taken or not free else min(free, key=lambda one: abs(one - index))
            )
        return self._switches[name]

    def uplink(self, leaf: str, number: int) -> int:
        """Return the cable in the uplink `number` (from 0) of a leaf, by its name in the scenario."""
        uplinks = self.fabric.uplinks(self.switch(leaf))
        if not len(uplinks):
            raise UsageError(f"{leaf}: has no uplinks", remedy="name a node, or a leaf below spines")
        return int(uplinks[number % len(uplinks)])

    def mount(self, path: str) -> str:
        """Return a file system's mount by its name in the scenario; another cluster's first stands for any other.

        UserError: the scenario's own profile has no such mount.
        """
        self.written_for.mount_of(path)
        there = [mount.mount for mount in self.profile.mounts]
        return path if path in there else there[0]

    def _place(self, index: int) -> int:
        return index * self.profile.nodes // self.written_for.nodes
