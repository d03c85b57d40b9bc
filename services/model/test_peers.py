"""Distances to peers: what all do alike is no news, who is off is, and only where there are peers."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.model.fields import FIELDS, NAMES, UTILISATION
from services.model.peers import HABIT_WINDOWS, Habits, distances
from services.model.windows import Window

CLOCK = NAMES.index("DCGM_FI_DEV_SM_CLOCK")
COMPUTE, WAIT = NAMES.index("compute_s"), NAMES.index("comm_wait_s")


def at_work(gpus: int) -> np.ndarray:
    values = np.full((gpus, len(FIELDS)), np.nan)
    values[:, UTILISATION] = 99
    values[:, CLOCK] = 1400
    return values


def one_job(values: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    return np.zeros(len(values), np.int64), np.zeros(len(values), np.int64)


@settings(max_examples=100, deadline=None)
@given(st.integers(0, 2**32 - 1), st.permutations(range(9)))
def test_the_order_of_gpus_does_not_matter(seed: int, order: list[int]) -> None:
    values = np.random.default_rng(seed).pareto(1, (9, len(FIELDS)))
    values[:, UTILISATION] = 99
    straight, middle, compared = distances(values, *one_job(values))
    turned, _, _ = distances(values[order], *one_job(values))
    assert compared.all()
    np.testing.assert_array_equal(turned, straight[order])
    assert np.isfinite(straight).all()
    assert (np.sign(straight) == np.sign(values - middle)).all()


def test_what_all_do_alike_is_no_news() -> None:
    values = at_work(8)
    values[:, CLOCK] = 700
    far, _, _ = distances(values, *one_job(values))
    assert (far[:, CLOCK] == 0).all()


def test_who_is_off_lies_far_off_and_the_others_do_not() -> None:
    values = at_work(8)
    values[5, CLOCK] = 700
    far, middle, _ = distances(values, *one_job(values))
    assert far[5, CLOCK] == pytest.approx(-700 / 30)
    assert (far[[0, 1, 2, 3, 4, 6, 7], CLOCK] == 0).all()
    assert (middle[:, CLOCK] == 1400).all()


def test_those_who_wait_for_a_slow_rank_do_not_become_novel_by_waiting() -> None:
    values = at_work(8)
    values[:, COMPUTE] = [4.5, 4.6, 4.4, 4.5, 4.55, 4.45, 4.5, 13.5]
    values[:, WAIT] = 14 - values[:, COMPUTE]
    slow, _, _ = distances(values, *one_job(values))
    values[:, WAIT] -= 9
    usual, _, _ = distances(values[:7], *one_job(values[:7]))
    np.testing.assert_allclose(slow[:7, WAIT], usual[:, WAIT], atol=1.0)


@pytest.mark.parametrize("case", ["few", "idle", "no job", "mixed models"])
def test_without_peers_at_work_nothing_is_compared(case: str) -> None:
    values = at_work(4 if case == "few" else 8)
    jobs, models = one_job(values)
    if case == "idle":
        values[:, UTILISATION] = 0
    elif case == "no job":
        jobs[:] = -1
    elif case == "mixed models":
        models[4:] = 1
    _, _, compared = distances(values, jobs, models)
    assert not compared.any()


def test_a_card_that_always_was_the_warmest_is_no_news_and_one_that_became_it_is() -> None:
    habits, place = Habits(), NAMES.index("DCGM_FI_DEV_GPU_TEMP")
    rng = np.random.default_rng(3)
    features = []
    for minute in range(60):
        values = at_work(8)
        values[:, place] = 60 + rng.normal(0, 0.2, 8)
        values[2, place] += 12
        values[6, place] += 12 if minute >= 50 else 0
        compared = habits.compare(Window(minute * 60_000, (minute + 1) * 60_000, values), *one_job(values))
        features.append(compared.features[:, len(FIELDS) + place])
    assert (features[HABIT_WINDOWS - 1] == 0).all()
    assert abs(features[49][2]) < 0.5
    assert features[50][6] > 3
    assert abs(features[50][2]) < 0.5


def test_a_new_job_is_a_new_habit() -> None:
    habits = Habits()
    for minute in range(HABIT_WINDOWS + 5):
        values = at_work(8)
        values[1, CLOCK] = 1000
        jobs, models = one_job(values)
        compared = habits.compare(Window(minute * 60_000, (minute + 1) * 60_000, values), jobs, models)
    assert compared.features[1, CLOCK] < -5
    values[1, CLOCK] = 1400
    again = habits.compare(Window(9_000_000, 9_060_000, values), jobs + 1, models)
    assert (again.features[:, len(FIELDS) + CLOCK] == 0).all()
