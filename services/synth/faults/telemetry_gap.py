"""A node's collector falls silent, or gives its last values again and again, while the node itself works on."""

from collections.abc import Iterable
from typing import Literal

import numpy as np

from services.synth.cluster.world import World
from services.synth.physics.effects import Effect
from services.synth.story.happening import OnNode, PlacedTruth


class TelemetryGap(OnNode):
    """`form`: ``silent`` or ``frozen``; `whole_rack`: the collector was that of all nodes of the rack."""

    kind: Literal["telemetry_gap"]
    form: Literal["silent", "frozen"] = "silent"
    whole_rack: bool = False

    def _nodes(self, world: World) -> list[int]:
        node = world.node(self.node)
        return world.rack_of(node) if self.whole_rack else [node]

    def effects(self, world: World) -> Iterable[Effect]:
        """Keep the readings back, or freeze them."""
        quantity = "node.unheard" if self.form == "silent" else "node.frozen"
        yield Effect(quantity, np.array(self._nodes(world)), 1.0, self.course())

    def truths(self, world: World) -> Iterable[PlacedTruth]:
        """Return the label: of the node, and of its rack's as well where they share a collector."""
        for placed in super().truths(world):
            others = [node for node in self._nodes(world) if node not in placed.nodes]
            yield placed.model_copy(update={"also": [{"node": world.names[node]} for node in others]})
