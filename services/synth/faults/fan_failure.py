"""Fans of one node stand still; the others turn as fast as they can, and it is not enough at full load."""

from collections.abc import Iterable
from typing import Literal

import numpy as np

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.physics.effects import Effect
from services.synth.story.happening import OnNode


class FanFailure(OnNode):
    """`fans`: their numbers, from 1."""

    kind: Literal["fan_failure"]
    fans: list[int]

    def effects(self, world: World) -> Iterable[Effect]:
        """Stop the fans."""
        for fan in self.fans:
            yield Effect("node.fan_failed", np.array([world.node(self.node)]), float(fan), self.course())

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return what the SEL says of each fan."""
        node = world.node(self.node)
        for fan in self.fans:
            name = f"Fan #0x{0x30 + fan:02x}"
            yield logs.sel(node, self.at + 0.4 * fan, "critical", name, "Lower Critical going low", "Asserted")
            yield logs.sel(node, self.until + 0.4 * fan, "info", name, "Lower Critical going low", "Deasserted")
