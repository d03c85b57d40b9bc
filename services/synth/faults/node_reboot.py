"""A node is taken out, rebooted and put back, on purpose: its series stop and its counters begin anew. No fault."""

from collections.abc import Iterable
from typing import Literal

import numpy as np

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.physics.effects import Course, Effect
from services.synth.story.happening import OnNode

_STOPS_AFTER_S, _OPENS_AFTER_S = 20.0, 60.0


class NodeReboot(OnNode):
    """From the drain at `at` to the first sign of life at `until`; no job may be on the node.

    Not `drained`: the scheduler does not know.
    """

    kind: Literal["node_reboot"]
    reason: str = "kernel update"
    drained: bool = True

    def effects(self, world: World) -> Iterable[Effect]:
        """Stop the machine a little after the drain; start it anew."""
        node = np.array([world.node(self.node)])
        yield Effect("node.down", node, 1.0, Course.between(self.at + _STOPS_AFTER_S, self.until))
        yield Effect("node.booted", node, 1.0, Course.between(self.until, self.until + 1.0))

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return the scheduler's and the kernel's lines."""
        node = world.node(self.node)
        if self.drained:
            yield logs.closed(node, self.at, self.reason)
        yield logs.kernel(node, self.at + _STOPS_AFTER_S - 0.1, "info", "reboot: Restarting system")
        yield logs.kernel(node, self.until + 1.0, "info", "Linux version 5.14.0-284.30.1.el9_2.x86_64")
        if self.drained:
            yield logs.opened(node, self.until + _OPENS_AFTER_S)
