"""The temperatures at which clocks are held down, by model of GPU, where DCGM does not report them itself.

Highest operating temperature of the chip: A100 85, H100 about 87 (captures of nvidia-smi -q); of its HBM 95 on both.
V100: 83 and 85, as such nodes report them. Where the model is not known, the A100's.
"""

from typing import Any, Final

import numpy as np

from detectors.contract import BoolArray, FloatArray
from detectors.fleet.gpus import GpuLayout

NEAR_K: Final = 3.0
"""Below its highest temperature, K: at it, or a little below, the driver holds a GPU that is too warm, and sensors read
whole degrees (captures: A100 at 82 to 85 of 85)."""
_BY_MODEL: tuple[tuple[str, float, float], ...] = (
    ("V100", 83.0, 85.0),
    ("A100", 85.0, 95.0),
    ("A800", 85.0, 95.0),
    ("H100", 87.0, 95.0),
    ("H800", 87.0, 95.0),
    ("H200", 87.0, 95.0),
    ("GH200", 87.0, 95.0),
)
_ELSE = (85.0, 95.0)


def limits_of(model: str) -> tuple[float, float]:
    """Return the highest operating temperatures of chip and memory, degrees Celsius."""
    for name, chip, memory in _BY_MODEL:
        if name in model.upper():
            return chip, memory
    return _ELSE


class HeatLimits:
    """From which temperatures of chip and memory on each GPU of a layout may be held for its heat."""

    def __init__(self, layout: GpuLayout) -> None:
        self._layout = layout
        self._warmest: FloatArray = np.empty((2, 0))

    def extend(self) -> None:
        """Take the GPUs that are new in the layout."""
        nodes = self._layout.node[self._warmest.shape[1] :].tolist()
        if nodes:
            models = (self._layout.model_of(self._layout.names[node]) for node in nodes)
            warmest = np.array([limits_of(model) for model in models]).T - NEAR_K
            self._warmest = np.concatenate([self._warmest, warmest], axis=1)

    def reached(self, gpus: Any, chip: FloatArray, memory: FloatArray) -> BoolArray:
        """Return which GPUs are as warm as they may be, by their chip or memory (degrees Celsius, NaN is not known)."""
        chip_limit, memory_limit = (limits[gpus] for limits in self._warmest)
        return np.asarray((chip >= chip_limit) | (memory >= memory_limit))
