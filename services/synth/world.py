"""The stage of one recording: the cluster as it is made now, and where a scenario's names lie on it.

A scenario is written for its own profile at full size. Made at another scale, or on another cluster, a node keeps its
place: the one a third of the way along stays a third of the way along.
"""

from dataclasses import dataclass, field

import numpy as np

from services.kit.errors import UserError
from services.synth.effects import Ints
from services.synth.profile import ClusterProfile


@dataclass
class World:
    """`profile` is the cluster that is made, `written_for` the one that the scenario's names are of."""

    profile: ClusterProfile
    written_for: ClusterProfile
    start_ms: int
    duration_s: float
    _nodes: dict[str, int] = field(default_factory=dict)

    @property
    def names(self) -> list[str]:
        """Names of the nodes, by index."""
        return self.profile.node_names

    def node(self, name: str) -> int:
        """Return the index of a node by its name in the scenario; two names never fall on one node.

        UserError: the scenario's own profile has no such node, or the cluster has fewer nodes than the scenario names.
        """
        if name not in self._nodes:
            index = self._place(self.written_for.node_index(name))
            taken = set(self._nodes.values())
            if len(taken) >= self.profile.nodes:
                raise UserError(
                    f"profile {self.profile.name}: has {self.profile.nodes} nodes, and the scenario names more",
                    remedy="choose a larger --scale, or a larger profile",
                    exit_code=2,
                )
            while index in taken:
                index = (index + 1) % self.profile.nodes
            self._nodes[name] = index
        return self._nodes[name]

    def nodes(self, given: str | list[str]) -> list[int]:
        """Return the indices of ``all`` nodes, of a range ``first..last``, or of nodes by name.

        UserError: a name that the scenario's profile does not have.
        """
        if isinstance(given, list):
            return [self.node(name) for name in given]
        if given == "all":
            return list(range(self.profile.nodes))
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
        size = self.profile.nodes_per_rack
        first = node // size * size
        return list(range(first, min(first + size, self.profile.nodes)))

    def _place(self, index: int) -> int:
        return index * self.profile.nodes // self.written_for.nodes
