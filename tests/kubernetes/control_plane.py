"""A Kubernetes control plane of processes on loopback, whose nodes and containers kwok plays: no container runs."""

import json
import ssl
import subprocess
import tempfile
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import httpx
import yaml

from services.kit.wait import until
from services.stack.ports import PortBook
from tests.kubernetes.built import kwok_stages, programs

ADMIN = "token-of-this-test"
_STAGES = ("node/fast/*", "node/heartbeat-with-lease/*", "pod/general/*", "volume/fast/*")

_STORAGE = {
    "apiVersion": "storage.k8s.io/v1",
    "kind": "StorageClass",
    "metadata": {"name": "kwok-volume", "annotations": {"storageclass.kubernetes.io/is-default-class": "true"}},
    "provisioner": "kwok.x-k8s.io/volume",
}


@dataclass(frozen=True)
class Cluster:
    """A control plane: its API as an administrator, and what a client needs."""

    url: str
    ca_file: Path
    kubeconfig: Path
    api: httpx.Client

    def post(self, path: str, document: dict[str, Any], **params: str) -> dict[str, Any]:
        """Create an object; AssertionError with the server's words where it is refused."""
        return _answered(self.api.post(path, json=document, params={"fieldValidation": "Strict"} | params))

    def get(self, path: str) -> dict[str, Any]:
        """Return an object or a list."""
        return _answered(self.api.get(path))

    def patch(self, path: str, change: dict[str, Any]) -> dict[str, Any]:
        """Merge a change into an object."""
        kind = {"Content-Type": "application/merge-patch+json"}
        return _answered(self.api.patch(path, content=json.dumps(change), headers=kind))

    def path_of(self, document: dict[str, Any], namespace: str) -> str:
        """Return where objects of a document's kind are created."""
        version, kind = document["apiVersion"], document["kind"]
        base = f"/apis/{version}" if "/" in version else f"/api/{version}"
        (found,) = (one for one in self.get(base)["resources"] if one["kind"] == kind and "/" not in one["name"])
        place = f"/namespaces/{document['metadata'].get('namespace', namespace)}" if found["namespaced"] else ""
        return f"{base}{place}/{found['name']}"


def _answered(answer: httpx.Response) -> dict[str, Any]:
    assert answer.is_success, f"{answer.request.method} {answer.request.url}: {answer.text}"
    document: dict[str, Any] = answer.json()
    return document


@contextmanager
def control_plane(nodes: Sequence[str]) -> Iterator[Cluster]:
    """Run one whose nodes have eight GPUs each."""
    built = programs()
    with ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hindcast-kubernetes-")))
        book = stack.enter_context(PortBook())
        etcd, peers, port = (book.take() for _ in range(3))
        for held in (etcd, peers, port):
            book.release(held)

        def run(program: str, *flags: str) -> subprocess.Popen[bytes]:
            log = stack.enter_context((folder / f"{program}.log").open("wb"))
            process = subprocess.Popen((built / program, *flags), cwd=folder, stdout=log, stderr=log)
            stack.callback(_end, process)
            return process

        store = f"http://127.0.0.1:{etcd}"
        run(
            "server", f"--data-dir={folder / 'etcd'}", "--unsafe-no-fsync", f"--listen-client-urls={store}",
            f"--advertise-client-urls={store}", f"--listen-peer-urls=http://127.0.0.1:{peers}",
        )  # fmt: skip
        key = folder / "account.key"
        subprocess.run(("openssl", "genrsa", "-out", key, "2048"), check=True, capture_output=True)
        (folder / "tokens.csv").write_text(f"{ADMIN},admin,admin,system:masters\n")
        url, ca_file = f"https://127.0.0.1:{port}", folder / "certificates" / "apiserver.crt"
        server = run(
            "kube-apiserver", f"--etcd-servers={store}", f"--secure-port={port}", "--bind-address=127.0.0.1",
            f"--cert-dir={ca_file.parent}", "--authorization-mode=RBAC", "--token-auth-file=tokens.csv",
            "--service-account-issuer=https://kubernetes.default.svc", f"--service-account-key-file={key}",
            f"--service-account-signing-key-file={key}", "--service-cluster-ip-range=10.96.0.0/24",
        )  # fmt: skip
        until(lambda: server.poll() is not None or ca_file.exists(), what=f"{folder}/kube-apiserver.log")
        kubeconfig = folder / "kubeconfig"
        kubeconfig.write_text(yaml.safe_dump(_kubeconfig(url, ca_file)))
        headers = {"Authorization": f"Bearer {ADMIN}"}
        trust = ssl.create_default_context(cafile=str(ca_file))
        api = stack.enter_context(httpx.Client(base_url=url, verify=trust, headers=headers, timeout=300))
        until(lambda: _ready(server, api, folder), what="the API server")
        run(
            "kube-controller-manager", f"--kubeconfig={kubeconfig}", "--bind-address=127.0.0.1", "--secure-port=0",
            f"--service-account-private-key-file={key}", f"--root-ca-file={ca_file}", "--leader-elect=false",
        )  # fmt: skip
        run("kube-scheduler", f"--kubeconfig={kubeconfig}", "--secure-port=0", "--leader-elect=false")
        stages = [f"--config={path}" for pattern in _STAGES for path in kwok_stages(pattern)]
        run(
            "kwok", f"--kubeconfig={kubeconfig}", "--manage-all-nodes=true", "--node-lease-duration-seconds=40", *stages
        )
        cluster = Cluster(url, ca_file, kubeconfig, api)
        cluster.post("/apis/storage.k8s.io/v1/storageclasses", _STORAGE)
        for name in nodes:
            cluster.post("/api/v1/nodes", _node(name))
        yield cluster


def _node(name: str) -> dict[str, Any]:
    has = {"cpu": "64", "memory": "512Gi", "pods": "110", "nvidia.com/gpu": "8"}
    labels = {"kubernetes.io/hostname": name, "type": "kwok"}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": labels, "annotations": {"kwok.x-k8s.io/node": "fake"}},
        "status": {"capacity": has, "allocatable": has},
    }


def _kubeconfig(url: str, ca_file: Path) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Config",
        "clusters": [{"name": "test", "cluster": {"server": url, "certificate-authority": str(ca_file)}}],
        "users": [{"name": "test", "user": {"token": ADMIN}}],
        "contexts": [{"name": "test", "context": {"cluster": "test", "user": "test"}}],
        "current-context": "test",
    }


def _ready(server: "subprocess.Popen[bytes]", api: httpx.Client, folder: Path) -> bool:
    assert server.poll() is None, (folder / "kube-apiserver.log").read_text()[-3000:]
    try:
        return api.get("/readyz").is_success and api.get("/api/v1/namespaces/default").is_success
    except httpx.TransportError:
        return False


def _end(process: "subprocess.Popen[bytes]") -> None:
    process.terminate()
    try:
        process.wait(20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
