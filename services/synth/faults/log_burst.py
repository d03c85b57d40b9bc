"""A controller or kernel writes many lines in a short time that all mean nothing for the GPUs. No fault."""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.story.happening import Lasting

_SEL = (
    ("Memory #0x87", "Correctable ECC", "warning"),
    ("Event Logging Disabled #0x10", "Correctable memory error logging disabled", "info"),
    ("System Event #0x12", "Timestamp Clock Sync", "info"),
    ("Session Audit #0x2f", "Activated", "info"),
)
_POWER9 = (
    "Severe Hypervisor Maintenance interrupt [Recovered]",
    " Error detail: Timer facility experienced an error",
    "OPAL: Reboot request ignored, no change",
    "EEH: PHB#4 recovered, no device affected",
)
_X86 = (
    "mce: [Hardware Error]: Machine check events logged",
    "EDAC MC1: 1 CE memory scrubbing error on CPU_SrcID#1_MC#1_Chan#0_DIMM#1",
    "perf: interrupt took too long (3141 > 3129), lowering kernel.perf_event_max_sample_rate to 63000",
)


class LogBurst(Lasting):
    """`lines_per_node` spread evenly over the nodes' time; `power9`: the kernel lines are of such machines."""

    kind: Literal["log_burst"]
    nodes: str | list[str]
    lines_per_node: int = Field(gt=0)
    power9: bool = False

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return the lines, half of them the controllers', each node's a little after the one before."""
        kernel = _POWER9 if self.power9 else _X86
        step = (self.until - self.at) / self.lines_per_node
        for place, node in enumerate(world.nodes(self.nodes)):
            for number in np.arange(self.lines_per_node).tolist():
                at = self.at + (number + (place % 7) / 8) * step
                if number % 2:
                    yield logs.kernel(node, at, "warning", kernel[(number // 2) % len(kernel)])
                else:
                    sensor, text, severity = _SEL[(number // 2) % len(_SEL)]
                    mild: Literal["warning", "info"] = "warning" if severity == "warning" else "info"
                    yield logs.sel(node, at, mild, sensor, text, "Asserted")
