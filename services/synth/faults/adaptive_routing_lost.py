"""A leaf falls back from adaptive to single-path static routing: some uplinks overflow, others stay half empty."""

from collections.abc import Iterable
from typing import Literal

import numpy as np

from services.synth.cluster.world import World
from services.synth.physics.effects import Effect
from services.synth.story.on_cable import OnSwitch


class AdaptiveRoutingLost(OnSwitch):
    """Until the subnet manager hands adaptive tables out again."""

    kind: Literal["adaptive_routing_lost"]

    def effects(self, world: World) -> Iterable[Effect]:
        """Let every flow keep to one path."""
        yield Effect("switch.static", np.array([self.index(world)]), 1.0, self.course())
