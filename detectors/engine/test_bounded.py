"""What is kept does not grow with the jobs that are over, and what goes on is judged as before."""

from collections.abc import Iterator, Mapping, Sequence
from collections.abc import Set as AbstractSet
from itertools import count, islice
from typing import NamedTuple

import numpy as np
import pytest

from detectors.contract import Finding
from detectors.engine.engine import Choice, Engine
from detectors.engine.rows import KeyColumn, Rows
from detectors.fleet.fleet import Job, JobEvent
from detectors.registry import choose
from detectors.tapes.heads import heads

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


def _hours() -> Iterator[tuple[int, list[JobEvent], list[Rows]]]:
    """Yield by hour what comes of short jobs, one after the other, and of one that goes on."""
    long = Job("long", NODES, T0 + MINUTE_MS, 1)
    for hour in count():
        begin = T0 + hour * HOUR_MS
        events = [JobEvent(long.start, "start", long)] if not hour else []
        rows = [_steps("long", begin + 2 * MINUTE_MS if not hour else begin, begin + HOUR_MS, 2)]
        if hour % EVERY_H == 0:
            job = Job(f"short-{hour}", NODES, begin + MINUTE_MS, 1)
            events += [JobEvent(job.start, "start", job), JobEvent(begin + 30 * MINUTE_MS, "end", job)]
            rows.append(_steps(job.job_id, begin + 2 * MINUTE_MS, begin + 28 * MINUTE_MS, RANKS))
        yield begin + HOUR_MS - 1, events, rows


class _Fed(NamedTuple):
    """Of an engine that was fed some days: its state after some of the hours, by number, and what it found."""

    states: Mapping[int, bytes]
    found: list[Finding]


def _fed(engine: Engine, hours: range, kept: AbstractSet[int] = frozenset(), *, restarted: bool = False) -> _Fed:
    """Feed an engine some hours; after those `kept` its state is kept, and with `restarted` gone on with."""
    found: list[Finding] = []
    states: dict[int, bytes] = {}
    for hour, (until, events, rows) in zip(hours, islice(_hours(), hours.start, hours.stop), strict=True):
        engine.feed_jobs(events)
        for part in rows:
            engine.feed(part)
        for stream in STREAMS:
            engine.mark(stream, until)
        found += engine.process()
        engine.incidents()
        if hour in kept:
            states[hour] = engine.snapshot()
            if restarted:
                engine = _restored(states[hour])
    return _Fed(states, found)


def _restored(state: bytes) -> Engine:
    return Engine.restore(TOPOLOGY, CHOICES, STREAMS, state, grid_ms=2 * MINUTE_MS)


FIRST_RESTART, AFTER_THREE_DAYS, DAYS = 25, 24 * 3 - 1, 5


@pytest.fixture(scope="module")
def long_fed() -> _Fed:
    engine = Engine(TOPOLOGY, CHOICES, STREAMS, grid_ms=2 * MINUTE_MS)
    return _fed(engine, range(24 * DAYS), {FIRST_RESTART, AFTER_THREE_DAYS, 24 * DAYS - 1})


def test_the_state_after_five_days_is_that_after_three(long_fed: _Fed) -> None:
    three, five = long_fed.states[AFTER_THREE_DAYS], long_fed.states[24 * DAYS - 1]
    one_job = len(f'["short-100",{RANKS}],') * RANKS
    sizes = [len(state) + len(heads(state)) for state in (three, five)]
    assert abs(sizes[1] - sizes[0]) < 8 * one_job, "no more than what one day's jobs are written down in"
    assert b'["short-0",' not in heads(five)
    assert b'["short-114",' in heads(five), "the last ones are known"


def test_restarts_change_nothing_of_what_is_forgotten(long_fed: _Fed) -> None:
    engine = _restored(long_fed.states[FIRST_RESTART])
    restarted = _fed(engine, range(FIRST_RESTART + 1, 24 * DAYS), {49, 50, 24 * DAYS - 1}, restarted=True)
    assert restarted.found == long_fed.found == []
    assert restarted.states[24 * DAYS - 1] == long_fed.states[24 * DAYS - 1]


def test_a_job_that_has_run_all_the_time_is_judged_as_before(long_fed: _Fed) -> None:
    engine = _restored(long_fed.states[24 * DAYS - 1])
    for stream in STREAMS:
        engine.mark(stream, T0 + DAYS * DAY_MS + 40 * MINUTE_MS)
    (hang,) = engine.process()
    assert (hang.fault, hang.entity) == ("job_hang", {"job_id": "long"})
