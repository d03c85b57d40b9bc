"""The temperatures at which clocks are held down, by model of GPU, where DCGM does not report them itself.

Highest operating temperature of the chip: A100 85, H100 about 87 (captures of nvidia-smi -q); of its HBM 95 on both.
V100: 83 and 85, as such nodes report them. Where the model is not known, the A100's.
"""

from collections.abc import Iterable
from typing import Final

import numpy as np

from detectors.contract import FloatArray

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


def warmest_of(models: Iterable[str]) -> FloatArray:
    """Return from which temperatures of chip and memory on, (2, n) degrees Celsius, GPUs may be held for their heat."""
    return np.array([limits_of(model) for model in models]).reshape(-1, 2).T - NEAR_K
