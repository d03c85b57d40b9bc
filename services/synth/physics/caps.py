"""What holds a GPU's power and clock down: firmware's brake, a lower limit of the card, the temperature.

A hold is firm where hardware divides the clock whatever the GPU does (HW_SLOWDOWN), and otherwise bites only where
more is drawn than it allows.
"""

from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from detectors.signals.throttle_bits import SW_POWER_CAP
from services.synth.cluster.profile import ClusterProfile
from services.synth.physics.effects import Course, Effects, Floats, Ints

Bools = NDArray[np.bool_]


class Hold(Protocol):
    """GPUs of one node held down for a time. Times are seconds, of shape (n,); what is returned (n, gpus)."""

    @property
    def node(self) -> int:
        """The node's index."""

    @property
    def gpus(self) -> Ints:
        """The GPUs' columns."""

    @property
    def thermal(self) -> bool:
        """Whether the temperature is the reason."""

    def edges(self) -> list[float]:
        """Return times between which it is as good as constant."""

    def watts(self, at: Floats) -> Floats:
        """Return what each GPU may draw while it is held."""

    def reasons(self, at: Floats) -> Ints:
        """Return DCGM's reason bits, 0 while it is not held."""

    def share(self, at: Floats, window: float) -> Floats:
        """Return for which part of the window before each time it is held."""


@dataclass(frozen=True)
class Cap:
    """GPUs of one node held to ``watts`` each while the course is on, and DCGM's ``bits`` for it."""

    node: int
    gpus: Ints
    course: Course
    limit_w: float
    bits: int
    thermal: bool = False

    def edges(self) -> list[float]:
        """Return when it begins and ends."""
        return self.course.edges()

    def watts(self, at: Floats) -> Floats:
        """Return the one limit."""
        return np.full((len(at), len(self.gpus)), self.limit_w)

    def reasons(self, at: Floats) -> Ints:
        """Return the bits while it is on."""
        now = np.where(self.course.level(at) > 0, self.bits, 0)
        return np.broadcast_to(now[:, None], (len(at), len(self.gpus)))

    def share(self, at: Floats, window: float) -> Floats:
        """Return the course's mean."""
        return np.broadcast_to(self.course.mean(at, window)[:, None], (len(at), len(self.gpus)))


@dataclass(frozen=True)
class Following:
    """A hold that changes with time: from ``times[i]`` (n,) on ``limits_w[i]`` and ``bits[i]``, each (n, gpus)."""

    node: int
    gpus: Ints
    times: Floats
    limits_w: Floats
    bits: Ints
    thermal: bool = True

    def _row(self, at: Floats) -> Ints:
        return np.clip(np.searchsorted(self.times, at, side="right") - 1, 0, None)

    def edges(self) -> list[float]:
        """Return when anything changes."""
        return [float(time) for time in self.times]

    def watts(self, at: Floats) -> Floats:
        """Return the limits then."""
        return np.asarray(self.limits_w[self._row(at)])

    def reasons(self, at: Floats) -> Ints:
        """Return the bits then."""
        return np.where((at >= self.times[0])[:, None], self.bits[self._row(at)], 0)

    def share(self, at: Floats, window: float) -> Floats:
        """Return whether it is held then: it changes slowly against a sensor's window."""
        del window
        return (self.reasons(at) > 0).astype(np.float64)


def caps_of(profile: ClusterProfile, effects: Effects) -> list[Hold]:
    """Return the holds that happenings set, node by node: by firmware, or by a lower limit of the card."""
    found: list[Hold] = []
    for quantity in ("gpu.power_cap_w", "gpu.power_limit_w"):
        for effect in effects.of(quantity):
            bits = int(effect.detail.get("reasons", SW_POWER_CAP))
            nodes = effect.columns // profile.node.gpus
            found += [
                Cap(int(node), effect.columns[nodes == node], effect.course, effect.size, bits)
                for node in np.unique(nodes)
            ]
    return found
