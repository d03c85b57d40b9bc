"""A leaf's queues mark no packets: an update has lost its ECN profile. Senders learn of congestion by pauses alone."""

from collections.abc import Iterable
from typing import Literal

import numpy as np

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.physics.effects import Effect
from services.synth.story.happening import PlacedTruth
from services.synth.story.on_cable import OnSwitch


class EcnMisconfigured(OnSwitch):
    """From the change of configuration until it is put right."""

    kind: Literal["ecn_misconfigured"]

    def effects(self, world: World) -> Iterable[Effect]:
        """Take the marks away. UserError: an InfiniBand network marks nothing."""
        world.needs_ethernet(self.kind)
        yield Effect("switch.unmarked", np.array([self.index(world)]), 1.0, self.course())

    def truths(self, world: World) -> Iterable[PlacedTruth]:
        """Return the label of the switch."""
        return [placed.model_copy(update={"in_traffic": True}) for placed in super().truths(world)]

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return the lines of the two changes."""
        name = world.fabric.switches[self.index(world)]
        text = "swss#orchagent: :- doTask: WRED profile AZURE_LOSSLESS set ecn to"
        yield logs.switch(name, self.at - 0.6, "info", f"{text} ecn_none")
        yield logs.switch(name, self.until - 0.6, "info", f"{text} ecn_all")
