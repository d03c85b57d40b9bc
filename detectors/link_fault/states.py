"""Whether every port of a kind is up, since when, how often it lost its link lately, and whether anybody uses it."""

from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray, Kind
from detectors.core.columns import Columns, column
from detectors.core.counting import Counter
from detectors.core.tails import Tails
from detectors.fleet.lapses import Lapses, too_long
from detectors.fleet.presence import Attendance

UNKNOWN: Final = -1
_KEPT_DOWNS = 8
_GAP_INTERVALS, _GAP_MS = 5.5, 60_000
"""After so long without a reading a port is heard anew: what happened in between is not known."""
_FEWEST_MISSED: Final = 4.0
"""Three readings in a row are missing, and jitter."""
_STATE: Final = {"nic": "state", "switch": "oper_up"}
_TRAFFIC: Final = {"nic": ("port_xmit_data", 4.0), "switch": ("SAI_PORT_STAT_IF_OUT_OCTETS", 1.0)}
"""The counter of what a port sends, and of how many bytes it counts."""
_IDLE_BYTES_PER_S: Final = 1e6
"""LLDP, ARP, subnet management and the like stay far below it; work does not."""
_PLAUSIBLE = 1e18
TOGETHER_MS: Final = 20_000
"""What went down within two readings and a link's debounce went down together; at slow scrapes, one and a third."""
_A_READING: Final = 4 / 3


class States(Columns):
    """Columns over ports: `state` (1 up, 0 down, -1 unknown); `down_since`, -1 unless it went down while heard;
    `heard_since` the first reading after a silence; `low` readings in a row that are down; `used` when it last
    carried more than management traffic (-1 never). `lost` (8, n) are times of losses by the state, `counted` by the
    counter `downed` of lost links; `sent` counts its traffic.
    """

    state: NDArray[np.int8] = column(UNKNOWN, dtype=np.int8)
    down_since: IntArray = column(-1)
    heard_since: IntArray = column(-1)
    low: NDArray[np.int32] = column(0, dtype=np.int32)
    used: IntArray = column(-1)
    lost: IntArray = column(-1, _KEPT_DOWNS)
    counted: IntArray = column(-1, _KEPT_DOWNS)

    BESIDE = ("sent", "downed")
    KEPT = ("heard", "lapses")

    def __init__(self, kind: Kind, tails: Tails) -> None:
        super().__init__()
        self.kind = self.axis = kind
        self.sent, self.downed = Counter(), Counter()
        self.lapses = Lapses(tails[f"silences in {kind}"])
        self.heard = Attendance(kind)

    def take(self, batch: Batch) -> None:
        """Take a batch, row after row of each port."""
        if len(batch.entities):
            self.grow(batch.reach)
            self.heard.readings.grow(len(self))
        for tick, here in batch.ticks():
            self._take_tick(batch, tick, here)

    def _take_tick(self, batch: Batch, tick: int, here: Any) -> None:
        ports, at = batch.entities[here], batch.at[tick, here]
        before = self.heard.readings.last[ports]
        usual = np.full(len(self), np.nan)
        usual[: len(self.heard)] = self.heard.usual
        anew = (before < 0) | (at - before > np.fmax(_GAP_INTERVALS * usual[ports], _GAP_MS))
        self.heard_since[ports[anew]] = at[anew]
        self.heard.readings.heard(ports, at)
        name = _STATE[self.kind]
        if name in batch.values:
            value = batch.values[name][tick, here]
            fine = batch.valid[name][tick, here] & np.isfinite(value)
            self._take_states(ports[fine], at[fine], value[fine] > 0)
        counter, unit = _TRAFFIC[self.kind]
        sent = self.sent.take(ports, at, _counter(batch, counter, tick, here))
        works = sent * unit * 1000 > _IDLE_BYTES_PER_S * (at - before)
        self.used[ports[works]] = at[works]
        grown = self.downed.take(ports, at, _counter(batch, "link_downed", tick, here))
        grown[anew] = 0.0
        if np.count_nonzero(grown > 0):
            self._count(ports, at, grown)

    def _count(self, ports: IntArray, at: IntArray, grown: FloatArray) -> None:
        """Count losses of link: one that is down at each reading, and lost it once more meanwhile, was up between."""
        since = self.down_since[ports]
        again = (grown >= 1) & (since >= 0) & (self.low[ports] >= 2) & (self.counted[:, ports] >= since).any(axis=0)
        self.down_since[ports[again]], self.low[ports[again]] = at[again], 1
        for least in range(1, 4):
            _note(self.counted, ports[grown >= least], at[grown >= least])

    def look(self, now: Instant) -> None:
        """At a point of the grid: take note of which ports were heard, and of silences that ended by themselves."""
        self.heard.look(now)
        self.lapses.learn(int(np.count_nonzero(np.isfinite(self.heard.gap))), self.heard.late_by)

    def missing(self, now: Instant, budget: float) -> IntArray:
        """Return the ports that are not heard any more, for longer than chance explains within the `budget`."""
        late = self.heard.silent(now) > _FEWEST_MISSED * self.heard.usual  # at the least, and mostly nobody is
        if not np.count_nonzero(late):
            return np.empty(0, np.int64)
        needed = too_long(self.heard.usual, self.lapses, budget, 0.0, _FEWEST_MISSED)
        return np.flatnonzero(late & (self.heard.silent(now) > needed))

    def _take_states(self, ports: IntArray, at: IntArray, up: BoolArray) -> None:
        falls = ~up & (self.state[ports] == 1)
        self.down_since[ports[falls]] = at[falls]
        _note(self.lost, ports[falls], at[falls])
        self.down_since[ports[up]] = -1
        self.low[ports] = np.where(up, 0, np.minimum(self.low[ports] + 1, 1000))
        self.state[ports] = up

    def down(self) -> IntArray:
        """Return the ports that are down and were up before."""
        return np.flatnonzero((self.state == 0) & (self.down_since >= 0))

    def downs(self, since: Instant) -> IntArray:
        """Return how often each port has lost its link after `since`, by its state or its counter."""
        if not np.count_nonzero(self.lost > since) and not np.count_nonzero(self.counted > since):
            return np.zeros(len(self), np.int64)
        return np.asarray(np.maximum((self.lost > since).sum(axis=0), (self.counted > since).sum(axis=0)))

    def last_down(self, port: int) -> Instant:
        """Return when a port last lost its link or was down, -1 never."""
        last = max(self.losses(port), default=-1)
        return max(last, int(self.heard.last[port])) if self.state[port] == 0 and last >= 0 else last

    def up_between(self, port: int) -> Instant:
        """Return when a port that is down at each reading lost its link once more by its counter; -1 never."""
        since = int(self.down_since[port])
        return -1 if since in self.lost[:, port] else since

    def up_at(self, port: int) -> Instant:
        """Return when a port was last read as up, or should have been before it went down; -1 not known."""
        if self.state[port] == 1:
            return int(self.heard.last[port])
        since, usual = int(self.down_since[port]), float(np.nan_to_num(self.heard.usual[port]))
        return since - round(usual) if since >= 0 else -1

    def together_ms(self, port: int) -> float:
        """Return within how many ms of a port's loss another was lost in the same moment: either may be read first."""
        return max(TOGETHER_MS, _A_READING * float(np.nan_to_num(self.heard.usual[port])))

    def late_ms(self, port: int) -> float:
        """Return how long after a line on a port the first reading that shows it may come: collectors hand out a copy
        that is up to a reading old.
        """
        return max(TOGETHER_MS, self.old_ms(port) + float(np.nan_to_num(self.heard.usual[port])))

    def old_ms(self, port: int) -> float:
        """Return how old what a reading of a port shows may be."""
        return _A_READING * float(np.nan_to_num(self.heard.usual[port]))

    def losses(self, port: int) -> list[Instant]:
        """Return when a port lost its link, by its state and by its counter, as far back as is kept."""
        times = np.concatenate([self.lost[:, port], self.counted[:, port]])
        return [int(at) for at in times[times >= 0]]


def _counter(batch: Batch, name: str, tick: int, here: Any) -> FloatArray:
    if name not in batch.values:
        return np.full(batch.at[tick, here].shape, np.nan)
    value = batch.values[name][tick, here]
    return np.where(batch.valid[name][tick, here] & (np.abs(value) < _PLAUSIBLE), value, np.nan)


def _note(ring: IntArray, ports: IntArray, at: IntArray) -> None:
    """Put `at` in the place of each port's oldest time."""
    if len(ports):
        ring[ring[:, ports].argmin(axis=0), ports] = at
