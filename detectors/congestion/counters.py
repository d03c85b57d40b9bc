"""What every port counted since it was last looked at: growth of its counters, through restarts and repeated copies.

A collector may hand out the same row several times (counters collected every 30 s, scraped every 5): a row in which
nothing moved is such a copy, and is passed over unless it goes on for longer than collectors take.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from detectors.contract import Batch, FloatArray, IntArray
from detectors.core.columns import Columns, column

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
    """By port and signal: the sum of its counters at the last reading (`value`, `at` in ms), and where the stretch
    that has not been looked at yet began (`anchor`, `anchor_at`); -1 and NaN where there is none.
    """

    value: FloatArray = column(np.nan, len(SIGNALS))
    which: IntArray = column(0, len(SIGNALS))
    anchor: FloatArray = column(np.nan, len(SIGNALS))
    at: IntArray = column(-1)
    moved: IntArray = column(-1)
    anchor_at: IntArray = column(-1)

    def __init__(self, fields: Fields) -> None:
        super().__init__()
        self._fields = [(row, bit, name) for row, of in enumerate(SIGNALS) for bit, name in enumerate(fields[of])]

    def take(self, batch: Batch) -> None:
        """Take a batch, row after row of each port."""
        if len(batch.entities):
            self.grow(int(batch.entities.max()) + 1)
        fields = [field for field in self._fields if field[2] in batch.values]
        for tick, here in batch.ticks():
            total, which = _sums(batch, fields, tick, here)
            self._take_tick(batch.entities[here], batch.at[tick, here], total, which)

    def _take_tick(self, ports: IntArray, at: IntArray, total: FloatArray, which: IntArray) -> None:
        same = (which == self.which[:, ports]) & (which != 0)
        growth = np.where(same, total - self.value[:, ports], 0.0)
        copy = same.any(axis=0) & (which == self.which[:, ports]).all(axis=0) & (growth == 0).all(axis=0)
        copy &= at - self.moved[ports] < _COPIED_MS
        kept = ~copy & (which != 0).any(axis=0)
        if not np.count_nonzero(kept):
            return
        ports, at, total, which, growth = ports[kept], at[kept], total[:, kept], which[:, kept], growth[:, kept]
        same = same[:, kept]
        # Where a counter began anew the stretch goes on without what it counted in between.
        so_far = self.value[:, ports] - self.anchor[:, ports]
        anew = ~same | (growth < 0)
        counted = np.where(same & np.isfinite(so_far), so_far, 0.0)
        self.anchor[:, ports] = np.where(anew, total - counted, self.anchor[:, ports])
        away = (self.at[ports] < 0) | (at - self.at[ports] > _AWAY_MS)
        self.anchor[:, ports[away]], self.anchor_at[ports[away]] = total[:, away], at[away]
        self.moved[ports] = np.where((growth != 0).any(axis=0) | away, at, self.moved[ports])
        self.value[:, ports] = np.where(which != 0, total, np.nan)
        self.which[:, ports], self.at[ports] = which, at

    def ready(self, least_ms: int) -> IntArray:
        """Return the ports that have been read for at least `least_ms` since the last look at them."""
        return np.flatnonzero((self.anchor_at >= 0) & (self.at - self.anchor_at >= least_ms))

    def rates(self, ports: IntArray) -> tuple[FloatArray, FloatArray]:
        """Look at `ports` (n,): return their rates (signals, n) in 1/s, NaN of what they do not report, and over how
        many seconds (n,) these are; and begin a new stretch.
        """
        spent_s = (self.at[ports] - self.anchor_at[ports]) / 1000
        rates = (self.value[:, ports] - self.anchor[:, ports]) / spent_s
        self.anchor[:, ports], self.anchor_at[ports] = self.value[:, ports], self.at[ports]
        return np.where(rates >= 0, rates, np.nan), spent_s


def _sums(batch: Batch, fields: Sequence[tuple[int, int, str]], tick: int, here: Any) -> tuple[FloatArray, IntArray]:
    """Return by signal the sum of the counters that were reported, and which these were, as bits; (signals, n)."""
    shape = (len(SIGNALS), *batch.entities[here].shape)
    total, which = np.zeros(shape), np.zeros(shape, np.int64)
    for row, bit, name in fields:
        value = batch.values[name][tick, here]
        valid = batch.valid[name][tick, here] & (np.abs(value) < _PLAUSIBLE)
        total[row] += np.where(valid, value, 0.0)
        which[row] |= valid.astype(np.int64) << bit
    return total, which
