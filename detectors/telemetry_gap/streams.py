"""When every node and switch was last heard in each stream, how long it may be away, and what says that it lives."""

from itertools import permutations
from typing import Final

import numpy as np

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray, Kind
from detectors.core.columns import Columns, column
from detectors.core.kept import Kept
from detectors.core.survivors import Survivors
from detectors.core.tails import Tails
from detectors.fleet.cabling import cables
from detectors.fleet.fleet import Fleet
from detectors.fleet.lapses import Lapses, at_least, too_long
from detectors.fleet.presence import LATE, NEVER, Attendance, Roster, reported
from detectors.signals.watts import Watts
from detectors.telemetry_gap.config import TelemetryGapConfig

IN_BAND: Final[tuple[Kind, ...]] = ("dcgm", "nic", "storage")
OF_NODES: Final[tuple[Kind, ...]] = (*IN_BAND, "bmc")
_UP: Final = {"nic": "state", "switch": "oper_up"}
_ON_BALANCE: Final = 2.0
_LEAST_READINGS: Final = 6
"""Of streams that are read once a minute five in a row are missing after five minutes, a minute after the last; what is
lost more often by chance here is learnt."""
_LONGER: Final = 1.1
"""Of the longest silence that chance explains: what shows a node alive is evidence of its own, and nobody is paged."""
_DARK: Final = 2.5
"""A node is dark when all its in-band streams are so many intervals late: one is missing, with room for jitter."""

_BOOT_MS: Final = 150_000
"""A node that nothing in band reports for two and a half minutes boots, or is down."""
_FLASHED_S: Final = 1800.0
"""Physics: a BMC is away for a quarter of an hour and more while its firmware is updated and it boots, rack by rack."""


class Links(Columns):
    """By NIC or switch port: whether it is up, and when it last came up (ms; -1 never)."""

    up: BoolArray = column(True)
    rose_at: IntArray = column(NEVER)

    def take(self, batch: Batch, name: str) -> None:
        """Take note of which links are up."""
        self.grow(batch.reach)
        if name not in batch.values:
            return
        for tick in range(len(batch.at)):
            here = batch.present[tick] & batch.valid[name][tick]
            those, now_up = batch.entities[here], batch.values[name][tick, here] != 0
            rises = now_up & ~self.up[those]
            self.rose_at[those[rises]] = batch.at[tick, here][rises]
            self.up[those] = now_up


class Stream(Kept):
    """The silences of every owner in one stream: how long each has lasted, and from when on it is no chance.

    A stream that stutters, away most of the time though never for long, is away on balance: `away_ms` grows with every
    silence that is no case by itself and falls while it is heard; it must reach twice what one silence must.
    """

    KEPT = ("heard", "lapses", "away_ms", "needed", "_looked")

    def __init__(self, kind: Kind, config: TelemetryGapConfig, tails: Tails, owners: Roster) -> None:
        self.kind, self._config, self._owners = kind, config, owners
        self._least_s = max(config.least_s, _FLASHED_S) if kind == "bmc" else config.least_s
        self.heard = Attendance(kind, owners)
        self.lapses = Lapses(tails[f"silences in {kind}"])
        self.away_ms: FloatArray = np.empty(0)
        self.needed: FloatArray = np.empty(0)
        self._looked: Instant = NEVER

    def go_on_with(self, survivors: Survivors) -> None:
        """Forget how long owners that are gone have been away."""
        if (kept := survivors.of(self._owners)) is not None:
            self.away_ms = self.away_ms[kept[kept < len(self.away_ms)]]
            self.needed = self.needed[kept[kept < len(self.needed)]]

    def measure(self, now: Instant, excused: BoolArray | None = None, dark_at: IntArray | None = None) -> None:
        """At a point of the grid: take note of who was heard; of silences that are `excused` nothing is learnt.

        Nor of long ones in which a node was `dark_at` some time (ms; -1 never): it was away, and not its collection.
        """
        heard, config = self.heard, self._config
        heard.look(now, self._owners.owners(self.kind, len(heard.readings)), len(self._owners))
        if not len(heard.readings) and not np.count_nonzero(heard.last >= 0):  # nobody reports it here
            self.away_ms, self.needed = np.zeros(len(heard)), np.full(len(heard), self._least_s * 1000)
            self._looked = now
            return
        if more := len(heard) - len(self.away_ms):
            self.away_ms = np.concatenate([self.away_ms, np.zeros(more)])
        spent = now - self._looked if self._looked >= 0 else 0
        if np.count_nonzero(self.away_ms):
            self.away_ms = np.where(heard.missed(now) < LATE, np.maximum(self.away_ms - spent, 0.0), self.away_ms)
        ended = self._ended_by_chance(excused, dark_at) if len(heard.late) else heard.late_by
        self.lapses.learn(int(np.count_nonzero(np.isfinite(heard.gap))), ended)
        budget = config.false_alarms_per_100_node_days / len(OF_NODES)
        self.needed = too_long(heard.usual, self.lapses, budget, self._least_s, _LEAST_READINGS, _LONGER)
        if np.count_nonzero(self.away_ms):
            self.away_ms = np.minimum(self.away_ms, _ON_BALANCE * self.needed)
        self._looked = now

    def least(self) -> FloatArray:
        """Return how long (owners,) a silence has to last that chance does not explain anyhow, ms."""
        return at_least(self.heard.usual, self._least_s, _LEAST_READINGS)

    def _ended_by_chance(self, excused: BoolArray | None, dark_at: IntArray | None) -> FloatArray:
        """Count the silences that ended now as time away, if none was a case; return the intervals (n,) of those to
        learn from.
        """
        heard = self.heard
        late, gaps = heard.late, heard.gap[heard.late]
        needed = np.concatenate([self.needed, np.full(len(heard) - len(self.needed), np.inf)])
        by_chance = gaps < needed[late]
        self.away_ms[late[by_chance]] += gaps[by_chance]
        if excused is not None:
            by_chance &= ~excused[late]
        if dark_at is not None:
            by_chance &= (gaps < _BOOT_MS) | (dark_at[late] <= heard.last[late] - gaps)
        return heard.late_by[by_chance]


class Streams(Kept):
    """All streams of nodes and switches."""

    KEPT = ("nodes", "switches", "watts", "of", "_links", "dark_at")

    def __init__(self, config: TelemetryGapConfig, fleet: Fleet, tails: Tails) -> None:
        self._fleet = fleet
        self.nodes, self.switches = Roster(fleet), Roster(fleet)
        self.watts = Watts(fleet, self.nodes)
        self.of: dict[str, Stream] = {kind: Stream(kind, config, tails, self.nodes) for kind in OF_NODES}
        self.of["switch"] = Stream("switch", config, tails, self.switches)
        self._links = {kind: Links().along(kind) for kind in _UP}
        self.dark: BoolArray = np.empty(0, bool)
        """Which nodes are silent in all their in-band streams, (nodes,)."""
        self.dark_at: IntArray = np.empty(0, np.int64)
        """When each last was, ms; -1: never."""

    def go_on_with(self, survivors: Survivors) -> None:
        """Forget when nodes that are gone were dark."""
        if (kept := survivors.of(self.nodes)) is not None:
            self.dark_at = self.dark_at[kept[kept < len(self.dark_at)]]

    def take(self, batch: Batch) -> None:
        """Take note of who is heard, and which links are up; a row that reports nothing counts for nothing."""
        if batch.kind == "bmc":
            self.watts.take(batch)
            self.of["bmc"].heard.readings.take(batch)
            return
        self.of[batch.kind].heard.readings.take(batch, reported(batch))
        if batch.kind in _UP:
            self._links[batch.kind].take(batch, _UP[batch.kind])

    def measure(self, now: Instant, excused: list[str]) -> None:
        """At a point of the grid: measure the silence of every node and switch in every stream."""
        for kind in OF_NODES:
            self.nodes.owners(kind, len(self.of[kind].heard.readings))
        self.switches.owners("switch", len(self.of["switch"].heard.readings))
        without = np.zeros(len(self.nodes), bool)
        if excused:
            without[np.array([self.nodes.number(name) for name in excused], np.int64)] = True
        if more := len(self.nodes) - len(self.dark_at):
            self.dark_at = np.concatenate([self.dark_at, np.full(more, NEVER, np.int64)])
        for kind in OF_NODES:
            self.of[kind].measure(now, without, self.dark_at if kind in IN_BAND else None)
        self.of["switch"].measure(now)
        some, dark = np.zeros(len(self.nodes), bool), np.ones(len(self.nodes), bool)
        for heard in (self.of[kind].heard for kind in IN_BAND):
            known = heard.last >= 0
            if np.count_nonzero(known):
                some |= known
                dark &= ~known | (heard.missed(now) > _DARK)
        self.dark = some & dark
        self.dark_at[self.dark] = now

    def away(self, kind: str, now: Instant, needed: FloatArray) -> BoolArray:
        """Return which owners are away for too long, at a stretch or on balance; `needed` (owners,) in ms.

        After a boot exporters come back one after the other: their silence counts from when the node came back.
        """
        stream = self.of[kind]
        since = stream.heard.last
        silent = (since >= 0) & (stream.heard.missed(now) >= LATE)
        if not np.count_nonzero(silent):
            return silent
        if kind in IN_BAND:
            since = np.where(self.dark, since, np.maximum(since, self.dark_at))
        spent = now - since
        return silent & ((spent >= needed) | (stream.away_ms + spent >= _ON_BALANCE * stream.needed))

    def seen_alive(self, kind: str, now: Instant) -> BoolArray:
        """Return which nodes another in-band stream shows alive since stream `kind` fell silent, (nodes,)."""
        own = self.of[kind].heard
        alive = np.zeros(len(self.nodes), bool)
        for other in IN_BAND:
            heard = self.of[other].heard
            if other != kind:
                alive |= (heard.last >= 0) & (heard.missed(now) < LATE) & (heard.last > own.last + own.usual)
        return alive

    def bmc_all_along(self, node: int, since: Instant, now: Instant) -> bool:
        """Return whether a node's BMC has reported since `since` without a silence of its own, and lately."""
        bmc = self.of["bmc"].heard
        return bool(bmc.last[node] > since >= bmc.back_at[node] and bmc.missed(now)[node] < _DARK)

    def gpus_of(self, node: int) -> IntArray:
        """Return the indices of a node's GPUs."""
        return np.flatnonzero(self.nodes.owners("dcgm", len(self.of["dcgm"].heard.readings)) == node)

    def ports_of(self, switch: int) -> IntArray:
        """Return the indices of a switch's ports."""
        return np.flatnonzero(self.switches.owners("switch", len(self.of["switch"].heard.readings)) == switch)

    def links(self, kind: str, keys: set[tuple[str, str]], silent: Instant, since: Instant) -> tuple[int, int]:
        """Return how many of the NICs or ports `keys` were heard after `since` with a link that was up all along, and
        with one that is down.

        A link that came up after `silent` says that the switch was away itself, and boots.
        """
        links, readings = self._links[kind], self.of[kind].heard.readings
        up = down = 0
        for index, key in enumerate(self._fleet.entities(kind)[: len(readings)]):
            if (str(key[0]), str(key[1])) in keys and readings.last[index] > since:
                up += bool(links.up[index] and links.rose_at[index] <= silent)
                down += bool(not links.up[index])
        return up, down


class Cables:
    """What hangs on every switch: the NICs, the nodes and the far ports of its links, by the topology."""

    def __init__(self, fleet: Fleet) -> None:
        self.nics: dict[str, set[tuple[str, str]]] = {}
        self.far: dict[str, set[tuple[str, str]]] = {}
        for ends, _ in cables(fleet):
            for (kind, owner, name), (far_kind, switch, _) in permutations(ends, 2):
                if far_kind == "switch":
                    (self.nics if kind == "nic" else self.far).setdefault(switch, set()).add((owner, name))

    def nodes(self, switch: str) -> set[str]:
        """Return the nodes that have a NIC on a switch."""
        return {node for node, _ in self.nics.get(switch, ())}
