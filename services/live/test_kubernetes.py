"""The source against a server of this test's own; against a real API server: tests/kubernetes."""

import json
import logging
from pathlib import Path
from typing import Any

import pytest

from detectors.fleet.scheduling import words_of
from services.kit.errors import UserError
from services.kit.times import parse_instant
from services.live.api_server import access_to
from services.live.kubernetes import Kubernetes
from services.live.listing import Listing
from services.live.maintenance import Maintenance, NodeState
from services.recording.importers.contract import Report
from services.recording.importers.parts.schedulers.pods import Pods
from tests.answering import Server

PODS, NODES = "/api/v1/pods", "/api/v1/nodes"
WATCH = "?watch=1&resourceVersion={}&allowWatchBookmarks=1&timeoutSeconds=1"
STARTED = "2026-03-01T08:00:00Z"
DAY_MS = 86_400_000


def pod(name: str, node: str | None, gpus: str = "8", phase: str = "Running", **meta: Any) -> dict[str, Any]:
    """Return a pod as the API gives it, cut to what is read."""
    return {
        "metadata": {"name": name, "namespace": "train", "resourceVersion": "7", "creationTimestamp": STARTED, **meta},
        "spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": gpus}}}], "nodeName": node},
        "status": {"phase": phase, "startTime": STARTED if node else None},
    }


def node(name: str, **spec: Any) -> dict[str, Any]:
    """Return a node as the API gives it; one that is cordoned since 09:00 as `kubectl cordon` leaves it."""
    written = [
        {"manager": "kubelet", "time": "2026-03-01T09:30:00Z", "fieldsV1": {"f:status": {}}},
        {"manager": "kubectl", "time": "2026-03-01T09:00:00Z", "fieldsV1": {"f:spec": {"f:unschedulable": {}}}},
    ]
    return {"metadata": {"name": name, "managedFields": written if spec.get("unschedulable") else []}, "spec": spec}


def page(*items: Any, version: str = "100", rest: str = "") -> tuple[int, str]:
    return 200, json.dumps({"metadata": {"resourceVersion": version, "continue": rest}, "items": items})


def changes(*events: tuple[str, Any]) -> tuple[int, str]:
    return 200, "".join(json.dumps({"type": kind, "object": item}) + "\n" for kind, item in events)


GONE = json.dumps({"kind": "Status", "code": 410, "reason": "Expired", "message": "too old resource version"})


def source(server: Server) -> Kubernetes:
    return Kubernetes(access_to(server.url, None, None))


def placed(listing: Listing) -> dict[str, tuple[list[str], int | None]]:
    return {job.job_id: (job.nodes, job.gpus_per_node) for job in listing.jobs}


def listed(server: Server, pods: tuple[int, str], nodes: tuple[int, str]) -> Listing:
    server.answers = {f"{PODS}?limit=500": pods, f"{NODES}?limit=500": nodes}
    return source(server).ask()


def test_pods_are_jobs_by_what_they_belong_to(server: Server) -> None:
    owner: dict[str, Any] = {"ownerReferences": [{"name": "watcher"}, {"name": "llm-0", "controller": True}]}
    found = listed(
        server,
        page(
            pod("llm-0-0", "n1", **owner),
            pod("llm-0-1", "n2", **owner),
            pod("set-a-0", "n3", **owner, labels={"jobset.sigs.k8s.io/jobset-name": "set"}),
            pod("set-b-0", "n4", labels={"jobset.sigs.k8s.io/jobset-name": "set"}),
            pod("torch-master-0", "n5", labels={"training.kubeflow.org/job-name": "torch"}),
            pod("group-1", "n6", "4", labels={"kueue.x-k8s.io/pod-group-name": "group"}),
            pod("group-2", "n6", "4", labels={"kueue.x-k8s.io/pod-group-name": "group"}),
            pod("alone", "n7", "1"),
            pod("exporter", "n7", "0"),
            pod("waiting", None),
        ),
        page(),
    )
    assert placed(found) == {
        "train/llm-0": (["n1", "n2"], 8),
        "train/set": (["n3", "n4"], 8),
        "train/torch": (["n5"], 8),
        "train/group": (["n6"], 8),
        "train/alone": (["n7"], 1),
    }
    assert {(job.start, job.end, job.user) for job in found.jobs} == {(parse_instant(STARTED), None, "train")}


def test_a_job_is_where_its_pods_run_now_and_has_the_gpus_of_one_that_failed_once() -> None:
    pods = Pods()
    owner: dict[str, Any] = {"ownerReferences": [{"name": "llm"}]}
    failed = pod("llm-x1", "n1", phase="Failed", **owner)
    failed["status"]["containerStatuses"] = [{"state": {"terminated": {"finishedAt": "2026-03-01T08:30:00Z"}}}]
    again = pod("llm-x2", "n1", **owner)
    again["status"]["startTime"] = "2026-03-01T08:31:00Z"
    for one in (failed, again):
        pods.take(one)
    (running,) = pods.allocations(Report(), {})
    assert (running.job.nodes, running.gpus_per_node, running.job.state) == (["n1"], 8, "RUNNING")
    assert running.job.start == parse_instant("2026-03-01T08:31:00Z")
    again["status"] |= {"phase": "Succeeded", "conditions": [{"lastTransitionTime": "2026-03-01T09:00:00Z"}]}
    pods.take(again)
    (over,) = pods.allocations(Report(), {})
    assert (over.gpus_per_node, over.job.state, over.job.end) == (8, "FAILED", parse_instant("2026-03-01T09:00:00Z"))


def test_nodes_that_are_cordoned_or_about_to_be_removed_are_closed(server: Server) -> None:
    leaving = {"key": "ToBeDeletedByClusterAutoscaler", "timeAdded": "2026-03-01T07:00:00Z"}
    nodes = page(
        node("n1", unschedulable=True),
        node("n2", taints=[leaving]),
        node("n3", taints=[{"key": "nvidia.com/gpu", "effect": "NoSchedule"}, {"key": "node.kubernetes.io/not-ready"}]),
        node("n4"),
    )
    assert listed(server, page(), nodes).nodes == {
        "n1": NodeState("cordoned in Kubernetes", parse_instant("2026-03-01T09:00:00Z")),
        "n2": NodeState("taint ToBeDeletedByClusterAutoscaler", parse_instant("2026-03-01T07:00:00Z")),
        "n3": NodeState(),
        "n4": NodeState(),
    }


def test_a_list_comes_in_pages_and_then_what_has_changed(server: Server) -> None:
    server.answers = {
        f"{PODS}?limit=500": page(pod("a", "n1"), rest="x/2"),
        f"{PODS}?limit=500&continue=x%2F2": page(pod("b", "n2"), version="5"),
        f"{NODES}?limit=500": page(node("n1"), version="6"),
    }
    kubernetes = source(server)
    assert placed(kubernetes.ask()) == {"train/a": (["n1"], 8), "train/b": (["n2"], 8)}
    bookmark = {"kind": "Pod", "metadata": {"resourceVersion": "9"}}
    server.answers = {
        PODS + WATCH.format(5): changes(
            ("DELETED", pod("a", "n1")), ("ADDED", pod("c", "n3", "2")), ("BOOKMARK", bookmark)
        ),
        NODES + WATCH.format(6): changes(("MODIFIED", node("n1", unschedulable=True))),
    }
    found = kubernetes.ask()
    assert placed(found) == {"train/b": (["n2"], 8), "train/c": (["n3"], 2)}
    assert found.nodes["n1"].closed
    # The server has forgotten what happened since: all is listed anew, and what is not there any more is gone.
    server.answers = {
        PODS + WATCH.format(9): (200, f'{{"type": "ERROR", "object": {GONE}}}\n'),
        f"{PODS}?limit=500": page(pod("c", "n3", "2"), version="20"),
        NODES + WATCH.format(6): (410, GONE),
        f"{NODES}?limit=500": page(node("n3"), version="21"),
    }
    found = kubernetes.ask()
    assert (placed(found), set(found.nodes)) == ({"train/c": (["n3"], 2)}, {"n3"})


def test_wrong_objects_are_named_and_passed_over(server: Server, caplog: pytest.LogCaptureFixture) -> None:
    timeless = pod("timeless", "n2")
    timeless["status"]["startTime"] = "yesterday"
    wrong = ["no object", {"metadata": {}}, timeless, pod("much", "n3", "1e9"), {"metadata": {"name": "x"}, "spec": 3}]
    with caplog.at_level(logging.WARNING):
        found = listed(server, page(*wrong, pod("right", "n1")), page({"metadata": {"name": "n1"}, "spec": []}))
    assert placed(found) == {"train/right": (["n1"], 8)}
    assert found.nodes == {}
    assert [record.getMessage() for record in caplog.records] == [
        '/api/v1/pods: "no object" is passed over: no object',
        '/api/v1/pods: {"metadata": {}} is passed over: an object without a name',
        "/api/v1/pods: train/timeless is passed over: startTime is no time",
        "/api/v1/pods: train/much is passed over: asks for GPUs by what is no number of them",
        "/api/v1/pods: x is passed over: spec is no object",
        "/api/v1/nodes: n1 is passed over: spec is no object",
    ]


@pytest.mark.parametrize(
    ("answer", "code", "words"),
    [
        ((401, '{"kind": "Status", "message": "Unauthorized"}'), 2, "let us read /api/v1/pods .401.: Unauthorized"),
        ((404, "404 page not found"), 2, "404: 404 page not found"),
        ((200, "<html>"), 2, "no JSON object"),
        ((200, '{"status": "success"}'), 2, "no list"),
        ((200, '{"items": 3}'), 2, "no list"),
    ],
    ids=["unauthorized", "not-found", "html", "prometheus", "no-items"],
)
def test_a_server_that_is_of_no_use_is_named(server: Server, answer: tuple[int, str], code: int, words: str) -> None:
    with pytest.raises(UserError, match=words) as failed:
        listed(server, answer, page())
    assert failed.value.exit_code == code
    assert failed.value.remedy


def test_what_is_known_holds_while_the_server_is_away(server: Server) -> None:
    server.answers = {f"{PODS}?limit=500": page(pod("a", "n1")), f"{NODES}?limit=500": page()}
    kubernetes = source(server)
    kubernetes.ask()
    server.answers = {PODS + WATCH.format(100): (200, '{"type": "MOD')}
    with pytest.raises(UserError, match="no watch"):
        kubernetes.ask()
    server.answers = {PODS + WATCH.format(100): changes(), NODES + WATCH.format(100): changes()}
    assert placed(kubernetes.ask()) == {"train/a": (["n1"], 8)}


def test_a_pods_own_account_is_used_in_a_cluster_and_its_token_read_each_time(
    server: Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(UserError, match="is for a pod"):
        access_to("in-cluster", None, None)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "443")
    access = access_to("in-cluster", None, None)
    assert (access.url, access.bearer_file, access.ca_file) == (
        "https://[fd00::1]:443",
        Path("/var/run/secrets/kubernetes.io/serviceaccount/token"),
        Path("/var/run/secrets/kubernetes.io/serviceaccount/ca.crt"),
    )
    token = tmp_path / "token"
    token.write_text("first\n")
    kubernetes = Kubernetes(access_to(server.url, token, None))
    server.answers = {f"{PODS}?limit=500": page(), f"{NODES}?limit=500": page()}
    kubernetes.ask()
    token.write_text("second\n")
    server.answers = {PODS + WATCH.format(100): changes(), NODES + WATCH.format(100): changes()}
    kubernetes.ask()
    assert [headers["Authorization"] for _, headers in server.asked] == ["Bearer first"] * 2 + ["Bearer second"] * 2


def test_maintenance_begins_when_the_scheduler_says_and_ends_when_it_is_seen() -> None:
    nodes = {"n1": NodeState("cordoned", 5_000_000), "n2": NodeState("cordoned"), "n3": NodeState()}
    maintenance = Maintenance(lambda: nodes)

    def news(after: int, now: int) -> list[tuple[str, int, str]]:
        lines = maintenance.lines(after, now)
        return [(node, line.at, words) for line in lines for node, words in words_of(line)]

    assert news(4_000_000, 6_000_000) == [
        ("n1", 5_000_000, "out"),
        ("n2", 4_000_001, "out"),
    ]
    nodes["n2"] = NodeState()
    assert news(6_000_000, 7_000_000) == [("n2", 7_000_000, "back")]
    # After a day it is named again, for detectors forget; one that is not listed any more stays as it was, for a week.
    assert news(7_000_000, 5_000_000 + DAY_MS) == [("n1", 5_000_000 + DAY_MS, "out")]
    del nodes["n1"]
    assert news(0, 5_000_000 + 8 * DAY_MS) == []
    assert maintenance.closed == {"n1": 5_000_000 + DAY_MS}
    assert news(0, 5_000_001 + 8 * DAY_MS) == []
    assert maintenance.closed == {}
