"""Tapes for the laws and the tests: streams that stop or freeze, and streams that only look so."""

from dataclasses import replace
from typing import Any

import numpy as np

from detectors.contract import FloatArray, Kind
from detectors.engine.rows import Rows
from detectors.laws import Examples, Fault
from detectors.tapes.cluster import START, Scene, changed, line, name, seconds, tape_of, where, without
from detectors.tapes.tape import Tape

SCENE = Scene(nodes=4, nics=1, minutes=8, kinds=("bmc", "nic", "steps", "dcgm"))
WHOLE = replace(SCENE, nodes=3, kinds=("bmc", "switch", "nic", "steps", "dcgm"))
AT_S = 122.0
GAUGES = ("DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", "DCGM_FI_DEV_GPU_TEMP")
ENERGY = "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION"


def frozen(
    tape: Tape, kind: Kind, fields: tuple[str, ...], since_s: float = AT_S, until_s: float = 1e9, **keys: Any
) -> Tape:
    """Return the tape with fields of some entities repeating the last reading before a stretch, all through it."""

    def repeat(rows: Rows, values: FloatArray) -> FloatArray:
        values = values.copy()
        codes = np.stack([column.codes for column in rows.keys.values()])
        stuck = where(rows, since_s, until_s, **keys)
        for entity in np.unique(codes[:, stuck], axis=1).T:
            own = (codes == entity[:, None]).all(axis=0)
            before = np.flatnonzero(own & (seconds(rows) < since_s))
            if len(before):
                values[own & stuck] = values[before[-1]]
        return values

    for field in fields:
        tape = changed(tape, kind, field, repeat)
    return tape


def _dead(tape: Tape) -> Tape:
    """Return the tape with a node dead: silent in-band, and its job stopped."""
    tape = without(without(tape, "nic", AT_S, node=name(1)), "dcgm", AT_S, node=name(1))
    return without(tape, "steps", AT_S)


_DRAINED = line(100, "scheduler", f"slurmctld: update_node: node {name(1)} state set to DRAIN", severity="info")
_ONSET = START + int(AT_S * 1000)

EXAMPLES = Examples(
    healthy=[
        tape_of(replace(WHOLE, nics=2)),
        tape_of(replace(SCENE, collected_s=30.0, missing=0.03, seed=2)),
        _dead(tape_of(replace(SCENE, seed=3))),
        without(tape_of(replace(SCENE, logs=[_DRAINED], seed=4)), "dcgm", AT_S, node=name(1)),
        without(tape_of(replace(SCENE, seed=5)), "dcgm", AT_S, AT_S + 250, node=name(1)),
    ],
    faults=[
        Fault(without(tape_of(SCENE), "dcgm", AT_S, 450, node=name(1)), {"node": name(1)}, _ONSET),
        Fault(
            frozen(tape_of(SCENE), "dcgm", (*GAUGES, ENERGY), node=name(2), gpu=1), {"node": name(2), "gpu": 1}, _ONSET
        ),
        Fault(without(tape_of(WHOLE), "switch", AT_S, switch="leaf-1"), {"switch": "leaf-1"}, _ONSET),
    ],
)
