"""Exhaust air comes round to the inlets: a node of a rack grows hot first, then its neighbours, less and later."""

from collections.abc import Iterable
from typing import Literal

import numpy as np
from pydantic import Field

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.physics.effects import Course, Effect
from services.synth.story.happening import Lasting, PlacedTruth
from services.synth.telemetry.bmc import INLET_CRITICAL_C, INLET_WARNING_C

_SENSOR = "Temperature #0x04"
_NAMED_SHARE = 0.6
"""A neighbour that gets at least so much of the first node's rise is as right an answer as the first."""


class HotAir(Lasting):
    """`rise_k` at the inlet of `node`; a neighbour gets `passed_on` of it, `spread_s` later, and so on along the rack.

    Blue Vela's racks were sealed against just this (2407.05467, section 3.1).
    """

    kind: Literal["hot_air"]
    node: str
    rise_k: float = Field(gt=0)
    spread_s: float = Field(default=180.0, ge=0)
    passed_on: float = Field(default=0.85, ge=0, le=1)

    def _rises(self, world: World) -> list[tuple[int, float, Course]]:
        """Return (node, kelvin, course) of every node of the rack."""
        first = world.node(self.node)
        found = []
        for node in world.rack_of(first):
            away = abs(node - first)
            begin = min(self.at + away * self.spread_s, self.until - 1.0)
            course = Course.between(begin, self.until, ramp_s=max(self.ramp_s, 30.0))
            found.append((node, self.rise_k * self.passed_on**away, course))
        return found

    def effects(self, world: World) -> Iterable[Effect]:
        """Warm the inlets."""
        for node, rise, course in self._rises(world):
            yield Effect("node.inlet_rise_k", np.array([node]), rise, course)

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return what SELs say when an inlet passes its limits."""
        usual = world.profile.node.inlet_c
        ramp = max(self.ramp_s, 30.0)
        passed: list[tuple[float, int, Literal["info", "warning", "critical"], str, str]] = []
        for node, rise, course in self._rises(world):
            for limit, text in ((INLET_WARNING_C, "Upper Non-critical"), (INLET_CRITICAL_C, "Upper Critical")):
                if usual + rise >= limit:
                    at = course.start + ramp * (limit - usual) / rise
                    worst = text == "Upper Critical"
                    passed.append((at, node, "critical" if worst else "warning", text, "Asserted"))
                    passed.append((self.until + (1.0 if worst else 9.0), node, "info", text, "Deasserted"))
        for at, node, severity, text, asserted in sorted(passed):
            yield logs.sel(node, at, severity, _SENSOR, f"{text} going high", asserted)

    def truths(self, world: World) -> Iterable[PlacedTruth]:
        """Return one label for the one event: the node where it begins, and those that get most of it."""
        if self.truth is not None:
            first = world.node(self.node)
            near = [node for node, rise, _ in self._rises(world) if rise >= _NAMED_SHARE * self.rise_k]
            names: list[dict[str, str | int]] = [{"node": world.names[node]} for node in near if node != first]
            span = (self.at, self.until)
            yield PlacedTruth(truth=self.truth, entity={"node": world.names[first]}, span=span, also=names, nodes=near)
