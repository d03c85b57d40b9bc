"""A cable's link goes down and stays down: a node's port, or one between leaf and spine."""

from collections.abc import Iterable
from typing import Literal

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.physics.effects import Effect
from services.synth.story.on_cable import OnCable, link_lines


class LinkDown(OnCable):
    """Sudden; its flows go over the port, or the uplinks, beside it."""

    kind: Literal["link_down"]

    def effects(self, world: World) -> Iterable[Effect]:
        """Take the cable out."""
        yield Effect("cable.down", self.columns(world), 1.0, self.course())

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return what its ends log."""
        for begin, end in self.course().spans():
            yield from link_lines(world, logs, self.cable(world), begin, up=False)
            if end < world.duration_s:
                yield from link_lines(world, logs, self.cable(world), end, up=True)
