"""The cables of the topology: which two ports are the ends of one, and how fast it is."""

from collections.abc import Iterator
from typing import Any

from detectors.fleet.fleet import Fleet

End = tuple[str, str, str]
"""(kind, node or switch, nic or port); the kind is ``nic`` or ``switch``."""


def cables(fleet: Fleet) -> Iterator[tuple[tuple[End, ...], float | None]]:
    """Yield each cable's ends, a NIC's first, and its Gb/s (None: unknown); one end where the other is not known."""
    for node, about in fleet.nodes.items():
        for nic in about.get("nics") or ():
            far = [("switch", str(nic["switch"]), str(nic["port"]))] if nic.get("switch") and nic.get("port") else []
            yield (("nic", node, str(nic.get("nic"))), *far), _gbps(nic)
    for link in fleet.topology.get("links") or ():
        pair = [str(link.get(end, "")).partition(":") for end in ("a", "b")]
        ends = tuple(("switch", switch, port) for switch, _, port in sorted(pair) if port)
        if ends:
            yield ends, _gbps(link)


def _gbps(about: Any) -> float | None:
    return float(about["gbps"]) if about.get("gbps") else None
