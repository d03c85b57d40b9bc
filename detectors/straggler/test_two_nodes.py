"""straggler by readings: jobs on two nodes, nodes and GPUs that their hosts starve, and ranks that differ a little."""

from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from detectors.contract import FloatArray
from detectors.straggler.examples import CLOCK, DRAM, ENERGY, POWER, SM, TENSOR, UTIL, Training
from detectors.straggler.test_default_fields import BEGUN_S, BUSY, COPIES, OVER_S, _unread
from detectors.straggler.test_readings import SEEN, without_steps
from detectors.tapes.gpus import name


def _second_node(own: float, others: float, before: float) -> Any:
    """Return a field that reads `before`, and on the second node and the others something else for a while."""

    def change(at_s: FloatArray, values: FloatArray) -> FloatArray:
        second = np.arange(values.shape[1]) // 8 == 1
        now = np.where((at_s >= BEGUN_S) & (at_s < OVER_S), np.where(second, own, others), before)
        return np.asarray(now * (1 + 0.004 * np.sin(at_s)))

    return change


def _first(own: float, others: float, before: float) -> Any:
    """Return a field that reads `before`, and on the first GPU and the others something else for a while."""

    def change(at_s: FloatArray, values: FloatArray) -> FloatArray:
        now = np.where(np.arange(values.shape[1]) == 0, own, others)
        return np.where((at_s >= BEGUN_S) & (at_s < OVER_S), now, before)

    return change


def _alerts(training: Training) -> list[Any]:
    return [dict(one.entity) for one in without_steps(training) if one.state == "firing" and one.severity != "info"]


DEFAULT: dict[str, Any] = dict.fromkeys((TENSOR, DRAM, SM, BUSY, ENERGY), _unread)
PAIR = replace(SEEN, nodes=2, slow=[])
SLOW = DEFAULT | {
    CLOCK: _second_node(1020, 1410, 1410),
    POWER: _second_node(225, 315, 380),
    COPIES: _second_node(36, 27, 36),
}


@pytest.mark.parametrize(
    ("read", "found"),
    [
        ({}, [{"node": name(1)}]),
        ({POWER: _second_node(380, 380, 380), COPIES: _second_node(36, 36, 36)}, []),
    ],
    ids=["the other one waits", "it draws as much: a limit of its own"],
)
def test_the_slow_one_of_two_nodes_is_as_slow_as_the_other_waits(read: Any, found: list[Any]) -> None:
    """The middle of two lies between them, and what the slow one draws less by itself is no loss of the job's."""
    assert _alerts(replace(PAIR, dcgm=SLOW | read)) == found


@pytest.mark.parametrize(
    ("read", "found"),
    [({}, [{"node": name(1)}]), ({SM: _second_node(0.28, 0.37, 0.38)}, [])],
    ids=["it does as much", "it has less to do"],
)
def test_a_host_starves_its_node_where_all_others_pause_as_one(read: Any, found: list[Any]) -> None:
    """What is busy for longer and keeps its SMs no more active waits, however long the job pauses in between."""

    def moved(at_s: FloatArray, values: FloatArray, most: float = 0.36) -> FloatArray:
        levels = np.array([0.8, 1.0, 0.55, 0.9])  # in a minute more than in the next
        return np.asarray(most * levels[(at_s // 60).astype(int) % 4] + 0 * values)

    busy = {BUSY: _second_node(0.55, 0.71, 0.65), UTIL: _second_node(56, 72, 66), SM: _second_node(0.38, 0.37, 0.38)}
    same = {DRAM: moved, POWER: partial(moved, most=300), TENSOR: _unread, ENERGY: _unread}
    assert _alerts(replace(SEEN, nodes=6, slow=[], dcgm=busy | same | read)) == found


@pytest.mark.parametrize(
    ("copies", "found"),
    [((19, 19, 30), [{"node": name(0), "gpu": 0}]), ((20, 30, 30), [])],
    ids=["all wait", "it alone"],
)
def test_on_one_node_a_gpu_that_idles_while_all_do_less_is_waited_for(copies: Any, found: list[Any]) -> None:
    read = {UTIL: _first(68, 100, 100), COPIES: _first(*copies), POWER: _first(172, 176, 245)}
    assert _alerts(replace(SEEN, nodes=1, slow=[], dcgm=DEFAULT | read)) == found
