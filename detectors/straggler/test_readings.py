"""straggler on what DCGM reads: who computes while the others wait, where no rank reports its times."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import Finding, FloatArray
from detectors.core.tails import Tails
from detectors.fleet.fleet import INFERRED
from detectors.spec import configure
from detectors.straggler.detector import Straggler
from detectors.straggler.examples import (
    DRAM,
    ENERGY,
    LIMIT,
    PLAIN,
    REASONS,
    SM,
    TEMP,
    TENSOR,
    UNRANKED,
    UTIL,
    Slow,
    Training,
    from_to,
    tape_of,
)
from detectors.straggler.readings import Readings
from detectors.straggler.test_detector import UNREAD, entities, run, since
from detectors.straggler.windows import WINDOW_S
from detectors.tapes.gpus import START, kernel, name
from detectors.tapes.tape import play, take

SEEN = replace(UNRANKED, nodes=4, gpus=8, minutes=32, interval_s=10.0)
FIRST = 8
ONLY = {"node": name(1), "gpu": 0}


def without_steps(training: Training) -> list[Finding]:
    tape = tape_of(training)
    choice = (Straggler, configure(Straggler.config_type, Straggler.spec, {}))
    return play(replace(tape, rows=tape.rows[1:]), [choice])[0]


@pytest.mark.parametrize("found_in", [run, without_steps], ids=["the job's steps", "no steps"])
@pytest.mark.parametrize(
    ("felt", "ranks", "entity"),
    [("clock", [FIRST], ONLY), ("memory", [FIRST], ONLY), ("host", range(8, 16), {"node": name(1)})],
    ids=["clock", "memory", "host"],
)
def test_where_ranks_report_no_times_the_readings_name_who_computes_while_others_wait(
    found_in: Any, felt: str, ranks: Any, entity: dict[str, str | int]
) -> None:
    slow = replace(SEEN, felt=felt, slow=[Slow(list(ranks), 600, 1320, factor=1.15)])
    fired, resolved = found_in(slow)
    assert (dict(fired.entity), fired.state, resolved.state) == (entity, "firing", "resolved")
    assert 600 < since(fired) <= 1200
    assert abs((fired.started_at - START) / 1000 - 600) <= 120
    assert 1320 < since(resolved) <= 1320 + 600
    assert float(fired.evidence["job_slower_share"]) == pytest.approx(0.13, abs=0.03)
    assert "by chance" in str(fired.evidence["by_chance"])
    assert ("steps are 1" in fired.summary) == (found_in is run)


def test_a_clock_that_dipped_now_and_then_is_found_as_soon_when_it_stays_low() -> None:
    """At one reading a minute: a quarter of the looks of half an hour are odd before."""
    dips = [Slow([FIRST], at_s, at_s + 60, factor=1.3) for at_s in range(1200, 3000, 240)]
    lasting = Slow([FIRST], 3000, factor=1.3)
    found = run(replace(SEEN, felt="clock", interval_s=60.0, minutes=70, slow=[*dips, lasting]))
    (fired,) = [one for one in found if one.state == "firing"]
    assert dict(fired.entity) == ONLY
    assert 3000 < since(fired) <= 3000 + 420


@pytest.mark.parametrize(
    ("felt", "found_as"), [("clock", [(ONLY, "ticket")]), ("memory", [(ONLY, "ticket")]), ("work", [])]
)
def test_of_a_job_that_nothing_names_who_works_longer_must_get_on_as_its_peers_do(
    felt: str, found_as: list[tuple[dict[str, str | int], str]]
) -> None:
    """Who works more may have work of its own: such a job's members are a guess."""
    tape = tape_of(replace(SEEN, felt=felt, slow=[Slow([FIRST], 600, 1920, factor=1.15)]))
    guessed = [replace(event, job=replace(event.job, job_id=f"{INFERRED}v001")) for event in tape.jobs]
    choice = (Straggler, configure(Straggler.config_type, Straggler.spec, {}))
    found = play(replace(tape, rows=tape.rows[1:], jobs=guessed), [choice])[0]
    assert [(dict(one.entity), one.severity) for one in found if one.state == "firing"] == found_as


def test_who_computes_more_because_it_is_busy_more_holds_up_nobody() -> None:
    def requests(at_s: FloatArray, values: FloatArray) -> FloatArray:
        return np.where((at_s >= 600) & (at_s < 1320) & (_only(values) == 0), values / 1.15, values)

    served = replace(SEEN, felt="memory", slow=[Slow([FIRST], 600, 1320, factor=1.15)], dcgm={UTIL: requests})
    assert [finding for finding in without_steps(served) if finding.severity != "info"] == []


@pytest.mark.parametrize("ranks", [[FIRST], range(8, 16)], ids=["a GPU", "a node"])
@pytest.mark.parametrize("reported", [False, True], ids=["no rank's times", "ranks' times"])
def test_who_was_given_more_work_is_not_slow(reported: bool, ranks: Any) -> None:
    """Longer sequences, a favoured expert: it computes longer at the same clock, and does as much more."""
    uneven = replace(SEEN, only_whole=not reported, felt="work", slow=[Slow(list(ranks), 600, 1500, factor=1.3)])
    assert entities(replace(uneven, felt="memory")) == [ONLY if len(ranks) == 1 else {"node": name(1)}]
    assert [finding for finding in run(uneven) if finding.severity != "info"] == []


@pytest.mark.parametrize(
    ("training", "since_s"),
    [
        (replace(SEEN, nodes=2), 600),
        (replace(SEEN, interval_s=60.0), 605),
        (replace(SEEN, starts_s=420.0), 480),
        (replace(SEEN, checkpoints=[640, 670, 700]), 600),
    ],
    ids=["one of two nodes", "a reading a minute", "a job that has just begun", "between checkpoints"],
)
def test_uneven_work_is_known_before_a_rank_is_called_slow(training: Training, since_s: float) -> None:
    uneven = replace(training, only_whole=False, slow=[Slow(range(8, 16), since_s, since_s + 1000, factor=1.25)])
    assert entities(uneven)[:1] == [{"node": name(1)}]
    assert entities(replace(uneven, felt="memory"))[:1] == [{"node": name(1)}]
    assert [finding for finding in run(replace(uneven, felt="work")) if finding.severity != "info"] == []


def test_a_rank_counts_from_a_tenth_of_its_computation_on_if_it_does_no_more_work() -> None:
    """Here that is 8 % of the step."""
    late = replace(SEEN, only_whole=False, collective_s=2.0, felt="memory", slow=[Slow([FIRST], 600, factor=1.13)])
    assert entities(late) == [ONLY]
    assert [one for one in run(replace(late, felt="work")) if one.severity != "info"] == []


def test_a_pause_does_not_make_a_habit_of_work_that_was_uneven_from_the_first_step_on() -> None:
    slow = [Slow([13], 420, 1900, factor=1.12)]
    uneven = replace(SEEN, nodes=6, only_whole=False, felt="work", starts_s=420.0, checkpoints=[1000], slow=slow)
    assert [finding for finding in run(uneven) if finding.severity != "info"] == []


def test_the_work_of_a_node_is_looked_at_since_all_of_it_is_slow_not_one_of_its_ranks() -> None:
    first, then = Slow([13], 480, 910, factor=1.13), Slow(range(8, 16), 910, 1500, factor=1.28)
    uneven = replace(SEEN, nodes=9, gpus=8, only_whole=False, felt="work", slow=[first, then], spread=0.04)
    assert [finding for finding in run(uneven) if finding.severity != "info"] == []


@pytest.mark.parametrize(("spread", "found"), [(0.01, [ONLY]), (0.04, [])])
def test_who_came_to_do_more_where_all_others_are_alike_is_slow_by_a_clock_that_it_does_not_show(
    spread: float, found: list[dict[str, Any]]
) -> None:
    late = replace(SEEN, only_whole=False, felt="work", slow=[Slow([FIRST], 1200, factor=1.2)], spread=spread)
    assert entities(late) == found


@pytest.mark.parametrize("onset_s", [600, 620, 640, 659])
@pytest.mark.parametrize(("interval_s", "within_s"), [(5.0, 180), (30.0, 180), (60.0, 250)])
def test_a_slow_node_is_named_in_time_whenever_in_a_window_it_became_slow(
    onset_s: int, interval_s: float, within_s: int
) -> None:
    slow = [Slow(range(8, 16), onset_s, factor=1.25)]
    found = run(replace(SEEN, minutes=16, interval_s=interval_s, only_whole=False, felt="memory", slow=slow))
    assert onset_s < since(found[0]) <= onset_s + within_s


@pytest.mark.parametrize("field", ["DCGM_FI_DEV_ENFORCED_POWER_LIMIT", "DCGM_FI_DEV_POWER_MGMT_LIMIT"])
def test_a_node_and_a_rack_whose_limits_were_lowered_are_no_stragglers(field: str) -> None:
    def given_less(nodes: set[int]) -> Training:
        ranks = [rank for node in nodes for rank in range(8 * node, 8 * node + 8)]
        limits = {field: lambda at_s, _values: from_to(500.0, 600, 1e9, ranks)(at_s, np.full(at_s.shape, 700.0))}
        return replace(SEEN, nodes=6, felt="clock", slow=[Slow(ranks, 600, factor=1.15)], dcgm=limits)

    for nodes in ({1}, {1, 2}):
        assert run(given_less(nodes)) == [], "power_throttle reports it"
        unlimited = run(replace(given_less(nodes), dcgm={}))
        assert {finding.entity["node"] for finding in unlimited} == {name(node) for node in nodes}


@pytest.mark.parametrize("limit_w", [250.0, 400.0])
def test_a_node_that_is_capped_far_below_its_limit_has_a_named_fault(limit_w: float) -> None:
    """By the driver's software cap; at the limit that it has, the cap is no fault's."""
    ranks = list(range(8, 16))
    reads = {
        REASONS: from_to(0x4, 600, 1e9, ranks),
        LIMIT: lambda _, values: np.full(values.shape, limit_w),
    }
    capped = replace(SEEN, felt="clock", slow=[Slow(ranks, 600, factor=1.25)], dcgm=reads)
    assert entities(capped) == ([{"node": name(1)}] if limit_w == 250 else [])


def test_the_only_rank_that_a_node_reports_may_wait_for_a_gpu_that_was_given_more() -> None:
    uneven = replace(SEEN, only_whole=False, one_a_node=True, nodes=8, slow=[Slow([FIRST], 600, 1500, factor=1.3)])
    assert entities(uneven) == [{"node": name(1)}]
    assert [finding for finding in run(replace(uneven, felt="work")) if finding.severity != "info"] == []


def test_who_works_longer_in_a_job_that_uses_no_tensor_cores_is_slow_if_it_draws_less_than_it_did() -> None:
    slow = replace(SEEN, felt="memory", slow=[Slow([FIRST], 600, 1320, factor=1.3)])
    no_cores = {TENSOR: lambda _at_s, values: np.zeros_like(values)}
    assert entities(replace(slow, dcgm=no_cores)) == [ONLY]
    as_before = {ENERGY: lambda at_s, _: np.cumsum(np.full(at_s.shape, 3e6), axis=0)}
    assert run(replace(slow, dcgm=no_cores | as_before)) == []


def test_longer_work_is_seen_by_the_chips_own_activity_where_its_memory_shows_nothing() -> None:
    def longer(at_s: FloatArray, values: FloatArray) -> FloatArray:
        return np.where(at_s >= 600, 0.8 / 1.15 * (1 + 0.15 * _only(values)), 0.8)

    waits = {DRAM: lambda at_s, values: np.where(at_s >= 600, 0.35 / 1.15, 0.35), SM: longer}
    slow = replace(SEEN, felt="memory", slow=[Slow([FIRST], 600, factor=1.15)], dcgm=waits)
    (fired,) = run(slow)
    assert (dict(fired.entity), "SM activity 1.15 of theirs" in fired.summary) == (ONLY, True)


def _more_active(_at_s: FloatArray, values: FloatArray) -> FloatArray:
    return 0.7 * (1 + 0.2 * _only(values))


@pytest.mark.parametrize(
    ("training", "named"),
    [
        (replace(SEEN, felt="clock", slow=[Slow([FIRST], factor=1.2)]), ONLY),
        (replace(SEEN, felt="work", dcgm={SM: _more_active}), ONLY),
        (replace(SEEN, felt="memory", slow=[Slow([FIRST], factor=1.2)]), ONLY),
        (replace(SEEN, felt="host", slow=[Slow(range(8, 16), factor=1.2)]), {"node": name(1)}),
        (replace(SEEN, felt="clock", slow=[Slow(range(8, 16))], dcgm=UNREAD), {"node": name(1)}),
    ],
    ids=["clock", "a slow chip", "slow memory", "host", "a node's power, unread"],
)
@pytest.mark.parametrize("starts_s", [-3600.0, 300.0])
def test_who_stands_far_apart_from_its_peers_is_slow_since_the_jobs_first_step(
    training: Training, named: dict[str, str | int], starts_s: float
) -> None:
    assert [dict(one.entity) for one in run(replace(training, starts_s=starts_s)) if one.severity != "info"] == [named]


@pytest.mark.parametrize(
    "training",
    [
        replace(SEEN, felt="clock", slow=[Slow([FIRST], factor=1.07)]),
        replace(SEEN, felt="work", slow=[Slow([FIRST], factor=1.2)], dcgm={SM: _more_active}),
        replace(SEEN, felt="memory", slow=[Slow(range(8, 16), factor=1.2)]),
        replace(SEEN, felt="host", slow=[Slow(range(0, 32, 3), factor=1.2)]),
        replace(SEEN, nodes=2, felt="clock", slow=[Slow([0, 8], factor=1.2)]),
    ],
    ids=["a little", "more work", "a node whose GPUs all move more", "all differ", "one on each node"],
)
def test_what_is_unlike_its_peers_since_it_was_first_seen_is_a_property(training: Training) -> None:
    assert [finding for finding in run(training) if finding.severity != "info"] == []


@pytest.mark.parametrize(
    "training",
    [
        replace(SEEN, felt="clock", uniform=[(600, 1900, 1.4)]),
        replace(SEEN, felt="clock", slow=[Slow([FIRST], 600, 620, factor=2.0)]),
        replace(SEEN, felt="clock", slow=[Slow([1, 9, 17], 600, factor=1.2)]),
        replace(SEEN, felt="clock", slow=[Slow([FIRST], 600)], dcgm={REASONS: from_to(0x88, 600, 1e9, [FIRST])}),
        replace(SEEN, felt="clock", slow=[Slow([FIRST], 600, factor=2.1)], dcgm=UNREAD),
        replace(SEEN, felt="clock", slow=[Slow(range(8, 16), 600)], dcgm=UNREAD),
        replace(SEEN, felt="memory", slow=[Slow([FIRST], 600)], only_whole=False, columns=("step_time_s", "compute_s")),
        replace(SEEN, felt="memory", slow=[Slow([FIRST], 600)], logs=[kernel(605, 2, "mlx5_core: eth4: Link down")]),
    ],
    ids=["all slower", "a dip", "many at once", "a brake", "a halved clock, unread", "a node's power, unread",
         "every rank reports", "a link lost"],
)  # fmt: skip
def test_readings_that_only_look_like_it_alert_nobody(training: Training) -> None:
    if not training.only_whole:
        training = replace(training, slow=[], dcgm={DRAM: from_to(0.6, 600, 1e9, [FIRST])})
    assert [finding for finding in run(training) if finding.severity != "info"] == []


@pytest.mark.parametrize(("felt", "severity"), [("clock", "ticket"), ("memory", "info")])
def test_a_job_that_lost_far_more_than_a_gpus_longer_work_is_slow_for_another_reason(felt: str, severity: str) -> None:
    alone = replace(SEEN, felt=felt, minutes=40, slow=[Slow([FIRST], 600, factor=1.12)])
    assert [finding.severity for finding in run(alone)] == ["ticket"]
    assert [finding.severity for finding in run(replace(alone, uniform=[(600, 1e9, 1.12)]))] == [severity]


def test_what_is_odd_and_slows_nobody_is_reported_once_as_information() -> None:
    odd = replace(SEEN, felt="clock", minutes=60, dcgm={DRAM: from_to(0.42, 600, 1e9, [FIRST])})
    (finding,) = run(odd)
    assert (finding.severity, dict(finding.entity)) == ("info", ONLY)


def test_a_lag_beyond_doubt_counts_where_the_jobs_pace_is_too_noisy_to_show_the_loss() -> None:
    chance = np.random.default_rng(3)

    def noisy(_at_s: FloatArray, values: FloatArray) -> FloatArray:
        return values * np.exp(0.3 * chance.standard_normal((len(values), 1)))

    slow = replace(SEEN, nodes=1, felt="clock", slow=[Slow([0], 600, factor=1.2)], dcgm={TENSOR: noisy, DRAM: noisy})
    fired = next(finding for finding in without_steps(slow) if finding.state == "firing")
    assert (dict(fired.entity), fired.severity) == ({"node": name(0), "gpu": 0}, "ticket")
    assert "the others wait for it" in fired.summary
    assert "job_slower_share" not in fired.evidence


@pytest.mark.parametrize("cools_s", [0.0, 20.0], ids=["always hot", "it cools at checkpoints"])
@pytest.mark.parametrize("reasons", [0.0, np.nan], ids=["no reason", "reasons not read"])
def test_a_hot_gpu_with_a_lower_clock_is_throttled_whether_or_not_it_says_so(reasons: float, cools_s: float) -> None:
    hot = {
        REASONS: from_to(reasons, 0, 1e9, range(32)),
        TEMP: lambda at_s, values: 60.0 + np.where(at_s % 60 < cools_s, 5, 28) * (at_s > 600) * _only(values),
    }
    slow = replace(SEEN, felt="clock", slow=[Slow([FIRST], 600, factor=1.12)])
    assert [finding for finding in run(slow) if finding.severity != "info"] != []
    assert [finding for finding in run(replace(slow, dcgm=hot)) if finding.severity != "info"] == []


def _only(values: FloatArray) -> FloatArray:
    return np.broadcast_to(np.arange(values.shape[1]) == FIRST, values.shape).astype(float)


@pytest.mark.parametrize("interval_s", [30.0, 60.0])
def test_a_starved_host_is_found_at_slow_cadences(interval_s: float) -> None:
    starved = replace(SEEN, minutes=40, felt="host", interval_s=interval_s, slow=[Slow(range(8, 16), 900, factor=1.15)])
    (fired,) = run(starved)
    assert (dict(fired.entity), 900 < since(fired) <= 1500) == ({"node": name(1)}, True)


def test_pauses_that_the_scrapes_of_one_node_miss_are_no_evidence_against_it() -> None:
    def paused(at_s: FloatArray, values: FloatArray) -> FloatArray:
        others = (np.arange(values.shape[1]) // 8 != 1)[None, :]
        for begin, left in ((2160, 0.01), (2460, 0.85), (2760, 0.6)):
            values = np.where(others & (at_s >= begin) & (at_s < begin + 60), left * values, values)
        return values

    steady = replace(SEEN, minutes=60, felt="memory", interval_s=60.0, dcgm={TENSOR: paused, DRAM: paused})
    assert [finding for finding in without_steps(steady) if finding.severity != "info"] == []


def test_a_node_that_does_less_is_not_starved() -> None:
    less = {
        field: from_to(value, 900, 1e9, range(8, 16)) for field, value in ((UTIL, 70.0), (TENSOR, 0.25), (DRAM, 0.2))
    }
    assert [finding for finding in run(replace(SEEN, felt="host", dcgm=less)) if finding.severity != "info"] == []


def test_a_node_that_slows_down_by_and_by_is_one_finding() -> None:
    ramp = Slow(range(4, 8), 300, factor=1.25, ramp_s=1800)
    assert entities(replace(PLAIN, minutes=40, jitter=0.03, slow=[ramp])) == [{"node": name(1)}]


def test_only_the_slowest_of_a_job_holds_it_up() -> None:
    two = replace(SEEN, felt="clock", slow=[Slow([FIRST], 600, factor=1.8), Slow([1], 600, factor=1.15)])
    assert {str(dict(finding.entity)) for finding in run(two) if finding.state == "firing"} == {str(ONLY)}


def test_one_rank_that_reports_of_its_node_stands_for_the_node() -> None:
    tape = tape_of(replace(SEEN, felt="memory", only_whole=False, slow=[Slow(list(range(8, 16)), 600, factor=1.3)]))
    steps = tape.rows[0]
    first = np.flatnonzero((steps.keys["rank"].codes - 1) % 8 == 0)
    choice = (Straggler, configure(Straggler.config_type, Straggler.spec, {}))
    found = play(replace(tape, rows=[take(steps, first), *tape.rows[1:]]), [choice])[0]
    (fired,) = found
    assert (dict(fired.entity), fired.evidence["ranks"]) == ({"node": name(1)}, 1)


def test_readings_that_stand_still_make_nobody_slow() -> None:
    def busier(at_s: FloatArray, values: FloatArray) -> FloatArray:
        """From then on one GPU reads a fifth more, its node the same for ever, and the others a little less."""
        after = np.where(at_s >= 600, 0.95 * values, values)
        first = int(np.argmax(at_s[:, FIRST] >= 600))
        after[first:, 8:16] = values[first, 8:16] * np.where(np.arange(8, 16) == FIRST, 1.2, 1.0)
        return after

    def stands(at_s: FloatArray, _values: FloatArray) -> FloatArray:
        return 3e5 * np.where(np.arange(at_s.shape[1]) // 8 == 1, np.minimum(at_s, 600), at_s)

    fresh = replace(SEEN, felt="memory", dcgm={DRAM: busier})
    (found,) = [finding for finding in without_steps(fresh) if finding.state == "firing"]
    assert dict(found.entity) == ONLY
    assert without_steps(replace(fresh, dcgm=dict(fresh.dcgm) | {ENERGY: stands})) == []


def test_hosts_that_wait_for_one_file_system_by_turns_are_no_stragglers() -> None:
    turns = [(node, minute) for node in (1, 2, 3) for minute in range(20) if minute % 3 != node - 1]
    slow = [Slow(range(8 * node, 8 * node + 8), 600 + 60 * m, 660 + 60 * m, factor=1.25) for node, m in turns]
    waiting = replace(SEEN, nodes=8, felt="host", slow=slow)
    assert [finding for finding in without_steps(waiting) if finding.severity != "info"] == []
    alone = replace(waiting, slow=[one for one in slow if 8 in one.ranks])
    assert {finding.entity["node"] for finding in without_steps(alone)} == {name(1)}
    less = [replace(one, factor=1.12) for one in slow if 8 not in one.ranks]
    longer = replace(waiting, slow=[*less, Slow(range(8, 16), 600, factor=1.6)])
    assert {finding.entity["node"] for finding in without_steps(longer)} == {name(1)}


@pytest.mark.parametrize(
    ("windows", "fewest", "more"),
    [([0.05], 1, 0.05), ([0.05], 2, np.inf), ([np.nan] * 5, 2, np.nan), ([np.inf] * 5, 2, np.inf)],
    ids=["known", "soon known", "not read", "all are out of step"],
)
def test_what_a_gpu_does_is_known_after_enough_windows(windows: list[float], fewest: int, more: float) -> None:
    readings = Readings("gpu", 2, Tails({}), 0.1).along("dcgm")
    readings.grow(1)
    readings.more[: len(windows), 0] = windows
    end = 1000 * WINDOW_S * len(windows)
    found = readings.works_more(np.array([0]), 0, 0, end, fewest=fewest, is_read=True)
    assert found == pytest.approx([more], nan_ok=True)
