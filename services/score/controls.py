"""Detectors that know nothing, scored like the others: what they reach is what the scorer can be fooled into."""

import numpy as np

from detectors.contract import Entity, Finding, finding_id
from services.recording.faults import FAULTS, GPU, NODE
from services.recording.reader import Recording


def constant(recording: Recording) -> list[Finding]:
    """Return an alert of every fault on every entity that can have it, at the recording's start."""
    return [
        _finding("constant", fault, entity, recording.manifest.start)
        for fault in FAULTS
        for entity in _entities(recording, fault)
    ]


def chance(recording: Recording, count: int, seed: int) -> list[Finding]:
    """Return `count` alerts of random faults on random entities at random times: as many as real detectors raised."""
    rng = np.random.default_rng(seed)
    faults = [fault for fault in FAULTS if _entities(recording, fault)]
    found = []
    for _ in range(count if faults else 0):
        fault = faults[int(rng.integers(len(faults)))]
        entities = _entities(recording, fault)
        at = int(rng.integers(recording.manifest.start, recording.manifest.end + 1))
        found.append(_finding("random", fault, entities[int(rng.integers(len(entities)))], at))
    return found


def _entities(recording: Recording, fault: str) -> list[Entity]:
    topology = recording.topology
    narrow = FAULTS[fault][0]
    places: dict[frozenset[str], list[Entity]] = {
        NODE: [{"node": node.name} for node in topology.nodes],
        GPU: [{"node": node.name, "gpu": gpu.gpu} for node in topology.nodes for gpu in node.gpus],
        frozenset({"node", "nic"}): [{"node": n.name, "nic": nic.nic} for n in topology.nodes for nic in n.nics],
        frozenset({"switch", "port"}): [
            {"switch": end.partition(":")[0], "port": end.partition(":")[2]}
            for link in topology.links
            for end in (link.a, link.b)
        ],
        frozenset({"mount"}): [{"mount": mount.mount} for mount in topology.mounts],
        frozenset({"job_id"}): [{"job_id": job.job_id} for job in recording.jobs()],
    }
    return places.get(narrow, [])


def _finding(name: str, fault: str, entity: Entity, at: int) -> Finding:
    return Finding(
        finding_id(f"{name}/{fault}", entity, at), name, fault, entity, "firing", at, at, "ticket", 0.5, "a control", ""
    )
