"""`hindcast live --kubernetes` on a real API server: jobs are as its scheduler places them on nodes of kwok."""

import logging
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from detectors.contract import Finding, State
from detectors.fleet.scheduling import words_of
from detectors.incidents.knowledge import TABLE
from detectors.registry import choose
from services.detect.warmup import finding_line
from services.kit.errors import UserError
from services.kit.times import wall_ms
from services.kit.wait import until
from services.kit.wire import Origin
from services.live import api_server
from services.live.api_server import access_to, entrance
from services.live.conditions import NodeConditions
from services.live.feed import Detection
from services.live.follower import Follower
from services.live.kubernetes import Kubernetes
from services.live.maintenance import Maintenance
from services.live.poll_loop import News
from services.live.start import Asked, prepare
from services.live.stretches import Site
from services.recording.embedded import Step
from services.recording.importers.parts.series.query_api import Access, QueryApi
from services.recording.reader import Recording
from services.stack.runner import Stack
from services.stack.settings import load_settings
from tests.kubernetes.control_plane import Cluster, control_plane
from tests.remote_written import HEADERS_V2, requests_of
from tests.small import small_recording

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]
ROOT = Path(__file__).parents[2]
NODES = ["v001", "v002", "v003", "v004"]
SPACE = "/api/v1/namespaces/train"


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with control_plane(NODES) as cluster:
        cluster.post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "train"}})
        until(lambda: cluster.api.get(f"{SPACE}/serviceaccounts/default").is_success, what="the namespace's account")
        yield cluster


@pytest.fixture(scope="module")
def token_file(cluster: Cluster, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A token of an account that may do what docs/live.md says, and no more."""
    account = {"apiVersion": "v1", "kind": "ServiceAccount", "metadata": {"name": "watcher"}}
    cluster.post(f"{SPACE}/serviceaccounts", account)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = cluster.post(f"{SPACE}/serviceaccounts/watcher/token", request)["status"]["token"]
    file = tmp_path_factory.mktemp("account") / "token"
    file.write_text(token)
    source = Kubernetes(access_to(cluster.url, file, cluster.ca_file))
    with pytest.raises(UserError, match=r'let us read /api/v1/pods \(403\): .*cannot list resource "pods"'):
        source.ask()
    _grant(cluster, "hindcast-live", "watcher")
    until(lambda: source.ask() is not None, what="the account's rights")
    return file


def _grant(cluster: Cluster, role: str, binding: str) -> None:
    """Give the account the role of that name, as docs/live.md has it."""
    (written,) = re.findall(rf"```yaml\n(apiVersion: rbac[^`]*{role}[^`]*)```", (ROOT / "docs/live.md").read_text())
    group = "rbac.authorization.k8s.io"
    found = yaml.safe_load(written)
    cluster.post(f"/apis/{group}/v1/clusterroles", found)
    bound = {
        "apiVersion": f"{group}/v1",
        "kind": "ClusterRoleBinding",
        "metadata": {"name": binding},
        "subjects": [{"kind": "ServiceAccount", "name": "watcher", "namespace": "train"}],
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": found["metadata"]["name"]},
    }
    cluster.post(f"/apis/{group}/v1/clusterrolebindings", bound)


def pod(gpus: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    """Return a pod's metadata and specification, or those of a controller's; one that a Job has runs for an hour."""
    container = {"name": "main", "image": "train", "resources": {"limits": {"nvidia.com/gpu": gpus}}}
    stays = {f"pod-complete.stage.kwok.x-k8s.io/{word}": "1h" for word in ("delay", "jitter-delay")}
    return {
        "metadata": {"labels": labels or {}, "annotations": stays},
        "spec": {"containers": [container], "restartPolicy": "Never"},
    }


def alone(name: str, gpus: str, labels: dict[str, str] | None = None) -> dict[str, Any]:
    made = pod(gpus, labels)
    made["metadata"]["name"] = name
    return {"apiVersion": "v1", "kind": "Pod", **made}


def job(name: str, pods: int) -> dict[str, Any]:
    spec = {"parallelism": pods, "completions": pods, "template": pod("8")}
    return {"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": name}, "spec": spec}


def test_jobs_come_and_go_as_the_scheduler_places_them(
    cluster: Cluster, token_file: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(api_server, "_PAGE", 2)
    early = Kubernetes(access_to(cluster.url, token_file, cluster.ca_file))
    assert early.ask().jobs == []
    cluster.post("/apis/batch/v1/namespaces/train/jobs", job("llm", 2))
    for name in ("set-a-0", "set-b-0"):
        cluster.post(f"{SPACE}/pods", alone(name, "4", {"jobset.sigs.k8s.io/jobset-name": "set"}))
    cluster.post(f"{SPACE}/pods", alone("probe", "1", {"training.kubeflow.org/job-name": "torch"}))
    cluster.post(f"{SPACE}/pods", alone("many", "1k"))

    def placed(source: Kubernetes) -> dict[str, tuple[int, int | None, str]]:
        return {one.job_id: (len(one.nodes), one.gpus_per_node, one.state) for one in source.ask().jobs}

    with caplog.at_level(logging.WARNING):
        until(lambda: len(placed(early)) == 3, what="three jobs")
    found = placed(early)
    assert found["train/llm"] == (2, 8, "RUNNING")
    assert found["train/torch"] == (1, 1, "RUNNING")
    nodes, gpus, state = found["train/set"]
    assert (nodes * (gpus or 0), state) == (8, "RUNNING")
    # What the server takes and no node can have is named, once.
    assert [line.getMessage() for line in caplog.records] == [
        "/api/v1/pods: train/many is passed over: asks for GPUs by what is no number of them"
    ]
    # Who comes later lists page by page, and has the same.
    late = Kubernetes(access_to(cluster.url, token_file, cluster.ca_file))
    assert placed(late) == found
    # It could not take anything away; the owner can, and then the job is gone.
    bearer = {"Authorization": f"Bearer {token_file.read_text()}"}
    assert cluster.api.delete(f"{SPACE}/pods/probe", headers=bearer).status_code == 403
    cluster.api.delete("/apis/batch/v1/namespaces/train/jobs/llm", params={"propagationPolicy": "Background"})
    until(lambda: "train/llm" not in placed(early), what="the end of the job")
    assert placed(early) == {name: one for name, one in found.items() if name != "train/llm"}
    # A pod that ends on its own ends its job.
    done = {"status": {"phase": "Failed", "reason": "Evicted"}}
    cluster.patch(f"{SPACE}/pods/probe/status", done)
    until(lambda: placed(early)["train/torch"][2] == "PREEMPTED", what="the end of the pod")


def test_a_context_of_kubectls_lets_us_in(cluster: Cluster, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig))
    assert Kubernetes(entrance("kubeconfig:test", None, None)).ask().nodes.keys() == set(NODES)


def test_a_cordoned_node_is_maintenance_since_it_was_cordoned(cluster: Cluster, token_file: Path) -> None:
    source = Kubernetes(access_to(cluster.url, token_file, cluster.ca_file))
    maintenance = Maintenance(lambda: source.ask().nodes)

    def news() -> list[tuple[str, str, int]]:
        lines = maintenance.lines(0, wall_ms())
        return [(node, state, line.at) for line in lines for node, state in words_of(line)]

    assert news() == []
    before = wall_ms()
    cluster.patch("/api/v1/nodes/v003", {"spec": {"unschedulable": True}})
    ((node, state, at),) = news()
    assert (node, state) == ("v003", "out")
    assert before - 1000 <= at <= wall_ms()  # Kubernetes' times are whole seconds
    taint = {"key": "node.kubernetes.io/out-of-service", "value": "nodeshutdown", "effect": "NoExecute"}
    cluster.patch("/api/v1/nodes/v003", {"spec": {"unschedulable": None, "taints": [taint]}})
    assert news() == []
    assert source.ask().nodes["v003"].closed == "taint node.kubernetes.io/out-of-service"
    cluster.patch("/api/v1/nodes/v003", {"spec": {"taints": None}})
    assert [(node, state) for node, state, _ in news()] == [("v003", "back")]


def found(state: State) -> News:
    """Return that a power throttle on v002 opened, or was over."""
    at = 1_700_000_000_000
    finding = Finding(
        id="f1", detector="power_throttle", fault="power_throttle", entity={"node": "v002"}, state=state, started_at=at,
        detected_at=at + 5000, severity="page", score=1.0, summary="busy GPUs at 150 W", recommended_action="look",
    )  # fmt: skip
    return News(Step(at + 60_000, [finding], []), [finding_line(finding)])


def test_findings_are_conditions_of_nodes_until_they_are_over(
    cluster: Cluster, token_file: Path, caplog: pytest.LogCaptureFixture
) -> None:
    now = 1_700_000_000_000
    access, origin = access_to(cluster.url, token_file, cluster.ca_file), Origin("vela", "live")

    def condition(node: str = "v002") -> dict[str, str] | None:
        conditions = cluster.get(f"/api/v1/nodes/{node}")["status"].get("conditions", [])
        return next((one for one in conditions if one["type"] == "HindcastPowerThrottle"), None)

    watcher = NodeConditions(access, origin, lambda: now)
    watcher.news(found("firing"))
    assert condition() is None  # the lookback is not over
    with caplog.at_level(logging.WARNING):
        watcher.following()
        watcher.following()
    (line,) = caplog.records  # once, not each time
    assert "does not take conditions of v002 (403)" in line.getMessage()
    _grant(cluster, "hindcast-conditions", "conditions")

    def written() -> dict[str, str] | None:
        watcher.following()
        return condition()

    until(written, what="the right to patch")
    others = {one["type"] for one in cluster.get("/api/v1/nodes/v002")["status"]["conditions"]}
    assert "Ready" in others  # of kwok
    shown = condition() or {}
    assert (shown["status"], shown["reason"], shown["message"]) == ("True", "PowerThrottle", "busy GPUs at 150 W")
    assert shown["lastTransitionTime"] == "2023-11-14T22:13:20Z"
    # Another, that has found nothing, clears up; and one whose finding is over does.
    NodeConditions(access, origin, lambda: now).following()
    assert [(condition() or {})[key] for key in ("status", "reason")] == ["False", "Resolved"]
    now += 60_000
    watcher.news(News(Step(now, [], []), []))
    assert (condition() or {})["status"] == "True"  # what somebody changed is put right
    watcher.news(found("resolved"))
    shown = condition() or {}
    assert (shown["status"], shown["lastTransitionTime"]) == ("False", "2023-11-14T22:14:20Z")
    assert condition("v001") is None


class Watch:
    """Takes note of what a run finds, and is its clock."""

    def __init__(self, at: int) -> None:
        self.at = at
        self.found: list[tuple[str, object]] = []

    def now(self) -> int:
        return self.at

    def news(self, news: News) -> None:
        self.found += [(one.detector, one.entity.get("node")) for one in news.step.findings if one.state == "firing"]

    def following(self) -> None:
        """Nothing to note."""

    def away(self, error: UserError) -> None:
        raise error


def test_a_node_that_falls_silent_in_maintenance_alerts_nobody(
    cluster: Cluster, token_file: Path, tmp_path: Path
) -> None:
    source = Kubernetes(access_to(cluster.url, token_file, cluster.ca_file))
    for name in NODES:
        placed = alone(f"night-{name}", "4", {"jobset.sigs.k8s.io/jobset-name": "night"})
        placed["spec"]["nodeName"] = name
        cluster.post(f"{SPACE}/pods", placed)
    until(lambda: any(one.nodes == NODES for one in source.ask().jobs), what="a job on all nodes")
    cluster.patch("/api/v1/nodes/v004", {"spec": {"unschedulable": True}})
    whole, without = (
        Recording.open(small_recording(tmp_path, f"of-{nodes}", nodes=nodes, minutes=8, brakes=[])) for nodes in (4, 3)
    )
    silent = whole.manifest.start + 100_000
    begin = wall_ms()
    shift = begin - whole.manifest.start
    listing = source.ask()
    assert listing.nodes["v004"].closed

    def found(nodes: dict[str, Any]) -> list[tuple[str, object]]:
        watch = Watch(begin + 120_000)
        detection = Detection(choose(), TABLE.configure({}))
        site = Site(listed=lambda: listing.jobs, nodes=lambda: nodes)
        asked = Asked(lateness_ms=5000, lookback_ms=120_000, site=site)
        with QueryApi(Access(stack.addresses.prometheus, retries=0)) as api:
            run = prepare(api, asked, detection, wall_ms=watch.now, monotonic=time.monotonic)
            follower = Follower(run, [watch], wall_ms=watch.now)
            while watch.at <= begin + 470_000:
                if follower.turn(15.0):
                    watch.at += 15_000
        return watch.found

    with Stack.start(tmp_path / "state", load_settings(), only=("prometheus",)) as stack:
        with httpx.Client(headers=HEADERS_V2) as client:
            for recording, wanted in ((whole, range(silent)), (without, range(silent, whole.manifest.end + 1))):
                for at, body in requests_of(recording, "v2", shift_ms=shift):
                    if at in wanted:
                        client.post(f"{stack.addresses.prometheus}/api/v1/write", content=body).raise_for_status()
        open_nodes = {name: state for name, state in listing.nodes.items() if name != "v004"}
        assert ("telemetry_gap", "v004") in found(open_nodes)
        assert not [one for one in found(dict(listing.nodes)) if "v004" in one]
