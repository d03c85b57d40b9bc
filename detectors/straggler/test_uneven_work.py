"""straggler where work is given out unevenly among GPUs, and to others than before."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import FloatArray, IntArray
from detectors.core.residuals import Groups
from detectors.core.tails import Tails
from detectors.straggler.comparison import Look
from detectors.straggler.examples import DRAM, PLAIN, SM, TENSOR, Slow
from detectors.straggler.examples import UTIL as UTIL_FIELD
from detectors.straggler.readings import Readings
from detectors.straggler.test_default_fields import BUSY
from detectors.straggler.test_detector import entities
from detectors.straggler.test_readings import FIRST, ONLY, SEEN
from detectors.straggler.windows import MEMORY, SIGNALS, SPENT, WINDOW_S
from detectors.straggler.windows import SM as SM_ROW
from detectors.straggler.windows import TENSOR as TENSOR_ROW
from detectors.tapes.gpus import name

STAGE = [12, 13, 14, 15]


@pytest.mark.parametrize(("again", "named"), [(1.12, []), (1.4, [{"node": name(1), "gpu": 5}])])
def test_a_rank_that_has_as_much_to_do_again_as_the_others_of_its_stage_holds_up_nobody(
    again: float, named: list[Any]
) -> None:
    """They are of its own node, and longer than those of the other one."""
    stage = [Slow([12, 14, 15], factor=1.12), Slow([13], until_s=900, factor=0.9), Slow([13], 900, factor=again)]
    job = replace(PLAIN, nodes=2, gpus=8, minutes=40, jitter=0.02, collective_s=1.0, slow=stage)
    assert entities(job) == named


@pytest.mark.parametrize(("other", "several"), [(0.57, True), (0.51, False)], ids=["as active", "less"])
def test_of_two_nodes_gpus_that_are_about_as_active_neither_is_the_one_that_works_longer(
    other: float, several: bool
) -> None:
    """Each stands apart from its own node mates, who wait for both."""
    gpus = np.arange(16)
    signals = np.full((SIGNALS, len(gpus)), np.nan)
    signals[[MEMORY, SM_ROW]] = np.log(np.where(gpus == 3, 0.58, np.where(gpus == 12, other, 0.5)))
    readings = Readings("gpu", 3, Tails({}), 0.1)
    readings.grow(len(gpus))
    readings.least[3] = np.log(0.58 / 0.5)
    assert readings.is_one_of_several(_look(gpus, gpus // 8, signals), 3) is several


def _look(gpus: IntArray, node: IntArray, signals: FloatArray, begun: int = 0) -> Look:
    return Look(
        who=gpus,
        job=np.zeros(len(gpus), np.int64),
        peers=Groups(node, int(node.max()) + 1),
        signals=signals,
        reads=np.full(len(gpus), 6.0),
        held=np.zeros(len(gpus), bool),
        begun=begun,
        spent_s=WINDOW_S,
        every_s=WINDOW_S,
        plain=np.isnan(signals[TENSOR_ROW]),
    )


def test_gpus_whose_tensor_work_is_not_read_are_compared_with_what_is_usual_of_such() -> None:
    """What tensor work explains of the others leaves next to nothing over, beside which any noise is much."""
    gpus, chance = np.arange(256), np.random.default_rng(3)
    plain = gpus >= 252
    readings = Readings("gpu", 3, Tails({}), 0.1)
    readings.grow(len(gpus))
    for window in range(240):
        signals = np.zeros((SIGNALS, len(gpus)))
        signals[MEMORY] += 0.02 * chance.standard_normal(len(gpus))
        signals[TENSOR_ROW] = np.where(plain, np.nan, signals[MEMORY])
        signals[SM_ROW], signals[SPENT] = signals[MEMORY], signals[MEMORY] / 2
        readings.look(_look(gpus, plain.astype(np.int64), signals, 1000 * WINDOW_S * window))
    assert readings.evidence.wealth[plain].max() < 8  # where all are one population, it rises beyond 20


def _at_work(own: float) -> Any:
    """Return a change of a field: from 600 to 1,320 s the slow one is at work for `own` of the time, its mates, which
    idle while they wait for it, for 0.32; all for 0.4 before and after.
    """

    def change(at_s: FloatArray, values: FloatArray) -> FloatArray:
        slow, noise = (at_s >= 600) & (at_s < 1320), 1 + 0.01 * np.sin(at_s + np.arange(values.shape[1]))
        return noise * np.where(slow, np.where(np.arange(values.shape[1]) == FIRST, own, 0.32), 0.4)

    return change


@pytest.mark.parametrize(("done", "named"), [(0.32, [ONLY]), (0.48, [])], ids=["as much as its mates", "more"])
def test_who_is_busy_for_longer_while_its_mates_idle_is_slow_where_it_does_no_more(
    done: float, named: list[Any]
) -> None:
    busy = {
        BUSY: _at_work(0.48),
        SM: _at_work(0.48),
        UTIL_FIELD: lambda at_s, values: 100 * _at_work(0.48)(at_s, values),
    }
    does = {TENSOR: _at_work(done), DRAM: _at_work(done)}
    assert entities(replace(SEEN, felt="memory", slow=[Slow([FIRST], 600, 1320, 1.5)], dcgm=busy | does)) == named


def test_of_a_node_whose_other_gpus_are_hardly_at_work_one_that_is_slow_is_not_the_node() -> None:
    """Below 0.3 of the time at work they show no pace of a job's; the slow one works for longer."""

    def busy(at_s: FloatArray, values: FloatArray) -> FloatArray:
        own, node = np.arange(values.shape[1]) == FIRST, np.arange(values.shape[1]) // 8 == 1
        return np.where(node & ~own, 0.25, 0.5) * (1 + 0.01 * np.sin(at_s + np.arange(values.shape[1])))

    slow = replace(SEEN, felt="clock", slow=[Slow([FIRST], 600, factor=1.6)])
    assert {"node": name(1)} not in entities(replace(slow, dcgm={BUSY: busy}))
