"""The host link of every GPU: what it carries at most, how it is trained, what it sends again.

A lane moves 0.25, 0.5, 0.985, 1.969, 3.938, 7.563 GB/s a direction from generation 1 to 6, and copies reach about
four fifths of that: 25 GB/s at gen 4 x16 and 50 at gen 5, where acceptance tests ask for 21-23 and 48-55; 3.2 at gen 1,
which is what Vela's degraded links looked like (3-4 GB/s, 2407.05467, 2.3.1). Healthy links send again now and then.
"""

from collections.abc import Iterable

import numpy as np

from services.synth.cluster.profile import ClusterProfile
from services.synth.cluster.world import World
from services.synth.physics.effects import Effect, Effects, Floats

_LANE_GB_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
_EFFICIENCY = 0.8
_REPLAYS_PER_GPU_DAY = 0.25  # far below DCGM's own bar of 16 a minute at gen 4
_SPREAD = 0.02  # relative deviation of what a saturated link moves, window to window


def link_gb_s(gen: int, width: int) -> float:
    """Return what copies reach over a healthy link, GB/s a direction."""
    return _LANE_GB_S[gen] * width * _EFFICIENCY


class HostLinks:
    """The links of all GPUs of a cluster. Times have shape (ticks, gpus)."""

    def __init__(self, profile: ClusterProfile, effects: Effects) -> None:
        self._gpu, self._effects = profile.gpu, effects
        self._healthy = link_gb_s(profile.gpu.pcie_gen, profile.gpu.pcie_width)
        self._disturbed = bool(effects.of("gpu.pcie_gb_s") or effects.of("gpu.pcie_test"))

    def carried(self, wanted: dict[str, Floats], times: Floats, window: float, rng: np.random.Generator) -> None:
        """Bring tests and what links allow into the wanted bytes/s of the directions tx and rx, in place."""
        if not self._disturbed:
            return
        most = np.full(times.shape, self._healthy * 1e9)
        for effect in self._effects.of("gpu.pcie_gb_s"):
            share = effect.course.mean(times[:, effect.columns], window)
            held = most[:, effect.columns]
            most[:, effect.columns] = held + share * (np.minimum(held, effect.size * 1e9) - held)
        for effect in self._effects.of("gpu.pcie_test"):
            share = effect.course.mean(times[:, effect.columns], window)
            rate = wanted[effect.detail["direction"]]
            rate[:, effect.columns] += share * self._healthy * 1e9
        for rate in wanted.values():
            np.minimum(rate, most * (1 - _SPREAD * np.abs(rng.standard_normal(times.shape))), out=rate)

    def generation(self, times: Floats, resident: Floats) -> Floats:
        """Return the generation that each link runs at; some train down while no process holds the GPU."""
        gen = np.full(times.shape, float(self._gpu.pcie_gen))
        gen = self._effects.replaced("gpu.pcie_gen", gen, times)
        if self._gpu.pcie_idle_gen is not None:
            gen[resident <= 0] = self._gpu.pcie_idle_gen
        return gen

    def width(self, times: Floats) -> Floats:
        """Return the lanes that each link runs on."""
        return self._effects.replaced("gpu.pcie_width", np.full(times.shape, float(self._gpu.pcie_width)), times)

    def replays(self, times: Floats, window: float, rng: np.random.Generator) -> Floats:
        """Return what is sent again in the window before each time."""
        mean = np.full(times.shape, _REPLAYS_PER_GPU_DAY * window / 86400)
        if self._effects.of("gpu.pcie_replays_per_min"):
            mean += self._effects.added("gpu.pcie_replays_per_min", times, window=window) * window / 60
        return rng.poisson(mean).astype(np.float64)


def felt(world: World, effects: Effects) -> Iterable[Effect]:
    """Say what jobs feel of a slow link: gradients leave through it, its share of the node's network ports.

    So a job loses a few percent on Vela (four 100G ports for eight GPUs), and far more where ports are faster.
    """
    node = world.profile.node
    needed = node.nics * node.nic_gbps / 8 / node.gpus
    for effect in effects.of("gpu.pcie_gb_s"):
        slower = min(needed, link_gb_s(world.profile.gpu.pcie_gen, world.profile.gpu.pcie_width)) / effect.size
        if slower > 1:
            yield Effect("node.collective_factor", np.unique(effect.columns // node.gpus), slower, effect.course)
