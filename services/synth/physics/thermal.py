"""Temperatures: between the power a chip turns to heat and what its sensor shows lies a lag, for half of it.

The other half follows at once: the die warms before its heat sink does.

Warm air at the inlet adds to it; a fan that stands still, or a heat sink that sits badly, raises the resistance.
"""

import numpy as np

from services.synth.cluster.profile import ClusterProfile
from services.synth.physics.effects import Effects, Floats, Ints

_COOLING_SPREAD = 0.05  # relative deviation of thermal resistance between GPUs: paste, place in the air stream
_REAR_PENALTY_C = 3.0  # the rear half of a node's GPUs breathe air that the front half has warmed
_HBM_OFFSET_C = 1.5
_AT_ONCE = 0.5
"""Of a rise, what shows within a second or two. Measured on an H100 (tests/library/h100-training): of the 32 degrees
between 132 and 693 W 17 showed after a second, 25 after half a minute; when it stopped 15 went as fast."""
_ROOM_CYCLE_S, _ROOM_SWING_C = 2_400.0, 0.5  # the cold aisle breathes with its air handler
_STILL_FAN, _STILL_FAN_ELSEWHERE = 1.6, 1.12
"""By this a GPU's resistance rises if the fan before it stands still, or another one: what flows through the gap is
lost, and the other fans, at full speed, make up for part of it. Estimated."""


class ThermalModel:
    """The temperatures of all GPUs and HBM stacks, carried from one stretch of time to the next."""

    def __init__(self, profile: ClusterProfile, effects: Effects, rng: np.random.Generator) -> None:
        gpu, nodes, per_node = profile.gpu, profile.nodes, profile.node.gpus
        self._gpu = gpu
        spread = 1 + _COOLING_SPREAD * np.clip(rng.standard_normal((2, profile.gpu_count)), -2.5, 2.5)
        self._resistance = gpu.kelvin_per_w * spread[0]
        self._resistance += profile.conditions.offsets("gpus.apart_c", profile.gpu_count) / gpu.power_limit_w
        self._hbm_resistance = gpu.hbm_kelvin_per_w * spread[1]
        self._rear = np.tile(np.where(np.arange(per_node) >= per_node / 2, _REAR_PENALTY_C, 0.0), nodes)
        racks = np.arange(nodes) // profile.nodes_per_rack
        self._inlet = profile.node.inlet_c + 0.8 * rng.standard_normal(racks.max() + 1)[racks]
        self._inlet += 0.3 * rng.standard_normal(nodes)
        self._cycle = rng.uniform(0, 2 * np.pi, racks.max() + 1)[racks]
        self._per_node = per_node
        self._fans, self._effects = profile.node.fans, effects
        self._now: tuple[Floats, Floats] | None = None

    def inlet(self, times: Floats) -> Floats:
        """Return the air's temperature at each node's inlet at ``times`` (ticks, nodes)."""
        cycle = np.sin(2 * np.pi * times / _ROOM_CYCLE_S + self._cycle)
        return np.asarray(self._inlet + _ROOM_SWING_C * cycle + self._effects.added("node.inlet_rise_k", times))

    def air(self, times: Floats, power: Floats) -> Floats:
        """Return the air that reaches each GPU at ``times`` (ticks, nodes), while GPUs draw ``power`` (ticks, gpus)."""
        return np.repeat(self.inlet(times), self._per_node, axis=1) + self._rear * (power / self._gpu.power_limit_w)

    def worse(self, times: Floats) -> Floats | float:
        """Return how many times as badly each GPU sheds its heat at ``times``: (ticks, gpus), or 1 for all."""
        fans, sinks = self._effects.of("node.fan_failed"), self._effects.of("gpu.cooling_factor")
        if not fans and not sinks:
            return 1.0
        spread = np.repeat(times, self._per_node, axis=1)
        factor = self._effects.factor("gpu.cooling_factor", spread)
        behind = np.arange(self._per_node) * self._fans // self._per_node
        for effect in fans:
            rise = np.where(behind == (int(effect.size) - 1) % self._fans, _STILL_FAN, _STILL_FAN_ELSEWHERE) - 1.0
            for node in effect.columns:
                gpus = slice(node * self._per_node, (node + 1) * self._per_node)
                factor[:, gpus] *= 1.0 + effect.course.level(times[:, [node]]) * rise
        return factor

    def disturbed(self) -> tuple[Ints, list[tuple[float, float]]]:
        """Return the nodes whose cooling anything disturbs (indices), and the stretches of each disturbance."""
        nodes: set[int] = set()
        spans: list[tuple[float, float]] = []
        for quantity, per in (("node.inlet_rise_k", 1), ("node.fan_failed", 1), ("gpu.cooling_factor", self._per_node)):
            for effect in self._effects.of(quantity):
                nodes.update(int(column) // per for column in effect.columns)
                spans.append((effect.course.start, effect.course.end))
        return np.array(sorted(nodes), dtype=np.int64), spans

    def settled(self, times: Floats, power: Floats) -> Floats:
        """Return the temperature that chips would settle at: ``times`` (ticks, nodes), ``power`` (ticks, gpus)."""
        return np.asarray(self.air(times, power) + self._resistance * self.worse(times) * power)

    def advance(self, power: Floats, times: Floats, interval: float) -> tuple[Floats, Floats]:
        """Return GPU and HBM temperatures after each tick of ``interval`` seconds at mean ``power`` (ticks, gpus).

        The first tick ever is taken to have lasted long: the machines were there before the recording.
        """
        air, worse = self.air(times, power), self.worse(times)
        rise, hbm_rise = self._resistance * worse * power, self._hbm_resistance * worse * power
        target = air + (1 - _AT_ONCE) * rise
        hbm_target = air + _HBM_OFFSET_C + (1 - _AT_ONCE) * hbm_rise
        chip, hbm = self._now or (target[0], hbm_target[0])
        keep = np.exp(-interval / self._gpu.thermal_time_constant_s)
        hbm_keep = np.exp(-interval / self._gpu.hbm_time_constant_s)
        chips, hbms = np.empty_like(target), np.empty_like(hbm_target)
        for tick in range(len(power)):
            chip = target[tick] + keep * (chip - target[tick])
            hbm = hbm_target[tick] + hbm_keep * (hbm - hbm_target[tick])
            chips[tick], hbms[tick] = chip, hbm
        self._now = chip, hbm
        return chips + _AT_ONCE * rise, hbms + _AT_ONCE * hbm_rise
