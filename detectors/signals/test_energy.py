"""Whose readings are old, by the energy counter."""

from typing import Any

import numpy as np
import pytest

from detectors.signals.energy import Draw, Energy


@pytest.mark.parametrize("gpus", [slice(1, 3), np.array([1, 2])], ids=["by slice", "by index"])
def test_only_a_counter_that_repeats_its_reading_stands_still(gpus: Any) -> None:
    energy = Energy()
    energy.grow(4)
    read = [
        energy.stands(gpus, np.array(used)).tolist() for used in ([5.0, 5.0], [6.0, 5.0], [np.nan, 7.0], [6.0, 8.0])
    ]
    assert read == [[False, False], [False, True], [False, False], [True, False]]


@pytest.mark.parametrize(("strictly", "watts"), [(False, [300.0, 200.0]), (True, [np.nan, 200.0])])
def test_energy_that_repeats_before_any_has_grown_is_a_copy_where_that_is_asked(
    strictly: bool, watts: list[float]
) -> None:
    draw, gpus = Draw(), np.arange(2)
    draw.grow(2)
    for at in (1000, 6000):
        drawn = draw.power(
            gpus, np.full(2, at), np.array([5e6, 0.0]), np.array([300.0, 200.0]), strictly=strictly
        )  # a counter that stands at 0 counts nothing
    assert drawn.tolist() == pytest.approx(watts, nan_ok=True)


def test_energy_that_grows_says_what_is_drawn() -> None:
    draw, gpus = Draw(), np.arange(1)
    draw.grow(1)
    drawn = [
        draw.power(gpus, np.array([at]), np.array([used]), np.array([300.0])).item()
        for at, used in ((0, 0.0), (5000, 2e6), (10_000, 2e6))
    ]
    assert drawn == pytest.approx([300.0, 400.0, np.nan], nan_ok=True)
