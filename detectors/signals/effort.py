"""How much work GPUs do, as far as one reading shows it: what they carry beside it is held against it."""

from typing import Any, Final

import numpy as np

from detectors.contract import Batch, FloatArray
from detectors.fleet.gpus import reported

CLOCK: Final = "DCGM_FI_DEV_SM_CLOCK"
_GHZ: Final = 1e-3


def effort(batch: Batch, tick: int, here: Any, busy: FloatArray) -> FloatArray:
    """Return for how much of the time each of the GPUs `here` was `busy` (n,), times its clock in GHz; NaN: unknown.

    A GPU that is held at two fifths of its clock is as busy as before by all that counts time, and moves two fifths:
    it is slow, and its links are well. Where one of the two is not reported it is the other alone.
    """
    clock = reported(batch, CLOCK, tick, here, 1.0) * _GHZ
    return np.where(np.isnan(clock), busy, np.where(np.isnan(busy), 1.0, busy) * clock)
