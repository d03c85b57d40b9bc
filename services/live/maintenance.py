"""Maintenance of a live cluster: the nodes that its scheduler says are closed, or down, as lines of its log."""

from collections.abc import Callable, Mapping
from typing import NamedTuple

from detectors.contract import LogRecord
from detectors.fleet.scheduling import words_of

_AGAIN_MS = 86_400_000
"""A node that stays closed is named again: detectors remember for a week that one is."""
_FORGOTTEN_MS = 7 * 86_400_000
_NEWS_MS = 600_000
"""A node that has been down for longer, when it is seen first, is no news."""


class NodeState(NamedTuple):
    """Why a node is closed, empty where it is open; whether its scheduler has lost it; since when (epoch ms)."""

    closed: str = ""
    since: int | None = None
    is_down: bool = False


Nodes = Callable[[], Mapping[str, NodeState]]
"""Returns the nodes that a scheduler has at the moment."""


class Maintenance:
    """Says which nodes were closed and opened; one that the scheduler has no more stays as it was."""

    def __init__(self, nodes: Nodes) -> None:
        self._nodes = nodes
        self.closed: dict[str, int] = {}
        """Nodes that are closed, with the time (epoch ms) of the last line that says so."""
        self.down: dict[str, int] = {}
        """Nodes that the scheduler has lost, with the time (epoch ms) since when."""

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
                lines.append(_closing(node, at, state.closed))
            elif not state.closed and written is not None:
                del self.closed[node]
                lines.append(_line(node, now, f"node {node} state set to RESUME"))
            lines += self._fate(node, state, after, now)
        gone = [node for node, at in self.closed.items() if node not in nodes and now - at > _FORGOTTEN_MS]
        for node in gone:
            del self.closed[node]
        for node in self.down.keys() - nodes.keys():
            del self.down[node]
        return lines

    def _fate(self, node: str, state: NodeState, after: int, now: int) -> list[LogRecord]:
        """Return what is news of a node that was lost, or came back."""
        if state.is_down and node not in self.down:
            since = now if state.since is None else state.since
            self.down[node] = since
            if since > after - _NEWS_MS:
                return [_line(node, max(after + 1, since), f"Node {node} not responding, setting DOWN")]
        elif not state.is_down and self.down.pop(node, None) is not None and not state.closed:
            return [_line(node, now, f"node {node} returned to service")]
        return []


def _line(node: str, at: int, message: str) -> LogRecord:
    return LogRecord(at, "scheduler", message, node=node)


def _closing(node: str, at: int, why: str) -> LogRecord:
    """Return the line that a node is closed; without the reason where its words could be taken for something else."""
    plain = f"node {node} state set to DRAIN"
    line = _line(node, at, f"{plain} ({why})")
    return line if list(words_of(line)) == [(node, "out")] else _line(node, at, plain)
