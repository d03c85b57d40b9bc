"""A machine stops: nothing comes from it in band any more, the scheduler misses it, its controller lives on."""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.physics.effects import Course, Effect
from services.synth.story.happening import OnNode

_LAST_WORDS: dict[str, tuple[str, ...]] = {
    "panic": (
        "BUG: unable to handle page fault for address: ffffb0d5c3a41000",
        "Kernel panic - not syncing: Fatal exception in interrupt",
    ),
    "memory": (
        "mce: [Hardware Error]: CPU 41: Machine Check Exception: 5 Bank 7: be00000000800090",
        "Kernel panic - not syncing: Fatal local machine check",
    ),
    "gpu_board": (
        "pcieport 0000:40:01.1: AER: Uncorrected (Fatal) error received: 0000:40:01.1",
        "pcieport 0000:40:01.1: DPC: containment event, status:0x1f01 source:0x0000",
        "Kernel panic - not syncing: Fatal hardware error!",
    ),
    "silent": (),
}
_SEL: dict[str, tuple[str, str] | None] = {
    "panic": ("OS Critical Stop #0x46", "Run-time critical stop"),
    "memory": ("Processor #0x60", "IERR"),
    "gpu_board": ("Critical Interrupt #0x74", "Bus Fatal Error"),
    "silent": None,
}
_MISSED_S, _BOOT_S = 28.0, 40.0


class NodeDown(OnNode):
    """`because`: what the kernel and the SEL say last; `noticed_s`: until the scheduler gives the node and its job up.

    It is back at `until`, if that lies in the recording, with all volatile counters at 0.
    """

    kind: Literal["node_down"]
    because: Literal["panic", "memory", "gpu_board", "silent"] = "panic"
    noticed_s: float = Field(default=55.0, gt=_MISSED_S)

    def effects(self, world: World) -> Iterable[Effect]:
        """Stop the machine, halt its jobs, end them when it is noticed."""
        node, over = np.array([world.node(self.node)]), self.at + self.noticed_s
        yield Effect("node.down", node, 1.0, self.course())
        yield Effect("job.halted", node, 1.0, Course.between(self.at, over + 1.0))
        yield Effect("job.ended", node, 1.0, Course.between(over, over + 1.0), {"state": "NODE_FAIL"})
        if self.until < world.duration_s:
            yield Effect("node.booted", node, 1.0, Course.between(self.until, self.until + 1.0))

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return last words, the SEL's record, the scheduler's lines, and those of a boot."""
        node = world.node(self.node)
        name = world.names[node]
        for order, line in enumerate(reversed(_LAST_WORDS[self.because])):
            yield logs.kernel(node, self.at - 0.02 - 0.15 * order, "critical", line)
        if record := _SEL[self.because]:
            yield logs.sel(node, self.at, "critical", *record, "Asserted")
        noticed = self.at + self.noticed_s
        if world.profile.scheduler == "lsf":
            yield logs.scheduler(noticed - 1.0, f"Host <{name}> is unreachable.", node=node, severity="error")
        else:
            missed = f"slurmctld: error: Nodes {name} not responding"
            yield logs.scheduler(self.at + _MISSED_S, missed, node=node, severity="error")
            yield logs.scheduler(noticed - 1.0, f"{missed}, setting DOWN", node=node, severity="error")
        if self.until < world.duration_s:
            yield logs.kernel(node, self.until + 1.0, "info", "Linux version 5.14.0-284.30.1.el9_2.x86_64")
            yield logs.kernel(node, self.until + 1.2, "info", "nvidia: loading out-of-tree module taints kernel.")
            yield logs.opened(node, self.until + _BOOT_S)
