import numpy as np
import pytest

from detectors.contract import IntArray, LogRecord
from detectors.engine.engine import Engine
from detectors.engine.rows import KeyColumn, Rows
from detectors.engine.state import unpack
from detectors.fleet.job_lines import job_event_of
from detectors.fleet.test_jobs import _MINUTE, _START, ONE, TWO, cluster, engine, jobs_in, played


def line(message: str, at: int = _START, job_id: str | None = None) -> LogRecord:
    return LogRecord(at, "scheduler", message, "info", None, job_id, None)


@pytest.mark.parametrize(
    ("message", "job_id", "nodes"),
    [
        ("slurmctld: sched: Allocate JobId=812 NodeList=v[001-002,007] #CPUs=96 Partition=x", "812", 3),
        ("sched: Allocate JobId=900_3(905) NodeList=gpu7 #CPUs=96 Partition=x", "900_3", 1),
        ("sched: _slurm_rpc_allocate_resources JobId=77 NodeList=v1,w[3-4] usec=812", "77", 3),
        ("sched/backfill: _start_job: Started JobId=5 in batch on a-[08-09]-gpu", "5", 2),
        ("_job_complete: JobId=812 WEXITSTATUS 0", "812", 0),
        ("_job_complete: requeue JobId=812 due to node failure", "812", 0),
        ("Time limit exhausted for JobId=812", "812", 0),
        ("Killing JobId=812 on failed node v001", "812", 0),
    ],
)
def test_slurms_lines_of_starts_and_ends_are_read(message: str, job_id: str, nodes: int) -> None:
    event = job_event_of(line(message))
    assert event is not None
    assert (event.event, event.job.job_id, len(event.job.nodes)) == ("start" if nodes else "end", job_id, nodes)


@pytest.mark.parametrize(
    "message",
    [
        "sched: Allocate JobId=812 NodeList=24 nodes #CPUs=96 Partition=x",
        "_slurm_rpc_submit_batch_job: JobId=812 InitPrio=4294901214 usec=1184",
        "_slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=812 uid 1000",  # of scancel --signal too
        "update_node: node v001 state set to DRAINED",
    ],
)
def test_lines_that_neither_start_nor_end_a_job_are_passed_over(message: str) -> None:
    assert job_event_of(line(message)) is None


LINES = [
    line("sched: Allocate JobId=31 NodeList=n[00-02,06] #CPUs=96 Partition=x", _START + 7_300),
    line("_job_complete: JobId=31 WEXITSTATUS 0", _START + 50 * _MINUTE),
]


def test_the_schedulers_log_names_jobs_from_start_to_end_and_the_rest_is_inferred() -> None:
    rows, mine = cluster(60, 1), {"n00", "n01", "n02", "n06"}
    for cut in (None, _START + 8_000, _START + 41 * _MINUTE + 2_500):
        own = engine()
        own.feed_logs(LINES)
        done = played(own, rows, _START + 45 * _MINUTE, cut)
        assert jobs_in(done) == [mine, ONE - mine, TWO - mine]
        assert "31" in ids_in(done)
    own = engine()
    own.feed_logs(LINES)
    assert mine not in jobs_in(played(own, rows, _START + 51 * _MINUTE))


def test_a_job_whose_end_was_never_logged_is_over_when_its_nodes_have_idled_for_an_hour() -> None:
    rows = cluster(110, 1, idle_from=40)
    own = engine()
    own.feed_logs(LINES[:1])
    own = played(own, rows, _START + 95 * _MINUTE)
    assert jobs_in(own) == [{"n00", "n01", "n02", "n06"}]
    again = engine()
    again.feed_logs(LINES[:1])
    assert jobs_in(played(again, rows, _START + 105 * _MINUTE)) == []


def spoken(at: int, node: str, rank: int, job_id: str = "44") -> LogRecord:
    return LogRecord(at, "job", " iteration 10/ 500000 | lm loss: 2.1", "info", node, job_id, rank)


def picked(rows: Rows, which: IntArray) -> Rows:
    keys = {name: KeyColumn(column.codes[which], column.categories) for name, column in rows.keys.items()}
    values = {name: column[which] for name, column in rows.values.items()}
    valid = {name: column[which] for name, column in rows.valid.items()}
    return Rows(rows.kind, rows.times[which], keys, values, valid)


def ids_in(done: Engine) -> list[str]:
    state = done.snapshot()
    document, _ = unpack(state[8 : 8 + int.from_bytes(state[:8], "little")])
    return sorted(job[0] for job in document["fleet"]["jobs"])


@pytest.mark.parametrize("cut", [None, _START + 21 * _MINUTE + 2_500])
def test_a_jobs_own_lines_name_the_nodes_in_step_where_its_ranks_are_as_many_as_their_gpus(cut: int | None) -> None:
    lines = [
        spoken(_START + at * _MINUTE, node, rank, job)
        for at in range(1, 58)
        for node, rank, job in (("n00", 0, "44"), ("n05", 23, "44"), ("n07", 1, "part"))
    ]
    own = engine()
    own.feed_logs(lines)
    done = played(own, cluster(60, 1), _START + 58 * _MINUTE, cut)
    assert ids_in(done) == ["44", "inferred-n06"]
    assert jobs_in(done) == [ONE, TWO]


def test_a_job_named_after_one_node_gets_its_others_when_a_higher_rank_writes() -> None:
    first = [spoken(_START + at * _MINUTE, "n00", at % 4) for at in range(1, 58)]
    own = engine()
    own.feed_logs(first + [spoken(_START + at * _MINUTE + 1, "n05", 23) for at in range(25, 58)])
    early = played(own, cluster(60, 1), _START + 22 * _MINUTE)
    assert {"n00"} in jobs_in(early)
    rows = cluster(60, 1)
    late = played(early, picked(rows, np.flatnonzero(rows.times > early.event_time)), _START + 58 * _MINUTE)
    assert (ids_in(late), jobs_in(late)) == (["44", "inferred-n06"], [ONE, TWO])


def test_a_job_that_fell_silent_and_whose_nodes_idle_is_not_named_again() -> None:
    rows = cluster(60, 1, idle_from=30)
    alone = engine()
    alone.feed_logs([spoken(_START + at * _MINUTE, "n03", 3) for at in range(1, 30)])
    here = np.flatnonzero(rows.keys["node"].codes == 3)
    alone = played(alone, picked(rows, here), _START + 28 * _MINUTE)
    assert (ids_in(alone), jobs_in(alone)) == (["44"], [{"n03"}])
    alone.feed_logs([spoken(_START + 31 * _MINUTE, "n03", 3)])
    assert ids_in(played(alone, picked(rows, here[rows.times[here] > alone.event_time]), _START + 50 * _MINUTE)) == []
