"""Whether every port of a kind is up, since when, and how often it lost its link lately; arrays by entity index."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray, Kind
from detectors.presence import Presence
from detectors.statistics import known_or

UNKNOWN: Final = -1
_KEPT_DOWNS = 8
_GAP_INTERVALS, _GAP_MS = 5.5, 60_000
"""After so long without a reading a port is heard anew: what happened in between is not known."""
_STATE: Final = {"nic": "state", "switch": "oper_up"}
_PLAUSIBLE = 1e18

_BLANK: dict[str, tuple[Any, Any]] = {
    "state": (np.int8, UNKNOWN),
    "down_since": (np.int64, -1),
    "up_since": (np.int64, -1),
    "heard_since": (np.int64, -1),
    "low": (np.int32, 0),
    "downed": (np.float64, np.nan),
}


class States:
    """Columns over ports: `state` (1 up, 0 down, -1 unknown); `down_since`, -1 unless it went down while heard;
    `up_since`; `heard_since` the first reading after a silence; `low` readings in a row that said down; `downed` the
    counter of lost links. `lost` (n, 8) are times of losses by the state, `counted` by the counter.
    """

    state: NDArray[np.int8]
    down_since: IntArray
    up_since: IntArray
    heard_since: IntArray
    low: NDArray[np.int32]
    downed: FloatArray

    def __init__(self, kind: Kind) -> None:
        self.kind = kind
        self.presence = Presence(kind)
        for name, (dtype, _) in _BLANK.items():
            setattr(self, name, np.empty(0, dtype))
        self.lost = np.empty((0, _KEPT_DOWNS), np.int64)
        self.counted = np.empty((0, _KEPT_DOWNS), np.int64)

    def __len__(self) -> int:
        return len(self.state)

    def grow(self, count: int) -> None:
        """Make room for ports that were not known before."""
        more = count - len(self)
        if more <= 0:
            return
        self.presence.grow(count)
        for name, (dtype, blank) in _BLANK.items():
            setattr(self, name, np.concatenate([getattr(self, name), np.full(more, blank, dtype)]))
        for name in ("lost", "counted"):
            fresh = np.full((more, _KEPT_DOWNS), -1, np.int64)
            setattr(self, name, np.concatenate([getattr(self, name), fresh]))

    def take(self, batch: Batch) -> None:
        """Take a batch, row after row of each port."""
        if len(batch.entities):
            self.grow(int(batch.entities.max()) + 1)
        for tick, here in batch.ticks():
            self._take_tick(batch, tick, here)

    def _take_tick(self, batch: Batch, tick: int, here: Any) -> None:
        ports, at = batch.entities[here], batch.at[tick, here]
        before = self.presence.last[ports]
        usual = known_or(self.presence.usual[ports], 0.0)
        anew = (before < 0) | (at - before > np.maximum(_GAP_INTERVALS * usual, _GAP_MS))
        self.heard_since[ports[anew]] = at[anew]
        self.presence.heard(ports, at)
        name = _STATE[self.kind]
        if name in batch.values:
            value = batch.values[name][tick, here]
            fine = batch.valid[name][tick, here] & np.isfinite(value)
            self._take_states(ports[fine], at[fine], value[fine] > 0)
        if "link_downed" in batch.values:
            value = batch.values["link_downed"][tick, here]
            fine = batch.valid["link_downed"][tick, here] & (np.abs(value) < _PLAUSIBLE)
            grown = np.where(fine & ~anew, value - self.downed[ports], 0.0)
            self.downed[ports[fine]] = value[fine]
            for least in range(1, 4) if np.count_nonzero(grown) else ():
                more = grown >= least
                if not np.count_nonzero(more):
                    break
                _note(self.counted, ports[more], at[more])

    def _take_states(self, ports: IntArray, at: IntArray, up: BoolArray) -> None:
        was = self.state[ports]
        falls, rises = ~up & (was == 1), up & (was != 1)
        self.down_since[ports[falls]] = at[falls]
        _note(self.lost, ports[falls], at[falls])
        self.up_since[ports[rises]] = at[rises]
        self.down_since[ports[up]] = -1
        self.low[ports] = np.where(up, 0, np.minimum(self.low[ports] + 1, 1000))
        self.state[ports] = up

    def down(self) -> IntArray:
        """Return the ports that are down and were up before."""
        return np.flatnonzero((self.state == 0) & (self.down_since >= 0))

    def downs(self, since: Instant) -> IntArray:
        """Return how often each port has lost its link after `since`, by its state or its counter."""
        lost, counted = self.lost > since, self.counted > since
        if not np.count_nonzero(lost) and not np.count_nonzero(counted):
            return np.zeros(len(self), np.int64)
        return np.asarray(np.maximum(lost.sum(axis=1), counted.sum(axis=1)))

    def last_down(self, port: int) -> Instant:
        """Return when a port last lost its link or was down, -1 never."""
        last = int(max(self.lost[port].max(), self.counted[port].max()))
        return max(last, int(self.presence.last[port])) if self.state[port] == 0 and last >= 0 else last

    def losses(self, port: int) -> list[Instant]:
        """Return when a port lost its link, by its state and by its counter, as far back as is kept."""
        times = np.concatenate([self.lost[port], self.counted[port]])
        return [int(at) for at in times[times >= 0]]

    def snapshot(self) -> tuple[list[int], dict[str, NDArray[Any]]]:
        """Return the state as numbers and arrays."""
        numbers, arrays = self.presence.snapshot()
        names = (*_BLANK, "lost", "counted")
        return numbers, arrays | {f"{self.kind}_state_{name}": getattr(self, name) for name in names}

    def load(self, numbers: list[int], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self.presence.load(numbers, arrays)
        for name in (*_BLANK, "lost", "counted"):
            setattr(self, name, arrays[f"{self.kind}_state_{name}"])


def _note(ring: IntArray, ports: IntArray, at: IntArray) -> None:
    """Put `at` in the place of each port's oldest time."""
    if len(ports):
        ring[ports, ring[ports].argmin(axis=1)] = at
