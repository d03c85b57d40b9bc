import numpy as np
import pytest

from detectors.signals.throttle_bits import ThrottledTime


def shares(interval_s: int, counted_s: list[float]) -> list[float]:
    time, found = ThrottledTime(), []
    time.grow(1)
    for number, counted in enumerate(counted_s):
        time.take(np.array([True]), np.array([1000 * interval_s * number]), np.array([counted * 1e9]))
        found.append(float(time.share()[0]))
    return found


@pytest.mark.parametrize("interval_s", [5, 60])
def test_a_counter_that_stood_for_an_hour_and_grows_has_grown_since_it_was_last_read(interval_s: int) -> None:
    calm = [7.0] * (3600 // interval_s)
    found = shares(interval_s, [*calm, 7.0 + interval_s])
    assert found[len(calm) - 1] == 0
    assert found[-1] >= interval_s / (30 + 2 * interval_s)


def test_a_copy_of_a_reading_does_not_end_what_is_counted() -> None:
    assert shares(5, [0.0, 5.0, 5.0, 15.0])[1:] == pytest.approx([1.0, 1.0, 1.0])
