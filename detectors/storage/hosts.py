"""What kernels say of file servers that do not answer: whoever asked them for something waits, for minutes already."""

import re
from collections.abc import Iterable, Sequence
from typing import Any, Final

from detectors.contract import Instant, LogRecord
from detectors.core.kept import Kept
from detectors.fleet.fleet import Fleet
from detectors.storage.clients import Clients
from detectors.storage.waits import LEAD_MS

_LINES: Final = {
    "nfs": re.compile(r"\bnfs: server \S+ not responding\b", re.IGNORECASE),
    "lustre": re.compile(r"\bLustre(?:Error)?: .*\btimed out for slow reply\b"),
    "beegfs": re.compile(r"\bbeegfs: .*(?:\bRetrying communication\b|\btimed out\b)", re.IGNORECASE),
    "ceph": re.compile(r"\bceph: mds\d+ hung\b"),
}
"""By kind of file system, as a topology has it. Lines about the network alone (LNet, connections) are none of these."""
_FEWEST: Final = 2
"""One host whose server does not answer may have a bad link."""
_KEPT_MS: Final = 3_600_000
_NAMED: Final = 8
_LOCAL: Final = ("nvme", "local", "ssd", "tmpfs", "ramfs", "xfs", "ext4")


class Hosts(Kept):
    """By kind of file system and node, when its kernel last spoke of that (`heard`, ms); which mounts are `local`."""

    KEPT = ("heard",)

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self.heard: dict[str, dict[str, Instant]] = {}
        mounts = fleet.topology.get("mounts", ())
        self._kinds = {str(mount["mount"]): str(mount.get("kind") or "").lower() for mount in mounts}
        self.local = {mount for mount, kind in self._kinds.items() if kind in _LOCAL}

    def begin_afresh(self, name: str) -> None:
        """Go on without the lines, which an older version did not keep."""

    def take(self, records: Sequence[LogRecord]) -> None:
        """Take lines of logs."""
        for record in records:
            if record.source != "kernel" or record.node is None:
                continue
            for kind, form in _LINES.items():
                if form.search(record.message):
                    self.heard.setdefault(kind, {})[record.node] = record.at

    def forget(self, now: Instant, slow: Iterable[str]) -> None:
        """Forget what was heard long ago, and what mounts explain that are known to be `slow`: it says nothing of the
        others of their kind.
        """
        explained = {kind for mount in slow for kind in self._spoken_of(mount)}
        recent = {
            kind: {node: at for node, at in nodes.items() if now - at <= _KEPT_MS and kind not in explained}
            for kind, nodes in self.heard.items()
        }
        self.heard = {kind: nodes for kind, nodes in recent.items() if nodes}

    def _spoken_of(self, mount: str) -> list[str]:
        """Return of which kinds lines are that may be about a mount: of any where nobody says its kind."""
        own = self._kinds.get(mount, "")
        return [kind for kind in self.heard if not own or kind in own]

    def waiting(self, clients: Clients, name: str, since: Instant) -> tuple[dict[str, Any], str]:
        """Return which clients of a mount that is slow `since` then wait for its servers, by their kernels, as evidence
        and in words; nothing where fewer than `_FEWEST` say so.

        A line names a server, or a target, and no mount: what no other mount explains counts for all of its kind.
        """
        lines = [line for kind in self._spoken_of(name) for line in self.heard[kind].items()]
        nodes = {node for node, at in lines if at >= since - LEAD_MS}
        hosts = sorted(node for node in nodes if clients.has(node, name))
        if len(hosts) < _FEWEST:
            return {}, ""
        words = f"and the kernels of {len(hosts)} clients wait for its servers, which do not answer"
        return {"clients_waiting": len(hosts), "nodes_waiting": ", ".join(hosts[:_NAMED])}, words
