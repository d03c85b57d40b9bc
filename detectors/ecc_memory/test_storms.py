"""ecc_memory on corrected errors: storms, waves of them that come back, and what a GPU has by habit."""

import numpy as np
import pytest

from detectors.contract import Finding
from detectors.ecc_memory.examples import CLUSTER, LONGER, SBE, XID, memory, reset, stormy
from detectors.ecc_memory.test_detector import fired, gpu, run
from detectors.tapes.gpus import START, Cluster, xid_line


def test_a_storm_is_one_finding_with_its_peers_habit_and_odds_beside_it() -> None:
    fire, over = run(LONGER.tape(stormy(LONGER, memory(LONGER), 5, (720, 850), 2.0)))
    assert (fire.fault, dict(fire.entity), over.state) == ("ecc_correctable_storm", gpu(1, 1), "resolved")
    assert fire.severity == "ticket"
    assert float(fire.evidence["single_bit_errors_of_late"]) >= 52
    assert fire.evidence["single_bit_errors_per_min_peers"] == 0.0
    assert "years of this cluster" in str(fire.evidence["by_chance"])
    assert over.detected_at <= START + 850_000 + 300_000


@pytest.mark.parametrize("per_s", [12.0, 60.0, 1000.0])
def test_a_single_burst_is_no_storm(per_s: float) -> None:
    assert fired(LONGER.tape(stormy(LONGER, memory(LONGER), 5, (720, 724), per_s))) == []


def test_what_all_gpus_count_is_no_gpus_fault() -> None:
    columns = memory(LONGER)
    for place in range(36):
        columns = stormy(LONGER, columns, place, (720, 1000), 3.0)
    assert fired(LONGER.tape(columns)) == []


def test_a_gpu_that_always_has_errors_is_reported_once_as_information_and_needs_far_more_for_a_storm() -> None:
    cluster = Cluster(minutes=150, interval_s=15)
    habit = stormy(cluster, memory(cluster), 5, (0, 9000), 0.05)
    info = run(cluster.tape(habit))
    assert [(f.severity, dict(f.entity)) for f in info] == [("info", gpu(1, 1))]
    mild = stormy(cluster, habit, 5, (7000, 7600), 0.05)
    assert [f.severity for f in run(cluster.tape(mild))] == ["info"], "twice the habit is no storm"
    much = stormy(cluster, memory(cluster), 5, (0, 9000), 0.09)
    somewhat_more = stormy(cluster, much, 5, (7000, 7900), 0.12)
    assert [f.severity for f in run(cluster.tape(somewhat_more))] == ["info"], "a storm's errors are those beyond habit"
    wild = stormy(cluster, habit, 5, (7000, 7600), 1.0)
    assert [f.severity for f in run(cluster.tape(wild)) if f.state == "firing"] == ["info", "ticket"]


@pytest.mark.parametrize("interval_s", [10.0, 30.0])
def test_bouts_as_a_gpu_has_them_by_habit_are_no_storm_and_what_exceeds_them_is(interval_s: float) -> None:
    cluster = Cluster(nodes=9, minutes=75, interval_s=interval_s)
    columns = stormy(cluster, memory(cluster), 5, (0, 4500), 0.055)
    for begin in (0, 1860, 3600):
        columns = stormy(cluster, columns, 5, (begin, begin + 270), 0.37)
    assert [f for f in run(cluster.tape(columns)) if f.severity != "info"] == []
    wild = stormy(cluster, columns, 5, (3600, 3900), 2.0)
    (fire, *_) = [f for f in run(cluster.tape(wild)) if f.severity != "info"]
    assert START + 3_600_000 <= fire.detected_at <= START + 3_600_000 + 150_000
    assert float(fire.evidence["single_bit_errors_per_min_in_bouts_before"]) > 10


def test_the_first_bout_of_a_gpu_that_has_errors_by_habit_is_no_storm() -> None:
    cluster = Cluster(nodes=9, minutes=75, interval_s=15)
    columns = stormy(cluster, memory(cluster), 5, (0, 4500), 0.055)
    columns = stormy(cluster, columns, 5, (1500, 1770), 0.37)
    assert [f for f in run(cluster.tape(columns)) if f.severity != "info"] == []
    wild = stormy(cluster, columns, 5, (1500, 1770), 1.0)
    assert [f.severity for f in run(cluster.tape(wild)) if f.state == "firing" and f.severity != "info"] == ["ticket"]


def test_a_storm_with_lulls_is_no_bout_that_is_over() -> None:
    cluster = Cluster(nodes=9, minutes=40, interval_s=15)
    columns = memory(cluster)
    steps = np.resize([10, 4, 9, 13, 2, 5, 2, 6, 13, 2, 3, 2, 3, 6, 2, 4, 2], cluster.ticks)
    columns[SBE][:, 5] += np.cumsum(np.where(cluster.at_s[:, 5] >= 900, steps, 0))
    fire = run(cluster.tape(columns))[0]
    assert (fire.fault, dict(fire.entity)) == ("ecc_correctable_storm", gpu(1, 1))
    assert fire.detected_at <= START + 900_000 + 240_000


@pytest.mark.parametrize("seed", [0, 1, 2, 3])
def test_a_bout_of_some_fifty_errors_in_less_than_five_minutes_is_no_storm(seed: int) -> None:
    cluster = Cluster(nodes=9, minutes=60, interval_s=15)
    columns, at_s = memory(cluster), cluster.at_s[:, 5]
    rate = np.where((at_s >= 1500) & (at_s < 1770), 0.245, 0.045)
    columns[SBE][:, 5] += np.cumsum(np.random.default_rng(seed).poisson(15 * rate))
    assert [finding for finding in run(cluster.tape(columns)) if finding.severity != "info"] == []


@pytest.mark.parametrize("interval_s", [10.0, 60.0])
def test_a_storm_of_ten_errors_a_minute_is_one_once_it_has_as_many_as_a_storm(interval_s: float) -> None:
    cluster = Cluster(nodes=9, minutes=60, interval_s=interval_s)
    (fire, *_) = run(cluster.tape(stormy(cluster, memory(cluster), 5, (1200, 2400), 1 / 6)))
    assert (fire.fault, dict(fire.entity)) == ("ecc_correctable_storm", gpu(1, 1))
    assert START + 1_200_000 + 280_000 <= fire.detected_at <= START + 1_200_000 + 480_000


@pytest.mark.parametrize(("an_hour", "interval_s", "within_s"), [(80, 60, 1500), (140, 10, 900)])
def test_errors_that_go_on_at_a_low_rate_are_one_storm(an_hour: float, interval_s: float, within_s: float) -> None:
    cluster = Cluster(nodes=9, minutes=140, interval_s=interval_s)
    columns = memory(cluster)
    columns[SBE][:, 5] += np.floor(np.clip(cluster.at_s[:, 5] - 2400, 0, 4200) * an_hour / 3600)
    fire, over = run(cluster.tape(columns))
    assert (fire.fault, dict(fire.entity), over.state) == ("ecc_correctable_storm", gpu(1, 1), "resolved")
    assert "again and again" in fire.summary
    assert fire.detected_at <= START + 2_400_000 + within_s * 1000
    assert START + 6_600_000 < over.detected_at <= START + 6_600_000 + 1_200_000


def test_some_errors_an_hour_that_begin_are_no_storm() -> None:
    cluster = Cluster(nodes=9, minutes=200, interval_s=30)
    columns = memory(cluster)
    columns[SBE][:, 5] += np.floor(np.clip(cluster.at_s[:, 5] - 2400, 0, None) * 30 / 3600)
    assert fired(cluster.tape(columns)) == []


def test_a_slow_wave_of_errors_is_habit_of_a_gpu_that_came_back_from_a_faster_one() -> None:
    cluster = Cluster(nodes=9, minutes=140, interval_s=15)

    def waves(*spans: tuple[float, float, float]) -> list[Finding]:
        columns = memory(cluster)
        for begin, end, a_minute in spans:
            columns[SBE][:, 5] += np.floor(np.clip(cluster.at_s[:, 5] - begin, 0, end - begin) * a_minute / 60)
        return [f for f in run(cluster.tape(columns)) if f.state == "firing"]

    assert waves((3000, 3240, 5.0), (6000, 7200, 2.5)) == []
    (fire,) = waves((6000, 7200, 2.5))
    assert "again and again" in fire.summary


def test_errors_that_end_within_minutes_and_single_ones_later_are_no_storm() -> None:
    cluster = Cluster(nodes=9, minutes=100, interval_s=10)
    columns = stormy(cluster, memory(cluster), 5, (2400, 2640), 0.12)
    columns[SBE][:, 5] += np.floor(np.clip(cluster.at_s[:, 5] - 3000, 0, None) / 1200)
    assert fired(cluster.tape(columns)) == []


def test_a_counter_that_its_collector_lost_for_a_scrape_has_counted_nothing() -> None:
    columns = memory(LONGER)
    columns[SBE] += 5000
    columns[SBE][150:153, 5] = 0
    columns[SBE][160, 5] = 0
    assert fired(LONGER.tape(columns)) == []


@pytest.mark.parametrize("interval_s", [5.0, 30.0])
def test_bouts_with_pauses_of_minutes_are_one_storm_and_over_within_five(interval_s: float) -> None:
    cluster = Cluster(minutes=50, interval_s=interval_s)
    columns = memory(cluster)
    for begin in (900, 1340, 1780):
        columns = stormy(cluster, columns, 5, (begin, begin + 300), 3.0)
    fire, over = run(cluster.tape(columns))
    assert (fire.state, over.state) == ("firing", "resolved")
    assert 0 < over.detected_at - START - 2_080_000 <= 300_000


def in_waves(cluster: Cluster, *waves: tuple[float, float, float]) -> list[Finding]:
    """Return what is found of a GPU that corrects errors from, until (s), at a rate (errors/s)."""
    columns = memory(cluster)
    for begin, end, per_s in waves:
        columns = stormy(cluster, columns, 5, (begin, end), per_s)
    return run(cluster.tape(columns))


def test_a_storm_that_returns_larger_is_another() -> None:
    cluster = Cluster(minutes=100, interval_s=15)
    found = in_waves(cluster, (900, 1100, 3.0), (1800, 2000, 6.0), (2900, 3100, 3.0))
    first, over, again, end = [f for f in found if f.severity == "ticket"]
    assert (first.id, again.id) == (over.id, end.id)
    assert START + 1_800_000 < again.detected_at <= START + 2_000_000
    assert 0 < end.detected_at - START - 2_000_000 <= 300_000


@pytest.mark.parametrize(
    ("interval_s", "per_s", "every_s"), [(5, 0.4, 1800), (30, 0.4, 1800), (60, 3.0, 900), (15, 3.0, 7200)]
)
def test_a_storm_that_is_back_no_larger_is_information_once(interval_s: float, per_s: float, every_s: float) -> None:
    cluster = Cluster(nodes=9, minutes=70 + 4 * every_s / 60, interval_s=interval_s)
    found = in_waves(cluster, *((at, at + 270, per_s) for at in np.arange(5) * every_s + 3600))
    assert [(f.state, f.severity) for f in found] == [("firing", "ticket"), ("resolved", "ticket"), ("firing", "info")]
    assert 0 < found[1].detected_at - START - 3_870_000 <= 300_000
    assert "no more than before" in found[2].summary


def test_a_storm_that_pauses_and_goes_on_for_longer_is_found_again() -> None:
    found = in_waves(Cluster(nodes=9, minutes=150, interval_s=15), (3600, 4200, 1.0), (4800, 8000, 1.0))
    assert [(f.state, f.severity) for f in found if f.severity != "info"][:3] == [
        ("firing", "ticket"), ("resolved", "ticket"), ("firing", "ticket"),
    ]  # fmt: skip
    again = [f for f in found if f.severity != "info"][2]
    assert again.detected_at <= START + 4_800_000 + 1.5 * 600_000 + 120_000


def test_a_slow_storm_that_pauses_and_goes_on_for_longer_is_found_again() -> None:
    cluster = Cluster(nodes=9, minutes=240, interval_s=15)
    columns = memory(cluster)
    for begin, spent, an_hour in ((3600, 1800, 100), (7200, 6600, 180)):
        columns[SBE][:, 5] += np.floor(np.clip(cluster.at_s[:, 5] - begin, 0, spent) * an_hour / 3600)
    found = run(cluster.tape(columns))
    assert [(f.state, f.severity) for f in found][:4] == [
        ("firing", "ticket"), ("resolved", "ticket"), ("firing", "info"), ("firing", "ticket"),
    ]  # fmt: skip
    assert found[3].detected_at <= START + 7_200_000 + 2_700_000


def test_a_complaint_of_the_driver_that_is_back_is_no_second_ticket() -> None:
    cluster = Cluster(minutes=60, interval_s=30)
    lines = [xid_line(at, 2, 3, 92) for at in (100, 1900)]
    found = run(cluster.tape({XID: cluster.steady(0)}, logs=lines))
    assert [(f.state, f.severity) for f in found] == [("firing", "ticket"), ("resolved", "ticket"), ("firing", "info")]


def test_a_storm_after_the_driver_was_loaded_anew_is_news() -> None:
    cluster = Cluster(nodes=9, minutes=120, interval_s=15)
    columns = stormy(cluster, memory(cluster), 5, (3600, 3870), 1.0)
    columns = reset(cluster, stormy(cluster, columns, 5, (6000, 6270), 1.0), 5, 5000)
    tickets = [f.state for f in run(cluster.tape(columns)) if f.severity == "ticket"]
    assert tickets == ["firing", "resolved", "firing", "resolved"]


def test_the_drivers_complaint_of_the_rate_is_a_storm_where_nothing_counts() -> None:
    tape = CLUSTER.tape({XID: memory()[XID]}, logs=[xid_line(100, 2, 3, 92)])
    fire, over = run(tape)
    assert (fire.fault, dict(fire.entity), fire.evidence["xid"]) == ("ecc_correctable_storm", gpu(2, 3), 92)
    assert over.state == "resolved"
