"""What is known of the machines and jobs at one moment of event time.

The engine owns the fleet and moves it forward: a job appears at its start and leaves at its end, never sooner.
Detectors only read it.
"""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
EntityKey = tuple[str | int, ...]
KEYS: dict[str, tuple[str, ...]] = {
    "dcgm": ("node", "gpu"),
    "nic": ("node", "nic"),
    "switch": ("switch", "port"),
    "bmc": ("node", "sensor"),
    "steps": ("job_id", "rank"),
    "storage": ("node", "mount"),
}
"""The columns that name an entity of each kind, as in the recording format."""
INFERRED: Final = "inferred-"
"""How the ids of jobs begin that nothing names."""
SHORTEST_STEP_S: Final = 0.001
"""What a trainer reports below is no step's time: a counter that has not begun, or one of no work."""
_REMEMBERED_MS: Final = 3_600_000
"""For so long it is remembered how jobs ended."""
_GIVEN_MS: Final = 7 * 86_400_000
"""For so long it is remembered which nodes were given to jobs: as long as that they were taken out (`scheduling`)."""


@dataclass(frozen=True, slots=True)
class Job:
    """A job as known while it runs; `start` is epoch milliseconds."""

    job_id: str
    nodes: tuple[str, ...]
    start: int
    gpus_per_node: int | None = None
    gpus: Mapping[str, tuple[int, ...]] = field(default_factory=dict)
    """Only where a job has part of a node."""
    maintenance: bool = False
    """Whether it is no work but keeps its nodes for work on them."""

    @property
    def inferred(self) -> bool:
        """Whether nothing names the job: its nodes, start and end were found by what GPUs do (`jobs`)."""
        return self.job_id.startswith(INFERRED)


@dataclass(frozen=True, slots=True)
class JobEvent:
    """The start or the end of a job, at `at` (epoch milliseconds)."""

    at: int
    event: str
    """``start`` or ``end``."""
    job: Job
    state: str = ""
    """How it ended, in Slurm's words (``COMPLETED``, ``NODE_FAIL``); empty where nobody says."""


class Fleet:
    """Topology, entities seen, and jobs running at this moment of event time."""

    def __init__(self, topology: Mapping[str, Any] | None = None) -> None:
        self.jobs: dict[str, Job] = {}
        self._maintenance: dict[str, Job] = {}
        self._over: dict[str, tuple[int, str]] = {}
        self._given: dict[str, int] = {}
        self._entities: dict[str, list[EntityKey]] = {kind: [] for kind in KEYS}
        self._index: dict[str, dict[EntityKey, int]] = {kind: {} for kind in KEYS}
        self._stepped: IntArray = np.empty(0, np.int64)
        self.take_topology(topology)

    def take_topology(self, topology: Mapping[str, Any] | None) -> None:
        """Take what there should be; entities that are known keep their index."""
        self.topology: Mapping[str, Any] = topology or {}
        self.nodes: dict[str, Mapping[str, Any]] = {node["name"]: node for node in self.topology.get("nodes", ())}
        for node in self.nodes.values():
            for gpu in node.get("gpus", ()):
                self.index("dcgm", (node["name"], int(gpu["gpu"])))

    def entities(self, kind: str) -> list[EntityKey]:
        """Return all entities of a kind, by index, in an order that the data alone decides.

        It grows, but for what is gone: see `go_on_with`.
        """
        return self._entities[kind]

    def index(self, kind: str, key: EntityKey) -> int:
        """Return the index of an entity, adding it if it is new."""
        known = self._index[kind]
        if key not in known:
            known[key] = len(known)
            self._entities[kind].append(key)
        return known[key]

    def stepped(self, ranks: IntArray, at: int) -> None:
        """Take note that `ranks`, indices (n,) of entities of the kind steps, were heard up to `at`."""
        unknown = len(self._entities["steps"]) - len(self._stepped)
        self._stepped = np.concatenate([self._stepped, np.full(unknown, at)])
        self._stepped[ranks] = at

    def ranks_since(self, since: int) -> IntArray:
        """Return the ranks (indices) of the jobs that run, or of which one was heard later than `since`."""
        ranks = self._entities["steps"]
        late = {ranks[rank][0] for rank in np.flatnonzero(self._stepped > since).tolist()} | self.jobs.keys()
        return np.array([rank for rank, (job, _) in enumerate(ranks) if job in late], np.int64)

    def go_on_with(self, kept: Mapping[str, IntArray]) -> None:
        """Go on with some of the entities (n,) of some kinds, which are numbered anew in this order."""
        for kind in kept.keys() & self._entities.keys():
            self._entities[kind] = [self._entities[kind][entity] for entity in kept[kind].tolist()]
            self._index[kind] = {key: number for number, key in enumerate(self._entities[kind])}
        if "steps" in kept:
            self._stepped = self._stepped[kept["steps"]]

    def happen(self, event: JobEvent) -> None:
        """Let a job start or end; the end of a job that is not known is no news."""
        if event.event == "start":
            (self._maintenance if event.job.maintenance else self.jobs)[event.job.job_id] = event.job
            if not event.job.maintenance:
                self._given = {node: at for node, at in self._given.items() if event.at - at <= _GIVEN_MS}
                self._given |= dict.fromkeys(event.job.nodes, event.job.start)
            self._over.pop(event.job.job_id, None)  # it was put back into the queue
        else:
            for jobs in (self.jobs, self._maintenance):
                jobs.pop(event.job.job_id, None)
            self._over = {name: over for name, over in self._over.items() if event.at - over[0] <= _REMEMBERED_MS}
            if event.state:
                self._over[event.job.job_id] = event.at, event.state

    def how_ended(self, job_id: str) -> str:
        """Return how a job ended (`JobEvent.state`), if anybody says, and within the hour before the last that did."""
        return self._over.get(job_id, (0, ""))[1]

    def maintenance_of(self, node: str) -> Job | None:
        """Return what keeps a node for maintenance now; the first to start, where several do."""
        having = [job for job in self._maintenance.values() if node in job.nodes]
        return min(having, key=lambda job: (job.start, job.job_id), default=None)

    def job_of(self, node: str, gpu: int | None = None) -> Job | None:
        """Return the job that has a node now, or that GPU of it; the latest to start, where several do."""
        having = [
            job
            for job in self.jobs.values()
            if node in job.nodes and (gpu is None or gpu in job.gpus.get(node, (gpu,)))
        ]
        return max(having, key=lambda job: (job.start, job.job_id), default=None)

    def given_at(self, node: str) -> int:
        """Return when the latest job that a node was given in the last week started, over or not; -1: none."""
        return self._given.get(node, -1)

    def is_idle(self, node: str) -> bool:
        """Return whether no job has a node, where a scheduler says of others which have theirs."""
        return self.job_of(node) is None and any(not job.inferred for job in self.jobs.values())

    def snapshot(self) -> dict[str, Any]:
        """Return what cannot be had from the topology again, as JSON can say it."""
        return {
            "entities": self._entities,
            "stepped": self._stepped.tolist(),
            "jobs": [
                [job.job_id, job.nodes, job.start, job.gpus_per_node, {node: list(g) for node, g in job.gpus.items()}]
                for job in self.jobs.values()
            ],
            "maintenance": [[job.job_id, job.nodes, job.start] for job in self._maintenance.values()],
            "over": [[job_id, at, state] for job_id, (at, state) in self._over.items()],
            "given": [[node, at] for node, at in self._given.items()],
        }

    @classmethod
    def restore(cls, topology: Mapping[str, Any] | None, state: Mapping[str, Any]) -> "Fleet":
        """Return the fleet of a snapshot, over the same topology or one that has grown: what is new comes last."""
        fleet = cls()
        for kind, keys in state["entities"].items():
            for key in keys:
                fleet.index(kind, tuple(key))
        fleet._stepped = np.array(state.get("stepped", ()), np.int64)
        fleet.take_topology(topology)
        for job_id, nodes, start, gpus_per_node, gpus in state["jobs"]:
            parts = {node: tuple(indices) for node, indices in gpus.items()}
            fleet.jobs[job_id] = Job(job_id, tuple(nodes), start, gpus_per_node, parts)
        for job_id, nodes, start in state.get("maintenance", ()):
            fleet._maintenance[job_id] = Job(job_id, tuple(nodes), start, maintenance=True)
        given = state.get("given") or [[node, job.start] for job in fleet.jobs.values() for node in job.nodes]
        fleet._given = dict(given)
        fleet._over = {job_id: (at, ended) for job_id, at, ended in state.get("over", ())}
        return fleet


def by_time(event: JobEvent) -> tuple[Any, ...]:
    """Return what events are sorted by, wherever they are handed over: ends come before starts."""
    return event.at, event.event == "start", event.job.job_id


def job_event(document: Mapping[str, Any]) -> JobEvent:
    """Return the event that `dataclasses.asdict` made a document of."""
    job = document["job"]
    parts = {node: tuple(gpus) for node, gpus in job["gpus"].items()}
    made = Job(
        job["job_id"], tuple(job["nodes"]), job["start"], job["gpus_per_node"], parts, job.get("maintenance", False)
    )
    return JobEvent(document["at"], document["event"], made, document.get("state", ""))
