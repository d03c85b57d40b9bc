"""straggler by the times of ranks whose steps vary by much, or of which few are known."""

from dataclasses import replace

import numpy as np
import pytest

from detectors.straggler.examples import CULPRIT, PLAIN, Slow
from detectors.straggler.test_detector import GPU, entities, run
from detectors.tapes.gpus import START


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
