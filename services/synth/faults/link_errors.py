"""A cable loses frames: a dirty or ageing transceiver, a bent fibre; a link that trains to part of its speed."""

from collections.abc import Iterable
from typing import Literal

from pydantic import Field

from services.synth.cluster.world import World
from services.synth.physics.effects import Effect
from services.synth.story.happening import PlacedTruth
from services.synth.story.on_cable import OnCable


class LinkErrors(OnCable):
    """Frames that FEC cannot correct arrive at one `end` of the cable, up to `errors_per_s`.

    `speed_share`: what is left of the link's speed, where it has trained down as well.
    """

    kind: Literal["link_errors"]
    errors_per_s: float = Field(gt=0)
    end: Literal["lower", "upper"] = "lower"
    speed_share: float = Field(default=1.0, gt=0, le=1)

    def effects(self, world: World) -> Iterable[Effect]:
        """Let frames fail, and be corrected long before."""
        columns, end = self.columns(world), int(self.end == "upper")
        yield Effect("cable.errors_per_s", columns, self.errors_per_s, self.course(), {"end": end})
        if self.speed_share < 1.0:
            yield Effect("cable.speed_share", columns, self.speed_share, self.course())

    def truths(self, world: World) -> Iterable[PlacedTruth]:
        """Return the label: the end that sees the errors, or just as well the other."""
        for placed in super().truths(world):
            swapped = {"entity": placed.also[0], "also": [placed.entity]}
            yield placed.model_copy(update=swapped) if self.end == "upper" else placed
