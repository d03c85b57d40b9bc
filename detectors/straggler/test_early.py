"""straggler in a job's first minutes: what is slow from the first step on, or while the job loads and caches fill."""

from dataclasses import replace

import numpy as np
import pytest

from detectors.contract import FloatArray
from detectors.fleet.fleet import INFERRED
from detectors.spec import configure
from detectors.straggler.detector import Straggler
from detectors.straggler.examples import DRAM, ENERGY, POWER, SM, TENSOR, UTIL, Training, tape_of
from detectors.straggler.job_pace import History
from detectors.straggler.test_readings import FIRST, ONLY, SEEN, without_steps
from detectors.tapes.gpus import name
from detectors.tapes.tape import play

BUSY = "DCGM_FI_PROF_GR_ENGINE_ACTIVE"
HOST = {"node": name(1)}


def _paged(training: Training, *, guessed: bool = False) -> list[dict[str, str | int]]:
    tape = tape_of(training)
    jobs = [
        replace(event, job=replace(event.job, job_id=f"{INFERRED}v001")) if guessed else event for event in tape.jobs
    ]
    choice = (Straggler, configure(Straggler.config_type, Straggler.spec, {}))
    found = play(replace(tape, rows=tape.rows[1:], jobs=jobs), [choice])[0]
    return [dict(one.entity) for one in found if one.state == "firing" and one.severity != "info"]


def _second(values: FloatArray) -> FloatArray:
    return np.asarray(np.arange(values.shape[1]) // 8 == 1, float)


@pytest.mark.parametrize("guessed", [False, True], ids=["its job is known", "a guess"])
@pytest.mark.parametrize(
    ("nodes", "util", "does", "draws", "found"),
    [
        (4, 94, 1.0, 0.95, [HOST]), (3, 94, 1.0, 0.95, [HOST]), (2, 94, 1.0, 0.95, []), (4, 100, 1.0, 0.95, []),
        (4, 94, 0.85, 0.95, []), (4, 94, 1.0, 1.0, []),
    ],
    ids=["four nodes", "three", "of two either may be", "always used", "it does less", "it draws as much"],
)  # fmt: skip
def test_a_host_that_starves_its_gpus_from_the_first_step_on(
    nodes: int, util: float, does: float, draws: float, found: list[dict[str, str | int]], *, guessed: bool
) -> None:
    """Utilisation is of moments: where the engine is idle for a sixth of the time it shows a part of it."""
    read = {
        BUSY: lambda _, values: 0.99 - 0.16 * _second(values) + np.zeros(values.shape),
        UTIL: lambda _, values: 100 - (100 - util) * _second(values) + np.zeros(values.shape),
        TENSOR: lambda _, values: values * (1 - (1 - does) * _second(values)),
        DRAM: lambda _, values: values * (1 - (1 - does) * _second(values)),
        POWER: lambda _, values: values * (1 - (1 - draws) * _second(values)),
    }
    training = replace(SEEN, nodes=nodes, minutes=15, felt="host", slow=[], dcgm=read)
    assert _paged(training, guessed=guessed) == found


@pytest.mark.parametrize(
    ("waits", "found"), [(True, [ONLY]), (False, [])], ids=["its job does less", "as much as ever"]
)
def test_a_job_that_loads_first_does_not_hide_who_works_longer_later_on(
    waits: bool, found: list[dict[str, str | int]]
) -> None:
    """Its tensor activity is its mates', as all take the same steps; it draws more energy while they wait."""

    def during(at_s: FloatArray) -> FloatArray:
        return np.where(at_s < 360, 0.6, np.where((at_s >= 1200) & waits, 0.84, 1.0))

    def used(at_s: FloatArray, values: FloatArray) -> FloatArray:
        slow = (np.arange(values.shape[1]) == FIRST) & (at_s >= 1200)
        watts = 600 * np.where(at_s < 360, 0.6, np.where((at_s >= 1200) & ~slow & waits, 0.86, 1.0))
        return np.cumsum(np.where(slow, 1.0 if waits else 1.12, 1.0) * watts * 1e4, axis=0)

    read = {
        TENSOR: lambda at_s, values: 0.4 * during(at_s) + np.zeros(values.shape),
        DRAM: lambda at_s, values: 0.3 * during(at_s) + np.zeros(values.shape),
        SM: lambda _, values: np.full_like(values, np.nan),
        ENERGY: used,
        UTIL: lambda _, values: np.full_like(values, 100.0),
    }
    found_in = without_steps(replace(SEEN, felt="memory", slow=[], dcgm=read))
    assert [dict(one.entity) for one in found_in if one.state == "firing" and one.severity != "info"] == found


@pytest.mark.parametrize(
    ("others", "spared", "moves", "found"),
    [(99, 0.06, 1.0, [HOST]), (85, 0.06, 1.0, []), (99, 0.0, 1.0, []), (99, 0.06, 0.9, [])],
    ids=["they spin", "they idle, too", "it draws as much as they do", "it moves less data than they do"],
)
def test_a_host_that_starves_its_gpus_is_waited_for_though_the_job_was_slower_before(
    others: float, spared: float, moves: float, found: list[dict[str, str | int]]
) -> None:
    """While its data are fetched for the first time a job does less than with a slow host afterwards."""

    def since(at_s: FloatArray) -> FloatArray:
        return np.asarray(at_s >= 1020, float)

    read = {
        TENSOR: lambda at_s, values: 0.4 * np.where(at_s < 900, 0.4 + 0.3 * (at_s % 240 < 120), 0.8) + 0 * values,
        DRAM: lambda at_s, values: (
            0.3
            * np.where(at_s < 900, 0.4 + 0.3 * (at_s % 240 < 120), 0.8)
            * (1 - (1 - moves) * _second(values) * since(at_s))
        ),
        POWER: lambda at_s, values: values * (1 - spared * _second(values) * since(at_s)),
        BUSY: lambda at_s, values: (others - 20 * _second(values) * since(at_s)) / 100 + 0 * values,
        UTIL: lambda at_s, values: others - 15 * _second(values) * since(at_s) + 0 * values,
    }
    assert _paged(replace(SEEN, felt="host", slow=[], dcgm=read)) == found


def test_steps_that_became_shorter_are_compared_with_the_last_ones() -> None:
    history = History()
    for step_s in (14.0, 13.0, 11.3, 10.2, 10.0, 11.2, 11.1):
        history.steps = [step_s]
        history.end(np.full(3, 0.4))
    assert history.lengthened(2) == pytest.approx(11.15 / 10.2 - 1)
    history.values[0, 3:6] = 11.3, 11.0, 11.4
    assert history.lengthened(2) < 0
