"""straggler on what looks like it (work given out anew, a lost supply, slow links), and by a few of all steps."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import FloatArray, LogRecord
from detectors.straggler.examples import PLAIN, SM, Slow
from detectors.straggler.test_detector import entities
from detectors.straggler.test_readings import FIRST, ONLY, SEEN
from detectors.tapes.gpus import instant, name

SENT = "DCGM_FI_PROF_NVLINK_TX_BYTES"
NODE = {"node": name(1)}


def test_ranks_of_which_many_are_not_alike_have_uneven_work_and_who_was_given_more_holds_up_nobody() -> None:
    anew = {1: 1.3, 2: 1.22, 4: 1.24, 8: 1.4, 9: 1.24, 14: 1.24}
    slow = [Slow([rank], 1000, factor=factor) for rank, factor in anew.items()]
    job = replace(PLAIN, nodes=2, gpus=8, minutes=28, felt="work", jitter=0.005, spread=0.004, collective_s=0.3)
    assert entities(replace(job, slow=slow)) == []


@pytest.mark.parametrize(
    ("line", "named"),
    [
        ("Power Supply #0x74 | Power Supply AC lost | Asserted", []),
        ("Fan #0x31 | Lower Critical going low | Asserted", [NODE]),
    ],
    ids=["a supply", "a fan"],
)
def test_a_node_that_has_lost_a_supply_as_its_clocks_fell_is_braked(line: str, named: list[Any]) -> None:
    record = LogRecord(int(instant(605)), "sel", line, node=name(1))
    slow = [Slow(range(8, 16), 600, factor=1.6)]
    assert entities(replace(SEEN, felt="clock", slow=slow, logs=[record])) == named


def _exchanges(left: float) -> Any:
    """Return a field: what all exchange falls with the steps, and of the slow one to a part that is `left` of that."""

    def change(at_s: FloatArray, values: FloatArray) -> FloatArray:
        during, own = (at_s >= 600) & (at_s < 1320), np.arange(values.shape[1]) == FIRST
        return 8e10 * np.where(during, np.where(own, left, 1.0) / 1.3, 1.0) * (1 + 0.01 * np.sin(at_s))

    return change


@pytest.mark.parametrize(("left", "named"), [(0.65, []), (1.0, [ONLY])], ids=["less", "as much as its mates"])
def test_who_exchanges_less_with_its_mates_than_they_do_has_slow_links(left: float, named: list[Any]) -> None:
    slow = [Slow([FIRST], 600, 1320, 1.3)]
    assert entities(replace(SEEN, felt="memory", slow=slow, dcgm={SENT: _exchanges(left)})) == named


@pytest.mark.parametrize(("waits_at", "named"), [(1.0, []), (0.7, [ONLY])], ids=["as active as it is", "less"])
def test_who_uses_memory_longer_while_the_sms_of_all_are_as_active_is_not_waited_for(
    waits_at: float, named: list[Any]
) -> None:
    def active(at_s: FloatArray, values: FloatArray) -> FloatArray:
        waits = (at_s >= 600) & (at_s < 1320) & (np.arange(values.shape[1]) != FIRST)
        return 0.8 * np.where(waits, waits_at, 1.0) * (1 + 0.005 * np.sin(at_s))

    slow = [Slow([FIRST], 600, 1320, 1.4)]
    assert entities(replace(SEEN, felt="memory", slow=slow, dcgm={SM: active})) == named


def test_a_job_that_reports_one_step_out_of_many_is_known_after_some_of_them() -> None:
    job = replace(PLAIN, nodes=2, gpus=8, minutes=12, compute_s=0.45, collective_s=0.12, every=16, starts_s=5.0)
    assert entities(replace(job, slow=[Slow([FIRST], 280, factor=1.3)])) == [ONLY]
