"""An XID from before the recording: the gauge still shows it, and that is all."""

from collections.abc import Iterable
from typing import Literal

from services.synth.cluster.world import World
from services.synth.physics.effects import Course, Effect
from services.synth.story.happening import Happening


class OldXid(Happening):
    """No fault."""

    kind: Literal["old_xid"]
    node: str
    gpu: int
    xid: int

    def effects(self, world: World) -> Iterable[Effect]:
        """Set the gauge from long before the start."""
        columns = world.gpus(world.node(self.node), self.gpu)
        yield Effect("gpu.xid", columns, float(self.xid), Course.between(-1.0e6, world.duration_s + 1.0e6))
