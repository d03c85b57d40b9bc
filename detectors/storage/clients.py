"""What the clients of every mount last reported: latencies, requests that wait, bytes moved."""

from dataclasses import dataclass
from typing import Final

import numpy as np

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import Columns, column
from detectors.core.counting import Counter
from detectors.core.residuals import Groups
from detectors.core.slots import Slots
from detectors.core.statistics import known_or, median_of
from detectors.fleet.fleet import Fleet
from detectors.fleet.gpus import reported
from detectors.fleet.presence import learnt_interval

READ, WRITE = 0, 1
_LATENCY: Final = ("read_latency_ms", "write_latency_ms")
_COUNTERS: Final = ("read_bytes", "write_bytes", "read_ops", "write_ops")
_BYTES, _OPS = slice(0, 2), slice(2, 4)
_FRESH_INTERVALS, _FRESH_MS = 2.5, 20_000
_HOLD_MS = 60_000
"""A counter that stands for so long moves nothing."""
_MOST_MS = 3_600_000.0
_GBPS = 1e9 / 8
_MOVING = 1e6
"""Bytes a second; a client that moves less shows nothing of what its links carry."""
_LINK_SHARE: Final = 0.5
"""Of the line rate of all links of a client: one that gets more is held up by its own links (307 GiB/s for five clients
of 4 x 200 Gb/s are 0.66, Spectrum-X brief), and its mount is full, not slow: a slow one gives far less (NFS 1 GB/s for
32 nodes, arXiv 2407.05467, is 0.003)."""


@dataclass(frozen=True, slots=True)
class Looks:
    """The mounts (k,) of which most clients reported anew; what is by direction has shape (2, k)."""

    mounts: IntArray
    clients: IntArray
    waiters: FloatArray
    latency: FloatArray
    """Of the median client, ms."""
    load: FloatArray
    """Bytes a second of all clients; NaN unknown."""
    full: BoolArray
    """Whether the median client gets what its links can carry: then it is these that hold it up."""
    reporting: IntArray
    """How many clients have a latency."""
    busy: FloatArray
    """Requests under way at a client, on average over clients and time; NaN where nobody counts them."""
    fresh: BoolArray
    """Which clients were heard lately, (clients,)."""


class Clients(Columns):
    """By (node, mount), as in ``fleet.entities("storage")``: `latency` (2, clients) by direction, and `rate`
    (4, clients) of bytes and of requests a second by direction.
    """

    axis = "storage"
    last: IntArray = column(-1)
    usual: FloatArray = column(np.nan)
    latency: FloatArray = column(np.nan, 2)
    rate: FloatArray = column(np.nan, 4)
    waiters: FloatArray = column(np.nan)
    BESIDE = ("counted",)

    def __init__(self, fleet: Fleet, mounts: Slots) -> None:
        super().__init__()
        self.counted = Counter(rows=4)
        self._fleet, self._mounts = fleet, mounts
        # All links of a node, though storage may have one of them only: rather too much than too little.
        self._links_of = {
            name: sum(float(nic.get("gbps") or 0) for nic in node.get("nics") or ()) * _GBPS
            for name, node in fleet.nodes.items()
        }
        self._places: tuple[IntArray, FloatArray, dict[str, list[int]]] = np.empty(0, np.int64), np.empty(0), {}
        self._by_mount = Groups(self._places[0], 0)

    def take(self, batch: Batch) -> None:
        """Take note of the readings in a batch."""
        self.grow(batch.reach)
        for tick, here in batch.ticks():
            entities, at = batch.entities[here], batch.at[tick, here]
            before = self.last[entities]
            gap = np.where(before >= 0, at - before, np.nan)
            self.usual[entities], self.last[entities] = learnt_interval(self.usual[entities], gap, 0.1), at
            latency = np.stack([reported(batch, name, tick, here) for name in _LATENCY])
            # A client that moves nothing has no latency; many report 0 then.
            self.latency[:, entities] = np.where((latency > 0) & (latency < _MOST_MS), latency, np.nan)
            counted = np.stack([reported(batch, name, tick, here) for name in _COUNTERS])
            rate = self.counted.rates(entities, at, counted, _HOLD_MS)
            self.rate[:, entities] = np.where(np.isfinite(rate), 1000 * rate, self.rate[:, entities])
            self.waiters[entities] = reported(batch, "waiters", tick, here)

    def _known(self) -> tuple[IntArray, FloatArray, dict[str, list[int]]]:
        """Return each client's mount, what its links carry (bytes a second), and the clients on each node."""
        mount, links, on = self._places
        keys = self._fleet.entities("storage")[len(mount) : len(self)]
        if keys:
            fresh = np.arange(len(mount), len(self))
            for client, (node, _) in zip(fresh.tolist(), keys, strict=True):
                on.setdefault(str(node), []).append(client)
            more = np.array([self._links_of.get(str(node), 0.0) for node, _ in keys])
            self._places = np.append(mount, self._mounts.of(fresh)), np.append(links, more), on
        return self._places

    def _groups(self, mount: IntArray, count: int) -> Groups:
        """Return the clients by `mount` (clients,), of which there are `count`; the same until some are new."""
        if (len(self._by_mount.group), self._by_mount.groups) != (len(mount), count):
            self._by_mount = Groups(mount, count)
        return self._by_mount

    def mount(self) -> IntArray:
        """Return the number of each client's mount."""
        return self._known()[0]

    def on(self, nodes: tuple[str, ...]) -> IntArray:
        """Return the clients (indices) on some nodes."""
        on = self._known()[2]
        return np.array([client for node in nodes for client in on.get(node, ())], np.int64)

    def has(self, node: str, mount: str) -> bool:
        """Return whether a node has a mount."""
        keys = self._fleet.entities("storage")
        return any(str(keys[client][1]) == mount for client in self.on((node,)).tolist())

    def moved(self, nodes: tuple[str, ...]) -> FloatArray:
        """Return the bytes a second (mounts,) that some nodes read from each mount, or write to it."""
        mount, mine = self.mount(), self.on(nodes)
        rate = known_or(self.rate[_BYTES, mine], 0.0).sum(axis=0)
        moved: FloatArray = np.bincount(mount[mine], rate, minlength=len(self._mounts)).astype(float)
        return moved

    def under_way(self) -> FloatArray:
        """Return how many requests are under way at each client (clients,), on average over time; NaN: nobody counts.

        Rate times latency (Little's law). Who waits for one after the other waits for so much of every second; who
        sends several at once, or reads ahead, waits for less.
        """
        rate = self.rate[_OPS]
        each = np.where(rate > 0, rate * self.latency / 1000, rate)
        return np.asarray(np.where(np.isfinite(each).any(axis=0), known_or(each, 0.0).sum(axis=0), np.nan))

    def more_s(self, mount: int, rise: FloatArray) -> float:
        """Return for how much longer (s of every second) requests of a mount's median client are under way, where those
        of each direction take longer by `rise` (2,) of the logarithm; NaN: nobody counts.
        """
        here = np.flatnonzero(self.mount() == mount)
        slow = known_or(1 - np.exp(-np.maximum(rise, 0.0)), 0.0)[:, None]
        each = known_or(self.rate[_OPS][:, here] * self.latency[:, here] / 1000, 0.0) * slow
        counted = np.isfinite(self.under_way()[here])
        return median_of(each.sum(axis=0)[counted])

    def busiest(self, mount: int, nodes: tuple[str, ...]) -> float:
        """Return how many requests to a mount are under way at the busiest of some nodes; NaN: nobody counts."""
        mine = self.on(nodes)
        return float(np.fmax.reduce(self.under_way()[mine[self.mount()[mine] == mount]], initial=np.nan))

    def looks(self, now: Instant, looked: IntArray) -> Looks:
        """Return the mounts of which most clients reported anew since they were `looked` at (mounts,), ms."""
        mount, links, _ = self._known()
        count = len(self._mounts)
        age = now - self.last
        fresh = (self.last >= 0) & (age <= np.maximum(_FRESH_INTERVALS * known_or(self.usual, 0.0), _FRESH_MS))
        clients = np.bincount(mount[fresh], minlength=count)
        anew = np.bincount(mount[fresh & (self.last > looked[mount])], minlength=count)
        mounts = np.flatnonzero((clients > 0) & (2 * anew >= clients))
        rate = self.rate[_BYTES]
        known = np.isfinite(rate) & fresh
        load = np.full((2, count), np.nan)
        for way, theirs in enumerate(known):
            total = np.bincount(mount[theirs], rate[way, theirs], minlength=count)
            np.copyto(load[way], total, where=np.bincount(mount[theirs], minlength=count) > 0)
        with np.errstate(invalid="ignore", divide="ignore"):
            part = np.where((rate >= _MOVING) & (links > 0), rate / links, np.nan)
        lately = np.where(fresh, np.concatenate([self.latency, part]), np.nan)
        middle, heads = self._groups(mount, count).medians(lately)
        waits = np.bincount(mount[fresh], known_or(self.waiters[fresh], 0.0), minlength=count)[mounts].astype(float)
        under_way = self.under_way()
        counted = fresh & np.isfinite(under_way)
        total, those = (np.bincount(mount[counted], of, minlength=count) for of in (under_way[counted], None))
        busy = np.where(those > 0, total / np.maximum(those, 1), np.nan)[mounts]
        return Looks(
            mounts,
            clients[mounts],
            waits,
            latency=middle[:2, mounts],
            load=load[:, mounts],
            full=middle[2:, mounts] >= _LINK_SHARE,
            reporting=heads[:2, mounts],
            busy=busy,
            fresh=fresh,
        )

    def affected(self, looks: Looks, least: FloatArray) -> FloatArray:
        """Return the share (2, mounts) of the clients heard lately that have a latency of `least` (2, mounts, ms)."""
        mount = self.mount()
        shares = np.zeros(least.shape)
        for way in (READ, WRITE):
            known = np.isfinite(self.latency[way]) & looks.fresh
            high = known & (self.latency[way] >= least[way, mount])
            all_of = np.bincount(mount[known], minlength=least.shape[1])
            shares[way] = np.bincount(mount[high], minlength=least.shape[1]) / np.maximum(all_of, 1)
        return shares
