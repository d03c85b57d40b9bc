"""What is kept does not grow with the jobs that are over, and what goes on is judged as before."""

from collections.abc import Iterator, Sequence

import numpy as np
import pytest

from detectors.contract import Finding
from detectors.engine import Choice, Engine
from detectors.fleet import Job, JobEvent
from detectors.registry import choose
from detectors.rows import KeyColumn, Rows

DAY_MS, HOUR_MS, MINUTE_MS = 86_400_000, 3_600_000, 60_000
T0 = 1_700_000_000_000 // DAY_MS * DAY_MS
NODES = ("a", "b")
TOPOLOGY = {"nodes": [{"name": name, "gpus": [{"gpu": 0}]} for name in NODES]}
STREAMS = ("jobs", "steps")
OF_STEPS = {"node_down", "telemetry_gap", "job_health"}
CHOICES: Sequence[Choice] = [choice for choice in choose() if choice[0].spec.name in OF_STEPS]
EVERY_H, RANKS = 6, 16
"""A job of so many ranks every so many hours."""


def _steps(job: str, begin: int, end: int, ranks: int) -> Rows:
    """Return steps of half a minute of a job, from one time to another."""
    times = np.repeat(np.arange(begin, end, MINUTE_MS // 2), ranks)
    known = np.ones(len(times), bool)
    rank = KeyColumn(np.tile(np.arange(ranks), len(times) // ranks), tuple(range(ranks)))
    keys = {"job_id": KeyColumn(np.zeros(len(times), np.int64), (job,)), "rank": rank}
    values = {"step_time_s": np.full(len(times), 30.0), "compute_s": np.full(len(times), 28.0)}
    return Rows("steps", times, keys, values, dict.fromkeys(values, known), None)


def _hours(days: int) -> Iterator[tuple[int, list[JobEvent], list[Rows]]]:
    """Yield by hour of some days what comes of short jobs, one after the other, and of one that goes on."""
    long = Job("long", NODES, T0 + MINUTE_MS, 1)
    for hour in range(24 * days):
        begin = T0 + hour * HOUR_MS
        events = [JobEvent(long.start, "start", long)] if not hour else []
        rows = [_steps("long", begin + 2 * MINUTE_MS if not hour else begin, begin + HOUR_MS, 2)]
        if hour % EVERY_H == 0:
            job = Job(f"short-{hour}", NODES, begin + MINUTE_MS, 1)
            events += [JobEvent(job.start, "start", job), JobEvent(begin + 30 * MINUTE_MS, "end", job)]
            rows.append(_steps(job.job_id, begin + 2 * MINUTE_MS, begin + 28 * MINUTE_MS, RANKS))
        yield begin + HOUR_MS - 1, events, rows


def _engine() -> Engine:
    return Engine(TOPOLOGY, CHOICES, STREAMS, grid_ms=2 * MINUTE_MS)


def _fed(engine: Engine, days: int, restart_after: frozenset[int] = frozenset()) -> tuple[Engine, list[Finding]]:
    """Feed an engine some days; after those hours it is put aside and restored."""
    found: list[Finding] = []
    for hour, (until, events, rows) in enumerate(_hours(days)):
        engine.feed_jobs(events)
        for part in rows:
            engine.feed(part)
        for stream in STREAMS:
            engine.mark(stream, until)
        found += engine.process()
        engine.incidents()
        if hour in restart_after:
            engine = Engine.restore(TOPOLOGY, CHOICES, STREAMS, engine.snapshot(), grid_ms=2 * MINUTE_MS)
    return engine, found


@pytest.fixture(scope="module")
def long_fed() -> tuple[Engine, list[Finding]]:
    return _fed(_engine(), 5)


def test_the_state_after_five_days_is_that_after_three(long_fed: tuple[Engine, list[Finding]]) -> None:
    three, five = _fed(_engine(), 3)[0].snapshot(), long_fed[0].snapshot()
    one_job = len(f'["short-100",{RANKS}],') * RANKS
    assert abs(len(five) - len(three)) < 8 * one_job, "no more than what one day's jobs are written down in"
    assert b'["short-0",' not in five
    assert b'["short-114",' in five, "the last ones are known"


def test_restarts_change_nothing_of_what_is_forgotten(long_fed: tuple[Engine, list[Finding]]) -> None:
    restarted, found = _fed(_engine(), 5, frozenset({25, 49, 50}))
    assert found == long_fed[1] == []
    assert restarted.snapshot() == long_fed[0].snapshot()


def test_a_job_that_has_run_all_the_time_is_judged_as_before(long_fed: tuple[Engine, list[Finding]]) -> None:
    engine = Engine.restore(TOPOLOGY, CHOICES, STREAMS, long_fed[0].snapshot(), grid_ms=2 * MINUTE_MS)
    for stream in STREAMS:
        engine.mark(stream, T0 + 5 * DAY_MS + 40 * MINUTE_MS)
    (hang,) = engine.process()
    assert (hang.fault, hang.entity) == ("job_hang", {"job_id": "long"})
