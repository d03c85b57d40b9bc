"""A power supply fails, and the firmware brakes all GPUs of its node until it is back."""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from detectors.signals.throttle_bits import HW_POWER_BRAKE, HW_SLOWDOWN
from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.physics.effects import Effect
from services.synth.story.happening import OnNode, PlacedTruth

_RESEATED_S = 48.0
"""So long before the supply works again it is pulled and pushed back in."""


class PowerBrake(OnNode):
    """`gpu_cap_w`: what a braked GPU may draw. Vela: about 2 s after the supply, 400 W to 150 W (section 2.1)."""

    kind: Literal["power_brake"]
    gpu_cap_w: float = Field(gt=0)
    psu: int = Field(default=1, ge=1, le=2)

    def effects(self, world: World) -> Iterable[Effect]:
        """Fail the supply at once, brake after the firmware's delay."""
        node = world.node(self.node)
        yield Effect("node.psu_failed", np.array([node]), float(self.psu), self.course())
        yield Effect(
            "gpu.power_cap_w",
            world.gpus(node),
            world.watts(self.gpu_cap_w),
            self.course(world.profile.node.brake_delay_s),
            {"reasons": HW_SLOWDOWN | HW_POWER_BRAKE},
        )

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return what the SEL says: failure, lost redundancy, reseating, recovery."""
        supply, node = f"Power Supply #0x{0x50 + self.psu:02x}", world.node(self.node)
        gone = self.until - _RESEATED_S
        yield logs.sel(node, self.at, "critical", supply, "Failure detected", "Asserted")
        yield logs.sel(node, self.at + 0.2, "critical", "Power Unit #0x01", "Redundancy Lost", "Asserted")
        if gone > self.at:
            yield logs.sel(node, gone, "info", supply, "Presence detected", "Deasserted")
            yield logs.sel(node, self.until - 1.5, "info", supply, "Presence detected", "Asserted")
        yield logs.sel(node, self.until, "info", supply, "Failure detected", "Deasserted")
        yield logs.sel(node, self.until + 0.2, "info", "Power Unit #0x01", "Fully Redundant", "Asserted")

    def truths(self, world: World) -> Iterable[PlacedTruth]:
        """Return the node's label: until the brake is off, which is a little after the supply is back."""
        for placed in super().truths(world):
            yield placed.model_copy(update={"span": (self.at, self.until + world.profile.node.brake_delay_s)})
