"""Where an entity lies: the GPU, node, cable, switch, rail, rack, mount and jobs that it shares with others."""

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from detectors.contract import Entity, Instant
from detectors.fleet.fleet import Job, JobEvent

_REMEMBERED_MS = 6 * 3_600_000
"""A job that is over may still be found to have been ended by something; detectors take minutes."""


@dataclass(slots=True)
class Stay:
    """A job with the time it ran: `end` is None while it does."""

    job: Job
    end: Instant | None = None


@dataclass(frozen=True, slots=True)
class Lot:
    """What an entity shares with others.

    `keys` are of the form ``kind:name``. `touched` are the jobs that use the entity itself; `maybe` those that may
    feel it: of a mount or a switch that is not known.
    """

    keys: tuple[str, ...]
    nodes: tuple[str, ...]
    touched: tuple[str, ...]
    maybe: tuple[str, ...] = ()


@dataclass(slots=True)
class _Wiring:
    port_of: dict[tuple[str, str], str] = field(default_factory=dict)
    """``switch:port`` by (node, nic)."""
    nic_at: dict[str, tuple[str, str]] = field(default_factory=dict)
    below: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The nodes with a NIC at a switch."""
    far_end: dict[str, str] = field(default_factory=dict)
    near: dict[str, set[str]] = field(default_factory=lambda: defaultdict(set))
    """The switches that a switch is linked to."""


class Places:
    """The topology, and the jobs as event time has brought them."""

    def __init__(self, topology: Mapping[str, Any] | None) -> None:
        topology = topology or {}
        self.nodes: dict[str, Mapping[str, Any]] = {node["name"]: node for node in topology.get("nodes", ())}
        self.stays: dict[str, Stay] = {}
        self._jobs_on: dict[str, set[str]] = defaultdict(set)
        self._wiring = _Wiring()
        for name, node in self.nodes.items():
            for nic in node.get("nics") or ():
                if nic.get("switch") and nic.get("port"):
                    port = f"{nic['switch']}:{nic['port']}"
                    self._wiring.port_of[name, str(nic["nic"])] = port
                    self._wiring.nic_at[port] = name, str(nic["nic"])
                    self._wiring.below[str(nic["switch"])].add(name)
        for link in topology.get("links", ()):
            for end, other in ((link["a"], link["b"]), (link["b"], link["a"])):
                self._wiring.far_end[end] = other
                self._wiring.near[end.partition(":")[0]].add(other.partition(":")[0])

    def happen(self, event: JobEvent) -> list[str]:
        """Let a job start or end; return the jobs that are forgotten, as they were over long ago."""
        job = event.job
        if event.event == "start":
            if job.job_id in self.stays:  # it goes on with other nodes, or begins again there
                self._forget(job.job_id)
            self.stays[job.job_id] = Stay(job)
            for node in job.nodes:
                self._jobs_on[node].add(job.job_id)
        elif job.job_id in self.stays:
            self.stays[job.job_id].end = event.at
        old = [n for n, stay in self.stays.items() if stay.end is not None and event.at - stay.end > _REMEMBERED_MS]
        for name in old:
            self._forget(name)
        return old

    def _forget(self, name: str) -> None:
        for node in self.stays.pop(name).job.nodes:
            self._jobs_on[node].discard(name)
            if not self._jobs_on[node]:
                del self._jobs_on[node]

    def gpus(self, job: Job) -> int:
        """Return how many GPUs a job has."""
        return sum(self.gpus_on(job, node) for node in job.nodes)

    def gpus_on(self, job: Job, node: str) -> int:
        """Return how many GPUs of a node a job has."""
        if node in job.gpus:
            return len(job.gpus[node])
        return job.gpus_per_node if job.gpus_per_node is not None else self.gpus_of(node)

    def gpus_of(self, node: str) -> int:
        """Return how many GPUs a node has, as far as the topology says."""
        return len(self.nodes.get(node, {}).get("gpus") or ())

    def lot(self, entity: Entity, begin: Instant, until: Instant) -> Lot:
        """Return where an entity lies, with the jobs that ran there at any time from `begin` to `until`."""
        if "job_id" in entity:
            name = str(entity["job_id"])
            stay = self.stays.get(name)
            return Lot((f"job:{name}",), stay.job.nodes if stay else (), (name,))
        if "mount" in entity:
            maybe = self._running(begin, until)
            return Lot((f"mount:{entity['mount']}", *(f"job:{job}" for job in maybe)), (), (), maybe)
        if "switch" in entity:
            return self._of_switch(entity, begin, until)
        if "node" in entity:
            return self._of_node(entity, begin, until)
        return Lot(tuple(f"{kind}:{name}" for kind, name in sorted(entity.items())), (), ())

    def _of_node(self, entity: Entity, begin: Instant, until: Instant) -> Lot:
        node, gpu = str(entity["node"]), entity.get("gpu")
        keys = [f"node:{node}"]
        if gpu is not None:
            keys.append(f"gpu:{node}/{gpu}")
        if "nic" in entity:
            keys += self._of_nic(node, str(entity["nic"]))
        keys += self._racks([node])
        jobs = self._on([node], begin, until, int(gpu) if gpu is not None else None)
        return Lot((*keys, *(f"job:{job}" for job in jobs)), (node,), jobs)

    def _of_nic(self, node: str, nic: str) -> Iterator[str]:
        yield f"rail:{self.nodes.get(node, {}).get('pod')}/{nic}"
        port = self._wiring.port_of.get((node, nic))
        if port is None:
            yield f"cable:{node}/{nic}"
        else:
            yield f"cable:{port}"
            yield f"switch:{port.partition(':')[0]}"
            yield f"fabric:{port.partition(':')[0]}"

    def _of_switch(self, entity: Entity, begin: Instant, until: Instant) -> Lot:
        switch = str(entity["switch"])
        if "port" not in entity:
            maybe = self._on(self._behind(switch), begin, until)
            fabric = (f"fabric:{name}" for name in (switch, *sorted(self._wiring.near.get(switch, ()))))
            return Lot((f"switch:{switch}", *fabric, *(f"job:{job}" for job in maybe)), (), (), maybe)
        port = f"{switch}:{entity['port']}"
        if port in self._wiring.nic_at:
            node, nic = self._wiring.nic_at[port]
            jobs = self._on([node], begin, until)
            keys = [f"node:{node}", *self._of_nic(node, nic), *self._racks([node])]
            return Lot((*keys, *(f"job:{job}" for job in jobs)), (node,), jobs)
        far = self._wiring.far_end.get(port)
        switches = sorted({switch, *([far.partition(":")[0]] if far else [])})
        under = sorted(set().union(*(self._wiring.below.get(name, set()) for name in switches)))
        near = self._on(under, begin, until)
        keys = [
            f"cable:{min(port, far or port)}",
            *(f"{kind}:{name}" for kind in ("switch", "fabric") for name in switches),
        ]
        # Traffic from anywhere may pass; but only what is near shares so much that it can be linked by it.
        maybe = self._on(set().union(*(self._behind(name) for name in switches)), begin, until)
        return Lot((*keys, *(f"job:{job}" for job in near)), (), (), maybe)

    def _behind(self, switch: str) -> set[str]:
        """Return the nodes with a NIC at a switch; of one without, the nodes of the switches next to it."""
        near = (self._wiring.below.get(name, set()) for name in self._wiring.near.get(switch, ()))
        return self._wiring.below.get(switch) or set().union(*near)

    def _racks(self, nodes: Iterable[str]) -> list[str]:
        return [f"rack:{rack}" for node in nodes if (rack := self.nodes.get(node, {}).get("rack"))]

    def _on(self, nodes: Iterable[str], begin: Instant, until: Instant, gpu: int | None = None) -> tuple[str, ...]:
        found = {
            name
            for node in nodes
            for name in self._jobs_on.get(node, ())
            if self._ran(name, begin, until) and (gpu is None or gpu in self.stays[name].job.gpus.get(node, (gpu,)))
        }
        return tuple(sorted(found))

    def _running(self, begin: Instant, until: Instant) -> tuple[str, ...]:
        return tuple(sorted(name for name in self.stays if self._ran(name, begin, until)))

    def _ran(self, name: str, begin: Instant, until: Instant) -> bool:
        stay = self.stays[name]
        return stay.job.start <= until and (stay.end is None or stay.end >= begin)

    def snapshot(self) -> list[Any]:
        """Return the jobs as JSON can say them."""
        return [
            [job.job_id, job.nodes, job.start, job.gpus_per_node, {node: list(g) for node, g in job.gpus.items()}, end]
            for job, end in ((stay.job, stay.end) for stay in self.stays.values())
        ]

    def load(self, state: Iterable[Any]) -> None:
        """Take what `snapshot` returned."""
        for job_id, nodes, start, gpus_per_node, gpus, end in state:
            parts = {node: tuple(indices) for node, indices in gpus.items()}
            self.stays[job_id] = Stay(Job(job_id, tuple(nodes), start, gpus_per_node, parts), end)
            for node in nodes:
                self._jobs_on[node].add(job_id)
