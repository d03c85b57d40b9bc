"""When every node and switch was last heard in each stream, and what says that it lives all the same."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray, Kind
from detectors.fleet import Fleet
from detectors.presence import NEVER, Presence, Roster, reported
from detectors.watts import Watts

IN_BAND: Final[tuple[Kind, ...]] = ("dcgm", "nic", "storage")
OF_NODES: Final[tuple[Kind, ...]] = (*IN_BAND, "bmc")
LATE: Final = 1.7
"""A stream whose last reading is more of its intervals old has missed one."""


class Streams:
    """Columns over nodes by stream (`last`, `usual`, `missed`: (streams, nodes)), and the same over switches."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.nodes = Roster(fleet)
        self.switches = Roster(fleet)
        self.watts = Watts(fleet, self.nodes)
        self.of: dict[str, Presence] = {kind: Presence(kind) for kind in (*IN_BAND, "switch")}
        self.of["bmc"] = self.watts.presence
        self._up = {kind: np.empty(0, bool) for kind in ("nic", "switch")}
        self._rose = {kind: np.empty(0, np.int64) for kind in ("nic", "switch")}
        self.last: IntArray = np.empty((len(OF_NODES), 0), np.int64)
        self.usual: FloatArray = np.empty((len(OF_NODES), 0))
        self.missed: FloatArray = np.empty((len(OF_NODES), 0))
        self.dark: BoolArray = np.empty(0, bool)
        """Which nodes are silent in all their in-band streams, (nodes,)."""
        self.dark_at: IntArray = np.empty(0, np.int64)
        self.switch_last: IntArray = np.empty(0, np.int64)
        self.switch_usual: FloatArray = np.empty(0)
        self.switch_missed: FloatArray = np.empty(0)

    def take(self, batch: Batch) -> None:
        """Take note of who is heard, and which links are up; a row that reports nothing counts for nothing."""
        if batch.kind == "bmc":
            self.watts.take(batch)
            return
        presence = self.of[batch.kind]
        presence.take(batch, reported(batch))
        name = {"nic": "state", "switch": "oper_up"}.get(batch.kind)
        if name is None:
            return
        up = self._up[batch.kind]
        if len(presence) > len(up):
            more = len(presence) - len(up)
            up = self._up[batch.kind] = np.concatenate([up, np.ones(more, bool)])
            self._rose[batch.kind] = np.concatenate([self._rose[batch.kind], np.full(more, NEVER, np.int64)])
        if name not in batch.values:
            return
        for tick in range(len(batch.at)):
            here = batch.present[tick] & batch.valid[name][tick]
            those, now_up = batch.entities[here], batch.values[name][tick, here] != 0
            rises = now_up & ~up[those]
            self._rose[batch.kind][those[rises]] = batch.at[tick, here][rises]
            up[those] = now_up

    def measure(self, now: Instant) -> None:
        """At a point of the grid: measure the silence of every node and switch in every stream."""
        for kind in OF_NODES:
            self.nodes.owners(kind, len(self.of[kind]))
        heard = [self.nodes.latest(self.of[kind]) for kind in OF_NODES]
        self.last = np.array([last for last, _ in heard])
        self.usual = np.array([usual for _, usual in heard])
        self.missed = _missed(self.last, self.usual, now)
        self.switches.owners("switch", len(self.of["switch"]))
        self.switch_last, self.switch_usual = self.switches.latest(self.of["switch"])
        self.switch_missed = _missed(self.switch_last, self.switch_usual, now)
        more = len(self.nodes) - len(self.dark_at)
        if more > 0:
            self.dark_at = np.concatenate([self.dark_at, np.full(more, NEVER, np.int64)])
        in_band = slice(len(IN_BAND))  # the first of OF_NODES
        known = self.last[in_band] >= 0
        self.dark = np.asarray(known.any(axis=0) & (~known | (self.missed[in_band] > 2.5)).all(axis=0))
        self.dark_at[self.dark] = now

    def seen_alive(self, row: int) -> BoolArray:
        """Return which nodes another in-band stream shows alive since stream `row` fell silent, (nodes,)."""
        alive = np.zeros(len(self.nodes), bool)
        for other, kind in enumerate(OF_NODES):
            if other != row and kind in IN_BAND:
                later = self.last[other] > self.last[row] + self.usual[row]
                alive |= (self.last[other] >= 0) & (self.missed[other] < LATE) & later
        return alive

    def bmc_lives(self, node: int, since: Instant) -> bool:
        """Return whether a node's BMC has reported after `since`, and lately."""
        row = OF_NODES.index("bmc")
        return bool(self.last[row, node] > since and self.missed[row, node] < LATE)

    def gpus_of(self, node: int) -> IntArray:
        """Return the indices of a node's GPUs."""
        return np.flatnonzero(self.nodes.owners("dcgm", len(self.of["dcgm"])) == node)

    def ports_of(self, switch: int) -> IntArray:
        """Return the indices of a switch's ports."""
        return np.flatnonzero(self.switches.owners("switch", len(self.of["switch"])) == switch)

    def links_up(self, kind: str, keys: set[tuple[str, str]], silent: Instant, since: Instant) -> int:
        """Return how many of the NICs or ports `keys` were heard after `since` with a link that was up all along.

        A link that came up after `silent` says that the switch was away itself, and boots.
        """
        presence = self.of[kind]
        count = 0
        for index, key in enumerate(self._fleet.entities(kind)[: len(presence)]):
            if (str(key[0]), str(key[1])) in keys:
                held = self._up[kind][index] and self._rose[kind][index] <= silent
                count += bool(held and presence.last[index] > since)
        return count

    @property
    def _kept(self) -> dict[str, Presence | Watts]:
        return {**self.of, "bmc": self.watts}

    def snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state as JSON can say it, and arrays."""
        numbers: dict[str, Any] = {}
        arrays: dict[str, NDArray[Any]] = {"dark_at": self.dark_at}
        arrays |= {f"{kind}_up": up for kind, up in self._up.items()}
        arrays |= {f"{kind}_rose": rose for kind, rose in self._rose.items()}
        for kind, stream in self._kept.items():
            numbers[kind], own = stream.snapshot()
            arrays |= own
        return {"seen": numbers, "nodes": self.nodes.names, "switches": self.switches.names}, arrays

    def load(self, state: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        for name in state["nodes"]:
            self.nodes.number(name)
        for name in state["switches"]:
            self.switches.number(name)
        for kind, stream in self._kept.items():
            stream.load(state["seen"][kind], arrays)
        self._up = {kind: arrays[f"{kind}_up"] for kind in self._up}
        self._rose = {kind: arrays[f"{kind}_rose"] for kind in self._rose}
        self.dark_at = arrays["dark_at"]


def _missed(last: IntArray, usual: FloatArray, now: Instant) -> FloatArray:
    return np.where(last >= 0, (now - last) / np.maximum(usual, 1.0), 0.0)


class Cables:
    """What hangs on every switch: the NICs, the nodes and the far ports of its links, as the topology tells."""

    def __init__(self, fleet: Fleet) -> None:
        self.nics: dict[str, set[tuple[str, str]]] = {}
        self.far: dict[str, set[tuple[str, str]]] = {}
        for node, told in fleet.nodes.items():
            for nic in told.get("nics") or ():
                self.nics.setdefault(str(nic.get("switch")), set()).add((node, str(nic.get("nic"))))
        for link in fleet.topology.get("links") or ():
            ends = [str(link.get(end, "")).partition(":") for end in ("a", "b")]
            for (switch, _, _), (other, _, port) in ((ends[0], ends[1]), (ends[1], ends[0])):
                self.far.setdefault(switch, set()).add((other, port))

    def nodes(self, switch: str) -> set[str]:
        """Return the nodes that have a NIC on a switch."""
        return {node for node, _ in self.nics.get(switch, ())}
