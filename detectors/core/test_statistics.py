import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.core.statistics import masked_median, poisson_odds, stable_order


@given(st.lists(st.tuples(st.floats(-1e9, 1e9), st.booleans()), max_size=20))
def test_the_masked_median_is_the_median_of_what_is_valid(cells: list[tuple[float, bool]]) -> None:
    values = np.array([value for value, _ in cells], dtype=float)
    valid = np.array([flag for _, flag in cells], dtype=bool)
    got = masked_median(values, valid)
    if valid.any():
        assert got == pytest.approx(np.median(values[valid]), rel=1e-12, abs=1e-6)
    else:
        assert np.isnan(got)


def test_the_masked_median_goes_along_the_last_axis() -> None:
    values = np.array([[1.0, 2.0, np.nan], [9.0, np.inf, 7.0]])
    valid = np.array([[True, True, False], [True, False, True]])
    np.testing.assert_array_equal(masked_median(values, valid), [1.5, 8.0])


@given(st.lists(st.integers(0, 40), max_size=30), st.sampled_from([1, 2**11, 2**28, 2**40]), st.integers(-9, 9))
def test_the_order_of_integers_is_stable_however_far_they_lie_apart(ranks: list[int], apart: int, first: int) -> None:
    values = np.array(ranks, np.int64) * apart + first
    np.testing.assert_array_equal(stable_order(values), values.argsort(kind="stable"))


@given(st.integers(1, 200), st.floats(1e-3, 150))
def test_poisson_odds_are_never_below_the_true_ones_and_seldom_far_above(count: int, mean: float) -> None:
    exact = 1 - sum(math.exp(k * math.log(mean) - mean - math.lgamma(k + 1)) for k in range(count))
    (bound,) = poisson_odds(np.array([float(count)]), np.array([mean]))
    assert bound >= exact - 1e-9
    if count > 2 * mean and exact > 1e-9:
        assert bound <= 1.5 * exact
