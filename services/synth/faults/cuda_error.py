"""A job's process dies of a CUDA error and says so in its pod's log; the driver's XIDs come with it."""

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

_MESSAGES = {
    94: "RuntimeError: CUDA error: uncorrectable ECC error encountered",
    31: "RuntimeError: CUDA error: an illegal memory access was encountered",
    43: "RuntimeError: CUDA error: unspecified launch failure",
}
_ELSEWHERE_S = 1.6  # until the other processes of the node are torn down


class CudaError(OnGpu):
    """`xid` 94, the memory's fault; or 31 or 43, the program's own, which is no fault of the machine.

    The job halts, and ends FAILED after `job_fails_after_s`.
    """

    kind: Literal["cuda_error"]
    job: str
    xid: Literal[94, 31, 43] = 94
    job_fails_after_s: float = Field(default=40.0, gt=0)

    def effects(self, world: World) -> Iterable[Effect]:
        """Count what was read wrongly, halt and end the job."""
        node, over = world.node(self.node), self.at + self.job_fails_after_s
        gpu, where, detail = world.gpus(node, self.gpu), np.array([node]), {"job": self.job}
        if self.xid == 94:
            yield Effect("gpu.dbe", gpu, 1.0, self.course())
            yield Effect("gpu.rows_remapped", gpu, 1.0, self.course(), {"uncorrectable": True})
        yield xid_gauge(world, (node, self.gpu), self.at, self.xid)
        yield Effect("job.halted", where, 1.0, Course.between(self.at, over + 1.0), detail)
        yield Effect("job.ended", where, 1.0, Course.between(over, over + 1.0), detail | {"state": "FAILED"})
        for gpu_number in self._others(world):
            yield xid_gauge(world, (node, gpu_number), self.at + _ELSEWHERE_S + 0.2 * gpu_number, 45)

    def _others(self, world: World) -> list[int]:
        return [gpu for gpu in range(world.profile.node.gpus) if gpu != self.gpu % world.profile.node.gpus]

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return the driver's lines, and those of the one process that says why."""
        node = world.node(self.node)
        name = world.names[node]
        yield xid_line(world, logs, (node, self.gpu), self.at, self.xid)
        for gpu in self._others(world):
            yield xid_line(world, logs, (node, gpu), self.at + _ELSEWHERE_S + 0.2 * gpu, 45)
        for order, text in enumerate(
            (
                f"[{name} local_rank {self.gpu}] {_MESSAGES[self.xid]}",
                f"[{name} local_rank {self.gpu}] terminate called after throwing 'c10::Error'",
            )
        ):
            line = logs.kernel(node, self.at + 0.4 + 0.01 * order, "error", text)
            yield line.model_copy(update={"source": "job", "job_id": self.job})
