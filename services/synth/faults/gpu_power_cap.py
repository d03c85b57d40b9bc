"""One GPU's card is held below its power: its own regulator brakes it, or its limit was set lower than its peers'."""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from detectors.signals.throttle_bits import HW_POWER_BRAKE, HW_SLOWDOWN
from services.synth.cluster.world import World
from services.synth.physics.effects import Effect
from services.synth.story.happening import OnGpu, PlacedTruth


class GpuPowerCap(OnGpu):
    """`cap_w`: what the GPU may draw, if it is the card that the scenario is written for; another card the same share.

    `by`: ``brake``, hardware and its bits, or ``limit``, the enforced limit.
    """

    kind: Literal["gpu_power_cap"]
    cap_w: float = Field(gt=0)
    by: Literal["brake", "limit"] = "brake"

    def effects(self, world: World) -> Iterable[Effect]:
        """Hold the one GPU."""
        gpu = world.gpus(world.node(self.node), self.gpu)
        cap_w = world.watts(self.cap_w)
        if self.by == "limit":
            yield Effect("gpu.power_limit_w", gpu, cap_w, self.course())
        else:
            bits = {"reasons": HW_SLOWDOWN | HW_POWER_BRAKE}
            yield Effect("gpu.power_cap_w", gpu, cap_w, self.course(), bits)

    def truths(self, world: World) -> Iterable[PlacedTruth]:
        """Return the GPU's label; of a limit, with what it allows: it shows only on a card that draws more."""
        for placed in super().truths(world):
            yield placed.model_copy(update={"allows_w": world.watts(self.cap_w) if self.by == "limit" else None})
