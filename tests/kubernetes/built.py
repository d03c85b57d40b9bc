"""A Kubernetes control plane, helm and kubeconform, built from their Go modules into the cache of the other servers."""

import json
import subprocess
from pathlib import Path
from typing import Any

import yaml

from services.stack.build import ensure
from services.stack.recipes import RECIPES, Recipe
from services.stack.settings import load_settings
from services.stack.toolchain import GO, require

FOLDER = Path(__file__).with_name("servers")
_KUBERNETES = Recipe(
    "kubernetes",
    r"k8s\.io/kubernetes v([\w.-]+)",
    (GO,),
    ("kube-apiserver", "kube-controller-manager", "kube-scheduler", "server", "kwok", "helm", "kubeconform"),
    (
        "k8s.io/kubernetes/cmd/kube-apiserver",
        "k8s.io/kubernetes/cmd/kube-controller-manager",
        "k8s.io/kubernetes/cmd/kube-scheduler",
        "go.etcd.io/etcd/server/v3",  # etcd: Go names a program after its folder
        "sigs.k8s.io/kwok/cmd/kwok",
        "helm.sh/helm/v4/cmd/helm",
        "github.com/yannh/kubeconform/cmd/kubeconform",
    ),
    folder=FOLDER,
)
_OPERATOR = "github.com/prometheus-operator/prometheus-operator@v0.85.0"
_KWOK = "sigs.k8s.io/kwok@v0.8.0"


def programs() -> Path:
    """Return the folder of the programs, built first where they are not in the cache."""
    RECIPES.setdefault(_KUBERNETES.name, _KUBERNETES)
    return ensure(load_settings().cache_dir, (_KUBERNETES.name,))[_KUBERNETES.name]


class _Loader(yaml.CSafeLoader):
    """Takes a plain ``=`` for text, as everybody else's YAML does."""


_Loader.add_constructor("tag:yaml.org,2002:value", lambda _loader, node: str(node.value))


def documents_in(text: str) -> list[dict[str, Any]]:
    """Return the documents of a YAML text."""
    return [one for one in yaml.load_all(text, _Loader) if one]


def operator_resources() -> list[dict[str, Any]]:
    """Return prometheus-operator's custom resource definitions."""
    folder = _module(_OPERATOR) / "example" / "prometheus-operator-crd"
    return [one for path in sorted(folder.glob("*.yaml")) for one in documents_in(path.read_text(encoding="utf-8"))]


def kwok_stages(pattern: str) -> list[Path]:
    """Return files that say how kwok's nodes, pods and volumes behave."""
    found = sorted((_module(_KWOK) / "kustomize" / "stage").glob(f"{pattern}.yaml"))
    return [path for path in found if path.name not in {"kustomization.yaml", "storage-class.yaml"}]


def swagger() -> Path:
    """Return the description of the API server's own kinds."""
    version = RECIPES.setdefault(_KUBERNETES.name, _KUBERNETES).version
    return _module(f"k8s.io/kubernetes@v{version}") / "api" / "openapi-spec" / "swagger.json"


def _module(name: str) -> Path:
    """Return the folder of a Go module; Go checks what it fetches by the public list of hashes."""
    done = subprocess.run((require(GO), "mod", "download", "-json", name), capture_output=True, check=True)
    return Path(json.loads(done.stdout)["Dir"])


if __name__ == "__main__":
    programs()
