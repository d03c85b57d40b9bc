"""Tapes for the laws and the tests: a small cluster at work, with and without what pcie_degradation must find."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from detectors.contract import FloatArray
from detectors.laws import Examples, Fault
from detectors.tapes.gpus import START, Cluster, name
from detectors.tapes.tape import Tape

CLUSTER = Cluster(nodes=3, gpus=4, minutes=9)


@dataclass(frozen=True)
class Bad:
    """A GPU's link in a stretch, seconds from the tape's start: at most so much moved, and what shows of it."""

    node: int
    gpu: int
    at_s: float
    until_s: float
    gb_s: float = 25.0
    gen: int = 4
    width: int = 16
    replays_per_min: float = 0.0


@dataclass(frozen=True)
class Scene:
    """What happens on a tape; a job has all nodes, and moves `gb_s` a GPU over links of generation 4, 16 lanes."""

    cluster: Cluster = CLUSTER
    bad: Sequence[Bad] = ()
    pauses: Sequence[tuple[float, float]] = ()
    """Nothing computes, and links train down."""
    gb_s: float = 9.0
    roles: Sequence[float] = (1.0,)
    """What a GPU moves by its number, of `gb_s`; the last for all that follow."""
    loud: Sequence[tuple[int, int, float, float]] = ()
    """(node, gpu, from, until): somebody's copy over that GPU's link."""
    collected_s: float = 0.0
    """Where not 0, the exporter collects only so often, and repeats itself in between."""
    fields: Sequence[str] = ("DEV_PCIE_LINK_GEN", "DEV_PCIE_LINK_WIDTH", "DEV_PCIE_REPLAY_COUNTER",
                             "PROF_PCIE_TX_BYTES", "PROF_PCIE_RX_BYTES", "DEV_GPU_UTIL")  # fmt: skip
    topology_gen: int = 4
    links_in_topology: bool = True


def columns_of(scene: Scene) -> dict[str, FloatArray]:
    """Return every field's readings, (ticks, gpus)."""
    cluster, at = scene.cluster, scene.cluster.at_s
    read = np.floor(at / scene.collected_s) * scene.collected_s if scene.collected_s else at
    busy = ~np.any([(read >= begin) & (read < end) for begin, end in scene.pauses] or [np.zeros_like(read)], axis=0)
    noise = cluster.chance("noise").random(read.shape)
    role = np.array([scene.roles[min(gpu, len(scene.roles) - 1)] for gpu in range(cluster.gpus)] * cluster.nodes)
    moved = np.where(busy, scene.gb_s * role * (0.9 + 0.1 * noise), 0.0004)
    gen, width = np.where(busy, 4.0, 1.0), np.full(read.shape, 16.0)
    replays = np.full(read.shape, 150.0)
    for node, gpu, begin, end in scene.loud:
        moved[:, cluster.of(node, gpu)] += 12 * ((read >= begin) & (read < end))[:, cluster.of(node, gpu)]
    for bad in scene.bad:
        own = cluster.of(bad.node, bad.gpu)
        on = (read[:, own] >= bad.at_s) & (read[:, own] < bad.until_s)
        moved[on, own] = np.minimum(moved[on, own], bad.gb_s * (0.98 + 0.02 * noise[on, own]))
        gen[on, own], width[on, own] = np.minimum(gen[on, own], bad.gen), bad.width
        spent = np.clip(read[:, own], bad.at_s, bad.until_s) - bad.at_s
        replays[:, own] += np.floor(spent * bad.replays_per_min / 60)
    return {
        "DEV_PCIE_LINK_GEN": gen,
        "DEV_PCIE_LINK_WIDTH": width,
        "DEV_PCIE_REPLAY_COUNTER": replays,
        "PROF_PCIE_TX_BYTES": moved * 1e9,
        "PROF_PCIE_RX_BYTES": moved * 0.97e9,
        "DEV_GPU_UTIL": np.where(busy, 99, 0),
    }


def tape_of(scene: Scene) -> Tape:
    """Return the scene as a tape."""
    columns = columns_of(scene)
    tape = scene.cluster.tape({f"DCGM_FI_{field}": columns[field] for field in scene.fields})
    link = {"pcie_gen": scene.topology_gen, "pcie_width": 16} if scene.links_in_topology else {}
    topology: dict[str, Any] = {
        "nodes": [
            {**node, "gpus": [{**gpu, **link} for gpu in node["gpus"]]} for node in tape.topology.get("nodes", ())
        ]
    }
    return replace(tape, topology=topology if tape.topology else {})


LONGER = Cluster(nodes=3, gpus=4, minutes=18)
"""Long enough to know what is usual here, of twelve GPUs."""
SLOW = Scene(bad=[Bad(1, 2, 515, 1000, gb_s=3.4)], cluster=LONGER)
TRAINED_DOWN = Scene(bad=[Bad(0, 1, 120, 360, gb_s=3.4, gen=1)])
LANES = Scene(bad=[Bad(2, 3, 120, 600, width=4)], gb_s=2.0)
RESENDING = Scene(bad=[Bad(2, 0, 700, 900, replays_per_min=60)], cluster=LONGER)

EXAMPLES = Examples(
    healthy=[
        tape_of(Scene(pauses=[(100, 140), (240, 330)], roles=(3.0, 1.0))),
        tape_of(Scene(bad=[Bad(1, 0, 120, 500, gb_s=4), Bad(1, 1, 120, 500, gb_s=4)])),
        tape_of(Scene(bad=[Bad(0, 0, 200, 215, gen=1), Bad(0, 2, 300, 420, replays_per_min=9)])),
    ],
    faults=[
        Fault(tape_of(SLOW), {"node": name(1), "gpu": 2}, START + 515_000),
        Fault(tape_of(TRAINED_DOWN), {"node": name(0), "gpu": 1}, START + 120_000),
        Fault(tape_of(LANES), {"node": name(2), "gpu": 3}, START + 120_000),
        Fault(tape_of(RESENDING), {"node": name(2), "gpu": 0}, START + 700_000),
    ],
)
