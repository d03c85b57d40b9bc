from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import FloatArray, IntArray
from detectors.engine.engine import Engine
from detectors.engine.rows import KeyColumn, Rows
from detectors.engine.state import unpack
from detectors.fleet.fleet import Job, JobEvent
from detectors.fleet.jobs import FIELDS, MEMORY
from detectors.registry import choose, discover

_MINUTE = 60_000
_NODES, _GPUS = 12, 4
_START = 1_711_958_400_000
CHOICES = choose({name: {"enabled": name == "straggler"} for name in discover()})


def cluster(minutes: int, seed: int, idle_from: int | None = None) -> Rows:
    """Return the DCGM rows of two jobs of six nodes, whose synchronous steps alias with scrapes every 5 s."""
    chance = np.random.default_rng(seed)
    ticks = minutes * 12
    node, gpu = np.repeat(np.arange(_NODES), _GPUS), np.tile(np.arange(_GPUS), _NODES)
    offset = chance.uniform(0, 5000, _NODES)[node]
    at = np.arange(ticks)[:, None] * 5000 + offset
    swings = [np.cumsum(chance.normal(0, 0.08, ticks + 1)) for _ in range(2)]
    phase = np.array(swings)[node // 6][:, : ticks + 1].T[:ticks] + at / np.where(node // 6 == 0, 19_700, 31_300)
    busy = np.full(at.shape, True) if idle_from is None else at < idle_from * _MINUTE
    tensor = np.where(busy, 0.4 + 0.25 * np.sin(2 * np.pi * phase) + chance.normal(0, 0.03, at.shape), 0.0)
    columns = {
        FIELDS[0]: np.where(busy, 100.0, 0.0), FIELDS[1]: np.where(busy, 600.0, 80.0), FIELDS[2]: np.maximum(tensor, 0),
    }  # fmt: skip
    return rows_of(at, np.tile(node, (ticks, 1)), np.tile(gpu, (ticks, 1)), columns)


def rows_of(at: FloatArray, node: IntArray, gpu: IntArray, columns: dict[str, FloatArray]) -> Rows:
    names = tuple(f"n{number:02d}" for number in range(_NODES))
    values = {name: column.ravel() for name, column in columns.items()}
    return Rows(
        "dcgm",
        (_START + at.ravel()).astype(np.int64),
        {"node": KeyColumn(node.ravel(), names), "gpu": KeyColumn(gpu.ravel(), tuple(range(_GPUS)))},
        values,
        {name: np.isfinite(column) for name, column in values.items()},
    )


def played(engine: Engine, rows: Rows, until: int, cut: int | None = None) -> Engine:
    for upto in ([cut] if cut else []) + [until]:
        which = np.flatnonzero(rows.times <= upto)
        taken = {name: KeyColumn(column.codes[which], column.categories) for name, column in rows.keys.items()}
        node = KeyColumn(rows.node.codes[which], rows.node.categories) if rows.node else None
        values = {name: column[which] for name, column in rows.values.items()}
        valid = {name: column[which] for name, column in rows.valid.items()}
        engine.feed(Rows(rows.kind, rows.times[which], taken, values, valid, node))
        for stream in ("dcgm", "jobs", "logs", "steps"):
            engine.mark(stream, upto)
        engine.process()
        if upto == cut:
            engine = Engine.restore(None, CHOICES, ("dcgm", "steps", "jobs", "logs"), engine.snapshot())
    return engine


def engine() -> Engine:
    return Engine(None, CHOICES, ("dcgm", "steps", "jobs", "logs"))


def jobs_kept(engine: Engine) -> list[Any]:
    state = engine.snapshot()
    document, _ = unpack(state[8 : 8 + int.from_bytes(state[:8], "little")])
    jobs: list[Any] = document["fleet"]["jobs"]
    return jobs


def jobs_in(engine: Engine) -> list[set[str]]:
    return sorted((set(job[1]) for job in jobs_kept(engine)), key=min)


ONE, TWO = {f"n{n:02d}" for n in range(6)}, {f"n{n:02d}" for n in range(6, 12)}


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_nodes_that_work_in_step_are_one_job_and_no_node_of_another(seed: int) -> None:
    done = played(engine(), cluster(60, seed), _START + 60 * _MINUTE)
    assert jobs_in(done) == [ONE, TWO]


def test_what_was_inferred_is_the_same_after_a_restart_and_is_over_when_nodes_idle() -> None:
    rows = cluster(60, 4, idle_from=45)
    whole = played(engine(), rows, _START + 44 * _MINUTE)
    carried = played(engine(), rows, _START + 44 * _MINUTE, cut=_START + 21 * _MINUTE + 2500)
    assert jobs_in(whole) == jobs_in(carried) == [ONE, TWO]
    assert jobs_in(played(engine(), rows, _START + 58 * _MINUTE)) == []


@pytest.mark.parametrize("ends", [False, True], ids=["runs", "has ended"])
def test_of_nodes_that_a_scheduler_has_named_nothing_is_inferred(ends: bool) -> None:
    own, job = engine(), Job("77", tuple(sorted(ONE | TWO)), _START)
    own.feed_jobs([JobEvent(_START, "start", job)] + [JobEvent(_START + 6 * _MINUTE, "end", job)] * ends)
    assert jobs_in(played(own, cluster(60, 1), _START + 60 * _MINUTE)) == ([] if ends else [ONE | TWO])


def test_what_nodes_do_that_no_scheduler_knows_is_inferred_until_it_names_them() -> None:
    own, rows = engine(), cluster(90, 1)
    own.feed_jobs([JobEvent(_START, "start", Job("77", tuple(sorted(ONE)), _START))])
    rest = _START + 60 * _MINUTE
    assert jobs_in(played(own, rows, rest, cut=_START + 31 * _MINUTE)) == [ONE, TWO]
    late = engine()  # the list comes after readings have
    late.feed_jobs([JobEvent(_START + 5 * _MINUTE, "start", Job("77", tuple(sorted(ONE)), _START))])
    assert jobs_in(played(late, rows, rest, cut=_START + 31 * _MINUTE)) == [ONE, TWO]
    own = engine()
    own.feed_jobs([JobEvent(_START, "start", Job("77", tuple(sorted(ONE)), _START))])
    own.feed_jobs([JobEvent(rest, "start", Job("78", ("n06", "n07"), rest))])
    assert {"n06", "n07"} in jobs_in(played(own, rows, rest + 30 * _MINUTE))
    assert [len(job) for job in jobs_in(own) if "n06" in job] == [2]


@pytest.mark.parametrize("restarted", [False, True], ids=["", "and lie otherwise after a restart"])
@pytest.mark.parametrize("listed", [(), ("n03", "n04")], ids=["by themselves", "in a list's order"])
def test_ranks_that_name_their_nodes_make_the_job_at_once_in_their_order(
    listed: tuple[str, ...], restarted: bool
) -> None:
    at = np.arange(1, 40) * 10_000 + _START
    ranks = np.tile(np.arange(4), len(at))
    steps = Rows(
        "steps",
        np.repeat(at, 4),
        {"job_id": KeyColumn(np.zeros(len(ranks), np.int64), ("812",)), "rank": KeyColumn(ranks, (0, 1, 2, 3))},
        {"step_time_s": np.full(len(ranks), 10.0)},
        {"step_time_s": np.full(len(ranks), True)},
        KeyColumn(ranks // 2 ^ (restarted & (np.arange(len(ranks)) < 60)), ("n04", "n03")),
    )
    own = engine()
    if listed:
        own.feed_jobs([JobEvent(_START, "start", Job("812", listed, _START))])
    done = played(own, steps, int(at[-1]))
    assert [job[1] for job in jobs_kept(done)] == [["n04", "n03"]]
    assert done.pending("steps") == 0


def test_nodes_whose_processes_ended_leave_their_job_and_most_of_them_end_it() -> None:
    rows = cluster(60, 1)
    gone = rows.times >= _START + 50 * _MINUTE
    few, most = (gone & np.isin(rows.keys["node"].codes, np.arange(count)) for count in (2, 4))
    for freed, left in ((few, [ONE - {"n00", "n01"}, TWO]), (most, [TWO])):
        values = {**rows.values, MEMORY: np.where(freed, 4.0, 61_000.0)}
        valid = {**rows.valid, MEMORY: np.full(len(rows.times), True)}
        done = played(engine(), replace(rows, values=values, valid=valid), _START + 52 * _MINUTE)
        assert jobs_in(done) == left


def test_jobs_that_were_taken_for_one_are_two_again_once_nothing_links_them() -> None:
    rows = cluster(150, 1)
    astray = rows.values[FIELDS[2]].copy().reshape(-1, _NODES, _GPUS)
    astray[120:540, 6] = astray[120:540, 5]  # a node of the second does for a while what the first does
    seen = replace(rows, values={**rows.values, FIELDS[2]: astray.ravel()})
    assert jobs_in(played(engine(), seen, _START + 45 * _MINUTE)) == [ONE | TWO]
    later = _START + 150 * _MINUTE
    whole, carried = (played(engine(), seen, later, cut=cut) for cut in (None, _START + 100 * _MINUTE))
    assert jobs_in(whole) == jobs_in(carried) == [ONE, TWO]
    assert jobs_kept(whole) == jobs_kept(carried)
    assert len({job[2] for job in jobs_kept(whole)}) == 1, "both have worked since then"
