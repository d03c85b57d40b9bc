"""NVLink: errors that links count, and what bandwidth is left. Counters are sums over a GPU's links.

A link repairs what it can: a flit whose check fails is sent again, a link that fails to is retrained. DCGM warns of any
check that fails and calls 100 a second, or any replay or recovery, a failure (DCGM health thresholds).
"""

from collections.abc import Iterable

import numpy as np

from services.synth.cluster.world import World
from services.synth.physics.effects import Effect, Effects, Floats

_FLITS_PER_GPU_DAY = 0.01  # a healthy link's, estimated
_DATA_SHARE = 0.02  # of failed checks are of data, where each lane has its own
_EXPOSED = 0.15  # of a step's computation waits for tensor-parallel partners, estimated
_COUNTED = {
    "DCGM_FI_DEV_NVLINK_CRC_FLIT_ERROR_COUNT_TOTAL": ("gpu.nvlink_crc_per_s", 1.0),
    "DCGM_FI_DEV_NVLINK_CRC_DATA_ERROR_COUNT_TOTAL": ("gpu.nvlink_crc_per_s", _DATA_SHARE),
    "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": ("gpu.nvlink_replays_per_s", 1.0),
    "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL": ("gpu.nvlink_recoveries_per_min", 1 / 60),
}
"""DCGM's field: the quantity whose rate feeds it, and how many of its counts that gives a second."""
_COUNTED_5 = {"DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS": ("gpu.nvlink_recoveries_per_min", 1 / 60)}
"""The same of NVLink 5 and later, which forward error correction keeps free of what older links count
(DCGM dcgm_fields.h: fields 1200 to 1219 are NVLink 5's)."""


def errors(
    effects: Effects, times: Floats, window: float, rng: np.random.Generator, generation: int
) -> dict[str, Floats]:
    """Return what each counter of such links counts in the window before ``times`` (ticks, gpus)."""
    found: dict[str, Floats] = {}
    for field, (quantity, scale) in (_COUNTED if generation < 5 else _COUNTED_5).items():
        mean = np.full(times.shape, _FLITS_PER_GPU_DAY * window / 86400) if scale == 1.0 and "CRC" in field else None
        if effects.of(quantity):
            rate = effects.added(quantity, times, window=window) * scale * window
            mean = rate if mean is None else mean + rate
        found[field] = np.zeros(times.shape) if mean is None else rng.poisson(mean).astype(np.float64)
    return found


def felt(world: World, effects: Effects) -> Iterable[Effect]:
    """Say what jobs feel of lost bandwidth: all GPUs of the NVLink domain exchange with the one that lacks it."""
    for effect in effects.of("gpu.nvlink_share"):
        slower = 1.0 + _EXPOSED * (1.0 / max(effect.size, 0.02) - 1.0)
        hit = np.unique(effect.columns // world.profile.node.gpus)
        for mate in dict.fromkeys(mate for node in hit for mate in world.nvlink_domain_of(int(node))):
            yield Effect("gpu.work_factor", world.gpus(mate), slower, effect.course)
