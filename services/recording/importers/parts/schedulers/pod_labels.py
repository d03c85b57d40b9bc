"""What the labels of a GPU's series say in Kubernetes: the exporter's own pod, and the pod that uses the GPU."""

import re
from collections.abc import Mapping

Labels = Mapping[str, str]

EXPORTER = re.compile(r".*(dcgm|exporter).*-[a-z0-9]{5}")
"""A pod of an exporter's DaemonSet."""
_GENERATED = re.compile(r".+-[bcdfghjklmnpqrstvwxz2456789]{5}")
"""What Kubernetes generates names from has neither vowels nor 0, 1 and 3 (apimachinery, util/rand)."""
_REPLICA = re.compile(r"(.+)-(?:master|worker|chief|ps|launcher)-\d+")
"""A pod of a training operator's job (PyTorchJob, TFJob, MPIJob) has the job's name, its role and its number."""
_PODS = (("exported_pod", "exported_namespace"), ("pod", "namespace"), ("pod_name", "pod_namespace"))
"""With ``honor_labels`` off, Prometheus keeps its own ``pod`` (the exporter's) and moves the user's aside."""


def is_exporters(name: str, labels: Labels) -> bool:
    """Whether a host's name is that of the exporter's pod, which is what it sees where it is not given the node's."""
    if EXPORTER.fullmatch(name) or name == labels.get("pod"):
        return True
    return _GENERATED.fullmatch(name) is not None and any(labels.get(label) for label in NODE_LABELS)


NODE_LABELS = ("node", "kubernetes_node", "nodename", "node_name")


JOB_LABELS = ("hpc_job", "job_id", *(label for pair in _PODS for label in pair), "container")
"""All labels by which `job_of` knows a GPU's job. AMD's exporter calls Slurm's job by its number."""


def job_of(labels: Labels) -> str | None:
    """Return the job that uses the GPU: the batch job's number, else the pod's as ``namespace/name``; None without."""
    return labels.get("hpc_job") or labels.get("job_id") or _pods_job(labels)


def _pods_job(labels: Labels) -> str | None:
    for pod_label, namespace_label in _PODS:
        pod, container = labels.get(pod_label, ""), labels.get("container", "")
        own = pod_label == "pod" and (
            EXPORTER.fullmatch(pod)
            or pod in {labels.get("Hostname"), labels.get("hostname")}
            or re.search(r"dcgm|exporter", container)
        )
        if pod and not own:
            replica = _REPLICA.fullmatch(pod)
            return f"{labels.get(namespace_label) or 'default'}/{replica[1] if replica else pod}"
    return None
