"""straggler where activity does not show who works and who waits: by power, among few nodes, in a memory-bound job."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from detectors.contract import FloatArray
from detectors.fleet.fleet import Job
from detectors.straggler.examples import DRAM, ENERGY, POWER, SM, TENSOR, Slow, from_to
from detectors.straggler.readings import LONG_WORK
from detectors.straggler.suspects import Suspect
from detectors.straggler.test_detector import entities, run
from detectors.straggler.test_readings import FIRST, ONLY, SEEN
from detectors.straggler.windows import MEMORY, SIGNALS
from detectors.straggler.windows import SM as SM_ROW
from detectors.tapes.gpus import kernel, name


def _none(_at_s: FloatArray, values: FloatArray) -> FloatArray:
    return np.zeros_like(values)


def _unread(_at_s: FloatArray, values: FloatArray) -> FloatArray:
    return np.full_like(values, np.nan)


def _others_wait(at_s: FloatArray, values: FloatArray, watts: float = 225.0) -> FloatArray:
    works = (at_s < 600) | (at_s >= 1320) | (np.arange(values.shape[1]) == FIRST)
    return np.where(works, 300, watts) * (values / np.median(values, axis=1, keepdims=True))


def _spent(at_s: FloatArray, values: FloatArray, watts: float = 225.0) -> FloatArray:
    power = _others_wait(at_s, np.diff(values, axis=0, prepend=0.0), watts)
    return np.asarray(np.cumsum(1000 * np.diff(at_s, axis=0, prepend=0.0) * power, axis=0))


MOVED = {DRAM: from_to(0.3, 0, 1e9, range(32))}
ALONE = {POWER: _others_wait, ENERGY: _unread, **MOVED}
BY_ENERGY = {ENERGY: partial(_spent, watts=250), **MOVED}


@pytest.mark.parametrize(("read", "more"), [(ALONE, "power 1.3"), (BY_ENERGY, "power 1.2")])
def test_who_draws_the_power_of_work_while_the_others_wait_holds_them_up(read: Any, more: str) -> None:
    fired = run(replace(SEEN, felt="memory", slow=[Slow([FIRST], 600, 1320)], dcgm=read))[0]
    assert (dict(fired.entity), fired.severity) == (ONLY, "page")
    assert more in fired.summary
    assert "it works longer than its peers" in fired.summary


def test_power_at_moments_of_the_step_counts_for_less_than_energy() -> None:
    training = replace(SEEN, felt="memory", slow=[Slow([FIRST], 600, 1320)])
    for power in (partial(_others_wait, watts=250), _others_wait):
        energy = {} if power is _others_wait else ALONE
        assert entities(replace(training, dcgm=energy | MOVED | {POWER: power})) == []


@pytest.mark.parametrize("changed", [{"felt": "work"}, {"dcgm": ALONE | {SM: from_to(0.8, 0, 1e9, range(32))}}])
def test_who_draws_more_for_more_work_or_is_active_as_its_peers_is_not_slow(changed: Any) -> None:
    training = replace(SEEN, felt="memory", slow=[Slow([FIRST], 600, 1320)], dcgm=ALONE)
    assert [one for one in run(replace(training, **changed)) if one.severity != "info"] == []


def test_of_three_nodes_two_that_were_given_more_work_are_not_slow() -> None:
    trained = replace(SEEN, nodes=3, only_whole=False, compute_s=7.2)
    uneven = replace(trained, felt="work", slow=[Slow(range(16), 600, 1500, factor=1.43)])
    assert [one for one in run(uneven) if one.severity != "info"] == []
    one = replace(trained, felt="memory", slow=[Slow(range(8, 16), 600, 1500, factor=1.43)])
    assert entities(one) == [{"node": name(1)}]


def test_a_slow_clock_in_a_job_that_only_moves_data_draws_less() -> None:
    less = {TENSOR: _none, DRAM: from_to(0.4, 0, 1e9, range(32)), POWER: from_to(200, 600, 1320, [FIRST])}
    assert entities(replace(SEEN, felt="clock", slow=[Slow([FIRST], 600, 1320)], dcgm=less)) == [ONLY]


def test_a_link_that_was_back_before_explains_nothing() -> None:
    flap = [kernel(400, 2, "mlx5_core: eth4: Link down"), kernel(420, 2, "mlx5_core: eth4: Link up")]
    assert entities(replace(SEEN, felt="memory", slow=[Slow([FIRST], 600, 1320)], logs=flap)) == [ONLY]


@pytest.mark.parametrize(("tensor", "named"), [(0.55, []), (0.75, [ONLY])])
def test_who_computes_far_less_and_moves_more_does_other_work(tensor: float, named: list[Any]) -> None:
    """A GPU that generates, in a job whose others train on what it made."""

    def less(at_s: FloatArray, values: FloatArray) -> FloatArray:
        first = np.arange(values.shape[1]) == FIRST
        return np.where((at_s >= 600) & (at_s < 1320) & first, tensor * values, values)

    slow = replace(SEEN, felt="memory", slow=[Slow([FIRST], 600, 1320, factor=1.45)], dcgm={TENSOR: less})
    assert [dict(one.entity) for one in run(slow) if one.severity != "info" and one.state == "firing"] == named


def _active(at_s: FloatArray, values: FloatArray) -> FloatArray:
    """Who waits spins on a part of its SMs: the ratio shows less than how much longer the other works."""
    slow, own = (at_s >= 600) & (at_s < 1320), np.arange(values.shape[1]) == FIRST
    return np.where(slow & ~own, 0.61, np.where(slow, 0.75, 0.8)) * (1 + 0.001 * np.sin(at_s))


def test_sm_activity_of_those_that_wait_is_not_taken_for_work() -> None:
    spins = {DRAM: from_to(0.3, 0, 1e9, range(32)), SM: _active}
    assert entities(replace(SEEN, felt="memory", slow=[Slow([FIRST], 600, 1320, factor=1.45)], dcgm=spins)) == [ONLY]


def test_slow_memory_costs_a_job_what_it_uses_of_it() -> None:
    """Memory of half the speed in a job that uses it for a quarter of the time, and its SMs for most of it."""
    own, peers = np.full((2, SIGNALS), np.nan)
    own[[MEMORY, SM_ROW]], peers[[MEMORY, SM_ROW]] = (0.49, 0.79), (0.25, 0.62)
    one = Suspect(
        job=Job("812", ("v001",), 0, 8), entity={"node": "v001", "gpu": 0}, gpus=np.array([FIRST]), how=LONG_WORK,
        lag=0.87, since=0, looks=8, odd=8, crowd=1, sure=True, clock=1.0, own=own, peers=peers, by_chance="",
    )  # fmt: skip
    assert one.costs() == pytest.approx(0.28, abs=0.01)
