"""Rails that fall silent: a NIC that moves nothing any more while its siblings on the node, and its like, go on."""

from collections.abc import Mapping
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, FloatArray, Instant, IntArray
from detectors.link_fault.config import LinkFaultConfig

_DATA = ("port_xmit_data", "port_rcv_data")
_WORD_BYTES = 4
_LEARN = 0.1
_LEARNT = 12
_CARRY = 0.5
"""A reading's part in what a NIC carries: of one that is dead a sixteenth is left when it counts as quiet."""
_MOVING = 0.01
"""Of its own level: below it a NIC carries management traffic at most."""
_COLLECTED_MS = 30_000
"""A counter that stood still for longer did not grow in all that time: exporters collect at least so often."""
_PLAUSIBLE = 1e18


class Rails:
    """Columns over NICs: `level` of traffic while it moves (bytes/ms), when it last `moved`, since when it has without
    a pause (`run`), and what it `carried` over the last readings, pauses included (bytes/ms).
    """

    def __init__(self, config: LinkFaultConfig) -> None:
        self._config = config
        self._value = np.empty(0)
        self._at = np.empty(0, np.int64)
        self.level = np.empty(0)
        self._learnt = np.empty(0, np.int64)
        self.moved = np.empty(0, np.int64)
        self.run = np.empty(0, np.int64)
        self._row = np.empty(0, np.int64)
        self._carried = np.empty(0)

    def grow(self, count: int) -> None:
        """Make room for NICs that were not known before."""
        more = count - len(self.level)
        if more > 0:
            self._value = np.concatenate([self._value, np.full(more, np.nan)])
            self.level = np.concatenate([self.level, np.zeros(more)])
            self._learnt = np.concatenate([self._learnt, np.zeros(more, np.int64)])
            self._at = np.concatenate([self._at, np.full(more, -1, np.int64)])
            self.moved = np.concatenate([self.moved, np.full(more, -1, np.int64)])
            self.run = np.concatenate([self.run, np.full(more, -1, np.int64)])
            self._row = np.concatenate([self._row, np.full(more, -1, np.int64)])
            self._carried = np.concatenate([self._carried, np.zeros(more)])

    def take(self, batch: Batch) -> None:
        """Take a batch, row after row of each NIC."""
        if len(batch.entities):
            self.grow(int(batch.entities.max()) + 1)
        if not all(name in batch.values for name in _DATA):
            return
        for tick in range(len(batch.at)):
            here = batch.present[tick].copy()
            for name in _DATA:
                here &= batch.valid[name][tick] & (np.abs(batch.values[name][tick]) < _PLAUSIBLE)
            words = sum((batch.values[name][tick, here] for name in _DATA), np.zeros(int(here.sum())))
            self._take_tick(batch.entities[here], batch.at[tick, here], words)

    def _take_tick(self, nics: IntArray, at: IntArray, words: FloatArray) -> None:
        usual = np.maximum(_COLLECTED_MS, at - self._row[nics])
        growth, elapsed = words - self._value[nics], np.minimum(at - self._at[nics], usual)
        self._row[nics] = at
        rate = np.where(growth >= 0, growth * _WORD_BYTES / np.maximum(elapsed, 1), np.nan)
        known = nics[np.isfinite(rate)]
        self._carried[known] += _CARRY * (rate[np.isfinite(rate)] - self._carried[known])
        # A cached copy does not grow: it is passed over, and its growth counted with the next that differs.
        differs = ~(growth == 0)
        level = self.level[nics]
        moving = (rate > _MOVING * level) & (rate > 0)
        learn = nics[moving]
        self.level[learn] += np.where(self._learnt[learn] == 0, 1.0, _LEARN) * (rate[moving] - self.level[learn])
        self._learnt[learn] += 1
        paused = at[moving] - self.moved[learn] > 3 * usual[moving]
        self.run[learn[paused]] = at[moving][paused]
        self.moved[learn] = at[moving]
        self._value[nics[differs]], self._at[nics[differs]] = words[differs], at[differs]

    def quiet(self, last: IntArray, usual: FloatArray) -> IntArray:
        """Return the NICs that moved data and, last heard at `last`, have not for long."""
        least = np.fmax(self._config.rail_quiet_s * 1000, 4 * usual)
        known = (self._learnt >= _LEARNT) & (self.moved >= 0)
        return np.flatnonzero(known & (last - self.moved >= least))

    def moves(self, nics: list[int], since: Instant, last: Instant) -> list[int]:
        """Return those of `nics` that have moved data without a pause since `since`, and after `last`."""
        return [nic for nic in nics if self.run[nic] <= since and self.moved[nic] > last]

    def carries_less(self, nic: int, siblings: list[int], share: float) -> bool:
        """Return whether a NIC carries less than a share of what its siblings do now, whatever each did before."""
        return bool(self._carried[nic] < share * np.median(self._carried[siblings]))

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays."""
        names = {"value": self._value, "at": self._at, "level": self.level, "learnt": self._learnt, "moved": self.moved}
        names |= {"run": self.run, "row": self._row, "carried": self._carried}
        return {f"rail_{name}": array for name, array in names.items()}

    def load(self, arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self._value, self._at, self.level = arrays["rail_value"], arrays["rail_at"], arrays["rail_level"]
        self._learnt, self.moved = arrays["rail_learnt"], arrays["rail_moved"]
        self.run, self._row, self._carried = arrays["rail_run"], arrays["rail_row"], arrays["rail_carried"]
