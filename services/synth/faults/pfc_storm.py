"""A node's network adapter goes mad and asks its leaf to pause without end; the pauses spread upstream."""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.physics.effects import Effect
from services.synth.story.happening import Lasting, PlacedTruth

_DETECTED_S, _RESTORED_S = 0.4, 0.8  # of SONiC's PFC watchdog: so long after a queue is stuck, free


class PfcStorm(Lasting):
    """`share`: the part of the time for which it pauses the leaf. The leaf's watchdog reports what is nearly all."""

    kind: Literal["pfc_storm"]
    node: str
    nic: int = Field(ge=0)
    share: float = Field(gt=0, le=1)

    def effects(self, world: World) -> Iterable[Effect]:
        """Let the port pause its leaf. UserError: an InfiniBand network knows no pauses."""
        world.needs_ethernet(self.kind)
        yield Effect("cable.pausing", np.array([self._cable(world)]), self.share, self.course())

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return the watchdog's lines."""
        if self.share < 0.8:
            return
        port = world.fabric.ends(self._cable(world))[1]
        leaf, queue = str(port["switch"]), f"on port {port['port']}, queue index 3"
        for begin, end in self.course().spans():
            text = f"swss#orchagent: :- startWdActionOnQueue: PFC Watchdog detected PFC storm {queue}"
            yield logs.switch(leaf, begin + _DETECTED_S, "warning", text)
            text = f"swss#orchagent: :- report_pfc_restored: PFC Watchdog storm restored {queue}"
            yield logs.switch(leaf, end + _RESTORED_S, "info", text)

    def truths(self, world: World) -> Iterable[PlacedTruth]:
        """Return the label: the leaf's port that is paused."""
        if self.truth is not None:
            cable = self._cable(world)
            lower, port = world.fabric.ends(cable)
            del lower
            nodes = world.fabric.nodes_at(int(world.fabric.host_leaf[cable]))
            yield PlacedTruth(truth=self.truth, entity=port, span=(self.at, self.until), nodes=nodes)

    def _cable(self, world: World) -> int:
        return world.fabric.host_cable(world.node(self.node), self.nic)
