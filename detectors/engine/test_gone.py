"""Machines that are gone are forgotten: the state stays flat where names are new every day, and nothing stays open."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import pytest

from detectors.contract import KINDS, Finding, Kind, LogRecord
from detectors.core.columns import Columns, column
from detectors.core.survivors import Survivors, go_on
from detectors.engine.engine import Choice, Engine
from detectors.engine.heard import DAY_MS, Forgetting
from detectors.engine.inputs import fields_read
from detectors.engine.rows import KeyColumn, Rows
from detectors.fleet.fleet import INFERRED, KEYS, Fleet, Job, JobEvent
from detectors.fleet.jobs import JobFinder
from detectors.registry import choose
from detectors.tapes.heads import heads

MINUTE_MS, HOUR_MS = 60_000, 3_600_000
T0 = 1_700_000_000_000 // DAY_MS * DAY_MS
EVERYTHING: Sequence[Choice] = choose()
FIELDS = fields_read(EVERYTHING)
STREAMS = ("jobs", "logs", *KINDS)
NODE_DOWN = [choice for choice in EVERYTHING if choice[0].spec.name == "node_down"]
OF_A_NODE: Mapping[Kind, Sequence[str | int]] = {
    "bmc": ("node_power", "fan1"), "nic": ("mlx5_0",), "storage": ("/scratch",), "dcgm": (0, 1),
    "switch": ("Ethernet1",),
}  # fmt: skip
JOB = Job("j", ("a", "b"), T0, 2)


def _rows(kind: Kind, nodes: Sequence[str], times: Sequence[int]) -> Rows:
    """Return a reading of every field of all that nodes have of a kind, at some times."""
    entities = [(node, name) for node in nodes for name in OF_A_NODE[kind]]
    count = len(entities) * len(times)
    columns = zip(KEYS[kind], zip(*entities, strict=True), strict=True)
    keys = {}
    for name, values in columns:
        categories = tuple(dict.fromkeys(values))
        keys[name] = KeyColumn(np.tile([categories.index(value) for value in values], len(times)), categories)
    known = np.ones(count, bool)
    return Rows(
        kind,
        np.repeat(np.array(times, np.int64), len(entities)),
        keys,
        {name: np.full(count, 50.0) for name in FIELDS[kind]},
        dict.fromkeys(FIELDS[kind], known),
    )


def _new_ones_every_day(days: int) -> Iterator[bytes]:
    """Yield the state by day of an engine that sees two new nodes, with a switch each, on every one of some days."""
    engine = Engine(
        {"nodes": [{"name": "lasting"}]}, EVERYTHING, STREAMS, grid_ms=4 * HOUR_MS, forgetting=Forgetting(2 * DAY_MS)
    )
    for day in range(days):
        begin = T0 + day * DAY_MS
        names = [f"node-{day:03}-{number}" for number in range(2)]
        for kind in OF_A_NODE:
            engine.feed(_rows(kind, [*names, "lasting"], range(begin, begin + DAY_MS, HOUR_MS)))
        xid = "NVRM: Xid (PCI:0000:19:00): 31"
        engine.feed_logs(LogRecord(begin + MINUTE_MS, "kernel", xid, node=name) for name in names)
        engine.feed_logs([LogRecord(begin + HOUR_MS, "scheduler", f"update_node: node {names[0]} state set to DRAIN")])
        for stream in STREAMS:
            engine.mark(stream, begin + DAY_MS - 1)
        engine.process()
        engine.incidents()
        yield engine.snapshot()


def test_the_state_after_thirty_days_of_new_nodes_is_that_after_ten() -> None:
    states = list(_new_ones_every_day(30))
    days = [heads(state) for state in states]
    # Ids of findings that are over are kept, up to 4096 of them, and for a month who was at the root of incidents.
    for each in (states, days):
        assert max(map(len, each[20:])) < 1.1 * max(map(len, each[:10]))
    assert b'["node-009-0",0]' in days[9]
    assert b'["node-009-0",0]' not in days[29]
    assert b'["node-029-0",0]' in days[29]
    assert b'"lasting"' in days[29]


def _a_node_dies(back: bool = False) -> list[Finding]:
    """Return what is found where one of two nodes of a job falls silent; it comes `back` in the end."""
    engine = Engine(None, NODE_DOWN, STREAMS, grid_ms=10_000, forgetting=Forgetting(DAY_MS // 40))
    both = range(T0, T0 + 10 * MINUTE_MS, 10_000)
    engine.feed_jobs([JobEvent(T0, "start", JOB), JobEvent(T0 + 12 * MINUTE_MS, "end", JOB)])
    engine.feed(_rows("dcgm", ["a", "b"], both))
    later = both.stop + HOUR_MS
    engine.feed(_rows("dcgm", ["b"], range(both.stop, later + 20 * MINUTE_MS, 10_000)))
    engine.feed_logs(
        [LogRecord(both.stop - 5000, "sel", "OEM system boot event | Power Unit | AC lost | Asserted", node="a")]
    )
    if back:
        engine.feed(_rows("dcgm", ["a"], range(later, later + 20 * MINUTE_MS, 10_000)))
    return engine.finish(later + 20 * MINUTE_MS)


def test_what_was_open_on_a_node_that_is_gone_is_resolved_with_that_reason() -> None:
    found = _a_node_dies()
    assert [(one.entity, one.state) for one in found] == [({"node": "a"}, "firing"), ({"node": "a"}, "resolved")]
    assert found[1].id == found[0].id
    assert found[1].summary == "node_down on a is over: gone for 0.025 days"
    assert DAY_MS // 40 <= found[1].detected_at - found[0].started_at < DAY_MS // 40 + 3 * MINUTE_MS


def test_a_node_that_comes_back_is_a_new_one() -> None:
    assert _a_node_dies(back=True) == _a_node_dies()


@pytest.mark.parametrize("away", [True, False])
def test_a_feed_that_was_away_makes_nobody_a_stranger(away: bool) -> None:
    engine = Engine(None, NODE_DOWN, STREAMS, grid_ms=MINUTE_MS, forgetting=Forgetting(DAY_MS // 8))
    engine.feed(_rows("dcgm", ["a", "b"], range(T0, T0 + 10 * MINUTE_MS, MINUTE_MS)))
    if not away:
        meanwhile = range(T0, T0 + 4 * HOUR_MS, HOUR_MS // 2)
        engine.feed_logs(LogRecord(at, "scheduler", "nothing of interest") for at in meanwhile)
    again = T0 + 30 * DAY_MS
    engine.feed(_rows("dcgm", ["b"], range(again, again + 10 * MINUTE_MS, MINUTE_MS)))
    engine.finish(again + 10 * MINUTE_MS)
    assert (b'["a",0]' in heads(engine.snapshot())) == away


@pytest.mark.parametrize("expected_by", ["topology", "job"])
def test_who_is_expected_is_never_gone(expected_by: str) -> None:
    topology = {"nodes": [{"name": "a"}]} if expected_by == "topology" else None
    engine = Engine(topology, NODE_DOWN, STREAMS, grid_ms=10_000, forgetting=Forgetting(DAY_MS // 40))
    if expected_by == "job":
        engine.feed_jobs([JobEvent(T0, "start", JOB)])
    engine.feed(_rows("dcgm", ["a"], [T0, T0 + 10_000]))
    engine.feed(_rows("dcgm", ["b"], range(T0, T0 + 2 * HOUR_MS, 10_000)))
    engine.finish(T0 + 2 * HOUR_MS)
    assert b'["a",0]' in heads(engine.snapshot())


def test_machines_that_were_inferred_go_with_what_was_heard_of_them() -> None:
    topology = {"nodes": [{"name": name, "gpus": [{"gpu": 0}]} for name in ("a", "b", "given")], "cluster": "c"}
    given = {"nodes": [{"name": "given"}]}
    engine = Engine(topology, NODE_DOWN, STREAMS, grid_ms=MINUTE_MS, forgetting=Forgetting(DAY_MS // 40, given))
    engine.feed(_rows("dcgm", ["a"], [T0, T0 + 10_000]))
    engine.feed(_rows("dcgm", ["b"], range(T0, T0 + HOUR_MS, MINUTE_MS)))
    engine.finish(T0 + HOUR_MS)
    assert engine.forgotten() == {"a"}
    assert engine.forgotten() == set()
    assert engine.topology == {"nodes": topology["nodes"][1:], "cluster": "c"}
    assert b'["a",0]' not in heads(engine.snapshot())
    assert b'["given",0]' in heads(engine.snapshot())


def test_a_job_that_was_inferred_keeps_no_node_that_is_gone() -> None:
    fleet = Fleet()
    finder = JobFinder(fleet)
    names = [f"{INFERRED}{node}" for node in "ac"]
    jobs = [[names[0], ["a", "b"], T0], [names[1], ["c"], T0]]
    document, arrays = finder.snapshot()
    finder.load(document | {"jobs": jobs}, arrays)
    events = finder.without(frozenset({"a", "c"}), T0 + 1)
    assert [(one.event, one.job.job_id, one.job.nodes) for one in events] == [
        ("start", names[0], ("b",)), ("end", names[1], ("c",)),
    ]  # fmt: skip


class _Silent(Columns):
    one: Any = column(0)


def test_columns_that_do_not_say_what_they_are_by_are_refused() -> None:
    with pytest.raises(TypeError, match="does not say what its columns are by"):
        go_on(_Silent(), Survivors({"dcgm": np.array([0])}, {}))
