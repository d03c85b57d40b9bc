"""Happenings on one cable of the network, or on one switch: what their entities are, and what their ends log.

A cable is named by the machine at its lower end: a node and the number of its port, or a leaf and the number of its
uplink. Kernel lines are mlx5's and systemd-networkd's, a switch's are SONiC's syslog; InfiniBand switches write none.
"""

from collections.abc import Iterable, Iterator

import numpy as np
from pydantic import Field, model_validator

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.physics.effects import Ints
from services.synth.story.happening import Lasting, PlacedTruth


class OnCable(Lasting):
    """Lasting, on one cable: `node` and `nic` (its number), or `switch` (a leaf) and `uplink` (its number)."""

    node: str | None = None
    nic: int = Field(default=0, ge=0)
    switch: str | None = None
    uplink: int = Field(default=0, ge=0)

    @model_validator(mode="after")
    def _one_place(self) -> "OnCable":
        if (self.node is None) == (self.switch is None):
            raise ValueError("name either a node (and nic) or a switch (and uplink)")
        return self

    def cable(self, world: World) -> int:
        """Return the cable's index. UserError: there is no such node or switch."""
        if self.node is not None:
            return world.fabric.host_cable(world.node(self.node), self.nic)
        return world.uplink(self.switch or "", self.uplink)

    def columns(self, world: World) -> Ints:
        """Return the cable's index as an effect's columns."""
        return np.array([self.cable(world)])

    def truths(self, world: World) -> Iterable[PlacedTruth]:
        """Return the label: the lower end, or just as well the upper."""
        if self.truth is not None:
            cable = self.cable(world)
            lower, upper = world.fabric.ends(cable)
            nodes = world.fabric.nodes_on(cable)
            yield PlacedTruth(truth=self.truth, entity=lower, also=[upper], span=(self.at, self.until), nodes=nodes)


class OnSwitch(Lasting):
    """Lasting, on one switch."""

    switch: str

    def index(self, world: World) -> int:
        """Return the switch's index. UserError: there is none of that name."""
        return world.switch(self.switch)

    def truths(self, world: World) -> Iterable[PlacedTruth]:
        """Return the label of the switch."""
        if self.truth is not None:
            index = self.index(world)
            entity: dict[str, str | int] = {"switch": world.fabric.switches[index]}
            nodes = world.fabric.nodes_at(index)
            yield PlacedTruth(truth=self.truth, entity=entity, span=(self.at, self.until), nodes=nodes)


def link_lines(world: World, logs: Logs, cable: int, at: float, *, up: bool) -> Iterator[Event]:
    """Yield what both ends log when a cable's link goes down, or comes up."""
    fabric = world.fabric
    infiniband = fabric.network.fabric == "infiniband"
    if cable < fabric.hosts and fabric.host_machine[cable] < fabric.nodes:
        node, number = int(fabric.host_machine[cable]), int(fabric.host_number[cable])
        buses = world.profile.node.nic_pci_buses
        bus = f"0000:{buses[number % len(buses)]}:00.{number // len(buses)}"
        name = f"ib{number}" if infiniband else f"ens{number + 1}np0"
        link = "Link up" if up else "Link down"
        yield logs.kernel(node, at + 0.02, "info" if up else "error", f"mlx5_core {bus} {name}: {link}")
        carrier = "Gained carrier" if up else "Lost carrier"
        yield logs.kernel(node, at + 0.3, "info" if up else "warning", f"systemd-networkd[1187]: {name}: {carrier}")
    if not infiniband:
        before, after = ("down", "up") if up else ("up", "down")
        for end in fabric.ends(cable):
            if "switch" in end:
                text = f"updatePortOperStatus: Port {end['port']} oper state set from {before} to {after}"
                yield logs.switch(
                    str(end["switch"]), at + 0.05, "info" if up else "warning", f"swss#orchagent: :- {text}"
                )
