"""Temperatures: a first-order lag between the power a chip turns to heat and what its sensor shows."""

import numpy as np

from services.synth.effects import Floats
from services.synth.profile import ClusterProfile

_COOLING_SPREAD = 0.05  # relative deviation of thermal resistance between GPUs: paste, place in the air stream
_REAR_PENALTY_C = 3.0  # the rear half of a node's GPUs breathe air that the front half has warmed
_HBM_OFFSET_C = 1.5
_ROOM_CYCLE_S, _ROOM_SWING_C = 2_400.0, 0.5  # the cold aisle breathes with its air handler


class ThermalModel:
    """The temperatures of all GPUs and HBM stacks, carried from one stretch of time to the next."""

    def __init__(self, profile: ClusterProfile, rng: np.random.Generator) -> None:
        gpu, nodes, per_node = profile.gpu, profile.nodes, profile.node.gpus
        self._gpu = gpu
        spread = 1 + _COOLING_SPREAD * np.clip(rng.standard_normal((2, profile.gpu_count)), -2.5, 2.5)
        self._resistance = gpu.kelvin_per_w * spread[0]
        self._hbm_resistance = gpu.hbm_kelvin_per_w * spread[1]
        self._rear = np.tile(np.where(np.arange(per_node) >= per_node / 2, _REAR_PENALTY_C, 0.0), nodes)
        racks = np.arange(nodes) // profile.nodes_per_rack
        self._inlet = profile.node.inlet_c + 0.8 * rng.standard_normal(racks.max() + 1)[racks]
        self._inlet += 0.3 * rng.standard_normal(nodes)
        self._cycle = rng.uniform(0, 2 * np.pi, racks.max() + 1)[racks]
        self._per_node = per_node
        self._now: tuple[Floats, Floats] | None = None

    def inlet(self, times: Floats) -> Floats:
        """Return the air's temperature at each node's inlet at ``times`` (ticks, nodes)."""
        cycle = np.sin(2 * np.pi * times / _ROOM_CYCLE_S + self._cycle)
        return np.asarray(self._inlet + _ROOM_SWING_C * cycle, dtype=np.float64)

    def advance(self, power: Floats, times: Floats, interval: float) -> tuple[Floats, Floats]:
        """Return GPU and HBM temperatures after each tick of ``interval`` seconds at mean ``power`` (ticks, gpus).

        The first tick ever is taken to have lasted long: the machines were there before the recording.
        """
        air = np.repeat(self.inlet(times), self._per_node, axis=1) + self._rear * (power / self._gpu.power_limit_w)
        target, hbm_target = air + self._resistance * power, air + _HBM_OFFSET_C + self._hbm_resistance * power
        chip, hbm = self._now or (target[0], hbm_target[0])
        keep = np.exp(-interval / self._gpu.thermal_time_constant_s)
        hbm_keep = np.exp(-interval / self._gpu.hbm_time_constant_s)
        chips, hbms = np.empty_like(target), np.empty_like(hbm_target)
        for tick in range(len(power)):
            chip = target[tick] + keep * (chip - target[tick])
            hbm = hbm_target[tick] + hbm_keep * (hbm - hbm_target[tick])
            chips[tick], hbms[tick] = chip, hbm
        self._now = chip, hbm
        return chips, hbms
