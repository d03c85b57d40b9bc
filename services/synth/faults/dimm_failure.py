"""A memory module of the host goes bad: corrected errors, more and more, until one that cannot be. The crash is
another happening.
"""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.physics.effects import Course, Effect
from services.synth.story.happening import OnNode

_MODULE = "Memory #0x87"
_LOGGED = 8
"""So many corrected errors a controller records before it says that it will record no more."""


class DimmFailure(OnNode):
    """From a first corrected error at `at` to the uncorrectable one at `until`; the crash is a node_down beside it."""

    kind: Literal["dimm_failure"]
    slot: str = "A5"
    quickening: float = Field(default=0.6, gt=0, lt=1, description="each wait is so much of the one before")

    def _instants(self) -> list[float]:
        waits = self.quickening ** np.arange(_LOGGED)
        shares = np.concatenate([[0.0], np.cumsum(waits)[:-1] / waits.sum()])
        return [self.at + float(share) * (self.until - self.at) for share in shares]

    def effects(self, world: World) -> Iterable[Effect]:
        """Show the module's state: a warning from the limit on, critical at the end."""
        node = np.array([world.node(self.node)])
        yield Effect("node.dimm_state", node, 1.0, Course.between(self._instants()[-1], world.duration_s + 1.0))
        yield Effect("node.dimm_state", node, 2.0, Course.between(self.until, world.duration_s + 1.0))

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return the lines of SEL and kernel."""
        node, instants = world.node(self.node), self._instants()
        for at in instants:
            yield logs.sel(node, at, "warning", _MODULE, "Correctable ECC", "Asserted")
            where = f"EDAC MC0: 1 CE memory read error on CPU_SrcID#0_MC#0_Chan#2_DIMM#0 ({self.slot})"
            yield logs.kernel(node, at + 0.1, "warning", where)
        yield logs.sel(node, instants[-1] + 0.5, "error", _MODULE, "Correctable ECC logging limit reached", "Asserted")
        yield logs.sel(node, self.until - 0.3, "critical", _MODULE, "Uncorrectable ECC", "Asserted")
