"""straggler where another process computes on a job's GPU."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import BoolArray, Finding, FloatArray
from detectors.straggler.examples import DRAM, ENERGY, SM, TENSOR, UTIL, Slow
from detectors.straggler.test_readings import FIRST, ONLY, SEEN, without_steps

CAME_S, WENT_S, USED = 1200, 1560, "DCGM_FI_DEV_FB_USED"


def _during(at_s: FloatArray) -> BoolArray:
    return np.asarray((at_s >= CAME_S) & (at_s < WENT_S))


def _only(values: FloatArray, nodes: int) -> BoolArray:
    return np.asarray(np.arange(values.shape[1]) == (FIRST if nodes > 1 else 0))


def _shared(*, grew: float, on: float, more: float, nodes: int = 4, does: float = 1.0) -> list[Finding]:
    """Return what is found where a job does less for some minutes while the memory in use of one GPU, or a share (`on`)
    of that of all, has grown (MiB), and it draws more than the others: by a factor, as it does of the job's work.
    """

    def spent(at_s: FloatArray, values: FloatArray) -> FloatArray:
        watts = 600 * np.where(_during(at_s), 0.86 * np.where(_only(values, nodes), more, 1.0), 1.0)
        return np.cumsum(watts * 1e4, axis=0)

    def does_less(usual: float) -> Any:
        return lambda at_s, values: (
            usual * np.where(_during(at_s), 0.8 * np.where(_only(values, nodes), does, 1.0), 1.0) + 0 * values
        )

    read = {
        TENSOR: does_less(0.4),
        DRAM: does_less(0.3),
        SM: lambda _, values: np.full_like(values, np.nan),
        ENERGY: spent,
        UTIL: lambda _, values: np.full_like(values, 100.0),
        USED: lambda at_s, values: 60_000.0 + grew * _during(at_s) * np.where(_only(values, nodes), 1.0, on),
    }
    return without_steps(replace(SEEN, nodes=nodes, felt="memory", slow=[], dcgm=read))


def _paged(found: list[Finding]) -> list[dict[str, str | int]]:
    return [dict(one.entity) for one in found if one.state == "firing" and one.severity != "info"]


@pytest.mark.parametrize(
    ("grew", "on", "more", "found"),
    [(9_000, 0.0, 1.07, [ONLY]), (0, 0.0, 1.07, []), (9_000, 1.0, 1.07, []), (9_000, 0.0, 1.0, []), (500, 0, 1.07, [])],
    ids=["it computes", "nobody came", "the job needs more memory", "it sleeps", "a context alone"],
)
def test_a_process_that_shares_a_gpu_of_a_job(
    grew: float, on: float, more: float, found: list[dict[str, str | int]]
) -> None:
    assert _paged(_shared(grew=grew, on=on, more=more)) == found


def test_who_shares_a_gpu_is_looked_for_and_the_finding_ends_with_it() -> None:
    alert, end = _shared(grew=9_000, on=0.0, more=1.07)
    assert "its memory in use rose by 8.8 GiB, on it alone" in alert.summary
    assert alert.evidence["memory_grew_mib"] == 9_000
    assert "process on the GPU that is not the job's" in alert.recommended_action
    assert alert.detected_at - alert.started_at <= 300_000
    assert end.state == "resolved"


@pytest.mark.parametrize(("does", "found"), [(1.0, [{"node": ONLY["node"], "gpu": 0}]), (1.2, [])])
def test_a_jobs_only_node_waits_for_the_gpu_that_takes_longer_for_as_much_work(
    does: float, found: list[dict[str, str | int]]
) -> None:
    """Where each works for itself the one that draws more does more."""
    alerts = _paged(_shared(grew=0, on=0.0, more=1.2, nodes=1, does=does))
    assert [one["gpu"] for one in alerts] == [one["gpu"] for one in found]


def test_memory_that_grew_before_explains_no_slow_clock() -> None:
    """A rank that saves may keep more for good: its clock is looked at as any other's."""
    grew = {USED: lambda at_s, values: 60_000.0 + 9_000 * ((at_s >= CAME_S / 2) & _only(values, 4))}
    slow = replace(SEEN, felt="clock", slow=[Slow([FIRST], CAME_S, factor=1.4)], dcgm=grew)
    alert = next(one for one in without_steps(slow) if one.severity != "info")
    assert dict(alert.entity) == ONLY
    assert "memory_grew_mib" not in alert.evidence
    assert "dcgmi" in alert.recommended_action
