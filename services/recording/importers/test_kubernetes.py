import json
from pathlib import Path
from typing import Any

from detectors.contract import LogRecord
from detectors.fleet.scheduling import words_of
from services.kit.times import parse_instant
from services.recording.importers.kubernetes import convert
from services.recording.reader import Recording
from services.recording.validate import validate_recording
from tests.mangled import fuzzed, survives


def pod(name: str, node: str, phase: str, **status: Any) -> dict[str, Any]:
    """Return a pod as `kubectl get pods -o json` prints it, cut to what says something."""
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "namespace": "train",
            "name": name,
            "creationTimestamp": "2024-04-01T07:59:00Z",
            "ownerReferences": [{"apiVersion": "batch/v1", "kind": "Job", "name": "llm"}],
        },
        "spec": {"nodeName": node, "containers": [{"resources": {"limits": {"nvidia.com/gpu": "8", "cpu": "32"}}}]},
        "status": {"phase": phase, "startTime": "2024-04-01T08:00:00Z", **status},
    }


def event(kind: str, name: str, reason: str, message: str, at: str) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "involvedObject": {"kind": kind, "name": name, "namespace": "train"},
        "metadata": {"namespace": "train", "name": f"{name}.17c1", "creationTimestamp": at},
        "reason": reason,
        "message": message,
        "firstTimestamp": at,
    }


def over(at: str, reason: str, code: int) -> dict[str, Any]:
    state = {"terminated": {"finishedAt": at, "reason": reason, "exitCode": code}}
    return {"containerStatuses": [{"name": "main", "state": state}]}


ITEMS = [
    pod("llm-0", "gpu01", "Failed", **over("2024-04-01T08:30:00Z", "Error", 1)),
    pod("llm-1", "gpu02", "Failed", **over("2024-04-01T08:29:50Z", "OOMKilled", 137)),
    event("Pod", "probe", "Scheduled", "Successfully assigned train/probe to gpu03", "2024-04-01T08:05:00Z"),
    event("Job", "sweep", "SuccessfulCreate", "Created pod: sweep-x1", "2024-04-01T08:06:00Z"),
    event("Pod", "sweep-x1", "Scheduled", "Successfully assigned train/sweep-x1 to gpu04", "2024-04-01T08:06:10Z"),
    event("Job", "sweep", "Completed", "Job completed", "2024-04-01T08:16:10Z"),
    event("Node", "gpu03", "NodeNotReady", "Node gpu03 status is now: NodeNotReady", "2024-04-01T08:20:00Z"),
    {"apiVersion": "v1", "kind": "Service"},
]
LIST = json.dumps({"apiVersion": "v1", "kind": "List", "items": ITEMS})


def test_pods_of_one_owner_are_a_job_and_events_name_others(tmp_path: Path) -> None:
    (tmp_path / "all.json").write_text(LIST)
    report = convert(tmp_path / "all.json", tmp_path / "out")
    assert validate_recording(tmp_path / "out") == []
    recording = Recording.open(tmp_path / "out")
    jobs = {job.job_id: job for job in recording.jobs()}
    assert {name: (job.nodes, job.state, job.gpus_per_node) for name, job in jobs.items()} == {
        "train/llm": (["gpu01", "gpu02"], "OUT_OF_MEMORY", 8),
        "train/probe": (["gpu03"], "RUNNING", None),
        "train/sweep": (["gpu04"], "COMPLETED", None),
    }
    assert jobs["train/llm"].end == parse_instant("2024-04-01T08:30:00Z")
    assert jobs["train/sweep"].start == parse_instant("2024-04-01T08:06:10Z")
    down = next(one for one in recording.events() if one.node == "gpu03")
    assert (down.source, down.severity) == ("scheduler", "error")
    assert list(words_of(LogRecord(0, down.source, down.message, node=down.node))) == [("gpu03", "unready")]
    assert report.skipped["an object that is no pod and no event"] == 1


def test_what_a_node_did_again_is_an_event_at_its_last_time_too(tmp_path: Path) -> None:
    first, last = "2024-04-01T08:20:00Z", "2024-04-01T08:50:00Z"
    once = event("Node", "gpu03", "NodeNotReady", "Node gpu03 status is now: NodeNotReady", first)
    older = once | {"firstTimestamp": first, "lastTimestamp": last, "count": 3}
    newer = once | {"firstTimestamp": None, "eventTime": first, "series": {"count": 3, "lastObservedTime": last}}
    for number, item in enumerate((once, older, newer)):
        (tmp_path / f"{number}.json").write_text(json.dumps(item))
        convert(tmp_path / f"{number}.json", tmp_path / f"out{number}")
        times = [one.timestamp for one in Recording.open(tmp_path / f"out{number}").events()]
        assert times == [parse_instant(at) for at in ((first,) if number == 0 else (first, last))]


@fuzzed(LIST.encode())
def test_mangled_objects_give_a_clean_recording_or_a_clear_error(content: bytes) -> None:
    survives(convert, {"all.json": content})
