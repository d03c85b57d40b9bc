"""Which node and model every GPU belongs to, and which nodes hang on the same power feeds; arrays by GPU index."""

import numpy as np

from detectors.fleet import Fleet
from detectors.power_throttle.readings import GpuReadings


class Machines:
    """The fleet's GPUs as arrays; `node` and `model` are numbers, `names` gives a node's name by number."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.node = np.empty(0, np.int64)
        self.gpu = np.empty(0, np.int64)
        self.model = np.empty(0, np.int64)
        self.names: list[str] = []
        self._numbers: dict[str, int] = {}
        self._models: dict[str, int] = {}

    def number(self, node: str) -> int:
        """Return a node's number, -1 if no GPU of it has reported."""
        return self._numbers.get(node, -1)

    def extend(self, gpus: GpuReadings) -> None:
        """Take note of the GPUs that were not known before, and tell `gpus` what power limit they should have."""
        count = len(gpus)
        start = len(self.node)
        if count <= start:
            return
        keys = self._fleet.entities("dcgm")[start:count]
        nodes, indices, models = [], [], []
        for offset, (node, gpu) in enumerate((str(key[0]), int(key[1])) for key in keys):
            if node not in self._numbers:
                self._numbers[node] = len(self.names)
                self.names.append(node)
            nodes.append(self._numbers[node])
            indices.append(gpu)
            told = self._fleet.nodes.get(node, {})
            models.append(self._models.setdefault(str(told.get("gpu_model") or ""), len(self._models)))
            limits = {entry.get("gpu"): entry.get("power_limit_w") for entry in told.get("gpus", ())}
            limit = limits.get(gpu)
            gpus.limit[start + offset] = np.nan if limit is None else float(limit)
        self.node = np.concatenate([self.node, np.array(nodes, np.int64)])
        self.gpu = np.concatenate([self.gpu, np.array(indices, np.int64)])
        self.model = np.concatenate([self.model, np.array(models, np.int64)])

    def feeds(self, node: str) -> tuple[tuple[str, ...], set[str]]:
        """Return the power feeds of a node, or its rack where those are not known, and the nodes that share one."""
        told = self._fleet.nodes.get(node)
        if told is None:
            return (), {node}
        feeds = tuple(told.get("power_feeds") or ())
        if feeds:
            sharing = {
                name for name, other in self._fleet.nodes.items() if {*feeds} & {*(other.get("power_feeds") or ())}
            }
            return feeds, sharing
        rack = told.get("rack")
        if rack:
            return (str(rack),), {name for name, other in self._fleet.nodes.items() if other.get("rack") == rack}
        return (), {node}
