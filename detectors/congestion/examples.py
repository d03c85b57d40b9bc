"""Tapes for the laws and the tests: congestions with their victims, and bursts that are everybody's."""

from dataclasses import replace
from typing import Any

from detectors.laws import Examples, Fault
from detectors.scene import START, Scene, growing, tape_of
from detectors.tape import Tape

SCENE = Scene(nodes=5, gpus=1, nics=3, minutes=5, kinds=("switch", "nic"))
AT_S, END_S = 122.0, 270.0
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


_ONSET = START + int(AT_S * 1000)

EXAMPLES = Examples(
    healthy=[
        tape_of(SCENE),
        tape_of(replace(SCENE, bursts=[(100, 131), (180, 290)], seed=2)),
        incast(tape_of(replace(SCENE, seed=3)), until_s=AT_S + 35),
    ],
    faults=[
        Fault(incast(tape_of(SCENE)), PORT, _ONSET),
        Fault(pausing_switch(tape_of(SCENE)), {"switch": "leaf-2"}, _ONSET),
    ],
)
