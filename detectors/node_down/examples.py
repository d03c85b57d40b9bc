"""Tapes for the laws and the tests: nodes that die, and nodes that are silent for other reasons."""

from dataclasses import replace

import numpy as np

from detectors.contract import FloatArray
from detectors.engine.rows import Rows
from detectors.laws import Examples, Fault
from detectors.tapes.cluster import START, Scene, changed, line, name, tape_of, where, without
from detectors.tapes.tape import Tape

SCENE = Scene(nodes=5, nics=1, minutes=5, kinds=("bmc", "nic", "steps", "dcgm"))
DIES_S = 152.0


def silenced(tape: Tape, nodes: list[str], since_s: float = DIES_S, until_s: float = 1e9) -> Tape:
    """Return the tape with all in-band streams of some nodes missing in a stretch."""
    tape = without(tape, "nic", since_s, until_s, node=nodes)
    return without(tape, "dcgm", since_s, until_s, node=nodes)


def idle(tape: Tape, since_s: float, until_s: float = 1e9) -> Tape:
    """Return the tape with no GPU computing in a stretch."""

    def stopped(rows: Rows, readings: FloatArray) -> FloatArray:
        return np.where(where(rows, since_s, until_s), 0.0, readings)

    return changed(tape, "dcgm", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", stopped)


def dead(tape: Tape, nodes: list[str], since_s: float = DIES_S, until_s: float = 1e9) -> Tape:
    """Return the tape with nodes crashed in a stretch: silent in-band, their job stopped, their watts down."""
    tape = without(silenced(tape, nodes, since_s, until_s), "steps", since_s, until_s)
    tape = idle(tape, since_s, until_s)

    def fallen(rows: Rows, readings: FloatArray) -> FloatArray:
        watts = where(rows, since_s, until_s, node=nodes, sensor="node_power")
        return np.where(watts, 600.0, readings)

    return changed(tape, "bmc", "reading", fallen) if "bmc" in {rows.kind for rows in tape.rows} else tape


DRAINED = line(100, "scheduler", f"slurmctld: update_node: node {name(1)} state set to DRAIN", severity="info")
LOST = line(DIES_S + 9, "scheduler", f"slurmctld: error: Nodes {name(1)} not responding")
PANIC = line(DIES_S - 1, "kernel", "Kernel panic - not syncing: Fatal exception in interrupt", node=name(2))
FAILED = line(DIES_S + 3, "scheduler", f"slurmctld: Killing JobId=812 on failed node {name(1)}")
_IDLE = replace(SCENE, working=False, kinds=("bmc", "nic", "dcgm"), seed=3)

EXAMPLES = Examples(
    healthy=[
        tape_of(SCENE),
        silenced(tape_of(replace(SCENE, logs=[DRAINED], seed=4)), [name(1)]),
        silenced(tape_of(replace(SCENE, seed=5)), [name(1)], until_s=DIES_S + 60),
        silenced(tape_of(_IDLE), [name(n) for n in range(4)]),
        silenced(tape_of(replace(_IDLE, seed=6)), [name(2)]),
        dead(tape_of(replace(_IDLE, seed=7, minutes=11)), [name(2)], until_s=DIES_S + 420),
    ],
    faults=[
        Fault(dead(tape_of(replace(SCENE, logs=[PANIC])), [name(2)]), {"node": name(2)}, START + int(DIES_S * 1000)),
        Fault(
            dead(tape_of(replace(SCENE, logs=[LOST], seed=2)), [name(1)], until_s=215),
            {"node": name(1)},
            START + int(DIES_S * 1000),
        ),
        Fault(
            dead(tape_of(replace(_IDLE, kinds=("nic", "dcgm"), logs=[PANIC])), [name(2)]),
            {"node": name(2)},
            START + int(DIES_S * 1000),
        ),
    ],
)
