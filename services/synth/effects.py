"""What a happening does to the machines: a quantity, whom it befalls, how strongly, and its course over time.

Happenings (faults/) make effects and know no physics; the physics (power, thermal, network, job, ...) read effects
and know no faults. `QUANTITIES` is all that passes between them.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float64]
Ints = NDArray[np.int64]

_JUMP_S = 0.001
"""What is sudden takes this long: courses are piecewise linear, so that their means over a window are exact."""
_RAMP_STEP_S = 10.0

QUANTITIES: dict[str, str] = {
    "gpu.power_cap_w": "firmware holds the GPU at `size` watts; detail: reasons (DCGM's clock-event bits)",
    # power and clocks, thermals, PCIe, NVLink, memory: of GPUs
    "gpu.xid": "the XID gauge shows `size` from the course's start on",
    # power supplies, air, controllers, collectors: of nodes
    "node.psu_failed": "a power supply gives nothing; `size`: its number, 1 or 2",
    # network: of nics (node-major, as in the topology), of switches
    # storage
    # what jobs feel: every piece of physics says it in these words
    "gpu.work_factor": "the GPU needs `size` times as long for the same work",
    "node.collective_factor": "the communication of every job on the node takes `size` times as long",
    "node.data_wait_factor": "the ranks on the node wait `size` times as long for their data",
    "job.work_factor": "every rank of the job needs `size` times as long: its own doing; detail: job (id)",
    "job.halted": "no step of the job goes on, its ranks wait in a collective; detail: job (id)",
}
"""Quantity: what an effect of it means. The columns are indices: of GPUs for ``gpu.``, of nodes for ``node.``; none for ``job.``."""


class Course:
    """How strongly something acts over time: piecewise linear between 0 and 1, 0 outside. Seconds."""

    def __init__(self, times: Floats, levels: Floats) -> None:
        self._times, self._levels = times, levels
        areas = np.diff(times) * (levels[1:] + levels[:-1]) / 2
        self._area = np.concatenate([[0.0], np.cumsum(areas)])

    @classmethod
    def between(
        cls, start: float, end: float, *, ramp_s: float = 0.0, period_s: float | None = None, duty: float = 0.5
    ) -> Self:
        """Return full strength from `start` to `end`; risen to linearly over `ramp_s`; or, with a period, on and off.

        Intermittent: on for the first `duty` of every `period_s`.
        """
        if period_s is None:
            bursts = [(start, end)]
        else:
            begins = np.arange(start, end, period_s)
            bursts = [(float(begin), min(float(begin) + duty * period_s, end)) for begin in begins]
        times: list[float] = []
        levels: list[float] = []
        for begin, stop in bursts:
            rise = max(min(ramp_s, stop - begin), _JUMP_S)
            times += [begin, begin + rise, max(stop, begin + rise + _JUMP_S), max(stop, begin + rise) + 2 * _JUMP_S]
            levels += [0.0, 1.0, 1.0, 0.0]
        return cls(np.array(times), np.array(levels))

    @property
    def start(self) -> float:
        """When it begins."""
        return float(self._times[0])

    @property
    def end(self) -> float:
        """When it is over for good."""
        return float(self._times[-1])

    def level(self, at: Floats) -> Floats:
        """Return the strength at times of any shape."""
        return np.interp(at, self._times, self._levels, left=0.0, right=0.0)

    def mean(self, at: Floats, window: float) -> Floats:
        """Return the mean strength over the `window` seconds before each of `at`, of any shape."""
        return (self._integral(at) - self._integral(at - window)) / window

    def _integral(self, at: Floats) -> Floats:
        clipped = np.clip(at, self._times[0], self._times[-1])
        knot = np.clip(np.searchsorted(self._times, clipped, side="right") - 1, 0, len(self._times) - 1)
        part = (clipped - self._times[knot]) * (self._levels[knot] + self.level(clipped)) / 2
        return np.asarray(self._area[knot] + part)

    def edges(self) -> list[float]:
        """Return times between which it is as good as constant: its knots, and points along its ramps."""
        found = [float(t) for t in self._times]
        for begin, stop, low, high in zip(
            self._times[:-1], self._times[1:], self._levels[:-1], self._levels[1:], strict=True
        ):
            if low != high and stop - begin > _RAMP_STEP_S:
                found += np.arange(begin + _RAMP_STEP_S, stop, _RAMP_STEP_S).tolist()
        return sorted(found)


@dataclass(frozen=True)
class Effect:
    """One quantity, on the entities `columns` (indices (k,)), at `size` where the course is 1."""

    quantity: str
    columns: Ints
    size: float
    course: Course
    detail: Mapping[str, Any] = field(default_factory=dict)


class Effects:
    """All effects of a recording, by quantity."""

    def __init__(self, effects: Iterable[Effect] = ()) -> None:
        self._by_quantity: dict[str, list[Effect]] = {}
        for effect in effects:
            if effect.quantity not in QUANTITIES:
                raise ValueError(f"{effect.quantity}: no quantity that the physics know of")
            self._by_quantity.setdefault(effect.quantity, []).append(effect)

    def of(self, quantity: str) -> list[Effect]:
        """Return the effects of one quantity, in the order of the scenario."""
        if quantity not in QUANTITIES:
            raise ValueError(f"{quantity}: no quantity that the physics know of")
        return self._by_quantity.get(quantity, [])

    def and_also(self, more: Iterable[Effect]) -> "Effects":
        """Return these effects and more."""
        return Effects([*(effect for effects in self._by_quantity.values() for effect in effects), *more])

    def added(self, quantity: str, times: Floats, *, window: float | None = None) -> Floats:
        """Return the sum of size times strength of a quantity.

        `times` (ticks, entities) are the entities' own; with a `window`, means over it. All 0 where nothing acts.
        """
        total = np.zeros(times.shape)
        for effect in self.of(quantity):
            total[:, effect.columns] += effect.size * _strength(effect, times, window)
        return total

    def factor(self, quantity: str, times: Floats, *, window: float | None = None) -> Floats:
        """Return the product of factors: an effect of full strength multiplies by its size, of none by 1."""
        total = np.ones(times.shape)
        for effect in self.of(quantity):
            total[:, effect.columns] *= 1.0 + (effect.size - 1.0) * _strength(effect, times, window)
        return total


def _strength(effect: Effect, times: Floats, window: float | None) -> Floats:
    at = times[:, effect.columns]
    return effect.course.level(at) if window is None else effect.course.mean(at, window)
