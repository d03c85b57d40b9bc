"""The chart by helm: rendered, and what is needed at least."""

import subprocess
from pathlib import Path
from typing import Any

from tests.kubernetes.built import documents_in, programs
from tests.kubernetes.control_plane import Cluster

ROOT = Path(__file__).parents[2]
CHART = ROOT / "deploy" / "chart"
SPACE = "hindcast"
LEAST = (
    "kafka.bootstrap=kafka:9092",
    "tokens.existingSecret=hindcast-tokens",
    "alertmanager.url=http://alertmanager:9093",
)
Documents = list[dict[str, Any]]


def helm(*words: str) -> subprocess.CompletedProcess[str]:
    """Run helm in the repository."""
    return subprocess.run((programs() / "helm", *words), cwd=ROOT, capture_output=True, text=True, check=False)


def rendered(*flags: str) -> Documents:
    """Return the documents of the release `hindcast`; AssertionError with helm's words where it refuses the values."""
    done = helm("template", "hindcast", str(CHART), "--namespace", SPACE, *flags)
    assert done.returncode == 0, done.stderr
    return documents_in(done.stdout)


def sets(*settings: str) -> list[str]:
    """Return the flags of values."""
    return [word for setting in settings for word in ("--set", setting)]


def release(cluster: Cluster, verb: str, *flags: str) -> str:
    """Install the chart, upgrade or take it away, and wait until its pods run; return what helm says."""
    chart = () if verb == "uninstall" else (str(CHART),)
    there = ("--namespace", SPACE, "--kubeconfig", str(cluster.kubeconfig), "--wait", "--timeout", "300s")
    done = helm(verb, "hindcast", *chart, *there, *flags)
    assert done.returncode == 0, done.stderr + done.stdout
    return done.stdout


def add_namespace(cluster: Cluster) -> None:
    """Make the release's namespace, which enforces the restricted standard."""
    metadata = {"name": SPACE, "labels": {"pod-security.kubernetes.io/enforce": "restricted"}}
    cluster.post("/api/v1/namespaces", {"apiVersion": "v1", "kind": "Namespace", "metadata": metadata})
