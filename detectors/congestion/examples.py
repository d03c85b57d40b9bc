"""Tapes for the laws and the tests: congestions with their victims, and bursts and load that are everybody's."""

from dataclasses import replace
from typing import Any

import numpy as np

from detectors.engine.rows import Rows
from detectors.laws import Examples, Fault
from detectors.tapes.cluster import START, Scene, growing, seconds, tape_of
from detectors.tapes.tape import Tape

SCENE = Scene(nodes=5, gpus=1, nics=3, minutes=5, kinds=("switch", "nic"))
AT_S, END_S = 122.0, 270.0
WAITS = "port_xmit_wait"
RX, TX = "SAI_PORT_STAT_PFC_3_RX_PKTS", "SAI_PORT_STAT_PFC_3_TX_PKTS"
MARKED, DROPPED = "SAI_PORT_STAT_ECN_MARKED_PACKETS", "SAI_PORT_STAT_IF_OUT_DISCARDS"
PORT: dict[str, Any] = {"switch": "leaf-1", "port": "Ethernet2"}
OTHERS = ["Ethernet0", "Ethernet1", "Ethernet3", "Ethernet4", "Ethernet100"]


def incast(tape: Tape, since_s: float = AT_S, until_s: float = END_S) -> Tape:
    """Return the tape with everybody sending to one host: its port marks and drops, the leaf pauses all senders."""
    tape = growing(tape, "switch", MARKED, 40_000, since_s, until_s, **PORT)
    tape = growing(tape, "switch", DROPPED, 300, since_s, until_s, **PORT)
    tape = growing(tape, "switch", TX, 4000, since_s, until_s, switch="leaf-1", port=OTHERS)
    tape = growing(tape, "switch", RX, 4000, since_s, until_s, switch="spine-1", port="Ethernet0")
    return growing(tape, "switch", TX, 1500, since_s, until_s, switch="spine-1", port=["Ethernet1", "Ethernet2"])


def pausing_switch(tape: Tape, since_s: float = AT_S, until_s: float = END_S) -> Tape:
    """Return the tape with a leaf that does not mark, and so pauses all that is plugged into it."""
    return growing(tape, "switch", TX, 6000, since_s, until_s, switch="leaf-2")


def infiniband(tape: Tape, ticks_per_s: float = 4e5) -> Tape:
    """Return the tape with switches that count the ticks their ports wait, and neither pauses nor marks.

    `ticks_per_s` is what every port waits at work: some tenths of a percent, at ten nanoseconds a tick.
    """

    def counted(rows: Rows) -> Rows:
        kept = [field for field in rows.values if "PFC" not in field and "ECN" not in field]
        waits = np.floor(ticks_per_s * seconds(rows))
        values = {field: rows.values[field] for field in kept} | {WAITS: waits}
        valid = {field: rows.valid[field] for field in kept} | {WAITS: np.ones(waits.shape, bool)}
        return Rows(rows.kind, rows.times, rows.keys, values, valid)

    return replace(tape, rows=[counted(rows) if rows.kind == "switch" else rows for rows in tape.rows])


def full_fabric(tape: Tape, since_s: float = AT_S, until_s: float = END_S) -> Tape:
    """Return the tape of a fabric that a healthy mix of jobs fills for minutes: some cables more than others.

    One cable of a busy leaf waits two percent of the time at both ends; all hosts' ports of another leaf a third of it,
    as the job there sends all to all.
    """
    tape = growing(tape, "switch", WAITS, 2.2e6, since_s, until_s, switch="leaf-1", port="Ethernet101")
    tape = growing(tape, "switch", WAITS, 2.1e6, since_s, until_s, switch="spine-2", port="Ethernet0")
    hosts = [f"Ethernet{host}" for host in range(SCENE.nodes)]
    return growing(tape, "switch", WAITS, 3e7, since_s, until_s, switch="leaf-3", port=hosts)


_ONSET = START + int(AT_S * 1000)

EXAMPLES = Examples(
    healthy=[
        tape_of(SCENE),
        tape_of(replace(SCENE, bursts=[(100, 131), (180, 290)], seed=2)),
        incast(tape_of(replace(SCENE, seed=3)), until_s=AT_S + 35),
        full_fabric(infiniband(tape_of(replace(SCENE, seed=4)))),
    ],
    faults=[
        Fault(incast(tape_of(SCENE)), PORT, _ONSET),
        Fault(pausing_switch(tape_of(SCENE)), {"switch": "leaf-2"}, _ONSET),
        Fault(growing(infiniband(tape_of(SCENE)), "switch", WAITS, 2e7, AT_S, END_S, **PORT), PORT, _ONSET),
    ],
)
