"""A check that copies over each GPU's host link in turn, on all nodes, again and again: what it measures is telling.

Vela's Autopilot runs such a test every hour beside the jobs and judges by the mean of 12 (2407.05467, section 2.3.2).
"""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from services.synth.cluster.world import World
from services.synth.physics.effects import Course, Effect
from services.synth.story.happening import Happening, Offset


class LinkTest(Happening):
    """From `at` on every `every_s`; each GPU's copies take `copy_s` in and as long out. No fault."""

    kind: Literal["link_test"]
    at: Offset
    every_s: float = Field(default=3600.0, gt=0)
    copy_s: float = Field(default=10.0, gt=0)

    def effects(self, world: World) -> Iterable[Effect]:
        """Copy over the links of all nodes at the same time, one GPU of each after the other."""
        per_node = world.profile.node.gpus
        for gpu in range(per_node):
            columns = np.arange(world.profile.nodes) * per_node + gpu
            for order, direction in enumerate(("rx", "tx")):
                begin = self.at + (2 * gpu + order) * self.copy_s
                course = Course.between(
                    begin, world.duration_s + self.every_s, period_s=self.every_s, duty=self.copy_s / self.every_s
                )
                yield Effect("gpu.pcie_test", columns, 1.0, course, {"direction": direction})
