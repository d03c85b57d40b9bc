"""How long every node has been silent, over all its in-band streams, in intervals of its own."""

from typing import Final

import numpy as np

from detectors.contract import BoolArray, FloatArray, Instant, IntArray, Kind
from detectors.core.columns import Columns, column
from detectors.fleet.lapses import Lapses, too_long
from detectors.fleet.presence import LATE, LEAST_READINGS, NEVER, Attendance, Roster
from detectors.node_down.config import NodeDownConfig

IN_BAND: Final[tuple[Kind, ...]] = ("dcgm", "nic", "storage")
_AGENTS: Final = slice(IN_BAND.index("storage"))
"""Mounts come and go with jobs; GPUs and NICs stay."""

_AS_LONG: Final = 2.0
"""Nodes that are silent at once, none more than twice as long as another, are silent for what they share: most often a
collector. They need not have begun together, as scrapes get lost before, nor be heard again together."""


class Silence(Columns):
    """By node: `last` heard (ms; -1 never), `usual` interval (ms; NaN), `silent_ms`, `missed` intervals.

    By stream and node: whether it is `known`, and `there` still when the node was last heard. The interval is that of
    the fastest stream that was: a storage client read every minute does not make the GPUs' silence of half a minute
    usual. `needed` is how long silence alone has to last, from the last reading on: longer than any that ends by itself
    here, and so many readings of the slower of GPUs and NICs. The last one that ended did so at `ended_at` (ms; -1
    never), after `ended_ms`.
    """

    last: IntArray = column(NEVER)
    usual: FloatArray = column(np.nan)
    silent_ms: FloatArray = column(0.0)
    missed: FloatArray = column(0.0)
    needed: FloatArray = column(np.inf)
    ended_at: IntArray = column(NEVER)
    ended_ms: FloatArray = column(0.0)
    known: BoolArray = column(False, len(IN_BAND))
    there: BoolArray = column(False, len(IN_BAND))

    KEPT = ("lapses", "streams")

    def __init__(self, config: NodeDownConfig, roster: Roster, lapses: Lapses) -> None:
        super().__init__()
        self.axis = roster
        self._config, self._roster, self.lapses = config, roster, lapses
        self.streams: dict[str, Attendance] = {kind: Attendance(kind, roster) for kind in IN_BAND}

    def measure(self, now: Instant, excused: set[str]) -> None:
        """At a point of the grid: measure every node's silence; nothing is learnt of those that are `excused`."""
        streams, config = self.streams.values(), self._config
        owners = [self._roster.owners(stream.kind, len(stream.readings)) for stream in streams]
        self.grow(len(self._roster))
        for stream, owner in zip(streams, owners, strict=True):
            stream.look(now, owner, len(self))
        last = np.array([stream.last for stream in streams])
        usual = np.array([stream.usual for stream in streams])
        gap = np.array([stream.gap for stream in streams])
        since = np.where(np.isfinite(gap) & (self.last >= 0), last - self.last, np.nan)
        self._learn(now, np.fmin.reduce(np.fmin(gap, since)), excused)
        self.known, self.last = last >= 0, last.max(axis=0)
        patient = np.where(np.isnan(usual), np.inf, usual)
        self.there = self.known & (last + LATE * patient >= self.last)
        fastest = np.where(self.there, patient, np.inf).min(axis=0)
        self.usual = np.where(np.isfinite(fastest), fastest, np.nan)
        agents = np.where(self.there[_AGENTS], np.fmax(usual[_AGENTS], 0.0), 0.0).max(axis=0)
        slowest = np.where(agents > 0, agents, np.fmax(self.usual, 0.0))
        self.silent_ms = np.where(self.last >= 0, now - self.last, 0).astype(np.float64)
        self.missed = np.fmax(self.silent_ms / np.maximum(self.usual, 1.0), 0.0)
        needed = too_long(self.usual, self.lapses, config.false_alarms_per_100_node_days, 0.0, 0.0)
        self.needed = np.maximum(needed, np.fmax(config.least_s * 1000, LEAST_READINGS * slowest))

    def beside(self, node: int, now: Instant) -> int:
        """Return how many nodes are silent for about as long as one of them, or were until a moment ago."""
        lately = now - self.ended_at <= 2 * np.fmax(self.usual[node], 0.0)
        lengths = np.where(self.missed > LATE, self.silent_ms, np.where(lately, self.ended_ms, 0.0))
        own = self.silent_ms[node]
        return int(np.count_nonzero((lengths * _AS_LONG >= own) & (lengths <= _AS_LONG * own)))

    def _learn(self, now: Instant, gap: FloatArray, excused: set[str]) -> None:
        """Learn the silences that ended: nothing of the node was heard, in no stream, for more than an interval."""
        late, heard = gap / self.usual, int(np.count_nonzero(np.isfinite(gap)))
        over = late > LATE
        numbers = [self._roster.number(name) for name in excused]
        if not np.count_nonzero(over):  # as mostly
            self.lapses.learn(heard, np.empty(0))
            return
        self.ended_at[over], self.ended_ms[over] = now, gap[over]
        ended = over & (gap < self.needed)
        ended[np.array(numbers, np.int64)] = False
        self.lapses.learn(heard, late[ended])

    def reporting(self, forget_ms: float) -> int:
        """Return how many nodes have reported in the last `forget_ms`."""
        return int(((self.last >= 0) & (self.silent_ms <= forget_ms)).sum())

    def at_once(self, node: int) -> bool:
        """Return whether all in-band streams of a node but its mounts stopped together."""
        return bool((self.there[_AGENTS, node] | ~self.known[_AGENTS, node]).all())

    def of(self, node: int) -> str:
        """Return the streams of a node that fell silent with it."""
        return ", ".join(kind for kind, there in zip(IN_BAND, self.there[:, node], strict=True) if there)
