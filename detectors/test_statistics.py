import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from detectors.statistics import CounterRate, masked_median, stable_order


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


def rates(readings: list[tuple[int, float]], hold_ms: int = 60_000) -> list[float]:
    counter = CounterRate(np.array([-1]), np.zeros(1), hold_ms)
    one = np.array([0])
    return [
        float(counter.update(one, np.array([at]), np.array([value]), np.array([np.isfinite(value)]))[0])
        for at, value in readings
    ]


def test_a_counters_rate_survives_resets_gaps_and_cached_copies() -> None:
    got = rates([(0, 100.0), (5000, 5100.0), (10_000, np.nan), (15_000, 15_100.0), (20_000, 50.0), (25_000, 5050.0)])
    np.testing.assert_array_equal(got, [np.nan, 1.0, np.nan, 1.0, np.nan, 1.0])


def test_a_reading_that_repeats_is_no_news_until_it_has_repeated_for_long() -> None:
    got = rates([(0, 0.0), (5000, 0.0), (10_000, 10_000.0), (15_000, 10_000.0), (80_000, 10_000.0)])
    np.testing.assert_array_equal(got, [np.nan, np.nan, 1.0, np.nan, 0.0])
