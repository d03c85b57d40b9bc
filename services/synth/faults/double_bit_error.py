"""A GPU reads bits that cannot be corrected: the driver says so, the row is given up, its job dies."""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.logs.xids import xid_gauge, xid_line
from services.synth.physics.effects import Course, Effect
from services.synth.story.happening import OnGpu

_BETWEEN_XIDS_S = 0.7


class DoubleBitError(OnGpu):
    """`xids` in the order of the log; `job_fails_after_s`: the jobs on the node halt and end FAILED, None: they go on.

    A pending remap of the row is a label of its own: put a row_remap beside it.
    """

    kind: Literal["double_bit_error"]
    errors: int = Field(default=1, gt=0)
    rows: int = Field(default=1, ge=0)
    xids: list[int] = Field(default_factory=lambda: [48, 63, 45])
    job_fails_after_s: float | None = Field(default=25.0, gt=0)

    def effects(self, world: World) -> Iterable[Effect]:
        """Count it, and end the jobs that read it."""
        node = world.node(self.node)
        gpu = world.gpus(node, self.gpu)
        yield Effect("gpu.dbe", gpu, float(self.errors), self.course())
        if self.rows:
            yield Effect("gpu.rows_remapped", gpu, float(self.rows), self.course(), {"uncorrectable": True})
        for order, code in enumerate(self.xids):
            yield xid_gauge(world, (node, self.gpu), self.at + order * _BETWEEN_XIDS_S, code)
        if self.job_fails_after_s is not None:
            over = self.at + self.job_fails_after_s
            yield Effect("job.halted", np.array([node]), 1.0, Course.between(self.at, over + 1.0))
            yield Effect("job.ended", np.array([node]), 1.0, Course.between(over, over + 1.0), {"state": "FAILED"})

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return the driver's lines."""
        place = world.node(self.node), self.gpu
        for order, code in enumerate(self.xids):
            yield xid_line(world, logs, place, self.at + order * _BETWEEN_XIDS_S, code)
