"""A spine fails: all its links are down at once, and the other spines carry what it carried."""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.physics.effects import Effect
from services.synth.story.happening import PlacedTruth
from services.synth.story.on_cable import OnSwitch, link_lines

_CONGESTED_WITHIN_S = 300.0


class SpineLoss(OnSwitch):
    """`congests`: the other spines are so full then that to say so is right, though not required."""

    kind: Literal["spine_loss"]
    congests: bool = Field(default=True)

    def effects(self, world: World) -> Iterable[Effect]:
        """Take the switch out."""
        yield Effect("switch.down", np.array([self.index(world)]), 1.0, self.course())

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return what the other ends of its cables log; itself it logs nothing."""
        index = self.index(world)
        name = world.fabric.switches[index]
        for number, cable in enumerate(world.fabric.cables_of(index)):
            for begin, end in self.course().spans():
                for at, up in ((begin, False), (end, True)):
                    if at < world.duration_s:
                        lines = link_lines(world, logs, int(cable), at + 0.004 * number, up=up)
                        yield from (line for line in lines if line.node != name)

    def truths(self, world: World) -> Iterable[PlacedTruth]:
        """Return one label for its links, whichever end of whichever is named; and one of what follows."""
        fabric, index = world.fabric, self.index(world)
        for placed in super().truths(world):
            ends = [end for cable in fabric.cables_of(index) for end in fabric.ends(int(cable))]
            yield placed.model_copy(update={"entity": ends[0], "also": ends[1:]})
            if self.congests and self.truth is not None:
                others = [name for number, name in enumerate(fabric.switches) if number != index]
                fields = {
                    "id": f"{self.truth.id}-congestion",
                    "fault": "fabric_congestion",
                    "within_s": _CONGESTED_WITHIN_S,
                    "root": False,
                    "optional": True,
                    "cause": "spine_loss",
                    "note": "the other spines carry what it carried",
                }
                truth = self.truth.model_copy(update=fields)
                entity: dict[str, str | int] = {"switch": others[0]}
                also = [{"switch": name} for name in others[1:]]
                yield placed.model_copy(update={"truth": truth, "entity": entity, "also": also})
