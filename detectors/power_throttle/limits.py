"""A power limit that is lower on one GPU than on the others of its model: the card never gets to their clocks.

A limit lowered on the whole fleet is somebody's decision, and no fault. The limit is a gauge: how long it has stood at
its value is all that must be kept.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray
from detectors.power_throttle.config import PowerThrottleConfig
from detectors.statistics import median_of

FIELD = "DCGM_FI_DEV_ENFORCED_POWER_LIMIT"
_SAME_W = 1.0
"""Limits are set in whole watts."""
_PLAUSIBLE_W = 1e5


class Limits:
    """The enforced limit of every GPU (W; NaN not reported) and since when it has stood there (ms; -1)."""

    def __init__(self, config: PowerThrottleConfig) -> None:
        self._config = config
        self.enforced = np.empty(0)
        self.since = np.empty(0, np.int64)

    def take(self, batch: Batch, count: int) -> None:
        """Take a batch; `count` GPUs are known."""
        more = count - len(self.enforced)
        if more > 0:
            self.enforced = np.concatenate([self.enforced, np.full(more, np.nan)])
            self.since = np.concatenate([self.since, np.full(more, -1, np.int64)])
        if FIELD not in batch.values:
            return
        value = batch.values[FIELD]
        sound = batch.present & batch.valid[FIELD] & (value > 0) & (value < _PLAUSIBLE_W)
        for tick in range(len(batch.at)):
            here = sound[tick]
            gpus, watts = batch.entities[here], value[tick, here]
            moved = ~(np.abs(self.enforced[gpus] - watts) < _SAME_W)
            self.enforced[gpus[moved]] = watts[moved]
            self.since[gpus[moved]] = batch.at[tick, here][moved]

    def lowered(self, now: Instant, fresh: BoolArray, model: IntArray, should: FloatArray) -> BoolArray:
        """Return which GPUs' limits have been below their peers' for long enough, (GPUs,).

        `model` is a number for each GPU's model, `should` the limit it should have (W; NaN where that is not known).
        """
        found = np.zeros(len(self.enforced), bool)
        held = fresh & np.isfinite(self.enforced) & (now - self.since >= self._config.limit_confirm_s * 1000)
        for kind in np.bincount(model[held]).nonzero()[0]:
            alike = fresh & (model == kind) & np.isfinite(self.enforced)
            bar = self._config.limit_ratio * self.usual(alike)
            below = held & alike & (self.enforced < bar)
            found |= below & ~(self.enforced >= self._config.limit_ratio * should)
        return found

    def usual(self, alike: BoolArray) -> float:
        """Return the limit that most of some GPUs have, W; NaN where they are too few to say."""
        if np.count_nonzero(alike) < self._config.peer_minimum:
            return float("nan")
        return median_of(self.enforced[alike])

    def arrays(self) -> dict[str, NDArray[Any]]:
        """Return the state."""
        return {"limit_enforced": self.enforced, "limit_since": self.since}

    def load(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take what `arrays` returned."""
        self.enforced, self.since = arrays["limit_enforced"], arrays["limit_since"]
