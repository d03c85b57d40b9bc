"""What a GPU may draw: its limit in force where that is read, else the one that was asked for."""

from typing import Any, Final

import numpy as np

from detectors.contract import Batch, FloatArray
from detectors.fleet.gpus import reported

IN_FORCE: Final = "DCGM_FI_DEV_ENFORCED_POWER_LIMIT"
ASKED_FOR: Final = "DCGM_FI_DEV_POWER_MGMT_LIMIT"
"""What `nvidia-smi -pl` sets; hardware and platform may allow less."""
SAME_W: Final = 1.0
"""Limits are set in whole watts."""


def power_limits(batch: Batch, tick: int, here: Any) -> FloatArray:
    """Return the power limits (W) read in one tick for the GPUs at `here`; NaN where neither is."""
    in_force = reported(batch, IN_FORCE, tick, here)
    if ASKED_FOR not in batch.sound:
        return in_force
    return np.where(np.isfinite(in_force), in_force, reported(batch, ASKED_FOR, tick, here))
