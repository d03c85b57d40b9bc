"""Large flows of others on the links between a leaf and the spines; with a truth the fault, without it a burst."""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from services.synth.cluster.world import World
from services.synth.physics.effects import Effect
from services.synth.story.happening import PlacedTruth
from services.synth.story.on_cable import OnSwitch


class ElephantFlows(OnSwitch):
    """`flows` flows, each as large as `share` of all that the leaf's uplinks carry, on as many of its uplinks.

    `direction`: up to the spines, down from them, or both ways. Where the leaf has fewer uplinks they share them.
    """

    kind: Literal["elephant_flows"]
    flows: int = Field(gt=0)
    share: float = Field(gt=0, le=1)
    direction: Literal["up", "down", "both"] = "both"

    def effects(self, world: World) -> Iterable[Effect]:
        """Fill the uplinks."""
        fabric = world.fabric
        uplinks = fabric.uplinks(self.index(world))
        if not len(uplinks):
            return
        total = self.flows * self.share * len(uplinks) * fabric.up_gbps
        taken = uplinks[np.arange(min(self.flows, len(uplinks)))]
        for way in ("up", "down") if self.direction == "both" else (self.direction,):
            yield Effect("cable.extra_gbps", taken, total / len(taken), self.course(), {"direction": way})

    def truths(self, world: World) -> Iterable[PlacedTruth]:
        """Return the label: the leaf, or just as well the spines, whose ports down to it are as full."""
        fabric = world.fabric
        for placed in super().truths(world):
            links = fabric.uplinks(self.index(world)) - fabric.hosts
            spines = np.unique(fabric.up_spine[links[: self.flows]])
            if self.direction == "up":
                spines = spines[:0]
            yield placed.model_copy(update={"also": [{"switch": fabric.spines[int(spine)]} for spine in spines]})
