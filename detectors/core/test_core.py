from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from detectors.contract import FloatArray
from detectors.core.columns import Columns, column
from detectors.core.counting import Bursts, Counter
from detectors.core.evidence import Echo, Evidence, Rises, bet, threshold, years_by_chance
from detectors.core.residuals import Groups, Habit, group_medians, peer_residuals
from detectors.core.shares import Shares
from detectors.core.tails import Tail, Tails


class Pair(Columns):
    one: Any = column(-1)
    many: Any = column(0.0, 3)


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


def test_a_column_that_an_older_version_did_not_have_begins_afresh() -> None:
    pair = Pair()
    pair.grow(2)
    pair.one[:] = 7
    document, arrays = pair.saved()
    del arrays["many"]
    again = Pair()
    again.take_saved(document, arrays)
    assert (again.one.tolist(), again.many.tolist()) == ([7, 7], [[0.0, 0.0]] * 3)


def test_columns_beside_others_that_an_older_version_did_not_have_have_room_with_them() -> None:
    class Both(Columns):
        own: FloatArray = column(1.0)
        BESIDE = ("beside",)
        KEPT = ("rest",)

        def __init__(self) -> None:
            super().__init__()
            self.beside, self.rest = Pair(), 0

    both = Both()
    both.grow(2)
    document, arrays = both.saved()
    again = Both()
    again.take_saved({"count": 2, "rest": 5}, {"own": arrays["own"]})
    again.grow(2)
    assert (len(again), again.beside.one.tolist()) == (2, [-1, -1])
    with pytest.raises(KeyError, match="rest"):
        again.take_saved({"count": document["count"]}, arrays)


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
    nothing = Tail()
    nothing.merge(Tail().document())
    assert nothing.odds(np.array([5.0]))[0] == 1.0
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


def test_groups_of_any_size_beside_each_other_have_the_medians_and_quantiles_that_sorting_them_gives() -> None:
    chance = np.random.default_rng(6)
    group = chance.permutation(np.repeat(np.arange(41), np.arange(41)))  # the sizes are 0 to 40
    values = np.where(chance.random(len(group)) < 0.1, np.nan, chance.integers(0, 9, len(group)))
    medians, sizes = group_medians(values, group, 41)
    quarters, _ = Groups(group, 41).quantiles(values, 0.25)
    for number in range(41):
        mine = np.sort(values[(group == number) & np.isfinite(values)])
        assert sizes[number] == len(mine)
        wanted = [np.median(mine), mine[(len(mine) - 1) // 4]] if len(mine) else [np.nan, np.nan]
        np.testing.assert_array_equal([medians[number], quarters[number]], wanted)


def test_a_tail_asked_of_many_at_once_says_of_each_what_it_says_of_it_alone() -> None:
    tail, chance = Tail(), np.random.default_rng(7)
    tail.learn(chance.exponential(size=2000) - 0.5)
    asked = np.array([np.nan, -np.inf, -1.0, -0.0, 0.0, 1e-9, 0.3, 2.0, 50.0, np.inf])
    alone = [float(tail.odds(asked[[place]])[0]) for place in range(len(asked))]
    np.testing.assert_array_equal(tail.odds(asked), alone)
    assert np.isnan(alone).tolist() == [True, True, *[False] * 7, True]
    assert alone[2] == alone[4] >= alone[5] > alone[6] > alone[7] > alone[8] > 0
    one_by_one = Tail()
    for residual in asked:
        one_by_one.learn(np.array([residual]))
    together = Tail()
    together.learn(asked)
    assert one_by_one.document() == together.document()


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


def _counted(bursts: Bursts, rates: FloatArray, seconds: range, chance: np.random.Generator, total: FloatArray) -> None:
    """Let counters count at some rates (errors/s) for a while, read every 5 s."""
    everybody = np.arange(len(rates))
    for second in seconds:
        total += chance.poisson(5 * rates)
        bursts.counter.take(everybody, np.full(len(rates), second * 1000), total.copy())
        bursts.look(second * 1000, len(rates) // 4, np.zeros(len(rates), bool))


def test_a_habit_learns_the_same_of_all_at_once_as_of_some() -> None:
    chance, all_at_once, one_by_one = np.random.default_rng(5), Habit(300.0), Habit(300.0)
    for habit in (all_at_once, one_by_one):
        habit.grow(8)
    for _ in range(60):
        values, spent = chance.normal(100, 5, 8), chance.uniform(1, 20, 8)
        values[chance.random(8) < 0.3] = np.nan
        all_at_once.learn_all(values, spent)
        some = np.flatnonzero(np.isfinite(values))
        one_by_one.learn(some, values[some], spent[some])
    for name, array in all_at_once.arrays().items():
        np.testing.assert_array_equal(array, one_by_one.arrays()[name])


def test_a_burst_beyond_habit_and_peers_is_evidence_and_a_habit_is_not() -> None:
    bursts, total, chance = Bursts("errors", Tails(), 0.05), np.zeros(40), np.random.default_rng(1)
    bursts.grow(40)
    rates = np.zeros(40)
    rates[:4] = 0.04  # some always err, two or three times a minute
    _counted(bursts, rates, range(0, 7200, 5), chance, total)
    assert bursts.evidence.wealth.max() < bursts.bar / 2
    assert bursts.level[:4] == pytest.approx(0.8, abs=0.25)
    loud = rates.copy()
    loud[7] = loud[1] = 1.0
    _counted(bursts, loud, range(7200, 7320, 5), chance, total)
    assert bursts.beyond_chance().tolist() == [1, 7]
    assert bursts.level[1] == pytest.approx(0.8, abs=0.3), "a storm is not learnt as a habit"
    again = Bursts("errors", Tails(), 0.05).load(bursts.arrays("x_"), "x_")
    assert again.arrays("y_").keys() == bursts.arrays("y_").keys()
    assert (again.bar, again.watched) == (bursts.bar, bursts.watched)


def test_what_all_count_and_what_one_counts_once_is_no_evidence() -> None:
    bursts, total, chance = Bursts("errors", Tails(), 0.05), np.zeros(16), np.random.default_rng(2)
    bursts.grow(16)
    _counted(bursts, np.zeros(16), range(0, 600, 5), chance, total)
    _counted(bursts, np.full(16, 2.0), range(600, 900, 5), chance, total)
    total[3] += 1e6
    _counted(bursts, np.zeros(16), range(900, 1200, 5), chance, total)
    assert not len(bursts.beyond_chance())


def test_a_counter_that_was_blank_for_a_scrape_has_not_counted_and_one_that_was_reset_begins_anew() -> None:
    counter = Counter()
    counter.grow(1)
    one = np.array([0])
    counts = [counter.take(one, np.array([at * 1000]), np.array([value]))[0] for at, value in (
        (0, 100.0), (5, 103.0), (10, 0.0), (15, 104.0), (20, 105.0), (25, 0.0), (200, 2.0), (205, np.nan), (210, 4.0),
    )]  # fmt: skip
    assert counts == [0, 3, 0, 1, 1, 0, 2, 0, 2]
    assert counter.fell_at[0] == 25_000


class Carried:
    """A job of 8 nodes of 8 that carry by their role, with some noise; read every 10 s."""

    def __init__(self, seed: int) -> None:
        self.shares = Shares(Tail(), 0.05, ratio=0.6, least=1.0, peaks=False)
        self.shares.grow(64)
        self.chance, self.at = np.random.default_rng(seed), 0
        self.place, self.node = np.tile(np.arange(8), 8), np.repeat(np.arange(8), 8)
        self.usual = 10.0 * np.where(self.place == 0, 3.0, 1.0)

    def on(self, seconds: int, factor: Any = 1.0, work: Any = 1.0, patience: int = 0) -> list[int]:
        """Go on for a while; return who is beyond chance at the end."""
        everybody, job = np.arange(64), np.full(64, 7)
        for _ in range(seconds // 10):
            self.at += 10_000
            now = self.usual * factor * self.chance.lognormal(0, 0.1, 64)
            self.shares.take(everybody, now, np.broadcast_to(0.4 * work, 64))
            self.shares.look(self.at, job, self.place, self.node, np.zeros(64, bool), patience)
        return [int(one) for one in self.shares.beyond_chance()]


def test_a_share_that_falls_is_evidence_and_a_role_a_phase_or_less_work_is_not() -> None:
    part = np.ones(64)
    part[13] = 0.4
    job = Carried(1)
    assert job.on(1800) == []
    assert job.on(180, part) == [13]
    assert job.shares.now[13] < 0.6 * job.shares.usual[13]
    assert job.on(600) == []
    calm = Carried(2)
    calm.usual[13] *= 0.4  # a role from the beginning
    assert calm.on(1800) == []
    assert calm.on(600, 0.3) == [], "all of them do less"
    assert calm.on(600, np.where(calm.node == 3, 0.4, 1.0), np.where(calm.node == 3, 0.4, 1.0)) == [], "it is slow"


def test_who_share_what_is_between_them_are_given_some_looks() -> None:
    part = np.ones(64)
    part[[16, 17]] = 0.4
    assert Carried(3).on(1800, patience=20) == []
    job = Carried(3)
    job.on(1800, patience=20)
    assert job.on(300, part, patience=20) == []
    assert job.on(600, part, patience=20) == [16, 17]


def test_quantiles_of_groups_are_those_of_each_group_alone() -> None:
    chance = np.random.default_rng(3)
    values, group = chance.normal(size=400), chance.integers(-1, 5, 400)
    values[::7] = np.nan
    found, sizes = Groups(group, 6).quantiles(values, 0.25)
    for number in range(5):
        own = np.sort(values[(group == number) & np.isfinite(values)])
        assert (found[number], sizes[number]) == (own[int(0.25 * (len(own) - 1))], len(own))
    assert np.isnan(found[5])


def rates(readings: list[tuple[int, float]], hold_ms: int = 60_000) -> list[float]:
    counter, one = Counter(), np.array([0])
    counter.grow(1)
    return [float(counter.rates(one, np.array([at]), np.array([value]), hold_ms)[0]) for at, value in readings]


def test_a_counters_rate_survives_resets_gaps_and_cached_copies() -> None:
    got = rates([(0, 100.0), (5000, 5100.0), (10_000, np.nan), (15_000, 15_100.0), (20_000, 50.0), (25_000, 5050.0)])
    np.testing.assert_array_equal(got, [np.nan, 1.0, np.nan, 1.0, np.nan, 1.0])


def test_a_reading_that_repeats_is_no_news_until_it_has_repeated_for_long() -> None:
    got = rates([(0, 0.0), (5000, 0.0), (10_000, 10_000.0), (15_000, 10_000.0), (80_000, 10_000.0)])
    np.testing.assert_array_equal(got, [np.nan, np.nan, 1.0, np.nan, 0.0])


def test_a_counter_that_stood_for_long_did_not_grow_in_all_that_time() -> None:
    got = rates([(0, 0.0), *((at, 0.0) for at in range(5000, 600_000, 5000)), (600_000, 30_000.0)], hold_ms=30_000)
    assert got[-1] == 1.0


def test_several_counters_of_an_entity_are_counted_apart() -> None:
    counter, both = Counter(rows=2), np.array([0, 2])
    counter.grow(3)
    counter.take(both, np.array([0, 0]), np.array([[5.0, 1.0], [7.0, np.nan]]))
    grown = counter.take(both, np.array([5000, 5000]), np.array([[6.0, 1.0], [3.0, 4.0]]))
    np.testing.assert_array_equal(grown, [[1.0, 0.0], [0.0, 0.0]])
    np.testing.assert_array_equal(counter.value, [[6.0, np.nan, 1.0], [3.0, np.nan, 4.0]])
    assert counter.fell_at[1, 0] == 5000
    total, spent_ms = counter.look(np.array([0]))
    assert (total.tolist(), spent_ms.tolist()) == ([[1.0], [0.0]], [[5000.0], [0.0]])


@pytest.mark.parametrize(("repeats", "least", "most"), [(0.0, 0.9, 1.0), (0.9, 0.1, 0.5)])
def test_looks_that_repeat_the_one_before_count_less(repeats: float, least: float, most: float) -> None:
    echo, chance, entities = Echo(), np.random.default_rng(4), np.arange(50)
    echo.grow(50)
    value = chance.standard_normal(50)
    for _ in range(400):
        value = repeats * value + np.sqrt(1 - repeats**2) * chance.standard_normal(50)
        odds = 1 - 0.5 * (1 + np.sign(value) * np.sqrt(1 - np.exp(-2 * value**2 / np.pi)))  # Polya's approximation
        echo.take(entities, odds, np.ones(50, bool))
    assert least <= echo.weight <= most


def test_wealth_is_worth_what_its_rises_that_came_to_nothing_say() -> None:
    chance, entities = np.random.default_rng(11), np.arange(2000)
    worth = []
    for repeats in (1, 6):  # a look by itself, or six that are the same
        evidence, rises, highest = Evidence(), Rises(), np.zeros(2000)
        evidence.grow(2000)
        for number in range(240):
            if number % repeats == 0:
                odds = chance.uniform(size=2000)
            evidence.look(entities, odds, number)
            highest = np.fmax(highest, evidence.wealth)
            rises.learn(highest[evidence.wealth <= 0])
            highest[evidence.wealth <= 0] = 0.0
        worth.append(float(rises.worth(np.array([12.0]))[0]))
    assert worth[0] > 11.0
    assert worth[1] < 7.0
