"""One corrected error of a host's memory: lines that mean nothing for the GPUs."""

from collections.abc import Iterable
from typing import Literal

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.story.happening import Happening, Offset


class HostMemoryError(Happening):
    """No fault."""

    kind: Literal["host_memory_error"]
    node: str
    at: Offset

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return the lines of SEL and kernel."""
        node = world.node(self.node)
        yield logs.sel(node, self.at, "warning", "Memory #0x87", "Correctable ECC", "Asserted")
        yield logs.kernel(node, self.at + 0.1, "warning", "mce: [Hardware Error]: Machine check events logged")
