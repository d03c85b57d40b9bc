import json
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.errors import UserError
from services.kit.times import parse_instant
from services.recording.conftest import imported
from services.recording.importers.parts.schedulers.hostlist import HostListError, expand
from services.recording.importers.slurm import convert
from tests.mangled import fuzzed, survives

HEADER = "JobID|JobName|User|State|ExitCode|Submit|Start|End|NodeList|AllocTRES"
SPANS = {
    "hour": "2024-04-01T07:00:00|2024-04-01T08:00:00|2024-04-01T09:00:00",
    "half": "2024-04-01T08:10:00|2024-04-01T09:10:00|2024-04-01T09:40:00",
}
ROWS = [
    f"101|llm|ann|COMPLETED|0:0|{SPANS['hour']}|gpu[01-03,07]|cpu=64,gres/gpu=32,gres/gpu:h100=32,mem=1T,node=4",
    f"101.batch|batch||COMPLETED|0:0|{SPANS['hour']}|gpu01|cpu=64",
    f"101.0|torchrun||COMPLETED|0:0|{SPANS['hour']}|gpu[01-03,07]|cpu=64",
    f"102|half|bob|CANCELLED by 1007|0:15|{SPANS['half']}|gpu01|cpu=8,gres/gpu=4,gres/gpu:h100=4,mem=1T,node=1",
    "103|other-half|bob|RUNNING|0:0|2024-04-01T08:10:00|2024-04-01T09:20:00|Unknown|gpu01|gres/gpu=4,node=1",
    "104_7|array|cy|NODE_FAIL|1:0|2024-04-01T08:10:00|2024-04-01T08:20:00|2024-04-01T08:30:00|r[1-2]n[08-09]-ib|node=4",
    "105|waits|cy|PENDING|0:0|2024-04-01T08:10:00|Unknown|Unknown|None assigned|",
    "106|never|cy|CANCELLED by 1007|0:0|2024-04-01T08:10:00|None|2024-04-01T08:11:00|None assigned|",
]
TABLE = "\n".join([HEADER, *ROWS]) + "\n"


_imported = partial(imported, convert)


def test_jobs_nodes_and_events_of_a_table(tmp_path: Path) -> None:
    report, recording = _imported(tmp_path, {"jobs.txt": TABLE})
    jobs = {job.job_id: job for job in recording.jobs()}
    assert set(jobs) == {"101", "102", "103", "104_7"}
    assert jobs["101"].nodes == ["gpu01", "gpu02", "gpu03", "gpu07"]
    assert (jobs["101"].gpus_per_node, jobs["101"].user, jobs["101"].name) == (8, "ann", "llm")
    assert jobs["101"].start == parse_instant("2024-04-01T08:00:00Z")
    assert jobs["101"].gpus is None
    assert jobs["102"].state == "CANCELLED"
    assert jobs["103"].end is None
    assert jobs["102"].gpus == jobs["103"].gpus == {"gpu01": []}, "they shared gpu01, and which GPUs is not known"
    assert jobs["104_7"].nodes == ["r1n08-ib", "r1n09-ib", "r2n08-ib", "r2n09-ib"]
    nodes = {node.name: node for node in recording.topology.nodes}
    assert len(nodes["gpu01"].gpus) == 8
    assert nodes["gpu01"].gpu_model == "h100"
    assert nodes["r1n08-ib"].gpus == []
    events = list(recording.events())
    assert [(event.job_id, event.severity) for event in events] == [("104_7", "error"), ("102", "info")]
    assert "CANCELLED by 1007" in events[1].message
    assert report.read["steps"] == 2
    assert report.skipped["the job never started"] == 2


def test_fields_in_any_order_with_closing_bars_and_zones(tmp_path: Path) -> None:
    text = "End|NodeList|Start|State|JobID|\n2024-04-01T11:00:00+0200|a,b|2024-04-01T08:00:00|TO|7|\n"
    _, recording = _imported(tmp_path, {"jobs.txt": text}, timezone="-01:00")
    (job,) = recording.jobs()
    assert (job.start, job.end) == (parse_instant("2024-04-01T09:00:00Z"),) * 2
    assert (job.state, job.nodes, job.gpus_per_node) == ("TIMEOUT", ["a", "b"], None)


def test_a_job_that_ends_in_the_hour_that_comes_twice_is_kept(tmp_path: Path) -> None:
    text = "JobID|State|Start|End|NodeList\n7|COMPLETED|2026-10-25T02:50:00|2026-10-25T02:10:00|a\n"
    _, recording = _imported(tmp_path, {"jobs.txt": text}, timezone="Europe/Zurich")
    (job,) = recording.jobs()
    assert (job.start, job.end) == (parse_instant("2026-10-25T00:50:00Z"), parse_instant("2026-10-25T01:10:00Z"))


def test_a_requeued_job_keeps_every_run(tmp_path: Path) -> None:
    header = "JobID|State|Start|End|NodeList"
    runs = [
        "9|NODE_FAIL|2024-04-01T08:00:00|2024-04-01T08:10:00|a",
        "9|COMPLETED|2024-04-01T08:20:00|2024-04-01T09:00:00|b",
    ]
    _, recording = _imported(tmp_path, {"jobs.txt": "\n".join([header, *runs])})
    assert [(job.job_id, job.state) for job in recording.jobs()] == [("9#run1", "NODE_FAIL"), ("9", "COMPLETED")]
    (event,) = recording.events()
    assert (event.node, event.job_id) == ("a", "9#run1")


def new_style(**changes: Any) -> dict[str, Any]:
    number = {"set": True, "infinite": False}
    job = {
        "job_id": 33,
        "array": {"job_id": 30, "task_id": {**number, "number": 4}},
        "het": {"job_id": 0, "job_offset": {"set": False, "infinite": False, "number": 0}},
        "name": "llm",
        "user": "ann",
        "nodes": "gpu[01-02]",
        "state": {"current": ["NODE_FAIL"], "reason": "None"},
        "exit_code": {"status": ["ERROR"], "return_code": {**number, "number": 1}, "signal": {"id": {"set": False}}},
        "failed_node": "gpu02",
        "time": {"submission": 1711954800, "start": 1711958400, "end": 1711962000},
        "tres": {
            "allocated": [
                {"type": "cpu", "name": "", "id": 1, "count": 64},
                {"type": "gres", "name": "gpu", "id": 1001, "count": 16},
                {"type": "gres", "name": "gpu:h100", "id": 1002, "count": 16},
            ]
        },
        "steps": [{"nodes": {"list": ["gpu01", "gpu02"]}}],
    }
    return {**job, **changes}


def old_style() -> dict[str, Any]:
    job = new_style(job_id=34, array={"job_id": 0, "task_id": None}, state={"current": "CANCELLED", "reason": "None"})
    job |= {"user": "", "association": {"user": "bob"}, "kill_request_user": "root", "het": {"job_id": 0}}
    return {**job, "exit_code": {"status": "SIGNALED", "return_code": 0, "signal": {"signal_id": 15, "name": "TERM"}}}


def test_both_forms_of_json(tmp_path: Path) -> None:
    text = json.dumps({"meta": {"plugins": {}}, "jobs": [new_style(), old_style(), 7, {}], "errors": []}, indent=1)
    report, recording = _imported(tmp_path, {"jobs.txt": text})
    jobs = {job.job_id: job for job in recording.jobs()}
    assert set(jobs) == {"30_4", "34"}
    assert jobs["30_4"].gpus_per_node == 8
    assert jobs["30_4"].end == 1711962000_000
    assert (jobs["34"].user, jobs["34"].state) == ("bob", "CANCELLED")
    events = {event.job_id: event for event in recording.events()}
    assert events["30_4"].node == "gpu02", "the source names the node that failed"
    assert "CANCELLED by root" in events["34"].message
    assert "ExitCode=0:15" in events["34"].message
    assert sum(report.skipped.values()) == 2


def test_json_is_read_piece_by_piece(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("services.recording.importers.parts.schedulers.slurm_json._PIECE", 64)
    jobs = [new_style(job_id=number, array={}) for number in range(40)]
    _, recording = _imported(tmp_path, {"jobs.txt": json.dumps({"jobs": jobs})})
    assert {job.job_id for job in recording.jobs()} == {str(number) for number in range(40)}


def test_what_is_no_accounting_is_refused_with_the_command_that_makes_it(tmp_path: Path) -> None:
    for text in ("", "JobID|State\n1|COMPLETED\n", '{"nodes": []}', "hello\n"):
        with pytest.raises(UserError, match="sacct"):
            _imported(tmp_path, {"jobs.txt": text})
        assert not (tmp_path / "out").exists()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("n1", ["n1"]),
        ("n[08-11]", ["n08", "n09", "n10", "n11"]),
        ("a[1,3-4]b[0-1]c,z", ["a1b0c", "a1b1c", "a3b0c", "a3b1c", "a4b0c", "a4b1c", "z"]),
    ],
)
def test_host_lists(text: str, names: list[str]) -> None:
    assert expand(text) == names


@pytest.mark.parametrize(
    "text", ["a[1", "a]1", "a[[1]]", "a[x-2]", "a[5-1]", "a[0-9999999]", "a[]", "a[1-99999]b[1-99999]"]
)
def test_what_is_no_host_list(text: str) -> None:
    with pytest.raises(HostListError):
        expand(text)


@given(st.lists(st.integers(0, 9999), min_size=1, max_size=30, unique=True))
def test_a_host_list_names_each_host_once_and_in_order(numbers: list[int]) -> None:
    text = "gpu[" + ",".join(f"{number:04d}" for number in numbers) + "]"
    assert expand(text) == [f"gpu{number:04d}" for number in numbers]


@fuzzed(TABLE.encode(), json.dumps({"jobs": [new_style(), old_style()]}).encode())
def test_damaged_accounting_gives_a_valid_recording_or_a_clear_error(content: bytes) -> None:
    survives(convert, {"jobs": content})
