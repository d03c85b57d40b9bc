"""straggler by the times of ranks whose steps vary by much, or of which few are known."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.straggler.examples import CULPRIT, PLAIN, Slow
from detectors.straggler.test_detector import GPU, entities, run
from detectors.tapes.gpus import START, name


def test_the_first_steps_of_a_job_are_no_pace_that_later_ones_are_held_against() -> None:
    (fired,) = run(replace(PLAIN, starts_s=0.0, minutes=10, slow=[Slow([CULPRIT], 120)]))
    assert dict(fired.entity) == GPU


@pytest.mark.parametrize("seed", [2, 11])
def test_of_what_varies_from_step_to_step_a_few_steps_are_no_habit(seed: int) -> None:
    """As generators of samples for reinforcement learning do, beside trainers that do not."""
    factors = np.exp(0.3 * np.random.default_rng(seed).standard_normal((4, 40)))
    uneven = [Slow([4 + rank], 40.0 * n, 40.0 * (n + 1), factors[rank, n]) for rank in range(4) for n in range(40)]
    training = replace(PLAIN, nodes=4, compute_s=30.0, collective_s=8.0, starts_s=5.0, minutes=15, seed=seed)
    assert entities(replace(training, slow=uneven)) == []


@pytest.mark.parametrize("seed", [1, 2])
def test_where_steps_vary_a_clock_that_came_to_be_slow_counts_with_them(seed: int) -> None:
    noisy = replace(PLAIN, nodes=8, compute_s=30.0, collective_s=15.0, jitter=0.22, minutes=45, seed=seed)
    (fired,) = run(replace(noisy, felt="clock", slow=[Slow([CULPRIT], 1800, factor=1.6)]))
    assert (dict(fired.entity), fired.severity) == (GPU, "page")
    assert (fired.started_at - START) / 1000 == pytest.approx(1800, abs=120)
    assert (fired.detected_at - START) / 1000 <= 1800 + 480


@pytest.mark.parametrize(("apart_s", "found"), [(0, []), (90, [GPU, {"node": name(2), "gpu": 3}])])
def test_two_ranks_of_uneven_ones_that_come_to_be_late_in_one_look_have_more_work(
    apart_s: float, found: list[Any]
) -> None:
    uneven = [Slow([rank], factor=1.04 if rank % 2 else 0.96) for rank in range(16)]
    late = [Slow([CULPRIT], 600, factor=1.35), Slow([11], 600 + apart_s, factor=1.4)]
    seen = replace(PLAIN, nodes=4, minutes=25, slow=[*uneven, *late])
    assert sorted(entities(seen), key=str) == sorted(found, key=str)


@pytest.mark.parametrize("seed", [2, 3])
def test_who_comes_to_compute_no_longer_than_most_while_another_is_waited_for_holds_up_nobody(seed: int) -> None:
    """A rank that had less to do than most gets as much, while all wait for a slow node."""
    less = [Slow([*range(8), 16, 17], factor=0.9), Slow([20], until_s=500, factor=0.88)]
    slow = Slow(range(8, 16), 300, factor=1.15)
    job = replace(PLAIN, nodes=3, gpus=8, minutes=30, jitter=0.02, collective_s=1.0, seed=seed)
    assert entities(replace(job, slow=[*less, slow])) == [{"node": name(1)}]
