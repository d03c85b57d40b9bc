"""Tapes for the laws and the tests: cables that fail, and ports that are down for other reasons."""

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from detectors.contract import FloatArray, Kind
from detectors.engine.rows import Rows
from detectors.laws import Examples, Fault
from detectors.tapes.cluster import START, Scene, changed, growing, line, name, seconds, tape_of, where, without
from detectors.tapes.tape import Tape

SCENE = Scene(nodes=3, gpus=1, nics=2, minutes=5, kinds=("switch", "nic", "dcgm"))
AT_S = 122.0
NIC: dict[str, Any] = {"node": name(1), "nic": "mlx5_0"}
PORT: dict[str, Any] = {"switch": "leaf-1", "port": "Ethernet1"}
UNCORRECTABLE = "SAI_PORT_STAT_IF_IN_FEC_NOT_CORRECTABLE_FRAMES"


def lowered(tape: Tape, kind: Kind, stretches: Sequence[tuple[float, float]], **keys: Any) -> Tape:
    """Return the tape with ports down in some stretches, their `link_downed` counting."""

    def state(rows: Rows, values: FloatArray) -> FloatArray:
        values = values.copy()
        for since_s, until_s in stretches:
            values[where(rows, since_s, until_s, **keys)] = 0.0
        return values

    def count(rows: Rows, values: FloatArray) -> FloatArray:
        losses = sum((seconds(rows) >= since_s for since_s, _ in stretches), np.zeros(len(values)))
        return np.asarray(values + np.where(where(rows, **keys), losses, 0.0))

    if kind == "switch":
        return changed(tape, kind, "oper_up", state)
    return changed(changed(tape, kind, "state", state), kind, "link_downed", count)


def cable_lowered(tape: Tape, stretches: Sequence[tuple[float, float]]) -> Tape:
    """Return the tape with both ends of the cable of `NIC` and `PORT` down."""
    return lowered(lowered(tape, "nic", stretches, **NIC), "switch", stretches, **PORT)


def collector_gone(tape: Tape, since_s: float, until_s: float) -> Tape:
    """Return the tape with a node that nothing is read of for a while."""
    return without(without(tape, "nic", since_s, until_s, node=name(1)), "dcgm", since_s, until_s, node=name(1))


def node_gone(tape: Tape, since_s: float = AT_S, until_s: float = 1e9) -> Tape:
    """Return the tape with a node dead: silent, the switch ports to it down; its NICs count anew when it is back."""

    def anew(rows: Rows, values: FloatArray) -> FloatArray:
        values = values.copy()
        after = where(rows, until_s, node=name(1))
        values[after] -= values[after].min(initial=np.inf)
        return values

    tape = changed(collector_gone(tape, since_s, until_s), "nic", "port_xmit_data", anew)
    return lowered(tape, "switch", [(since_s, until_s)], switch=["leaf-1", "leaf-2"], port="Ethernet1")


_DRAINED = line(100, "scheduler", f"slurmctld: update_node: node {name(1)} state set to DRAIN", severity="info")
_ONSET = START + int(AT_S * 1000)
_FLAPS = [(60.0, 66.0), (90.0, 96.0), (AT_S, AT_S + 6.0)]

EXAMPLES = Examples(
    healthy=[
        tape_of(SCENE),
        node_gone(tape_of(replace(SCENE, seed=2))),
        cable_lowered(tape_of(replace(SCENE, logs=[_DRAINED], seed=3)), [(AT_S, 200.0)]),
        cable_lowered(tape_of(replace(SCENE, seed=4)), [(AT_S, AT_S + 7)]),
        lowered(tape_of(replace(SCENE, seed=5)), "switch", [(0.0, 1e9)], **PORT),
    ],
    faults=[
        Fault(cable_lowered(tape_of(SCENE), [(AT_S, 200.0)]), NIC, _ONSET),
        Fault(lowered(tape_of(SCENE), "switch", [(AT_S, 1e9)], switch="leaf-1", port="Ethernet100"),
              {"switch": "leaf-1", "port": "Ethernet100"}, _ONSET),
        Fault(cable_lowered(tape_of(SCENE), _FLAPS), NIC, _ONSET),
        Fault(growing(tape_of(SCENE), "switch", UNCORRECTABLE, 30.0, AT_S, 200.0, **PORT), PORT, _ONSET),
    ],
)  # fmt: skip
