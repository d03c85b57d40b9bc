"""A cable corrects far more frames than others and loses none: FEC does what it is for."""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from services.synth.cluster.world import World
from services.synth.physics.effects import Effect
from services.synth.story.on_cable import OnCable


class DirtyOptics(OnCable):
    """No fault. `decades`: 10 to the power of it times as many corrected frames as usual, at both ends of an uplink."""

    kind: Literal["dirty_optics"]
    decades: float = Field(default=2.0, gt=0, le=3)

    def effects(self, world: World) -> Iterable[Effect]:
        """Raise what FEC corrects."""
        yield Effect("cable.marginal", self.columns(world), self.decades, self.course(), {"end": 1})
        if self.switch is not None:
            yield Effect("cable.marginal", self.columns(world), self.decades, self.course(), {"end": 0})
