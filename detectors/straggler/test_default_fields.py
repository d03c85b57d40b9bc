"""straggler on what exporters read by default, and where a job's members are a guess."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import Batch, BoolArray, FloatArray
from detectors.fleet.fleet import INFERRED
from detectors.spec import configure
from detectors.straggler.detector import Straggler
from detectors.straggler.examples import CLOCK, DRAM, ENERGY, POWER, REASONS, SM, TENSOR, UTIL, Slow, from_to, tape_of
from detectors.straggler.test_detector import UNREAD, entities, run
from detectors.straggler.test_readings import FIRST, ONLY, SEEN, without_steps
from detectors.straggler.windows import Sums
from detectors.tapes.gpus import name
from detectors.tapes.tape import Tape, play

BUSY, COPIES = "DCGM_FI_PROF_GR_ENGINE_ACTIVE", "DCGM_FI_DEV_MEM_COPY_UTIL"
BEGUN_S, OVER_S = 600, 1320


def _unread(_at_s: FloatArray, values: FloatArray) -> FloatArray:
    return np.full_like(values, np.nan)


def _alike(_at_s: FloatArray, values: FloatArray) -> FloatArray:
    return np.broadcast_to(np.median(values, axis=1, keepdims=True), values.shape).copy()


def _reads(first: float, others: float, before: float) -> Any:
    """Return a field that reads `before`, and of the first GPU and the others something else while it is slow."""

    def change(at_s: FloatArray, values: FloatArray) -> FloatArray:
        now = np.where(np.arange(values.shape[1]) == FIRST, first, others)
        return np.where((at_s >= BEGUN_S) & (at_s < OVER_S), now, before)

    return change


def _of_second_node(values: FloatArray) -> BoolArray:
    return np.asarray(np.arange(values.shape[1]) // 8 == 1)


STARVED = replace(SEEN, felt="host", slow=[Slow([FIRST], BEGUN_S, OVER_S, factor=1.3)])
SLOW_CLOCK = replace(SEEN, felt="clock", slow=[Slow([FIRST], BEGUN_S, OVER_S, factor=1.7)])
SLOW_MEMORY = replace(SEEN, felt="memory", slow=[Slow([FIRST], BEGUN_S, OVER_S, factor=1.5)])
DEFAULT: dict[str, Any] = {TENSOR: _unread, DRAM: _unread, COPIES: _reads(30, 20, 30)}


@pytest.mark.parametrize(
    "read",
    [{}, {BUSY: _reads(0.75, 0.99, 0.99), UTIL: _reads(100, 100, 100), CLOCK: from_to(1700, BEGUN_S, OVER_S, [FIRST])}],
    ids=["default fields", "a mean beside moments, and a higher clock"],
)
def test_one_gpu_that_its_host_keeps_waiting_holds_up_the_job(read: Mapping[str, Any]) -> None:
    assert entities(replace(STARVED, dcgm=read)) == [ONLY]


@pytest.mark.parametrize(
    ("factor", "read", "found"),
    [(1.3, {}, [ONLY]), (1.12, {SM: _reads(0.9, 0.82, 0.85)}, [ONLY]), (1.12, {SM: _reads(0.82, 0.82, 0.85)}, [])],
    ids=["far below", "its SMs are busy longer", "neither"],
)
def test_a_slow_clock_counts_if_it_is_far_below_that_of_its_mates_or_anything_is_busy_longer(
    factor: float, read: Mapping[str, Any], found: list[Any]
) -> None:
    slow = replace(SLOW_CLOCK, slow=[Slow([FIRST], BEGUN_S, OVER_S, factor=factor)])
    assert entities(replace(slow, dcgm={TENSOR: _alike, DRAM: _alike, **read})) == found


def _of_model(model: str, tape: Tape) -> list[Any]:
    """Return what a straggler is found on, of a tape on another model."""
    nodes = [node | {"gpu_model": model} for node in tape.topology["nodes"]]
    choice = (Straggler, configure(Straggler.config_type, Straggler.spec, {}))
    found = play(replace(tape, topology={**tape.topology, "nodes": nodes}), [choice])[0]
    return [dict(one.entity) for one in found if one.state == "firing" and one.severity != "info"]


@pytest.mark.parametrize(
    ("model", "memory_c", "found"),
    [("A100", 80.0, [ONLY]), ("A100", 84.0, [ONLY]), ("A100", 96.0, []), ("V100", 84.0, [])],
)
def test_a_clock_that_heat_of_the_memory_holds_down_is_no_stragglers(
    model: str, memory_c: float, found: list[Any]
) -> None:
    read = UNREAD | {"DCGM_FI_DEV_MEMORY_TEMP": _reads(memory_c, 78, 78)}
    slow = replace(SLOW_CLOCK, slow=[Slow([FIRST], BEGUN_S, OVER_S, factor=1.3)], dcgm=read)
    assert _of_model(model, tape_of(slow)) == found


@pytest.mark.parametrize("power_w", [(200, 270), (140, 270), (170, 220)])
def test_two_fifths_of_one_gpus_clock_are_set_on_it_and_half_of_it_is_a_brake(power_w: tuple[float, float]) -> None:
    read = UNREAD | {POWER: _reads(*power_w, before=300)}
    assert entities(replace(SLOW_CLOCK, dcgm=read)) == [ONLY]
    assert entities(replace(SLOW_CLOCK, slow=[Slow([FIRST], BEGUN_S, OVER_S, factor=2.0)], dcgm=read)) == []


def test_memory_that_is_busy_longer_on_less_power_than_before_is_slow() -> None:
    assert entities(replace(SLOW_MEMORY, dcgm=DEFAULT)) == [ONLY]
    as_much = {ENERGY: lambda at_s, _: np.cumsum(np.full(at_s.shape, 3e6), axis=0)}
    assert [one for one in run(replace(SLOW_MEMORY, dcgm=DEFAULT | as_much)) if one.severity != "info"] == []


@pytest.mark.parametrize(
    ("others_w", "busy", "found"),
    [(500, 100, [ONLY]), (590, 100, []), (500, 70, [])],
    ids=["they wait", "they hardly wait", "they do not spin: each has its own work"],
)
def test_energy_says_who_keeps_waiting_others_that_spin(others_w: float, busy: float, found: list[Any]) -> None:
    def used(at_s: FloatArray, values: FloatArray) -> FloatArray:
        waits = (np.arange(values.shape[1]) != FIRST) & (at_s >= BEGUN_S) & (at_s < OVER_S)
        return np.cumsum(np.where(waits, others_w, 600) * 1e4, axis=0)

    read = dict.fromkeys((TENSOR, DRAM, SM, COPIES), _unread) | {ENERGY: used, UTIL: _reads(busy, busy, busy)}
    quiet = replace(SEEN, felt="memory", slow=[], dcgm=read | {POWER: _reads(600, 600, 600)})
    assert [dict(one.entity) for one in without_steps(quiet) if one.state == "firing"] == found


@pytest.mark.parametrize(
    ("copies", "scatter", "until_s", "found"),
    [(30, 0, OVER_S, [ONLY]), (20, 0, OVER_S, []), (30, 60, OVER_S, []), (30, 0, BEGUN_S + 400, [])],
    ids=["slow memory", "nothing is longer", "each has other work", "for six minutes"],
)
def test_memory_that_copies_for_longer_is_slow_if_mates_wait_and_are_alike_for_long_enough(
    copies: float, scatter: float, until_s: float, found: list[Any]
) -> None:
    """It draws what it did, and those that wait for it a little less: energy alone would not do."""

    def during(at_s: FloatArray) -> BoolArray:
        return np.asarray((at_s >= BEGUN_S) & (at_s < until_s))

    def used(at_s: FloatArray, values: FloatArray) -> FloatArray:
        place = np.arange(values.shape[1])
        others = 570 + scatter * ((place % 3) - 1)
        return np.cumsum(np.where(during(at_s) & (place != FIRST), others, 600) * 1e4, axis=0)

    def copied(at_s: FloatArray, values: FloatArray) -> FloatArray:
        place = np.arange(values.shape[1])
        return np.where(during(at_s), np.where(place == FIRST, copies, 20 + scatter / 10 * ((place % 3) - 1)), 26)

    read = dict.fromkeys((TENSOR, DRAM, SM), _unread) | {ENERGY: used, COPIES: copied, UTIL: _reads(100, 100, 100)}
    quiet = replace(SEEN, felt="memory", slow=[], dcgm=read | {POWER: _reads(600, 600, 600)})
    alerts = [one for one in without_steps(quiet) if one.state == "firing" and one.severity != "info"]
    assert [dict(one.entity) for one in alerts] == found


def test_another_model_with_a_lower_power_limit_was_not_given_less_power() -> None:
    starved = replace(SEEN, nodes=8, felt="host", slow=[Slow(range(8, 16), BEGUN_S, OVER_S, factor=1.3)])
    tape = tape_of(starved)
    nodes = [
        node | {"gpu_model": model, "gpus": [gpu | {"power_limit_w": watts} for gpu in node["gpus"]]}
        for node, (model, watts) in zip(
            tape.topology["nodes"], [*[("V100", 300)] * 4, *[("A100", 400)] * 4], strict=True
        )
    ]
    choice = (Straggler, configure(Straggler.config_type, Straggler.spec, {}))
    found = play(replace(tape, topology={**tape.topology, "nodes": nodes}), [choice])[0]
    assert [dict(one.entity) for one in found if one.state == "firing"] == [{"node": name(1)}]


def test_of_jobs_that_were_taken_for_one_it_is_its_mates_that_wait() -> None:
    def of_its_node(_at_s: FloatArray, values: FloatArray) -> FloatArray:
        return np.where(_of_second_node(values), values, np.median(values[:30], axis=0))

    many = replace(SEEN, nodes=12, felt="clock", slow=[Slow([FIRST], BEGUN_S, 1920, factor=1.3)])
    tape = tape_of(replace(many, dcgm=dict.fromkeys((TENSOR, DRAM, POWER), of_its_node) | {ENERGY: _unread}))
    guessed = [replace(event, job=replace(event.job, job_id=f"{INFERRED}v001")) for event in tape.jobs]
    choice = (Straggler, configure(Straggler.config_type, Straggler.spec, {}))
    found = play(replace(tape, rows=tape.rows[1:], jobs=guessed), [choice])[0]
    assert [(dict(one.entity), one.severity) for one in found if one.state == "firing"] == [(ONLY, "page")]
    assert "activity is 0.7" in found[0].summary


@pytest.mark.parametrize(("watts", "found"), [(300.0, [ONLY]), (500.0, [])])
def test_where_the_job_is_a_guess_who_draws_far_more_on_a_lower_clock_has_more_to_do(
    watts: float, found: list[Any]
) -> None:
    slow = replace(SEEN, nodes=4, felt="clock", slow=[Slow([FIRST], BEGUN_S, OVER_S, factor=1.4)])
    tape = tape_of(replace(slow, dcgm={TENSOR: _unread, ENERGY: _unread, POWER: _reads(watts, 270, 300)}))
    guessed = [replace(event, job=replace(event.job, job_id=f"{INFERRED}v001")) for event in tape.jobs]
    choice = (Straggler, configure(Straggler.config_type, Straggler.spec, {}))
    firing = [
        one for one in play(replace(tape, rows=tape.rows[1:], jobs=guessed), [choice])[0] if one.state == "firing"
    ]
    assert [dict(one.entity) for one in firing if one.severity != "info"] == found


def test_hosts_that_waited_once_do_not_excuse_one_that_waits_from_then_on() -> None:
    def once(at_s: FloatArray, values: FloatArray) -> FloatArray:
        node = np.arange(values.shape[1]) // 8
        return np.where((node != 1) & (at_s >= 300 + 60 * node) & (at_s < 360 + 60 * node), 40, values)

    starved = replace(SEEN, nodes=7, felt="host", slow=[Slow(range(8, 16), 780, 1500, factor=1.3)])
    assert entities(replace(starved, dcgm={UTIL: once})) == [{"node": name(1)}]


@pytest.mark.parametrize(("others", "found"), [(0.01, []), (0.2, [{"node": name(1)}])], ids=["it works alone", "slow"])
def test_a_node_that_works_while_the_others_stand_evaluates(others: float, found: list[Any]) -> None:
    def less(at_s: FloatArray, values: FloatArray) -> FloatArray:
        stands = (at_s >= BEGUN_S) & (at_s < OVER_S) & ~_of_second_node(values)
        return np.where(stands, others, np.where(_of_second_node(values), 0.4, values))

    def work(at_s: FloatArray, values: FloatArray) -> FloatArray:
        return np.where((at_s >= BEGUN_S) & (at_s < OVER_S), others, values)

    node = replace(SEEN, felt="memory", only_whole=False, dcgm={DRAM: less, TENSOR: work})
    fired = [one for one in without_steps(node) if one.state == "firing"]
    assert [dict(one.entity) for one in fired] == found


def test_of_two_nodes_one_idles_as_much_more_as_the_job_loses() -> None:
    """The middle of the two, which both are compared with, lies half as far away."""
    idles = {
        UTIL: lambda at_s, values: np.where((at_s >= BEGUN_S) & (at_s < OVER_S) & _of_second_node(values), 55, 100)
    }
    starved = replace(SEEN, nodes=2, felt="host", slow=[Slow(range(8, 16), BEGUN_S, OVER_S, factor=1.8)])
    assert entities(replace(starved, dcgm=idles)) == [{"node": name(1)}]


@pytest.mark.parametrize(("shown", "severity"), [(0.55, "page"), (0.4, "info")])
def test_use_shows_at_least_half_of_what_a_host_keeps_its_gpus_waiting(shown: float, severity: str) -> None:
    used: dict[str, Any] = {UTIL: lambda _, values: 100 * (values / 100) ** shown, TENSOR: _unread}
    slow = [Slow(range(8, 16), 2400, factor=1.34)]
    fired, *_ = run(replace(SEEN, nodes=4, minutes=60, felt="host", slow=slow, dcgm=used))
    assert (dict(fired.entity), fired.severity) == ({"node": name(1)}, severity)


@pytest.mark.parametrize(("later_s", "culprits"), [(0.0, 0), (30.0, 0), (120.0, 2)])
def test_gpus_of_two_nodes_that_come_to_work_longer_within_a_minute_were_given_more(
    later_s: float, culprits: int
) -> None:
    slow = [Slow([FIRST], 900, factor=1.5), Slow([2 * FIRST], 900 + later_s, factor=1.45)]
    found = run(replace(SEEN, felt="memory", slow=slow))
    assert len([one for one in found if one.state == "firing"]) == culprits


def test_profiling_that_stops_on_one_node_is_no_change_of_its_work() -> None:
    """The memory interface's utilisation (%) is another measure than DRAM activity, and GPU_UTIL than the engine's."""

    def until_then(at_s: FloatArray, values: FloatArray) -> FloatArray:
        return np.where((at_s >= BEGUN_S) & _of_second_node(values), np.nan, values)

    read = dict.fromkeys((TENSOR, DRAM, SM), until_then) | {COPIES: lambda _, values: np.full_like(values, 25)}
    read[BUSY] = lambda at_s, values: until_then(at_s, np.full_like(values, 0.8))
    fired = [one for one in without_steps(replace(SEEN, nodes=2, slow=[], dcgm=read)) if one.state == "firing"]
    assert fired == []


@pytest.mark.parametrize(
    ("clock", "used", "found"),
    [((1593, 2619, 2619), 30, [ONLY]), ((1593, 1593, 2619), 30, []), ((1593, 2619, 2619), 10, []), (None, 30, [])],
    ids=["far below", "of all alike", "of one that uses it less", "not read"],
)
def test_memory_whose_clock_is_below_that_of_its_mates_holds_up_the_job(
    clock: tuple[float, float, float] | None, used: float, found: list[Any]
) -> None:
    read: dict[str, Any] = {TENSOR: _unread, DRAM: _unread, ENERGY: _unread, COPIES: _reads(used, 25, 30)}
    read |= {} if clock is None else {"DCGM_FI_DEV_MEM_CLOCK": _reads(*clock)}
    assert entities(replace(SLOW_MEMORY, dcgm=read | {POWER: _alike})) == found


@pytest.mark.parametrize(
    ("is_set", "clock", "watts", "before", "named"),
    [(True, 1000, 180, 1.0, [{"node": name(1)}]), (False, 1000, 180, 1.0, []), (False, 1190, 186, 1.0, []),
     (False, 1190, 210, 0.87, []), (True, 1190, 210, 0.87, [{"node": name(1)}])],
    ids=["set", "capped", "capped at less power and not much less clock", "it drew less before", "and set"],
)  # fmt: skip
def test_a_node_whose_clocks_somebody_set_lower_is_a_straggler_and_one_that_is_capped_is_not(
    is_set: bool, clock: float, watts: float, before: float, named: list[Any]
) -> None:
    """At a clock that was set each chip draws its own; under a cap all draw as much, each at its own clock."""

    def of_chip(low: float, *, same: bool, before: float = 1.0) -> Any:
        def change(at_s: FloatArray, values: FloatArray) -> FloatArray:
            lower = low * (1.0 if same else 1 + 0.03 * (np.arange(values.shape[1]) % 8 - 3.5) / 3.5)
            values = np.where((at_s < BEGUN_S) & _of_second_node(values), before * values, values)
            return np.where((at_s >= BEGUN_S) & (at_s < OVER_S) & _of_second_node(values), lower, values)

        return change

    slow = replace(SEEN, felt="clock", slow=[Slow(list(range(8, 16)), BEGUN_S, OVER_S, factor=1400 / clock)])
    read = DEFAULT | {
        COPIES: _alike,
        CLOCK: of_chip(clock, same=is_set),
        POWER: of_chip(watts, same=not is_set, before=before),
    }
    assert entities(replace(slow, dcgm={**read, ENERGY: _unread, REASONS: _unread})) == named


@pytest.mark.parametrize(("factor", "others", "found"), [(1.75, 0.57, [ONLY]), (1.2, 0.57, []), (1.75, 0.85, [])])
def test_a_gpu_that_works_on_as_ever_while_its_mates_wait_holds_up_the_job_with_what_else_runs_on_it(
    factor: float, others: float, found: list[Any]
) -> None:
    """It does more than they do, and its memory still more: the loss must be large, and they must wait as much."""
    shared = replace(SEEN, slow=[Slow([FIRST], BEGUN_S, OVER_S, factor=factor)])
    read = {TENSOR: _reads(0.29, 0.3 * others, 0.3), DRAM: _reads(0.47, 0.42 * others, 0.42)}
    read |= {POWER: _reads(280, 220, 300), SM: _unread, ENERGY: _unread, REASONS: _unread}
    alerts = [one for one in run(replace(shared, dcgm=read)) if (one.state, one.severity) == ("firing", "page")]
    assert [dict(one.entity) for one in alerts] == found


@pytest.mark.parametrize(("own_w", "named"), [(210, [None]), (150, [0, None])], ids=["it draws as much", "far less"])
def test_chips_that_run_at_unlike_clocks_since_their_node_was_capped_are_the_caps(
    own_w: float, named: list[int | None]
) -> None:
    """All GPUs of a node fall to 70 % of their power; one of them runs 15 % slower than the others for it."""

    def capped(at_s: FloatArray, values: FloatArray) -> FloatArray:
        cut = np.where(np.arange(values.shape[1]) == FIRST, 0.64, 0.75)
        return values * np.where((at_s >= BEGUN_S) & _of_second_node(values), cut, 1.0)

    def watts(at_s: FloatArray, values: FloatArray) -> FloatArray:
        cut = np.where(np.arange(values.shape[1]) == FIRST, own_w, 210.0)
        return np.where((at_s >= BEGUN_S) & _of_second_node(values), cut, 300.0)

    found = entities(replace(SEEN, minutes=30, dcgm={CLOCK: capped, POWER: watts}))
    assert [one.get("gpu") for one in found][: len(named)] == named


@pytest.mark.parametrize(("used", "mean"), [(0.0, 1410.0), (60.0, 810.0)], ids=["while it idles", "at work"])
def test_a_clock_counts_while_there_is_work(used: float, mean: float) -> None:
    """A GPU reads its idle clock in one of two readings, as between two batches of its own."""
    values = {CLOCK: np.array([[1410.0], [210.0]]), UTIL: np.array([[95.0], [used]])}
    read = np.ones((2, 1), bool)
    sums = Sums()
    sums.grow(1)
    sums.take(Batch("dcgm", np.array([0]), np.array([[0], [30_000]]), read, values, dict.fromkeys(values, read)))
    assert sums.means()[0].tolist() == [mean]
