"""Slurm's nodes and reservations, as `sinfo`, `scontrol show nodes` or `reservations` and slurmrestd have them in JSON.

Over the releases (22.05 to 26.05 are tested) a node's state became a list, which holds what `state_flags` held before,
and a time ``{"set": true, "infinite": false, "number": 1795456916}``.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from services.live.listing import PassedOver
from services.live.maintenance import NodeState
from services.recording.importers.parts.objects import WrongObjectError, part, text
from services.recording.importers.parts.schedulers.hostlist import HostListError, expand

_CLOSED = frozenset(
    {
        # sinfo.1, NODE STATE CODES: what an administrator or the power plan took out of service
        *("DRAIN", "DRAINED", "DRAINING", "FAIL", "FAILING", "MAINT", "MAINTENANCE"),
        *("REBOOT", "REBOOT_ISSUED", "REBOOT_REQUESTED"),
        *("POWERED_DOWN", "POWERING_DOWN", "POWER_DOWN", "POWER_DRAIN"),
    }
)
_SLURM_SET_IT_DOWN = ("not responding", "node unexpectedly rebooted")
"""Reasons that slurmctld itself gives (ping_nodes.c, node_mgr.c); others are an administrator's words."""


class Reservation(NamedTuple):
    """Nodes that are in maintenance from `start` to before `end` (epoch ms)."""

    name: str
    nodes: frozenset[str]
    start: int
    end: int


class Nodes:
    """What one time of asking brings together. Wrong objects are named and passed over."""

    def __init__(self, passed_over: PassedOver) -> None:
        self._passed_over = passed_over
        self._nodes: dict[str, NodeState] = {}
        self._reserved: list[Reservation] = []

    def take(self, document: Mapping[str, Any], source: str) -> bool:
        """Take what a document lists of nodes and reservations; return whether it has such a list."""
        readers = {"nodes": self._take_node, "sinfo": self._take_row, "reservations": self._take_reservation}
        lists = {key: items for key in readers if isinstance(items := document.get(key), list)}
        for key, items in lists.items():
            for number, item in enumerate(items, start=1):
                if not isinstance(item, dict):
                    self._passed_over.name(f"{source}: {key}: {number}", "no object")
                    continue
                try:
                    readers[key](item)
                except (WrongObjectError, HostListError) as error:
                    self._passed_over.name(f"{source}: {key}: {item.get('name') or number}", error)
        return bool(lists)

    def states(self, now: int) -> dict[str, NodeState]:
        """Return all nodes, those closed that are in a reservation for maintenance at `now` (epoch ms)."""
        states = dict(self._nodes)
        for reserved in sorted(self._reserved, key=lambda one: one.start):
            for node in reserved.nodes if reserved.start <= now < reserved.end else ():
                known = states.get(node, NodeState())
                if not known.closed or known.since is None:
                    states[node] = NodeState(f"reservation {reserved.name} in Slurm", reserved.start)
        return states

    @property
    def reserved(self) -> set[str]:
        """Nodes of reservations for maintenance, at whatever time."""
        return {node for reserved in self._reserved for node in reserved.nodes}

    def _take_node(self, item: Mapping[str, Any]) -> None:
        name = text(item, "name")
        if not name:
            raise WrongObjectError("a node without a name")
        states = _states(item.get("state")) + _states(item.get("state_flags"))
        self._nodes[name] = _state(states, text(item, "reason"), item.get("reason_changed_at"))

    def _take_row(self, item: Mapping[str, Any]) -> None:
        """Take a row of `sinfo`: nodes that have all in common, once for each of their partitions."""
        reason = part(item, "reason")
        state = _state(_states(part(item, "node").get("state")), text(reason, "description"), reason.get("time"))
        for name in _names(part(item, "nodes").get("nodes")):
            self._nodes[name] = state

    def _take_reservation(self, item: Mapping[str, Any]) -> None:
        if "MAINT" in _states(item.get("flags")):
            start, end = _time(item.get("start_time")), _time(item.get("end_time"))
            if start is None or end is None:
                raise WrongObjectError("a reservation without start_time and end_time")
            nodes = frozenset(expand(text(item, "node_list")))
            self._reserved.append(Reservation(text(item, "name"), nodes, start, end))


def _state(states: Sequence[str], reason: str, changed_at: Any) -> NodeState:
    closing = [state for state in states if state in _CLOSED]
    since = _time(changed_at)
    if closing:
        return NodeState(f"{closing[0]} in Slurm" + (f": {reason}" if reason else ""), since)
    is_down = "DOWN" in states and reason.lower().startswith(_SLURM_SET_IT_DOWN)
    return NodeState(since=since, is_down=True) if is_down else NodeState()


def _states(value: Any) -> list[str]:
    """Return states in capitals: of ``idle+drain*``, of ``["IDLE", "DRAIN"]``; none where there is nothing."""
    words = value if isinstance(value, list) else [value] if value is not None else []
    if not all(isinstance(word, str) for word in words):
        raise WrongObjectError("state is no text and no list of texts")
    # sinfo.1: a sign behind a state says that the node does not respond, is powered down, is to be rebooted, ...
    return [state.strip().rstrip("*~#!%$@^-").upper() for word in words for state in word.replace(",", "+").split("+")]


def _names(value: Any) -> Iterator[str]:
    if not isinstance(value, list) or not all(isinstance(one, str) for one in value):
        raise WrongObjectError("nodes is no list of names")
    for one in value:
        yield from expand(one)


def _time(value: Any) -> int | None:
    """Return a time in ms, in either form; None where it is not set."""
    if isinstance(value, dict):
        value = value.get("number") if value.get("set") and not value.get("infinite") else None
    if value is None or value == 0:
        return None
    if isinstance(value, bool) or not isinstance(value, int) or not 0 < value < 1 << 33:
        raise WrongObjectError(f"{json.dumps(value)[:40]} is no time")
    return value * 1000
