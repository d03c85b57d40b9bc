"""The power brake of one board holds its GPUs, and the node's others run free: its own power delivery is at fault.

A compute tray of a GB200 NVL72 has two such boards of two GPUs (NVSentinel's runbook of the power brake: GPUs 2 and 3
are the second superchip's). No supply fails, and the controller has nothing to report.
"""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from detectors.signals.throttle_bits import HW_POWER_BRAKE, HW_SLOWDOWN
from services.synth.cluster.world import World
from services.synth.physics.effects import Effect, Ints
from services.synth.story.happening import OnNode, PlacedTruth


class BoardBrake(OnNode):
    """`cap_w`: what each of `gpus` may draw, on the scenario's own card; another card the same share."""

    kind: Literal["board_brake"]
    gpus: list[int] = Field(min_length=1)
    cap_w: float = Field(gt=0)

    def effects(self, world: World) -> Iterable[Effect]:
        """Hold the board's GPUs."""
        bits = {"reasons": HW_SLOWDOWN | HW_POWER_BRAKE}
        yield Effect("gpu.power_cap_w", self._held(world), world.watts(self.cap_w), self.course(), bits)

    def _held(self, world: World) -> Ints:
        node = world.node(self.node)
        return np.unique(np.concatenate([world.gpus(node, gpu) for gpu in self.gpus]))

    def truths(self, world: World) -> Iterable[PlacedTruth]:
        """Return the node's label; each of its held GPUs may be named instead."""
        for label in super().truths(world):
            gpus = (self._held(world) % world.profile.node.gpus).tolist()
            yield label.model_copy(update={"also": [{**label.entity, "gpu": gpu} for gpu in gpus]})
