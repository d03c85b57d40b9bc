"""Where a congestion begins: of all ports that are hot together, the one that the others suffer from.

Pauses travel upstream: a switch whose queue to one port is full pauses those who send to it, and these pause theirs.
So the origin marks, drops and *sends* pauses; who *receives* them, from a switch, is a victim. Only what a host sends
is its own: a host that pauses its switch port is a receiver too slow, and the end of the chain.
"""

from collections import Counter
from dataclasses import dataclass

from detectors.congestion.fabric import Fabric, Port, is_most

_PART = 0.5
"""Ports with half of the strongest one's signal are as strong as it."""

Hot = dict[Port, dict[str, float]]
"""By hot port its signals, in shares of what matters."""


@dataclass(frozen=True, slots=True)
class Origin:
    """The switch where a congestion begins, the port (empty: the whole switch), by which signals, with whom."""

    switch: str
    port: str
    by: str
    ports: tuple[str, ...]


def origin_of(fabric: Fabric, hot: Hot) -> Origin:
    """Return the origin among hot ports."""
    many = Counter(port[0] for port in hot)
    switch = max(sorted(many), key=lambda name: _source(fabric, hot, many, name))
    own = {port: signals for port, signals in sorted(hot.items()) if port[0] == switch}
    queued = {port: signals.get("mark", 0.0) + signals.get("drop", 0.0) for port, signals in own.items()}
    hosts = {port: signals.get("rx", 0.0) if port in fabric.host else 0.0 for port, signals in own.items()}
    sent = {port: signals.get("tx", 0.0) for port, signals in own.items()}
    paused = {port: signals.get("rx", 0.0) for port, signals in own.items()}
    ways = (("marks and drops", queued), ("pauses from its host", hosts), ("pauses sent", sent), ("waits", paused))
    matters = min(1.0, max(value for _, weight in ways for value in weight.values()))
    by, weight = next((by, weight) for by, weight in ways if max(weight.values()) >= matters)
    most = max(weight.values())
    strong = [port for port, value in weight.items() if value >= _PART * most]
    if is_most(len(strong), fabric.size(switch)):
        return Origin(switch, "", by, tuple(port for _, port in strong))
    best = max(sorted(strong), key=lambda port: (weight[port], sum(own[port].values()), port))
    return Origin(switch, best[1], by, (best[1],))


def _source(fabric: Fabric, hot: Hot, many: Counter[str], switch: str) -> float:
    """Return how much of a congestion a switch makes, less what it suffers from others; `many` ports are hot by switch.

    A port that waits for credits suffers from the switch that it sends to, unless all other ports of that are calm:
    then more is sent over the cable than it takes.
    """
    made = 0.0
    for port, signals in hot.items():
        if port[0] == switch:
            received = signals.get("rx", 0.0) * (1 if port in fabric.host else -1)
            far = fabric.far.get(port)
            if far is not None and many[far[0]] == (far in hot):
                received += 2 * signals.get("wait", 0.0)
            made += signals.get("mark", 0.0) + signals.get("drop", 0.0) + signals.get("tx", 0.0) + received
    return made


def together(fabric: Fabric, hot: Hot) -> list[Hot]:
    """Return the hot ports in lots, each of switches that are cabled to one another."""
    left = sorted({port[0] for port in hot})
    lots: list[set[str]] = []
    while left:
        lot, edge = {left[0]}, [left[0]]
        while edge:
            near = fabric.near(edge.pop())
            more = [switch for switch in left if switch in near and switch not in lot]
            lot |= set(more)
            edge += more
        lots.append(lot)
        left = [switch for switch in left if switch not in lot]
    return [{port: signals for port, signals in hot.items() if port[0] in lot} for lot in lots]


def strongest(lot: Hot) -> float:
    """Return how strong the strongest signal of some ports is, besides marks."""
    return max(strength for signals in lot.values() for signal, strength in signals.items() if signal != "mark")
