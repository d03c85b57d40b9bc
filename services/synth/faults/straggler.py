"""A GPU, or a node with all its GPUs, computes slower than its peers, and nothing else says so.

Reports know of many reasons that no sensor shows: a memory bus that runs at part of its width, a driver thread without
a core, a chip that is simply slow. What is left is the signature in the job: it computes longest and waits least.
"""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from services.synth.cluster.world import World
from services.synth.physics.effects import Effect
from services.synth.story.happening import OnNode


class Straggler(OnNode):
    """`factor`: how much longer the same work takes; sudden, ramping up (`ramp_s`) or intermittent (`period_s`)."""

    kind: Literal["straggler"]
    gpu: int | None = Field(default=None, ge=0, description="all of the node's if not given")
    factor: float = Field(gt=1)

    def effects(self, world: World) -> Iterable[Effect]:
        """Slow the GPU's work, or that of all of the node's."""
        yield Effect("gpu.work_factor", world.gpus(world.node(self.node), self.gpu), self.factor, self.course())

    def entity(self, world: World) -> dict[str, str | int]:
        """Return the GPU, or the node."""
        gpu = {} if self.gpu is None else {"gpu": self.gpu % world.profile.node.gpus}
        return super().entity(world) | gpu
