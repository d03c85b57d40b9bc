"""What many cables share that lost their links in one moment: a switch, or a node that nobody gathers."""

from typing import Final

from detectors.contract import Instant
from detectors.fleet.cabling import End
from detectors.link_fault.cables import Cable, Cables
from detectors.link_fault.nodes import Nodes
from detectors.link_fault.states import States

_SWITCH_LINKS, _SWITCH_SHARE = 3, 0.5
"""Three cables, and half of a switch's, do not fail in one moment; what they share does."""
_NODE_LINKS: Final = 2
"""All of them: a card of two ports may fail, and takes both."""


class Together:
    """Looks for what went down with a cable."""

    def __init__(self, cables: Cables, states: dict[str, States], nodes: Nodes) -> None:
        self._cables, self._states, self._nodes = cables, states, nodes

    def ports(self, cable: Cable) -> list[tuple[End, States, int]]:
        """Return the ends of a cable that have reported."""
        found = [(end, self._cables.index(end)) for end in cable.ends]
        return [(end, self._states[end[0]], index) for end, index in found if index is not None]

    def lives(self, cable: Cable, since: Instant, now: Instant) -> bool:
        """Return whether the node on a cable, if there is one, is at work and was heard after `since`."""
        return cable.node is None or self._nodes.lives(cable.node, since, now)

    def of(self, cable: Cable, since: Instant, now: Instant) -> tuple[End | None, tuple[Cable, ...]]:
        """Return the switch most of whose cables went down with this one, or the node that nobody gathers all of whose
        did, as an end without port, and those; (None, ()) if there is none.
        """
        owners: list[tuple[End, int, float]] = [
            (("switch", switch, ""), _SWITCH_LINKS, _SWITCH_SHARE) for switch in sorted(cable.switches)
        ]
        if cable.node is not None and not self._nodes.is_gathered(cable.node):
            owners.append((("nic", cable.node, ""), _NODE_LINKS, 1.0))
        best: tuple[float, End | None, tuple[Cable, ...]] = (0.0, None, ())
        for owner, links, least in owners:
            used = [other for other in self._cables.at(owner) if self._was_up(other)]
            gone = tuple(other for other in used if self._went_down(other, since, now))
            share = len(gone) / max(len(used), 1)
            if len(gone) >= links and share >= least and share > best[0]:
                best = share, owner, gone
        return best[1], best[2]

    def _was_up(self, cable: Cable) -> bool:
        return any(states.state[port] == 1 or states.down_since[port] >= 0 for _, states, port in self.ports(cable))

    def _went_down(self, cable: Cable, at: Instant, now: Instant) -> bool:
        low = [(states, port) for _, states, port in self.ports(cable) if states.down_since[port] >= 0]
        since = [int(states.down_since[port]) for states, port in low]
        near = any(abs(one - at) <= states.together_ms(port) for one, (states, port) in zip(since, low, strict=True))
        return near and self.lives(cable, min(since), now)
