"""A link between a GPU and its NVLink switch fails for good, after it had to be recovered again and again.

The driver reports XID 149 on that GPU alone. Every GPU that exchanges with it, on whichever node of the NVLink domain,
loses packets: XID 145, not fatal, then XID 45 as its process is cleaned up. Those are well (NVIDIA's catalogue of
XIDs: such a 145 asks for nothing but what XID 154 names; marin-community/marin#9086: 63 GPUs with 145, one with 149).
"""

from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
from pydantic import Field, model_validator

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.logs.xids import xid_gauge, xid_line
from services.synth.physics.effects import Course, Effect
from services.synth.randomness import generator
from services.synth.story.happening import Offset, OnGpu

_HEARD_WITHIN_S = 0.5  # until the packets that its peers wait for are given up
_CLEANED_UP_S = 1.6  # from a GPU's XID to the end of the process on it


class NvlinkDown(OnGpu):
    """From `at` on the link is recovered `recoveries_per_hour` times, from `down_at` to `until`, a reset, it is lost.

    `peers`: the nodes whose GPUs work with it. Their `job` halts, and ends FAILED after `job_fails_after_s`.
    """

    kind: Literal["nvlink_down"]
    down_at: Offset
    peers: str
    job: str
    recoveries_per_hour: float = Field(default=0.0, ge=0)
    job_fails_after_s: float = Field(default=40.0, gt=0)

    @model_validator(mode="after")
    def _down_in_time(self) -> "NvlinkDown":
        if not self.at < self.down_at < self.until:
            raise ValueError("down_at must lie between at and until")
        return self

    def effects(self, world: World) -> Iterable[Effect]:
        """Count recoveries, lose the link, end the job."""
        node, over = world.node(self.node), self.down_at + self.job_fails_after_s
        gpu, failing = world.gpus(node, self.gpu), Course.between(self.at, self.down_at)
        yield Effect("gpu.nvlink_recoveries_per_min", gpu, self.recoveries_per_hour / 60, failing)
        lost = 1.0 - 1.0 / max(world.profile.gpu.nvlinks, 2)
        yield Effect("gpu.nvlink_share", gpu, lost, Course.between(self.down_at, self.until))
        where, detail = np.array([node]), {"job": self.job}
        yield Effect("job.halted", where, 1.0, Course.between(self.down_at, over + 1.0), detail)
        yield Effect("job.ended", where, 1.0, Course.between(over, over + 1.0), detail | {"state": "FAILED"})
        for place, at, code in self._xids(world):
            yield xid_gauge(world, place, at, code)

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return the driver's lines on every node."""
        for place, at, code in self._xids(world):
            yield xid_line(world, logs, place, at, code)

    def _xids(self, world: World) -> Iterator[tuple[tuple[int, int], float, int]]:
        """Yield the XIDs: (node, GPU), when, code."""
        victim = world.node(self.node)
        yield (victim, self.gpu), self.down_at, 149
        chance = generator(int(self.down_at * 1000), f"nvlink down {self.node}")
        for node in world.nodes(self.peers):
            for gpu in range(world.profile.node.gpus):
                at = self.down_at + float(chance.uniform(0.05, _HEARD_WITHIN_S))
                if (node, gpu) != (victim, self.gpu % world.profile.node.gpus):
                    yield (node, gpu), at, 145
                yield (node, gpu), at + _CLEANED_UP_S, 45
