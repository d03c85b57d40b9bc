"""Rails that fall silent: a NIC that moves nothing any more while its siblings on the node, and its like, go on."""

from typing import Final

import numpy as np

from detectors.contract import Batch, FloatArray, Instant, IntArray
from detectors.core.columns import Columns, column
from detectors.core.counting import COLLECTED_MS, Counter

QUIET_MS: Final = 60_000
"""Longer than checkpoints keep a rail alone from its traffic; its siblings must be moving data (policy)."""
_DATA = ("port_xmit_data", "port_rcv_data")
_WORD_BYTES = 4
_LEARN, _LEARN_PAUSES = 0.1, 0.01
"""Of a reading's traffic; of one that may be a pause's, as a smaller job is known by its length only."""
_LEARNT = 12
_CARRY = 0.5
"""A reading's part in what a NIC carries: of one that is dead a sixteenth is left when it counts as quiet."""
_MOVING = 0.01
"""Of its own level: below it a NIC carries management traffic at most."""
_SHARE = 0.2
"""Of the siblings' traffic: with less a NIC was no rail of the job before either; with more it is not silent now. While
siblings carry less than that of their own, the whole job pauses."""
_LEAST = 1000.0
"""Bytes a millisecond: a thousandth of a link of 10 Gb/s is no collective's traffic, and comes and goes."""
_PLAUSIBLE = 1e18


class Rails(Columns):
    """Columns over NICs: `level` of traffic while it moves (bytes/ms), when it last `moved`, since when it has without
    a pause (`run`), and what it `carried` over the last readings, pauses included (bytes/ms); `either` is when it
    last moved much one way at least.

    Traffic is what moves either way, whichever is less: collectives send what they receive, files go one way.
    """

    axis = "nic"
    BESIDE = ("counted",)
    level: FloatArray = column(0.0)
    learnt: IntArray = column(0)
    moved: IntArray = column(-1)
    either: IntArray = column(-1)
    run: IntArray = column(-1)
    carried: FloatArray = column(0.0)

    def __init__(self) -> None:
        super().__init__()
        self.counted = Counter(len(_DATA))

    def take(self, batch: Batch) -> None:
        """Take a batch, row after row of each NIC."""
        self.grow(batch.reach)
        if not all(name in batch.values for name in _DATA):
            return
        for tick in range(len(batch.at)):
            here = batch.present[tick].copy()
            for name in _DATA:
                here &= batch.valid[name][tick] & (np.abs(batch.values[name][tick]) < _PLAUSIBLE)
            words = np.array([batch.values[name][tick, here] for name in _DATA], float)
            self._take_tick(batch.entities[here], batch.at[tick, here], words)

    def _take_tick(self, nics: IntArray, at: IntArray, words: FloatArray) -> None:
        usual = np.maximum(COLLECTED_MS, at - self.counted.at[0, nics])
        ways = self.counted.rates(nics, at, words * _WORD_BYTES, COLLECTED_MS)
        rate = ways.min(axis=0)
        known = nics[np.isfinite(rate)]
        self.carried[known] += _CARRY * (rate[np.isfinite(rate)] - self.carried[known])
        level = self.level[nics]
        one_way = ways.max(axis=0) >= _SHARE * level
        self.either[nics[one_way]] = at[one_way]
        moving = (rate > _MOVING * level) & (rate > 0)
        learn = nics[moving]
        part = np.where(rate[moving] < _SHARE * level[moving], _LEARN_PAUSES, _LEARN)
        self.level[learn] += np.where(self.learnt[learn] == 0, 1.0, part) * (rate[moving] - self.level[learn])
        self.learnt[learn] += 1
        paused = at[moving] - self.moved[learn] > 3 * usual[moving]
        self.run[learn[paused]] = at[moving][paused]
        self.moved[learn] = at[moving]

    def quiet(self, last: IntArray, usual: FloatArray) -> IntArray:
        """Return the NICs that moved data and, last heard at `last`, have not for long."""
        least = np.fmax(QUIET_MS, 4 * usual)
        known = (self.learnt >= _LEARNT) & (self.moved >= 0) & (self.level >= _LEAST)
        return np.flatnonzero(known & (last - np.maximum(self.moved, self.either) >= least))

    def moves(self, nics: list[int], since: Instant, last: Instant) -> list[int]:
        """Return those of `nics` that have moved data without a pause since `since`, and after `last`."""
        return [nic for nic in nics if self.run[nic] <= since and self.moved[nic] > last]

    def is_one(self, nic: int, siblings: list[int]) -> bool:
        """Return whether a NIC carried its share of the node's traffic, as its siblings still do, and does not now.

        One that carried far more than they has traffic of its own (storage, a proxy), which may end by itself.
        """
        now, before = np.median(self.carried[siblings]), np.median(self.level[siblings])
        alike = _SHARE * before <= self.level[nic] <= before / _SHARE
        return bool(alike and now >= _SHARE * before and self.carried[nic] < _SHARE * now)
