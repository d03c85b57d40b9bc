"""A node is closed for new jobs by its administrator, and opened again: upkeep, no fault.

What runs on it goes on (LSF: ``badmin hclose -C``; Slurm: a drain).
"""

from collections.abc import Iterable
from typing import Literal

from services.recording.model import Event
from services.synth.cluster.world import World
from services.synth.logs.lines import Logs
from services.synth.story.happening import Happening, Offset


class NodeClosed(Happening):
    """From `at` until `until`, or for good."""

    kind: Literal["node_closed"]
    node: str
    at: Offset
    until: Offset | None = None
    reason: str = "planned maintenance"

    def lines(self, world: World, logs: Logs) -> Iterable[Event]:
        """Return the scheduler's lines."""
        node = world.node(self.node)
        yield logs.closed(node, self.at, self.reason)
        if self.until is not None:
            yield logs.opened(node, self.until)
