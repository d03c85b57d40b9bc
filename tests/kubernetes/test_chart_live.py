"""`hindcast live` of the chart: with the arguments, the settings and the account that helm installs, on real servers.

kwok runs no container: the command is run here as the container would run it, the paths of its volumes apart.
"""

import json
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import httpx
import pytest
import yaml

from services.kit.access import new_token
from services.kit.times import wall_ms
from services.kit.wait import until
from services.recording.reader import Recording
from services.stack.runner import Stack
from services.stack.settings import load_settings
from tests.integration.guarded import PASSWORD, USER, Guarded, guarded_prometheus
from tests.kubernetes.chart import CHART, SPACE, add_namespace, release, rendered, sets
from tests.kubernetes.control_plane import Cluster, control_plane
from tests.remote_written import HEADERS_V2, requests_of
from tests.small import Brake, small_recording

pytestmark = [pytest.mark.kubernetes, pytest.mark.timeout(1800)]
NODES = ["v001", "v002", "v003", "v004"]
_FILES = {
    "password-file": "password",
    "ca-file": "ca.crt",
    "certificate-file": "tls.crt",
    "key-file": "tls.key",
}
_BRAKE_S, _LAST_S, _NOW_S = 240, 900, 420
"""The brake and the end of the telemetry, and what of it lies in the past as the command starts."""
_READS = {("", resource, verb) for resource in ("pods", "nodes") for verb in ("list", "watch")}
_WRITES = {("", "nodes/status", "patch")}


@pytest.fixture(scope="module")
def cluster() -> Iterator[Cluster]:
    with control_plane(NODES) as cluster:
        add_namespace(cluster)
        cluster.post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": "train"}})
        accounts = [f"/api/v1/namespaces/{space}/serviceaccounts/default" for space in (SPACE, "train")]
        until(lambda: all(cluster.api.get(one).is_success for one in accounts), what="the namespaces' accounts")
        yield cluster


@pytest.fixture(scope="module")
def guarded(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Guarded]:
    """A Prometheus that asks for a certificate and a password, with a brake that goes on."""
    folder = tmp_path_factory.mktemp("guarded")
    with (
        Stack.start(folder / "state", load_settings(), only=("prometheus",)) as stack,
        guarded_prometheus(stack, folder) as started,
    ):
        brake = Brake("v002", _BRAKE_S, _LAST_S)
        recording = Recording.open(
            small_recording(folder, "brake", nodes=len(NODES), minutes=_LAST_S / 60, brakes=[brake])
        )
        with started.asker() as client:
            shift = wall_ms() - recording.manifest.start - 1000 * _NOW_S
            for _, body in requests_of(recording, "v2", shift_ms=shift):
                client.post("/api/v1/write", content=body, headers=HEADERS_V2).raise_for_status()
        yield started


def flags(prometheus: str, *settings: str) -> list[str]:
    files = [
        word
        for option, key in _FILES.items()
        for word in (f"live.optionFiles.{option}.secret=reader", f"live.optionFiles.{option}.key={key}")
    ]
    given = ("tokens.existingSecret=hindcast-tokens", f"live.prometheus={prometheus}", *files, *settings)
    options = (
        f"live.options.user={USER}",
        "live.options.lookback=6m",
        "live.options.every=5",
        "live.options.lateness=5",
    )
    return ["-f", str(CHART / "live.yaml"), *sets(*given, *options)]


def token_of(cluster: Cluster, account: str) -> str:
    """Return a token as the kubelet would mount it."""
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    path = f"/api/v1/namespaces/{SPACE}/serviceaccounts/{account}/token"
    return str(cluster.post(path, request)["status"]["token"])


def rights(cluster: Cluster, account: str) -> set[tuple[str, str, str]]:
    """Return all that an account may do, as the API server itself says: group or address, resource, verb."""
    bearer = {"Authorization": f"Bearer {token_of(cluster, account)}"}
    review = {"kind": "SelfSubjectRulesReview", "apiVersion": "authorization.k8s.io/v1", "spec": {"namespace": SPACE}}
    answer = cluster.api.post("/apis/authorization.k8s.io/v1/selfsubjectrulesreviews", json=review, headers=bearer)
    status = answer.raise_for_status().json()["status"]
    assert not status["incomplete"], status
    resources = {
        (group, resource, verb)
        for rule in status["resourceRules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }
    paths = {
        (path, "", verb)
        for rule in status["nonResourceRules"]
        for path in rule["nonResourceURLs"]
        for verb in rule["verbs"]
    }
    return resources | paths


def may(cluster: Cluster, expected: set[tuple[str, str, str]]) -> bool:
    """Whether the account of live may do what is expected and, beside what everybody may, nothing else."""
    return rights(cluster, "hindcast-live") - rights(cluster, "default") == expected


def place_job(cluster: Cluster) -> None:
    """Have pods of a PyTorchJob run on every node since before there was telemetry."""
    since = datetime.fromtimestamp(wall_ms() / 1000 - 2 * _LAST_S, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    for node in NODES:
        container = {"name": "main", "image": "train", "resources": {"limits": {"nvidia.com/gpu": "8"}}}
        metadata = {"name": f"torch-{node}", "labels": {"training.kubeflow.org/job-name": "torch"}}
        spec = {"nodeName": node, "containers": [container]}
        document = {"apiVersion": "v1", "kind": "Pod", "metadata": metadata, "spec": spec}
        cluster.post("/api/v1/namespaces/train/pods", document)
    pods = "/api/v1/namespaces/train/pods"
    until(lambda: {one["status"]["phase"] for one in cluster.get(pods)["items"]} == {"Running"}, what="the pods")
    for node in NODES:
        cluster.patch(f"{pods}/torch-{node}/status", {"status": {"startTime": since}})


def items(api: httpx.Client, path: str) -> list[dict[str, Any]]:
    """Return what a list of the API has."""
    found: list[dict[str, Any]] = api.get(path).raise_for_status().json()["items"]
    return found


@contextmanager
def watching(cluster: Cluster, guarded: Guarded, folder: Path) -> Iterator[httpx.Client]:
    """Run what the installed Deployment says, its volumes being folders of this test; give an operator of its API."""
    pod = cluster.get(f"/apis/apps/v1/namespaces/{SPACE}/deployments/hindcast-live")["spec"]["template"]["spec"]
    assert (pod["serviceAccountName"], pod["automountServiceAccountToken"]) == ("hindcast-live", True)
    (container,) = pod["containers"]
    (files,) = (one["projected"]["sources"] for one in pod["volumes"] if one["name"] == "files")
    secret, token = new_token("ada", "operator")
    content = {
        "tokens.yaml": yaml.safe_dump([token.model_dump()]),
        "password": PASSWORD,
        "ca.crt": guarded.ca.read_text(),
        "tls.crt": guarded.client.certificate.read_text(),
        "tls.key": guarded.client.key.read_text(),
    }
    for mounted in ("files", "live", "account"):
        (folder / mounted).mkdir()
    for source in files:
        (item,) = source["secret"]["items"]
        (folder / "files" / item["path"]).write_text(content[item["key"]])
    (folder / "account" / "token").write_text(token_of(cluster, pod["serviceAccountName"]))

    def here(text: str) -> str:
        return re.sub(r"(?<![\w.])/(files|live)\b", rf"{folder}/\1", text)

    address = httpx.URL(cluster.url)
    env = {one["name"]: here(one["value"]) for one in container["env"]}
    env |= {"HINDCAST_API_HOST": "127.0.0.1", "PYTHONUNBUFFERED": "1", "PATH": os.environ["PATH"]}
    env |= {"KUBERNETES_SERVICE_HOST": address.host, "KUBERNETES_SERVICE_PORT": str(address.port)}
    account = (f"--kubernetes-token-file={folder}/account/token", f"--kubernetes-ca-file={cluster.ca_file}")
    command = (sys.executable, "-m", *map(here, container["args"]), *account, "--port=0")
    log = folder / "log"
    with log.open("wb") as output:
        process = subprocess.Popen(command, env=env, stdout=output, stderr=output)
    try:

        def served() -> re.Match[str] | None:
            assert process.poll() is None, log.read_text()
            return re.search(r"console and API: (\S+)\n", log.read_text())

        url = until(served, what="the console")[1]
        probe = container["readinessProbe"]["httpGet"]["path"]
        assert (httpx.get(f"{url}{probe}").status_code, httpx.get(f"{url}/api/v1/runs").status_code) == (200, 401)
        headers = {"Authorization": f"Bearer {secret}"}
        with httpx.Client(base_url=f"{url}/api/v1", headers=headers, timeout=300) as api:
            yield api
        process.send_signal(signal.SIGTERM)
        assert process.wait(pod["terminationGracePeriodSeconds"]) == 0, log.read_text()
        assert "conditions of nodes are not written" not in log.read_text()
    finally:
        process.kill()
        process.wait()


def test_a_pod_is_a_job_and_a_finding_a_condition_until_it_is_closed(
    cluster: Cluster, guarded: Guarded, tmp_path: Path
) -> None:
    place_job(cluster)
    release(cluster, "install", *flags(guarded.url, "live.nodeConditions=true"))
    (pod,) = cluster.get(f"/api/v1/namespaces/{SPACE}/pods")["items"]
    assert pod["status"]["phase"] == "Running"
    claim = f"/api/v1/namespaces/{SPACE}/persistentvolumeclaims/hindcast-live"
    assert cluster.get(claim)["status"]["phase"] == "Bound"
    until(lambda: may(cluster, _READS | _WRITES), what="the rights that are needed, and no others")

    def braked() -> str | None:
        conditions = cluster.get("/api/v1/nodes/v002")["status"].get("conditions", [])
        return next((one["status"] for one in conditions if one["type"] == "HindcastPowerThrottle"), None)

    with watching(cluster, guarded, tmp_path) as api:
        until(lambda: braked() == "True", what="the condition")
        (run,) = (one["id"] for one in items(api, "/runs?replay=live"))

        def touched() -> list[str]:
            (incident,) = items(api, f"/runs/{run}/incidents")
            return [one["job_id"] for one in incident["impact"]["jobs"]]

        until(lambda: touched() == ["train/torch"], what="the job that is touched")
        (finding,) = items(api, f"/runs/{run}/findings")
        assert (finding["fault"], finding["entity"]) == ("power_throttle", {"node": "v002"})
        close = api.post(f"/runs/{run}/findings/{finding['id']}/close", json={"note": "the card was replaced"})
        close.raise_for_status()
        until(lambda: braked() == "False", what="the condition to go away")
    # What it goes on from is where the claim is mounted.
    assert (tmp_path / "live" / "live.state").exists()

    release(cluster, "upgrade", *flags(guarded.url))
    until(lambda: may(cluster, _READS), what="the right to write to be taken away")
    release(cluster, "upgrade", *flags(guarded.url, "live.kubernetes=false"))
    assert cluster.api.get(f"/api/v1/namespaces/{SPACE}/serviceaccounts/hindcast-live").status_code == 404
    release(cluster, "uninstall")
    kept = cluster.get(claim)["metadata"]["uid"]
    # Who comes back finds what was kept.
    release(cluster, "install", *flags(guarded.url))
    assert cluster.get(claim)["metadata"]["uid"] == kept


def test_without_a_claim_the_state_goes_with_the_pod_and_kafkas_secrets_stay_out() -> None:
    everything = ["-f", str(Path(__file__).with_name("values.yaml"))]
    documents = rendered(*everything, *sets("live.persistence.enabled=false"))
    (live,) = (one for one in documents if one["kind"] == "Deployment" and one["metadata"]["name"] == "hindcast-live")
    assert {"name": "state", "emptyDir": {}} in live["spec"]["template"]["spec"]["volumes"]
    assert not [one for one in documents if one["kind"] == "PersistentVolumeClaim"]
    assert "KAFKA" not in json.dumps(live)
    assert "KAFKA" in json.dumps(documents)
