"""Single-bit errors come in a burst, far above what the GPU and its peers ever show; all are corrected."""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.logs.xids import xid_gauge, xid_line
from services.synth.physics.effects import Effect
from services.synth.story.happening import OnGpu


class SbeStorm(OnGpu):
    """`per_s`: corrected errors a second at full strength; `xid_after_s`: XID 92, where the driver logs it.

    Delta, SC'25: on one day 112,656 on one GPU.
    """

    kind: Literal["sbe_storm"]
    per_s: float = Field(gt=0)
    xid_after_s: float | None = None

    def effects(self, world: World) -> Iterable[Effect]:
        """Count the errors."""
        node = world.node(self.node)
        yield Effect("gpu.sbe_per_s", world.gpus(node, self.gpu), self.per_s, self.course())
        if self.xid_after_s is not None:
            yield xid_gauge(world, (node, self.gpu), self.at + self.xid_after_s, 92)

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return the driver's line."""
        if self.xid_after_s is not None:
            place = world.node(self.node), self.gpu
            yield xid_line(world, logs, place, self.at + self.xid_after_s, 92)
