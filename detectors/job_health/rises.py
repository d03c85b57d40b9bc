"""How much of what alerts a loss and its gradient norm rose by, and whether that stands out of what they do anyway."""

from collections.abc import Iterable, Sequence
from typing import Final

import numpy as np

from detectors.contract import BoolArray, FloatArray
from detectors.core.statistics import known_or
from detectors.job_health.loss import Course

_SCATTERS: Final = 3.0
"""Deviations that a rise must exceed, of looks and of what a course wanders by: losses in reinforcement learning come
and go by a factor of three, where those of language models scatter by 1 to 7 %."""
_PARTS: Final = 4.0
"""Deviations of a rise that would not do by itself, but does with that of the other: the loss of a diffusion model
wanders by a sixth for minutes, and takes its gradient along by three deviations."""


def shares_of(courses: Iterable[Course], sizes: Sequence[FloatArray], alerts: FloatArray) -> FloatArray:
    """Return rises of courses by `sizes` (jobs,) as shares of what `alerts`, (courses, 1): (courses, jobs)."""
    return np.asarray(np.maximum(np.array(sizes) / np.maximum(alerts, _SCATTERS * _scatter(courses)), 0.0))


def stand_out(courses: Iterable[Course], sizes: Sequence[FloatArray]) -> BoolArray:
    """Return which rises by `sizes` (jobs,) are too high for how their courses wander together, (courses, jobs)."""
    return np.asarray(np.array(sizes) >= _PARTS * _scatter(courses))


def _scatter(courses: Iterable[Course]) -> FloatArray:
    return known_or(np.array([course.scatter() for course in courses]), 0.0)
