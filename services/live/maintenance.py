"""Maintenance of a live cluster: the nodes that its scheduler says are closed, as lines of its log."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from detectors.contract import LogRecord

_AGAIN_MS = 86_400_000
"""A node that stays closed is named again: detectors remember for a week that one is."""
_FORGOTTEN_MS = 7 * 86_400_000


class NodeState(NamedTuple):
    """Why a node is closed, empty where it is open, and since when (epoch ms) where that is known."""

    closed: str = ""
    since: int | None = None


Nodes = Callable[[], Mapping[str, NodeState]]
"""Returns the nodes that a scheduler has at the moment."""


class Maintenance:
    """Says which nodes were closed and opened; one that the scheduler has no more stays as it was."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.closed: dict[str, int] = {}
        """Nodes that are closed, with the time (epoch ms) of the last line that says so."""

    def lines(self, after: int, now: int) -> list[LogRecord]:
        """Return what is news at wall time `now` (epoch ms), in lines later than the event time `after`.

        A node is closed since when the scheduler says, and open now at the earliest: what went on before was closed.
        """
        lines, nodes = [], self._nodes()
        for node, state in sorted(nodes.items()):
            written = self.closed.get(node)
            if state.closed and (written is None or now - written >= _AGAIN_MS):
                at = max(after + 1, (state.since or 0) if written is None else now)
                self.closed[node] = at
                lines.append(LogRecord(at, "scheduler", f"node {node} state set to DRAIN ({state.closed})", node=node))
            elif not state.closed and written is not None:
                del self.closed[node]
                lines.append(LogRecord(now, "scheduler", f"node {node} state set to RESUME", node=node))
        gone = [node for node, at in self.closed.items() if node not in nodes and now - at > _FORGOTTEN_MS]
        for node in gone:
            del self.closed[node]
        return lines
