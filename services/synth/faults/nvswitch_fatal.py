"""An NVSwitch fails for good: the fabric manager says so, every GPU of the node loses its links, collectives hang."""

from collections.abc import Iterable
from typing import Literal

import numpy as np

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.logs.xids import xid_gauge, xid_line
from services.synth.physics.effects import Effect
from services.synth.story.happening import OnNode

_SWITCH, _PCI = "0000:c4:00", "00000000:C4:00.0"
_SPREAD_S = 0.06  # from one GPU's XID to the next's


class NvswitchFatal(OnNode):
    """It lasts until the node is repaired; that the host crashes is a node_down beside it."""

    kind: Literal["nvswitch_fatal"]

    def effects(self, world: World) -> Iterable[Effect]:
        """Take the links, and hold up every job on the node."""
        node, course = world.node(self.node), self.course()
        yield Effect("gpu.nvlink_share", world.gpus(node), 0.02, course)
        yield Effect("gpu.nvlink_crc_per_s", world.gpus(node), 180.0, course)
        yield Effect("gpu.nvlink_recoveries_per_min", world.gpus(node), 12.0, course)
        yield Effect("job.halted", np.array([node]), 1.0, course)
        for gpu in range(world.profile.node.gpus):
            yield xid_gauge(world, (node, gpu), self.at + 0.4 + _SPREAD_S * gpu, 74)

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return the switch driver's, the fabric manager's and the GPU driver's lines, in their order."""
        node = world.node(self.node)
        fatal = f"nvidia-nvswitch3: SXid (PCI:{_SWITCH}.0): 12028, Fatal, Link 37 egress non-posted PRIV error"
        yield logs.kernel(node, self.at, "critical", fatal)
        line = f"detected NVSwitch fatal error 12028 on fid 0 on NVSwitch pci bus id {_PCI} physical id 10 port 37"
        yield logs.fabric_manager(node, self.at + 0.2, "critical", line)
        for gpu in range(world.profile.node.gpus):
            yield xid_line(world, logs, (node, gpu), self.at + 0.4 + _SPREAD_S * gpu, 74)
        aborting = "NVSwitch fatal error: all CUDA jobs on this partition are aborted, new ones are not allowed"
        yield logs.fabric_manager(node, self.at + 1.3, "critical", aborting)
