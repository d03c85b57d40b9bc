"""Log lines and jobs in the shapes that people's tools send."""

import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from services.gateway.lines import NO_SOURCE, Lines, UnreadableError, jobs, logs
from tests.mangled import fuzzed

XID = "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."
AT = "2024-04-01T08:00:00Z"
JOB: dict[str, Any] = {"job_id": "812", "nodes": ["v001"], "start": AT, "end": None, "state": "RUNNING"}


def parsed(found: Lines) -> list[dict[str, Any]]:
    return [json.loads(line) for line in found.taken]


@pytest.mark.parametrize(
    "row",
    [
        {"timestamp": AT, "host": "v001", "message": XID, "appname": "kernel", "severity": "crit"},  # Vector: syslog
        {"timestamp": AT, "_HOSTNAME": "v001", "message": XID, "_TRANSPORT": "kernel", "PRIORITY": "2"},  # its journald
        {"timestamp": 1711958400, "hostname": "v001", "MESSAGE": XID, "SYSLOG_IDENTIFIER": "kernel", "level": "FATAL"},
        {"time": "2024-04-01T10:00:00+02:00", "node": "v001", "log": XID, "source": "kernel", "severity": "critical"},
    ],
)
def test_a_kernel_line_by_whichever_way_it_comes(row: dict[str, Any]) -> None:
    expected = {"timestamp": AT, "source": "kernel", "node": "v001", "severity": "critical", "message": XID}
    assert parsed(logs(json.dumps(row).encode())) == [expected]
    assert parsed(logs(json.dumps([row, row]).encode())) == [expected, expected]


def test_a_push_as_loki_takes_it() -> None:
    streams = [
        {
            "stream": {"instance": "v001:9100", "unit": "nv-fabricmanager.service"},
            "values": [["1711958400000000000", "a"]],
        },
        {"stream": {"job_id": "812", "level": "warn"}, "values": [["1711958400000000001", "b", {"rank": 3}]]},
        {"stream": {"service_name": "sshd"}, "values": [["1711958400000000000", "c"], ["never", "d"]]},
    ]
    found = logs(json.dumps({"streams": streams}).encode())
    assert parsed(found) == [
        {"timestamp": AT, "source": "fabricmanager", "node": "v001", "severity": "info", "message": "a"},
        {"timestamp": AT, "source": "job", "job_id": "812", "rank": 3, "severity": "warning", "message": "b"},
    ]
    assert found.outcomes == {"taken": 2, NO_SOURCE: 2}


def test_starts_and_ends_of_jobs() -> None:
    ended = JOB | {"end": "2024-04-01T09:00:00Z", "state": "FAILED"}
    body = [{"timestamp": AT, "event": "start", "job": ended}, JOB, ended, {"event": "end", "job": ended}]
    end = {"timestamp": "2024-04-01T09:00:00.000Z", "event": "end", "job": ended}
    start = {"timestamp": "2024-04-01T08:00:00.000Z", "event": "start", "job": JOB}
    # What is not known at a start is not written at one.
    assert parsed(jobs("\n".join(map(json.dumps, body)).encode())) == [start, start, end, end]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"timestamp": AT, "event": "pause", "job": JOB}, "neither start nor end"),
        ({"timestamp": AT, "event": "end", "job": JOB | {"nodes": 5}}, "nodes"),
        ({"event": "end", "job": JOB}, "needs a timestamp"),
        (JOB | {"nodes": []}, "no nodes"),
        (JOB | {"start": "yesterday"}, "start"),
        (5, "not a JSON object"),
    ],
)
def test_what_is_wrong_with_a_job_is_reported(row: object, reason: str) -> None:
    found = jobs(json.dumps(row).encode())
    assert found.taken == []
    assert reason in found.bad[0][1]


def test_no_json_at_all() -> None:
    for body in (b"\xff\xfe", b"[1, 2", b"<html>"):
        with pytest.raises(UnreadableError, match="JSON"):
            logs(body)
    assert logs(b"\n \n") == Lines()


_NAMES = (
    "timestamp", "source", "event", "job", "job_id", "nodes", "streams", "values", "stream", "rank", "message", "node",
    "start", "end", "state", "severity",
)  # fmt: skip
_json = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3)
    | st.dictionaries(
        st.sampled_from(_NAMES) | st.text(max_size=3),
        inner, max_size=6,
    ),
    max_leaves=12,
)  # fmt: skip


@settings(deadline=None)
@given(rows=st.lists(_json, max_size=4))
def test_whatever_json_comes_every_line_is_accounted_for(rows: list[Any]) -> None:
    body = "\n".join(map(json.dumps, rows)).encode()
    for read in (logs, jobs):
        try:
            found = read(body)
        except UnreadableError:
            continue
        assert found.outcomes["taken"] == len(found.taken)
        assert found.outcomes["bad"] == len(found.bad)


SYSLOG = {"timestamp": AT, "host": "v001", "message": XID, "appname": "kernel", "severity": "crit"}
PUSH = {"streams": [{"stream": {"host": "v1", "unit": "slurmd.service"}, "values": [["1711958400000000000", XID, {}]]}]}
EVENT = {"timestamp": AT, "event": "end", "job": {**JOB, "end": AT, "state": "FAILED", "exit_code": 137}}
ROWS = [json.dumps(row).encode() for row in (SYSLOG, PUSH, JOB, EVENT)]


@pytest.mark.parametrize("read", [logs, jobs])
@fuzzed(*(b"%s\n%s" % (row, row) for row in ROWS), b"[%s]" % ROWS[0])
def test_of_damaged_lines_each_is_taken_or_refused(read: Callable[[bytes], Lines], content: bytes) -> None:
    try:
        found = read(content)
    except UnreadableError:
        return
    assert (found.outcomes["taken"], found.outcomes["bad"]) == (len(found.taken), len(found.bad))
    assert all(isinstance(row, dict) for row in parsed(found))
