"""Who is heard of, and who is gone for good: on a cluster whose machines come and go, what is known must not only grow.

A machine (a node or a switch) is heard of by any reading of anything on it, by a line of its log, and when a finding is
made on it; what a job runs on, and what the topology names, is never gone. A mount is gone when no client on a living
node reports it. Time counts only while the feed is heard: an outage of a month makes nobody a stranger.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from detectors.contract import Batch, BoolArray, Finding, Instant, IntArray, LogRecord
from detectors.core.columns import GPU_NODES, Columns, column
from detectors.core.kept import Kept
from detectors.core.survivors import Survivors
from detectors.fleet.fleet import Fleet
from detectors.fleet.presence import Roster

DAY_MS: Final = 86_400_000
FORGET_MS: Final = 7 * DAY_MS
"""A week (a policy): a machine that is away for a weekend, or for a repair of some days, is the same one."""
_LOOKS: Final = 168
"""So often it is looked for within that time: every hour of a week."""
_MACHINES: Final = ("dcgm", "nic", "switch", "bmc", "storage")
_SHARE: Final = 8
"""Forgetting costs as much as a restart: it waits until an eighth of all is gone."""
_RANKS_EVERY_MS: Final = 3_600_000
_RANKS_KEPT_MS: Final = 86_400_000
"""A job that is over, and of which no step came for a day, is not heard of any more."""


@dataclass(frozen=True)
class Forgetting:
    """After how long who is gone is forgotten (ms of event time), and what part of the topology is `expected` whether
    heard or not; None: all of it. The rest was inferred from what was heard, and goes with it.
    """

    after_ms: int = FORGET_MS
    expected: Mapping[str, Any] | None = None


AFTER_A_WEEK: Final = Forgetting()


class _Last(Columns):
    """The look after which each was last heard."""

    look: IntArray = column(0)

    def hear(self, those: IntArray, look: int, count: int) -> None:
        """Note who of now `count` was heard; who is new is heard by that."""
        before = len(self)
        self.grow(count)
        self.look[before:] = look
        self.look[those] = look


class Heard(Kept):
    """Takes note of who is heard; of machines in all, of storage by client."""

    KEPT = ("_roster", "_machines", "_clients", "_looks")

    def __init__(self, fleet: Fleet, forgetting: Forgetting, grid_ms: int) -> None:
        self._fleet, self._after_ms = fleet, forgetting.after_ms
        self._every_ms = max(self._after_ms // _LOOKS // grid_ms, 1) * grid_ms
        self._roster = Roster(fleet)
        self._machines, self._clients = _Last().along(self._roster), _Last().along("storage")
        self._looks = 0
        expected = fleet.topology if forgetting.expected is None else forgetting.expected
        self._named, self._mounts = _machines(expected), {str(one["mount"]) for one in expected.get("mounts") or ()}

    @property
    def words(self) -> str:
        """Why what was open on somebody who is gone is resolved."""
        return f"gone for {self._after_ms / DAY_MS:g} days"

    def take(self, batch: Batch) -> None:
        """Take note of who reports."""
        if batch.kind in _MACHINES:
            self._hear(self._owners(batch.kind)[batch.entities])
        if batch.kind == "storage":
            self._clients.hear(batch.entities, self._looks, len(self._fleet.entities("storage")))

    def take_lines(self, records: Iterable[LogRecord]) -> None:
        """Take note of whose log there are lines of."""
        self._hear(self._numbers({record.node for record in records if record.node is not None}))

    def take_findings(self, findings: Iterable[Finding]) -> None:
        """Take note of the machines on which findings are made."""
        named = {one.entity.get("node", one.entity.get("switch")) for one in findings if one.state == "firing"}
        if named:
            self._hear(self._numbers({str(name) for name in named if name is not None}))

    def _numbers(self, names: set[str]) -> IntArray:
        return np.array([self._roster.number(name) for name in sorted(names)], np.int64)

    def _hear(self, machines: IntArray) -> None:
        self._machines.hear(machines, self._looks, len(self._roster))

    def _owners(self, kind: str) -> IntArray:
        return self._roster.owners(kind, len(self._fleet.entities(kind)))

    def look(self, now: Instant) -> Survivors | None:
        """At a point of the grid: return who survives, if enough are gone that it is worth to forget them."""
        machines = self._machines_left() if now % self._every_ms == 0 else None
        ranks = self._ranks_left(now - _RANKS_KEPT_MS) if now % _RANKS_EVERY_MS == 0 else None
        if machines is None or ranks is None:
            return machines or ranks
        return Survivors({**machines.kept, **ranks.kept}, {**machines.gone, **ranks.gone})

    def _ranks_left(self, since: Instant) -> Survivors | None:
        """Return which ranks are left without the jobs that are over, once these are most of them."""
        ranks, kept = self._fleet.entities("steps"), self._fleet.ranks_since(since)
        if not ranks or 2 * len(kept) > len(ranks):
            return None
        jobs = frozenset(str(job) for job, _ in ranks) - {str(ranks[rank][0]) for rank in kept.tolist()}
        return Survivors({"steps": kept}, {"job": jobs})

    def _machines_left(self) -> Survivors | None:
        owners = {kind: self._owners(kind) for kind in _MACHINES}
        nobody = np.empty(0, np.int64)
        self._hear(nobody)
        self._clients.hear(nobody, self._looks, len(owners["storage"]))
        self._looks += 1
        since = self._looks - -(-self._after_ms // self._every_ms)
        gone = self._gone(since)
        alive = np.ones(len(self._roster), bool)
        alive[gone] = False
        clients = alive[owners["storage"]] & self._mounted(since)
        if _SHARE * len(gone) < max(len(alive), 1) and _SHARE * np.count_nonzero(~clients) < max(len(clients), 1):
            return None
        stay = {kind: alive[owner] for kind, owner in owners.items()} | {"storage": clients}
        kept = {kind: np.flatnonzero(those) for kind, those in stay.items() if not those.all()}
        if "dcgm" in kept:
            nodes, first = np.unique(owners["dcgm"], return_index=True)
            kept[GPU_NODES] = np.flatnonzero(alive[nodes[np.argsort(first)]])
        mounts = [str(key[1]) for key in self._fleet.entities("storage")]
        held = {mounts[client] for client in np.flatnonzero(clients).tolist()}
        names = frozenset(self._roster.names[number] for number in gone.tolist())
        return Survivors(kept, {"machine": names, "mount": frozenset(mounts) - held})

    def _gone(self, since: int) -> IntArray:
        """Return the machines that were not heard after the look `since`, and that nobody expects."""
        running = (job.nodes for job in self._fleet.jobs.values() if not job.inferred)
        expected = self._named.union(*running)
        old = np.flatnonzero(self._machines.look < since).tolist()
        return np.array([number for number in old if self._roster.names[number] not in expected], np.int64)

    def _mounted(self, since: int) -> BoolArray:
        """Return of which clients, by index, the mount was heard, or is expected."""
        fresh = np.asarray(self._clients.look >= since)
        keys = self._fleet.entities("storage")
        for client in np.flatnonzero(~fresh).tolist():
            fresh[client] = str(keys[client][1]) in self._mounts
        return fresh


def _machines(topology: Mapping[str, Any]) -> frozenset[str]:
    """Return the machines that a topology names."""
    nodes = topology.get("nodes") or ()
    switches = {str(one.get("name")) for one in topology.get("switches") or ()}
    plugged = {str(nic["switch"]) for node in nodes for nic in node.get("nics") or () if nic.get("switch")}
    ends = {_switch(link, end) for link in topology.get("links") or () for end in ("a", "b")}
    return frozenset({*(str(node["name"]) for node in nodes), *switches, *plugged, *ends})


def without(topology: Mapping[str, Any] | None, survivors: Survivors) -> Mapping[str, Any] | None:
    """Return a topology without what is gone."""
    machines, mounts = survivors.names("machine"), survivors.names("mount")
    if not topology or not (machines or mounts):
        return topology
    left = {name: listed for name, listed in topology.items() if name not in {"nodes", "switches", "links", "mounts"}}
    for what, key, gone in (("nodes", "name", machines), ("switches", "name", machines), ("mounts", "mount", mounts)):
        if what in topology:
            left[what] = [one for one in topology[what] or () if one.get(key) not in gone]
    if "links" in topology:
        links = topology["links"] or ()
        left["links"] = [one for one in links if not machines & {_switch(one, "a"), _switch(one, "b")}]
    return left


def _switch(link: Mapping[str, Any], end: str) -> str:
    return str(link.get(end, "")).partition(":")[0]
