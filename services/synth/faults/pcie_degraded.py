"""A GPU's host link moves a fraction of what it should, until the node boots."""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.logs.xids import bus_address
from services.synth.physics.effects import Effect
from services.synth.story.happening import OnGpu


class PcieDegraded(OnGpu):
    """`gb_s`: what is left each way; `gen` and `width` as the link shows them, where it shows anything.

    Vela: 3 to 4 GB/s, as of generation 1; at least 95 % are cured by a reboot (2407.05467, section 2.3.1).
    """

    kind: Literal["pcie_degraded"]
    gb_s: float = Field(gt=0)
    gen: int | None = Field(default=None, ge=1, le=6)
    width: int | None = Field(default=None, ge=1, le=16)
    replays_per_min: float = Field(default=0.0, ge=0)

    def effects(self, world: World) -> Iterable[Effect]:
        """Slow the link, and show what shows of it."""
        gpu, course = world.gpus(world.node(self.node), self.gpu), self.course()
        yield Effect("gpu.pcie_gb_s", gpu, self.gb_s, course)
        if self.gen is not None:
            yield Effect("gpu.pcie_gen", gpu, float(self.gen), course)
        if self.width is not None:
            yield Effect("gpu.pcie_width", gpu, float(self.width), course)
        if self.replays_per_min:
            yield Effect("gpu.pcie_replays_per_min", gpu, self.replays_per_min, course)

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return the kernel's lines, where the link reports errors that it corrects."""
        if self.replays_per_min:
            node, address = world.node(self.node), bus_address(world, self.gpu)
            error = f"nvidia {address}.0: PCIe Bus Error: severity=Corrected, type=Data Link Layer, (Transmitter ID)"
            yield logs.kernel(node, self.at + 3.1, "warning", error)
            yield logs.kernel(node, self.at + 3.1, "warning", f"nvidia {address}.0:    [12] Timeout")
