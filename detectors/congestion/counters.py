"""What every port counted since it was last looked at: growth of its counters, through restarts and repeated copies.

A collector may hand out the same row several times (counters collected every 30 s, scraped every 5): a row in which
nothing moved is such a copy, and is passed over unless it goes on for longer than collectors take.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, FloatArray, IntArray
from detectors.core.columns import Columns, column
from detectors.core.counting import Counter

SIGNALS: Final = ("rx", "tx", "drop", "wait", "retry", "mark", "traffic")
"""Pauses received and sent, packets dropped, ticks without credit, retransmissions, ECN marks (of a NIC: congestion
notifications that it sent as packets came in marked), and traffic, by which a row shows that it is no copy."""
_COPIED_MS: Final = 60_000
"""A row that stands still for longer is no copy: collectors collect at least so often."""
_AWAY_MS: Final = 300_000
_PLAUSIBLE: Final = 1e18

Fields = Mapping[str, Sequence[str]]
"""Signal: the counters that are added up for it."""


class Counters(Columns):
    """By port: the growth of the sum of each signal's counters (`counted`); `which` of them were in the sum, as bits;
    when it was last read, and last `moved` (ms; -1 never).
    """

    BESIDE = ("counted",)
    which: NDArray[np.int16] = column(0, len(SIGNALS), dtype=np.int16)
    at: IntArray = column(-1)
    moved: IntArray = column(-1)

    def __init__(self, fields: Fields) -> None:
        super().__init__()
        self._fields = [(row, bit, name) for row, of in enumerate(SIGNALS) for bit, name in enumerate(fields[of])]
        self.counted = Counter(rows=len(SIGNALS))

    def take(self, batch: Batch) -> None:
        """Take a batch, row after row of each port."""
        self.grow(batch.reach)
        fields = [field for field in self._fields if field[2] in batch.sound]  # the others nobody reports
        for tick, here in batch.ticks():
            total, which = _sums(batch, fields, tick, here)
            self._take_tick(batch.entities[here], batch.at[tick, here], total, which)

    def _take_tick(self, ports: IntArray, at: IntArray, total: FloatArray, which: NDArray[np.int16]) -> None:
        same = which == self.which[:, ports]
        differs = (~same | ((which != 0) & (total != self.counted.value[:, ports]))).any(axis=0)
        kept = (which != 0).any(axis=0) & (differs | (at - self.moved[ports] >= _COPIED_MS))
        count = np.count_nonzero(kept)
        if not count:
            return
        if count < len(kept):
            ports, at, differs = ports[kept], at[kept], differs[kept]
            total, which, same = total[:, kept], which[:, kept], same[:, kept]
        away = (self.at[ports] < 0) | (at - self.at[ports] > _AWAY_MS)
        self.counted.forget(ports[away])
        # A sum of other counters than before begins anew.
        if np.count_nonzero(same) < same.size:
            self.counted.value[:, ports] = np.where(same, self.counted.value[:, ports], np.nan)
        self.counted.take(ports, at, np.where(which != 0, total, np.nan))
        self.moved[ports] = np.where(differs | away, at, self.moved[ports])
        self.which[:, ports], self.at[ports] = which, at

    def ready(self, least_ms: int) -> IntArray:
        """Return the ports that have been read for at least `least_ms` since the last look at them."""
        return np.flatnonzero(self.counted.spent_ms.max(axis=0) >= least_ms)

    def rates(self, ports: IntArray) -> tuple[FloatArray, FloatArray]:
        """Look at `ports` (n,): return their rates (signals, n) in 1/s, NaN of what they do not report, and over how
        many seconds (n,) these are; and begin a new stretch.
        """
        grown, spent_ms = self.counted.look(ports)
        rates = np.full(grown.shape, np.nan)
        np.divide(grown, spent_ms / 1000, out=rates, where=spent_ms > 0)
        return rates, spent_ms.max(axis=0) / 1000


def _sums(
    batch: Batch, fields: Sequence[tuple[int, int, str]], tick: int, here: Any
) -> tuple[FloatArray, NDArray[np.int16]]:
    """Return by signal the sum of the counters that were reported, and which these were, as bits; (signals, n)."""
    shape = (len(SIGNALS), *batch.entities[here].shape)
    total, which = np.zeros(shape), np.zeros(shape, np.int16)
    for row, bit, name in fields:
        value = batch.values[name][tick, here]
        valid = batch.valid[name][tick, here] & (np.abs(value) < _PLAUSIBLE)
        whole = np.count_nonzero(valid) == valid.size
        total[row] += value if whole else np.where(valid, value, 0.0)
        which[row] |= 1 << bit if whole else valid.astype(np.int16) << bit
    return total, which
