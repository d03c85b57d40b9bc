"""Whose readings are old, by the energy counter."""

from typing import Any

import numpy as np
import pytest

from detectors.signals.energy import Energy


@pytest.mark.parametrize("gpus", [slice(1, 3), np.array([1, 2])], ids=["by slice", "by index"])
def test_only_a_counter_that_repeats_its_reading_stands_still(gpus: Any) -> None:
    energy = Energy()
    energy.grow(4)
    read = [
        energy.stands(gpus, np.array(used)).tolist() for used in ([5.0, 5.0], [6.0, 5.0], [np.nan, 7.0], [6.0, 8.0])
    ]
    assert read == [[False, False], [False, True], [False, False], [True, False]]
