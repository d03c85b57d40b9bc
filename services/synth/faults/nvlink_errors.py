"""A GPU's NVLink goes bad: checks fail, it sends again and retrains, bandwidth is lost, and at worst XID 74."""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.logs.xids import bus_address, xid_gauge, xid_line
from services.synth.physics.effects import Effect
from services.synth.story.happening import OnGpu


class NvlinkErrors(OnGpu):
    """Rates of the GPU's counters; `bandwidth_left`; `xid`: the driver reports it, `xid_after_s` after it began."""

    kind: Literal["nvlink_errors"]
    crc_per_s: float = Field(default=0.0, ge=0)
    replays_per_s: float = Field(default=0.0, ge=0)
    recoveries_per_min: float = Field(default=0.0, ge=0)
    bandwidth_left: float = Field(default=1.0, gt=0, le=1)
    xid: bool = False
    xid_after_s: float = 2.0

    def effects(self, world: World) -> Iterable[Effect]:
        """Count the errors, take the bandwidth."""
        node = world.node(self.node)
        gpu, course = world.gpus(node, self.gpu), self.course()
        rates = {
            "gpu.nvlink_crc_per_s": self.crc_per_s,
            "gpu.nvlink_replays_per_s": self.replays_per_s,
            "gpu.nvlink_recoveries_per_min": self.recoveries_per_min,
        }
        for quantity, rate in rates.items():
            if rate:
                yield Effect(quantity, gpu, rate, course)
        if self.bandwidth_left < 1:
            yield Effect("gpu.nvlink_share", gpu, self.bandwidth_left, course)
        if self.xid:
            yield xid_gauge(world, (node, self.gpu), self.at + self.xid_after_s, 74)

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return the driver's XID, and what the fabric manager makes of it."""
        if self.xid:
            node, at = world.node(self.node), self.at + self.xid_after_s
            yield xid_line(world, logs, (node, self.gpu), at, 74)
            line = f"NVLink fatal error on GPU {bus_address(world, self.gpu)}.0, link 6; link is inactive"
            yield logs.fabric_manager(node, at + 0.3, "error", line)
