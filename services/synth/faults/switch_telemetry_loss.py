"""A switch's agent dies: its counters stop, and it forwards as ever."""

from collections.abc import Iterable
from typing import Literal

import numpy as np

from services.synth.cluster.world import World
from services.synth.physics.effects import Effect
from services.synth.story.on_cable import OnSwitch


class SwitchTelemetryLoss(OnSwitch):
    """Nothing of it is read until the agent is started again."""

    kind: Literal["switch_telemetry_loss"]

    def effects(self, world: World) -> Iterable[Effect]:
        """Silence the switch."""
        yield Effect("switch.unheard", np.array([self.index(world)]), 1.0, self.course())
