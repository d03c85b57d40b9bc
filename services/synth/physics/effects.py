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
    "gpu.power_limit_w": "the card's own enforced limit is `size` watts, as DCGM shows it",
    "gpu.cooling_factor": "the GPU sheds its heat `size` times as badly",
    "gpu.pcie_gb_s": "the GPU's host link carries at most `size` GB/s each way",
    "gpu.pcie_gen": "the host link runs at generation `size`",
    "gpu.pcie_width": "the host link runs on `size` lanes",
    "gpu.pcie_replays_per_min": "so many packets more are sent again over the host link",
    "gpu.pcie_test": "a bandwidth test copies at full tilt; detail: direction (rx: host to device, tx: back)",
    "gpu.nvlink_share": "`size` of the GPU's NVLink bandwidth is left",
    "gpu.nvlink_crc_per_s": "flits fail their check at this rate",
    "gpu.nvlink_replays_per_s": "the links send again at this rate",
    "gpu.nvlink_recoveries_per_min": "the links retrain at this rate",
    "gpu.sbe_per_s": "single bits of its memory are corrected at this rate",
    "gpu.dbe": "`size` double-bit errors at the course's start",
    "gpu.rows_remapped": "`size` rows are remapped at the course's start, for good; detail: uncorrectable (bool)",
    "gpu.remap_pending": "remapped rows wait for a reset of the GPU",
    "gpu.remap_failed": "a row could not be remapped",
    "gpu.lost": "the GPU answers nobody",
    "gpu.xid": "the XID gauge shows `size` from the course's start on, until the node boots",
    # power supplies, air, controllers, collectors: of nodes
    "node.psu_failed": "a power supply gives nothing; `size`: its number, 1 or 2",
    "node.inlet_rise_k": "the air that the node takes in is `size` kelvin warmer",
    "node.fan_failed": "a fan stands still; `size`: its number, from 1",
    "node.dimm_state": "the controller's state of the memory modules is `size`: 1 warning, 2 critical",
    "node.down": "the machine does not run; its controller does",
    "node.booted": "the machine starts anew at the course's start: what is volatile is counted from 0",
    "node.exporter_restarted": "the GPU exporter starts anew at the course's start: its XID gauge is empty",
    "node.unheard": "nothing that the node's collector gathers arrives; the machine runs on",
    "node.frozen": "the node's exporter gives its last values again and again",
    # network: of cables and of switches, as fabric.py numbers them
    "cable.down": "it carries nothing, and both its ports are down",
    "cable.errors_per_s": "frames arrive that FEC cannot correct; detail: end (0 the lower, 1 the upper)",
    "cable.marginal": "FEC corrects 10 to the power of `size` times as many frames as usual; detail: end",
    "cable.speed_share": "it has trained to `size` of its speed",
    "cable.extra_gbps": "others' flows fill so much of it; detail: direction (up or down)",
    "cable.pausing": "the machine at its lower end asks the leaf to pause for `size` of the time",
    "switch.down": "the switch does not run: all its cables are down",
    "switch.unheard": "nothing of the switch's telemetry arrives; it forwards as ever",
    "switch.unmarked": "its queues mark no packets",
    "switch.static": "every flow keeps to one path, full or not",
    # storage: detail: mount (its path)
    "mount.slow": "on `share` (detail) of the mount's servers, reads and writes take `size` times as long",
    "mount.metadata_slow": "to open, stat or lock a file on the mount takes `size` times as long",
    "mount.load": "others use `size` of the mount's bandwidth (1 is all of it), on top of our jobs",
    # what jobs feel: every piece of physics says it in these words
    "gpu.work_factor": "the GPU needs `size` times as long for the same work",
    "gpu.more_work": "the GPU is given `size` times as much work",
    "node.collective_factor": "the communication of every job on the node takes `size` times as long",
    "node.data_wait_factor": "ranks on the node wait `size` times as long for data; detail: mount, if not of all",
    "node.checkpoint_factor": "checkpoints take jobs on the node `size` times as long; detail: mount, if not on all",
    "job.work_factor": "every rank of the job needs `size` times as long for its computation: its own doing",
    "job.halted": "no step of the job goes on, its ranks wait in a collective",
    "job.ended": "the job ends when the course begins; detail: state, as in jobs.jsonl",
    "job.loss_factor": "the job's loss is `size` times what it would be",
    "job.loss_nan": "the job's loss and gradient norm are not a number",
    "job.grad_factor": "the job's gradient norm is `size` times what it would be",
}
"""Quantity: what an effect of it means.

The columns are indices: of GPUs for ``gpu.``, of nodes for ``node.``. For ``job.`` they are nodes too, and every job
that is on one of them feels it; with `job` (its id) in the detail, that job alone does, and columns may be empty.
"""


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

    def spans(self) -> list[tuple[float, float]]:
        """Return the stretches in which it acts at all: (begin, end) in seconds, in order."""
        acting = self._levels > 0
        found: list[tuple[float, float]] = []
        for number, (begin, stop) in enumerate(zip(self._times[:-1], self._times[1:], strict=True)):
            if not (acting[number] or acting[number + 1]):
                continue
            if found and found[-1][1] == begin:
                found[-1] = (found[-1][0], float(stop))
            else:
                found.append((float(begin), float(stop)))
        return found

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


def of_job(effects: "Effects", quantity: str, job: str, nodes: Ints) -> list[Effect]:
    """Return the ``job.`` effects of a quantity that befall a job on ``nodes`` (indices)."""
    return [
        effect
        for effect in effects.of(quantity)
        if (effect.detail["job"] == job if "job" in effect.detail else bool(np.isin(effect.columns, nodes).any()))
    ]


class Effects:
    """All effects of a recording, by quantity."""

    def __init__(self, effects: Iterable[Effect] = ()) -> None:
        self._by_quantity: dict[str, list[Effect]] = {}
        for effect in effects:
            if effect.quantity not in QUANTITIES:
                raise ValueError(f"{effect.quantity}: no quantity of QUANTITIES, in services/synth/physics/effects.py")
            self._by_quantity.setdefault(effect.quantity, []).append(effect)

    def of(self, quantity: str) -> list[Effect]:
        """Return the effects of one quantity, in the order of the scenario."""
        if quantity not in QUANTITIES:
            raise ValueError(f"{quantity}: no quantity of QUANTITIES, in services/synth/physics/effects.py")
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

    def acting(self, quantity: str, times: Floats) -> NDArray[np.bool_]:
        """Return where an effect of a quantity acts at all at `times` (ticks, entities)."""
        on: NDArray[np.bool_] = self.acting_on(quantity, times, 1)[0]
        return on

    def acting_on(self, quantity: str, times: Floats, parts: int) -> NDArray[np.bool_]:
        """Return where one acts, by the part of an entity of which its size is the number: (parts, ticks, entities)."""
        on = np.zeros((parts, *times.shape), dtype=bool)
        for effect in self.of(quantity):
            part = on[(int(effect.size) - 1) % parts]
            part[:, effect.columns] |= effect.course.level(times[:, effect.columns]) > 0
        return on

    def replaced(self, quantity: str, usual: Floats, times: Floats) -> Floats:
        """Return the size of the effect that acts, and what is `usual` where none does; in place."""
        for effect in self.of(quantity):
            on = effect.course.level(times[:, effect.columns]) > 0
            usual[:, effect.columns] = np.where(on, effect.size, usual[:, effect.columns])
        return usual


def _strength(effect: Effect, times: Floats, window: float | None) -> Floats:
    at = times[:, effect.columns]
    return effect.course.level(at) if window is None else effect.course.mean(at, window)
