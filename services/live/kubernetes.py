"""Jobs and maintenance of a live cluster from its Kubernetes API server: read only, of pods and nodes."""

from collections.abc import Mapping
from typing import Any

from services.live.api_server import Collection, Entrance
from services.live.listing import Listing
from services.live.maintenance import NodeState
from services.recording.importers.contract import Report
from services.recording.importers.parts.objects import part, parts, text
from services.recording.importers.parts.schedulers.allocations import jobs_of
from services.recording.importers.parts.schedulers.pods import Pods, name_of, time_in

_CLOSING = frozenset(
    {
        # well-known taints: cordoned; declared out of service; about to be removed by cluster-autoscaler or Karpenter
        "node.kubernetes.io/unschedulable",
        "node.kubernetes.io/out-of-service",
        "ToBeDeletedByClusterAutoscaler",
        "karpenter.sh/disrupted",
    }
)


class Kubernetes:
    """What an API server has, kept up to date by `ask`."""

    def __init__(self, access: Entrance) -> None:
        self._access = access
        self._pods = Pods()
        self._nodes: dict[str, NodeState] = {}
        self._collections = (
            Collection("/api/v1/pods", self._pods.known, self._pods.take),
            Collection("/api/v1/nodes", self._nodes, self._take_node),
        )

    def ask(self) -> Listing:
        """Return what there is by now.

        UserError: the server cannot be reached (exit code 3), does not let us in or is no API server (2).
        """
        # A client for each time: the token of a pod's account is another every hour.
        with self._access.client() as client:
            for collection in self._collections:
                collection.update(client)
        allocations = list(self._pods.allocations(Report(), {}))
        return Listing(jobs_of(allocations, Report()), dict(self._nodes))

    def _take_node(self, item: Mapping[str, Any]) -> None:
        self._nodes[name_of(item)] = node_state(item)


def node_state(item: Mapping[str, Any]) -> NodeState:
    """Return whether a node is cordoned or has a taint that says as much; WrongObjectError where it is no node."""
    spec = part(item, "spec")
    taints = {text(taint, "key"): taint for taint in parts(spec, "taints")}
    closing = sorted(_CLOSING & taints.keys())
    if spec.get("unschedulable") is True:
        return NodeState("cordoned in Kubernetes", _cordoned_at(item))
    return NodeState(f"taint {closing[0]}", time_in(taints[closing[0]], "timeAdded")) if closing else NodeState()


def _cordoned_at(item: Mapping[str, Any]) -> int | None:
    """Return when the field was last written, which the server itself keeps."""
    writers = parts(part(item, "metadata"), "managedFields")
    times = [time_in(one, "time") for one in writers if "f:unschedulable" in part(part(one, "fieldsV1"), "f:spec")]
    return max((at for at in times if at is not None), default=None)
