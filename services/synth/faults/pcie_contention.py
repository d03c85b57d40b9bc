"""GPUs behind one PCIe switch share it with a copy of somebody's: less bandwidth for some minutes, and no fault."""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from services.synth.cluster.world import World
from services.synth.physics.effects import Effect
from services.synth.story.happening import Lasting


class PcieContention(Lasting):
    """`gpus` are those behind the switch; `gb_s` is what each still gets."""

    kind: Literal["pcie_contention"]
    node: str
    gpus: list[int]
    gb_s: float = Field(gt=0)

    def effects(self, world: World) -> Iterable[Effect]:
        """Slow their links alike."""
        node = world.node(self.node)
        columns = np.concatenate([world.gpus(node, gpu) for gpu in self.gpus])
        yield Effect("gpu.pcie_gb_s", columns, self.gb_s, self.course())
