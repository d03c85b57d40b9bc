"""A cable's link goes down and comes back, again and again: a worn connector, a transceiver that gives up when warm."""

from collections.abc import Iterable, Iterator
from typing import Literal

import numpy as np
from pydantic import Field

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.physics.effects import Course, Effect
from services.synth.randomness import generator
from services.synth.story.on_cable import OnCable, link_lines

_JITTER = 0.35  # of the time between two flaps, and of a flap's length, relative


class LinkFlap(OnCable):
    """About every `every_s` it is down for about `down_s`; while it is up, it loses `errors_per_s` frames."""

    kind: Literal["link_flap"]
    every_s: float = Field(gt=0)
    down_s: float = Field(gt=0)
    errors_per_s: float = Field(default=0.0, ge=0)

    def effects(self, world: World) -> Iterable[Effect]:
        """Take the cable out in every flap, let it err all the time."""
        columns = self.columns(world)
        for begin, end in self._flaps():
            yield Effect("cable.down", columns, 1.0, Course.between(begin, end))
        if self.errors_per_s:
            end = 0 if self.node is not None else 1
            yield Effect("cable.errors_per_s", columns, self.errors_per_s, self.course(), {"end": end})

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return what its ends log, each time."""
        for begin, end in self._flaps():
            yield from link_lines(world, logs, self.cable(world), begin, up=False)
            yield from link_lines(world, logs, self.cable(world), end, up=True)

    def _flaps(self) -> Iterator[tuple[float, float]]:
        chance = generator(int(self.at * 1000), f"flaps {self.node} {self.switch} {self.nic} {self.uplink}")
        now = self.at
        while now < self.until - self.down_s:
            spread = 1 + _JITTER * np.clip(chance.standard_normal(2), -2, 2)
            end = min(now + self.down_s * float(spread[0]), self.until)
            yield now, end
            now = max(now + self.every_s * float(spread[1]), end + 2.0)
