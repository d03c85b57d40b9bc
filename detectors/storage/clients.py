"""What the clients of every mount last reported: latencies, requests that wait, bytes moved."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray
from detectors.fleet import Fleet
from detectors.presence import Presence
from detectors.statistics import CounterRate, known_or, masked_median

READ, WRITE = 0, 1
_LATENCY: Final = ("read_latency_ms", "write_latency_ms")
_BYTES: Final = ("read_bytes", "write_bytes")
_HOLD_MS = 60_000
_FRESH_INTERVALS, _FRESH_MS = 2.5, 20_000
_EXACT = 2.0**53
_MOST_MS = 3_600_000.0
_GBPS = 1e9 / 8
_MOVING: Final = 1e6
"""Bytes a second from which on a client moves data; less are logs, home directories and health checks."""


@dataclass(frozen=True, slots=True)
class Look:
    """One mount at one moment; latencies in ms, throughput in bytes a second over all clients, NaN unknown."""

    mount: str
    clients: int
    latency: tuple[FloatArray, FloatArray]
    """Of each client heard lately: reads, writes."""
    median: tuple[float, float]
    read_of: Mapping[str, float]
    """Bytes a second that each node reads; only where it reads something."""
    load: tuple[float, float]
    """Bytes a second over all clients: reads, writes."""
    of_links: tuple[float, float]
    """Of what the links of the clients that read (write) can carry, how much the median one uses; NaN unknown."""
    waiters: float


class Clients:
    """Arrays by (node, mount), as in ``fleet.entities("storage")``."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._presence = Presence("storage")
        self._latency = np.empty((2, 0))
        self._rate = np.empty((2, 0))
        self._waiters = np.empty(0)
        self._counters = [CounterRate.empty(0, _HOLD_MS), CounterRate.empty(0, _HOLD_MS)]
        self._mount: IntArray = np.empty(0, np.int64)
        self.mounts: list[str] = []
        # All links of a node, though storage may have one of them only: rather too much than too little.
        self._links = {
            name: sum(float(nic.get("gbps") or 0) for nic in node.get("nics") or ()) * _GBPS
            for name, node in fleet.nodes.items()
        }
        self._looked: dict[str, int] = {}

    def take(self, batch: Batch) -> None:
        """Take note of the readings in a batch."""
        self._presence.take(batch)
        self._grow(len(self._presence))
        for tick, here in enumerate(batch.present):
            entities, at = batch.entities[here], batch.at[tick, here]
            for way in (READ, WRITE):
                value = _reported(batch, _LATENCY[way], tick, here)
                # A client that moves nothing has no latency; many report 0 then.
                self._latency[way, entities] = np.where((value > 0) & (value < _MOST_MS), value, np.nan)
                counted = _reported(batch, _BYTES[way], tick, here)
                rate = self._counters[way].update(entities, at, known_or(counted, 0.0), np.isfinite(counted))
                known = np.isfinite(rate)
                self._rate[way, entities[known]] = 1000 * rate[known]
            self._waiters[entities] = _reported(batch, "waiters", tick, here)

    def _grow(self, count: int) -> None:
        more = count - len(self._waiters)
        if more <= 0:
            return
        start = len(self._waiters)
        blank = np.full((2, more), np.nan)
        self._latency = np.concatenate([self._latency, blank], axis=1)
        self._rate = np.concatenate([self._rate, blank], axis=1)
        self._waiters = np.concatenate([self._waiters, blank[0]])
        for counter in self._counters:
            counter.grow(count)
        keys = self._fleet.entities("storage")[start:count]
        for _, mount in keys:
            if str(mount) not in self.mounts:
                self.mounts.append(str(mount))
        fresh = np.array([self.mounts.index(str(mount)) for _, mount in keys], np.int64)
        self._mount = np.concatenate([self._mount, fresh])

    def looks(self, now: Instant) -> list[Look]:
        """Return every mount of which most clients reported anew since it was last looked at."""
        last, usual = self._presence.last, known_or(self._presence.usual, 0.0)
        fresh = (last >= 0) & (now - last <= np.maximum(_FRESH_INTERVALS * usual, _FRESH_MS))
        found = []
        for number, mount in enumerate(self.mounts):
            mine = np.flatnonzero((self._mount == number) & fresh)
            since = self._looked.get(mount, -1)
            if not len(mine) or 2 * np.count_nonzero(last[mine] > since) < len(mine):
                continue
            self._looked[mount] = now
            found.append(self._look(mount, mine))
        return found

    def _look(self, mount: str, mine: IntArray) -> Look:
        latency = self._latency[:, mine]
        rate = self._rate[:, mine]
        known = np.isfinite(rate)
        names = self._fleet.entities("storage")
        reading = np.flatnonzero(known_or(rate[READ], 0.0) > 0)
        waiters = self._waiters[mine]
        middle = masked_median(latency, np.isfinite(latency))
        return Look(
            mount=mount,
            clients=len(mine),
            latency=(latency[READ], latency[WRITE]),
            median=(float(middle[READ]), float(middle[WRITE])),
            read_of={str(names[mine[n]][0]): float(rate[READ, n]) for n in reading.tolist()},
            load=(_sum(rate[READ], known[READ]), _sum(rate[WRITE], known[WRITE])),
            of_links=(self._of_links(rate[READ], mine), self._of_links(rate[WRITE], mine)),
            waiters=float(known_or(waiters, 0.0).sum()),
        )

    def _of_links(self, rate: FloatArray, mine: IntArray) -> float:
        moving = np.flatnonzero(known_or(rate, 0.0) >= _MOVING)
        names = self._fleet.entities("storage")
        links = np.array([self._links.get(str(names[mine[place]][0]), 0.0) for place in moving.tolist()])
        told = links > 0
        return float(np.median(rate[moving[told]] / links[told])) if told.any() else float("nan")

    def snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state as JSON can say it, and arrays."""
        numbers, arrays = self._presence.snapshot()
        arrays |= {"latency": self._latency, "rate": self._rate, "waiters": self._waiters, "mount": self._mount}
        for way, counter in enumerate(self._counters):
            arrays |= {f"counted_at_{way}": counter.at, f"counted_{way}": counter.value}
        return {"presence": numbers, "mounts": self.mounts, "looked": self._looked}, arrays

    def load(self, document: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self._presence.load(document["presence"], arrays)
        self.mounts, self._looked = list(document["mounts"]), dict(document["looked"])
        self._latency, self._rate = arrays["latency"], arrays["rate"]
        self._waiters, self._mount = arrays["waiters"], arrays["mount"]
        for way, counter in enumerate(self._counters):
            counter.at, counter.value = arrays[f"counted_at_{way}"], arrays[f"counted_{way}"]


def _sum(values: FloatArray, known: BoolArray) -> float:
    return float(values[known].sum()) if known.any() else float("nan")


def _reported(batch: Batch, name: str, tick: int, here: BoolArray) -> FloatArray:
    """Return a field's readings in one tick; NaN where there is no plausible number."""
    if name not in batch.values:
        return np.full(int(np.count_nonzero(here)), np.nan)
    value = batch.values[name][tick, here]
    with np.errstate(invalid="ignore"):
        sound = batch.valid[name][tick, here] & (value >= 0) & (value < _EXACT)
    return np.where(sound, value, np.nan)
