from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest

from detectors.contract import FloatArray
from detectors.core.columns import Columns, Declaration
from detectors.core.evidence import Evidence, bet, threshold, years_by_chance
from detectors.core.residuals import Habit, group_medians, peer_residuals
from detectors.core.tails import Tail, Tails


class Pair(Columns):
    BLANK: ClassVar[Declaration] = {"one": (np.int64, -1), "many": (np.float64, 0.0, 3)}
    one: Any
    many: Any


def test_columns_grow_with_blanks_and_survive_a_snapshot() -> None:
    pair = Pair()
    pair.grow(2)
    pair.one[0], pair.many[2, 1] = 7, 5.0
    pair.grow(3)
    assert pair.one.tolist() == [7, -1, -1]
    assert pair.many.shape == (3, 3)
    again = Pair().load(pair.arrays("p_"), "p_")
    assert (len(again), again.one.tolist(), again.many[2, 1]) == (3, [7, -1, -1], 5.0)
    again.forget(np.array([0]))
    assert again.one.tolist() == [-1, -1, -1]


@pytest.mark.parametrize("draw", [lambda c, n: np.abs(c.normal(size=n)), lambda c, n: c.lognormal(0, 1.2, n)])
def test_odds_of_a_tail_are_kept_within_the_data_and_conservative_beyond_it(
    draw: Callable[[np.random.Generator, int], FloatArray],
) -> None:
    chance = np.random.default_rng(5)
    tail = Tail()
    tail.learn(draw(chance, 20_000))
    fresh = tail.odds(draw(chance, 200_000))
    for level in (0.5, 0.1, 0.01):
        assert 0.5 * level < (fresh <= level).mean() < 1.2 * level
    assert 1e-4 < (fresh <= 1e-3).mean() < 1.2e-3
    assert (fresh <= 1e-4).mean() < 2e-4
    assert (fresh <= 1e-5).mean() < 3e-5


def test_a_tail_that_knows_nothing_finds_nothing_odd() -> None:
    assert Tail().odds(np.array([5.0, np.nan]))[0] == 1.0
    again = Tail()
    again.merge(Tail().document())
    assert again.odds(np.array([5.0]))[0] == 1.0
    tail = Tail()
    tail.learn(np.zeros(30))
    assert tail.odds(np.array([1000.0]))[0] > 1e-32
    assert tail.odds(np.array([0.5]))[0] >= 1e-3


def test_tails_are_the_same_after_a_document() -> None:
    tails, again = Tails(), Tails()
    tails["clock"].learn(np.random.default_rng(1).lognormal(size=5000))
    again.merge(tails.document())
    values = np.array([0.1, 3.0, 80.0])
    assert tails["clock"].odds(values).tolist() == again["clock"].odds(values).tolist()


def test_evidence_of_chance_alone_crosses_the_threshold_no_more_often_than_the_budget_allows() -> None:
    chance = np.random.default_rng(3)
    evidence, entities = Evidence(), 400
    evidence.grow(entities)
    everybody, bar, crossed = np.arange(entities), threshold(100.0, entities, entities, 864.0), 0
    looks = 5000
    for n in range(looks):
        evidence.look(everybody, chance.random(entities), n)
        over = np.flatnonzero(evidence.wealth >= bar)
        crossed += len(over)
        evidence.forget(over)
    assert crossed <= 1.2 * looks * entities * 864 / 86400


def test_evidence_of_a_lasting_fault_grows_and_of_its_end_falls() -> None:
    evidence = Evidence()
    evidence.grow(1)
    one = np.array([0])
    for n in range(8):
        evidence.look(one, np.array([1e-3]), n)
    assert evidence.wealth[0] > 20
    assert evidence.since[0] == 0
    evidence.look(one, np.array([np.nan]), 9)
    assert evidence.wealth[0] > 20
    for n in range(200):
        evidence.look(one, np.array([0.6]), n)
    assert evidence.wealth[0] == 0
    assert evidence.since[0] == -1


def test_looks_within_one_burst_count_as_one() -> None:
    whole, parts, one = Evidence(), Evidence(), np.array([0])
    for evidence in (whole, parts):
        evidence.grow(1)
    whole.look(one, np.array([1e-4]), 0)
    for n in range(4):
        parts.look(one, np.array([1e-4]), n, weight=0.25)
    assert parts.wealth[0] == pytest.approx(whole.wealth[0])


def test_a_bet_is_fair() -> None:
    odds = (np.arange(1_000_000) + 0.5) / 1_000_000
    assert np.exp(bet(odds)).mean() <= 1.01


def test_thresholds_rise_with_what_is_watched_and_fall_with_the_budget() -> None:
    assert threshold(0.5, 8000, 1000, 30) > threshold(0.5, 1000, 1000, 30) > threshold(5.0, 1000, 1000, 30)
    assert years_by_chance(threshold(1.0, 1, 1, 86400.0), 1, 86400.0) == pytest.approx(100 / 365.25)


def test_group_medians_and_residuals_leave_out_what_is_unknown_and_groups_that_are_small() -> None:
    values = np.array([1.0, 2.0, 9.0, np.nan, 5.0, 5.0, 7.0])
    group = np.array([0, 0, 0, 0, 1, 1, -1])
    medians, sizes = group_medians(values, group, 3)
    assert medians[:2].tolist() == [2.0, 5.0]
    assert np.isnan(medians[2])
    assert sizes.tolist() == [3, 2, 0]
    pair, _ = group_medians(np.array([1.0, 9.0]), np.zeros(2, np.int64), 1, lower=True)
    assert pair.tolist() == [1.0]
    distance, centre, spread = peer_residuals(values, group, 3, 0.5, fewest=3)
    assert distance[2] == pytest.approx(7 / 1.4826)
    assert centre[0] == 2.0
    assert spread[0] == pytest.approx(1.4826)
    assert np.isnan(distance[4:]).all()


def test_a_habit_follows_slowly_and_is_not_moved_by_one_outlier() -> None:
    habit = Habit(3600.0)
    habit.grow(1)
    one, chance = np.array([0]), np.random.default_rng(2)
    for value in chance.normal(100, 2, 200):
        habit.learn(one, np.array([value]), 10.0)
    assert habit.level[0] == pytest.approx(100, abs=1)
    habit.learn(one, np.array([1e6]), 10.0)
    assert habit.level[0] == pytest.approx(100, abs=1)
    assert habit.residual(one, np.array([130.0]), 0.1)[0] > 8
