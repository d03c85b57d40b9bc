"""A GPU falls off the bus, or its firmware answers no more: its series stop while its node's others go on."""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.logs.xids import bus_address, xid_line
from services.synth.physics.effects import Course, Effect
from services.synth.story.happening import OnGpu


class GpuLost(OnGpu):
    """The jobs on the node halt at once and end FAILED after `job_fails_after_s`; None: no job had it."""

    kind: Literal["gpu_lost"]
    xid: Literal[79, 119] = 79
    job_fails_after_s: float | None = Field(default=90.0, gt=0)

    def effects(self, world: World) -> Iterable[Effect]:
        """Silence the GPU, halt and end its job."""
        node = world.node(self.node)
        yield Effect("gpu.lost", world.gpus(node, self.gpu), 1.0, self.course())
        if self.job_fails_after_s is not None:
            over = self.at + self.job_fails_after_s
            yield Effect("job.halted", np.array([node]), 1.0, Course.between(self.at, over + 1.0))
            yield Effect("job.ended", np.array([node]), 1.0, Course.between(over, over + 1.0), {"state": "FAILED"})

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return the driver's lines."""
        node = world.node(self.node)
        yield xid_line(world, logs, (node, self.gpu), self.at, self.xid)
        if self.xid == 79:
            gone = f"NVRM: GPU {bus_address(world, self.gpu)}.0: GPU has fallen off the bus."
            yield logs.kernel(node, self.at + 0.01, "error", gone)
