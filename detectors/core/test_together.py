import numpy as np
import pytest

from detectors.core.residuals import Groups, Habit, group_medians, learn_together


@pytest.mark.parametrize("sizes", [range(-1, 41), [8] * 12, [1] * 9, [700, 3, 1, 2], []])
@pytest.mark.parametrize("lower", [True, False])
def test_standing_groups_have_the_medians_that_each_signal_has_alone(sizes: list[int], lower: bool) -> None:
    chance = np.random.default_rng(6)
    numbers = np.repeat(np.arange(len(sizes)), np.maximum(sizes, 0)) if len(sizes) else np.empty(0, np.int64)
    group = chance.permutation(np.append(numbers, [-1, -1]))
    values = chance.normal(size=(4, len(group)))
    values[1, chance.random(len(group)) < 0.3] = np.nan
    values[2, chance.random(len(group)) < 0.3] = np.inf
    values[3] = np.nan
    standing = Groups(group, len(sizes))
    for some in (values[:1], values):
        medians, counts = standing.medians(some, lower=lower)
        alone = [group_medians(row, group, len(sizes), lower=lower) for row in some]
        np.testing.assert_array_equal(medians, [median for median, _ in alone])
        np.testing.assert_array_equal(counts, [count for _, count in alone])


@pytest.mark.parametrize("count", [8, 4000], ids=["few", "so many that they are learnt in parts"])
def test_habits_that_learn_together_learn_what_each_learns_alone(count: int) -> None:
    chance = np.random.default_rng(9)
    together, alone = ([Habit(100.0) for _ in range(3)] for _ in range(2))
    for habit in (*together, *alone):
        habit.grow(count)
    for look in range(40):
        entities = np.flatnonzero(chance.random(count) < 0.7)
        values = chance.normal(size=(3, len(entities)))
        if look % 2:
            values[chance.random(values.shape) < 0.3] = np.nan
            values[0, :1] = np.inf
        spent_s = chance.uniform(5, 30, len(entities))
        learn_together(together, entities, values, spent_s)
        for habit, row in zip(alone, values, strict=True):
            habit.learn(entities, row, spent_s)
    for one, other in zip(together, alone, strict=True):
        for name, known in one.arrays().items():
            np.testing.assert_array_equal(known, other.arrays()[name])
