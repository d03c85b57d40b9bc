"""Which two ports are the ends of one cable: a cable is named once, whichever of its ends reports."""

from collections.abc import Iterable
from dataclasses import dataclass

from detectors.contract import Entity
from detectors.fleet.cabling import End, cables
from detectors.fleet.fleet import Fleet


def entity_of(end: End) -> Entity:
    """Return how findings name a port."""
    kind, owner, port = end
    return {"node": owner, "nic": port} if kind == "nic" else {"switch": owner, "port": port}


@dataclass(frozen=True, slots=True)
class Cable:
    """A cable and its ends, the NIC's first; one end only, where the topology does not have the other."""

    ends: tuple[End, ...]
    laid: bool = False
    """Whether the topology has it: then it is expected to be up."""

    @property
    def node(self) -> str | None:
        """The node on the cable, if there is one."""
        return next((owner for kind, owner, _ in self.ends if kind == "nic"), None)

    @property
    def switches(self) -> tuple[str, ...]:
        """The switches on the cable."""
        return tuple(owner for kind, owner, _ in self.ends if kind == "switch")


class Cables:
    """All cables of the topology, and those of ports that it does not have."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._index: dict[End, int] = {}
        self._of: dict[End, Cable] = {}
        self._by_index: dict[str, list[Cable]] = {"nic": [], "switch": []}
        self._at: dict[End, list[Cable]] = {}
        self._nics: dict[str, list[int]] = {}
        for ends, _ in cables(fleet):
            self._lay(ends, laid=len(ends) > 1 or ends[0][0] == "switch")

    def _lay(self, ends: Iterable[End], *, laid: bool = False) -> None:
        fresh = tuple(end for end in ends if end not in self._of)
        if not fresh:
            return  # the topology names this port twice: its first cable counts
        cable = Cable(fresh, laid)
        self._of |= dict.fromkeys(fresh, cable)
        for kind, owner, _ in cable.ends:
            self._at.setdefault((kind, owner, ""), []).append(cable)

    def sync(self, kind: str, count: int) -> None:
        """Take note of the first `count` entities of a kind."""
        known = self._by_index[kind]
        for owner, port in self._fleet.entities(kind)[len(known) : count]:
            end = (kind, str(owner), str(port))
            if end not in self._of:
                self._lay([end])
            self._index[end] = len(known)
            if kind == "nic":
                self._nics.setdefault(str(owner), []).append(len(known))
            known.append(self._of[end])

    def of(self, kind: str, index: int) -> Cable:
        """Return the cable of an entity by its index in the fleet."""
        return self._by_index[kind][index]

    def with_end(self, end: End) -> Cable:
        """Return the cable that has an end."""
        return self._of.get(end) or Cable((end,))

    def knows(self, end: End) -> bool:
        """Return whether the topology has a port, or it has reported."""
        return end in self._of

    def at(self, owner: End) -> list[Cable]:
        """Return the cables of a switch or of a node's NICs: an end without port."""
        return self._at.get(owner, [])

    def index(self, end: End) -> int | None:
        """Return the index in the fleet of a port that has reported; None of one that has not."""
        return self._index.get(end)

    def nics_of(self, node: str) -> list[int]:
        """Return the indices of the NICs of a node that have reported."""
        return self._nics.get(node, [])
