"""A GPU sheds its heat badly: a heat sink that sits loose, paste that has pumped out, dust."""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from services.synth.cluster.world import World
from services.synth.physics.effects import Effect
from services.synth.story.happening import OnGpu


class HeatSink(OnGpu):
    """`factor`: so many times its usual thermal resistance."""

    kind: Literal["heat_sink"]
    factor: float = Field(gt=1)

    def effects(self, world: World) -> Iterable[Effect]:
        """Raise the resistance."""
        yield Effect("gpu.cooling_factor", world.gpus(world.node(self.node), self.gpu), self.factor, self.course())
