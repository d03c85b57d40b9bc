"""The slow rule of the Vela report: the highest rate of an hour with its test, and the mean of twelve."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.contract import BoolArray, FloatArray, IntArray
from detectors.pcie_degradation.config import PcieDegradationConfig

_GB = 1e9


class Samples:
    """By GPU the last samples, bytes/s, and the highest rate since the last; nothing is kept where it is off."""

    def __init__(self, config: PcieDegradationConfig) -> None:
        self._config = config
        self._length = int(config.sample_s * 1000)
        self.period = np.empty(0, np.int64)
        self.highest = np.empty(0)
        self.kept = np.empty((0, config.sample_count))
        self.taken = np.empty(0, np.int64)

    def grow(self, count: int) -> None:
        """Make room for `count` GPUs."""
        more = count - len(self.period)
        if more <= 0 or not self._config.sample_count:
            return
        self.period = np.concatenate([self.period, np.full(more, -1, np.int64)])
        self.highest = np.concatenate([self.highest, np.zeros(more)])
        self.kept = np.concatenate([self.kept, np.full((more, self._config.sample_count), np.nan)])
        self.taken = np.concatenate([self.taken, np.zeros(more, np.int64)])

    def take(self, gpus: IntArray, at: IntArray, moved: FloatArray) -> None:
        """Take one reading each of some GPUs, bytes/s; where an hour is over, its highest is a sample."""
        if not self._config.sample_count:
            return
        period = at // self._length
        over = gpus[(period != self.period[gpus]) & (self.highest[gpus] >= self._config.sample_least_gb_s * _GB)]
        self.kept[over, self.taken[over] % self._config.sample_count] = self.highest[over]
        self.taken[over] += 1
        fresh = period != self.period[gpus]
        self.highest[gpus[fresh]] = 0.0
        self.period[gpus] = period
        self.highest[gpus] = np.fmax(self.highest[gpus], moved)

    def suspects(self, count: int) -> BoolArray:
        """Return which of `count` GPUs have all samples, and their mean below the bar."""
        if not self._config.sample_count:
            return np.zeros(count, bool)
        full = self.taken >= self._config.sample_count
        return np.asarray(full & (self.mean() < self._config.sample_bar_gb_s * _GB))

    def well(self, gpu: int) -> bool:
        """Return whether the last sample of a GPU is above the bar."""
        if not self._config.sample_count or not self.taken[gpu]:
            return True
        last = self.kept[gpu, (self.taken[gpu] - 1) % self._config.sample_count]
        return bool(last >= self._config.sample_bar_gb_s * _GB)

    def mean(self) -> FloatArray:
        """Return the mean of every GPU's samples, bytes/s; those that are missing count as 0."""
        total: FloatArray = np.where(np.isfinite(self.kept), self.kept, 0.0).sum(axis=1)
        return total / max(self._config.sample_count, 1)

    def forget(self, gpu: int) -> None:
        """Begin anew with a GPU."""
        if self._config.sample_count:
            self.kept[gpu], self.taken[gpu] = np.nan, 0

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays."""
        names = ("period", "highest", "kept", "taken")
        return {f"sample_{name}": getattr(self, name) for name in names}

    def restore(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        for name in ("period", "highest", "kept", "taken"):
            setattr(self, name, arrays[f"sample_{name}"])
