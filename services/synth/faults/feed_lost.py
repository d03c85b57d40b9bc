"""One of a rack's two power feeds is lost: every server of the rack brakes, so as not to overload the other."""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from detectors.signals.throttle_bits import HW_POWER_BRAKE, HW_SLOWDOWN
from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.physics.effects import Effect
from services.synth.story.happening import Lasting, PlacedTruth


class FeedLost(Lasting):
    """`node` is any of the rack; `gpu_cap_w`: what a braked GPU may draw.

    Vela: about 2 s after the feed, servers go to 3.2 kW and GPUs from 400 W to 150 W, as six servers of 6 kW hang on
    two feeds of 20 kW (2407.05467, section 2.1).
    """

    kind: Literal["feed_lost"]
    node: str
    feed: int = Field(default=1, ge=1, le=2)
    gpu_cap_w: float = Field(gt=0)

    def effects(self, world: World) -> Iterable[Effect]:
        """Take the supplies on that feed from all nodes at once, and brake."""
        rack = world.rack_of(world.node(self.node))
        yield Effect("node.psu_failed", np.array(rack), float(self.feed), self.course())
        gpus = np.concatenate([world.gpus(node) for node in rack])
        bits = {"reasons": HW_SLOWDOWN | HW_POWER_BRAKE}
        cap_w, course = world.watts(self.gpu_cap_w), self.course(world.profile.node.brake_delay_s)
        yield Effect("gpu.power_cap_w", gpus, cap_w, course, bits)

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return what every SEL of the rack says: no input, redundancy lost; and when it is back."""
        supply = f"Power Supply #0x{0x50 + self.feed:02x}"
        for node in world.rack_of(world.node(self.node)):
            yield logs.sel(node, self.at, "critical", supply, "Power Supply AC lost", "Asserted")
            yield logs.sel(node, self.at + 0.2, "critical", "Power Unit #0x01", "Redundancy Lost", "Asserted")
            yield logs.sel(node, self.until, "info", supply, "Power Supply AC lost", "Deasserted")
            yield logs.sel(node, self.until + 0.2, "info", "Power Unit #0x01", "Fully Redundant", "Asserted")

    def truths(self, world: World) -> Iterable[PlacedTruth]:
        """Return one label for the one event: any node of the rack names it."""
        if self.truth is not None:
            first = world.node(self.node)
            rack = world.rack_of(first)
            names: list[dict[str, str | int]] = [{"node": world.names[node]} for node in rack if node != first]
            span = (self.at, self.until + world.profile.node.brake_delay_s)
            yield PlacedTruth(truth=self.truth, entity={"node": world.names[first]}, span=span, also=names, nodes=rack)
