"""A user's own program crashes: the driver logs an XID that is the program's fault, and its job ends. No fault."""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.logs.xids import xid_gauge, xid_line
from services.synth.physics.effects import Course, Effect
from services.synth.story.happening import Happening, Offset


class UserCrash(Happening):
    """`xid` 13 (a kernel's exception), 31 (an address that is none), 43 (its channel is reset)."""

    kind: Literal["user_crash"]
    node: str
    gpu: int = Field(ge=0)
    at: Offset
    xid: Literal[13, 31, 43] = 31
    job_fails_after_s: float = Field(default=8.0, gt=0)

    def effects(self, world: World) -> Iterable[Effect]:
        """Show the code, and end whatever job is on the node."""
        node, over = world.node(self.node), self.at + self.job_fails_after_s
        yield xid_gauge(world, (node, self.gpu), self.at, self.xid)
        yield Effect("job.ended", np.array([node]), 1.0, Course.between(over, over + 1.0), {"state": "FAILED"})

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return the driver's line."""
        yield xid_line(world, logs, (world.node(self.node), self.gpu), self.at, self.xid)
