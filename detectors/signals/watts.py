"""What a node draws, as its BMC says: the one sign of life that does not go through the node itself."""

import re
from typing import Final

import numpy as np

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import Columns, column
from detectors.fleet.fleet import Fleet
from detectors.fleet.presence import NEVER, Roster

_WATTS = re.compile(r"(node|system|sys|total|chassis|dcmi|server).*(power|pwr|watt)|^(power|pwr|watts)", re.IGNORECASE)
_NOT_WATTS = re.compile(r"status|state|redundan|limit|cap|psu|supply", re.IGNORECASE)
_MEMORY_MS = 300_000
"""The level follows the watts with this time constant: as it was before a fall it is known for some minutes."""
_HOUR_MS = 3_600_000
_PLAUSIBLE_W = 1e6
_BACK_MS: Final = 120_000
"""What was low for a moment (a checkpoint, a job that ends) is read as it was two minutes later."""
_DIP_MS: Final = 300_000
"""What was low for longer was off, and boots: a fall to a tenth is remembered for three times as long."""
LIVES: Final = 0.6
"""A node that draws so much of what it did runs: one of eight busy GPUs draws about a third when it is idle (Vela)."""
_LESS: Final = 0.85
"""A node that draws less than that from the moment on at which it fell silent is no longer at work: identical nodes at
work differ by a twentieth (public traces), and one that hangs draws what an idle one does."""
_HANGS: Final = 0.75
"""A node of eight GPUs of which some work draws a tenth or two less when one of its jobs ends, or saves."""
_OFF: Final = 0.1
"""A node that draws less is off: its BMC and supplies alone draw 15 to 50 W, an idle node of eight GPUs over 1 kW."""


class Watts(Columns):
    """By BMC sensor that reads a node's power: the watts and when, the level before them, when they last fell below it.

    `level` is that of the last minutes, `hour` of the last hour: what is off has drawn little for long. `fell_from` is
    when the last fall began, `less_at` since when the watts have been below their level without a pause.

    `drop`: the largest fall since the last look, as before / now - 1; NaN: no reading.
    """

    axis = "bmc"
    at: IntArray = column(NEVER)
    watts: FloatArray = column(np.nan)
    before: FloatArray = column(np.nan)
    level: FloatArray = column(np.nan)
    hour: FloatArray = column(np.nan)
    fell_from: IntArray = column(NEVER)
    fell_at: IntArray = column(NEVER)
    less_at: IntArray = column(NEVER)
    drop: FloatArray = column(np.nan)
    counts: BoolArray = column(False)

    def __init__(self, fleet: Fleet, roster: Roster) -> None:
        super().__init__()
        self._fleet, self._roster = fleet, roster

    def take(self, batch: Batch) -> None:
        """Take the BMCs' readings."""
        if not len(batch.entities):
            return
        known = len(self)
        self.grow(batch.reach)
        for index, key in enumerate(self._fleet.entities("bmc")[known : len(self)], known):
            self.counts[index] = bool(_WATTS.search(str(key[1])) and not _NOT_WATTS.search(str(key[1])))
        if "reading" not in batch.values:
            return
        here = np.flatnonzero(self.counts[batch.entities])
        those = batch.entities[here]
        for tick in range(len(batch.at)):
            value = batch.values["reading"][tick, here]
            fine = batch.present[tick, here] & batch.valid["reading"][tick, here]
            fine &= (value >= 0) & (value < _PLAUSIBLE_W)
            sensors, watts, at = those[fine], value[fine], batch.at[tick, here][fine]
            level = np.where(np.isnan(self.level[sensors]), watts, self.level[sensors])
            spent = np.where(self.at[sensors] >= 0, at - self.at[sensors], 0)
            fell = watts < LIVES * level
            begins = fell & (self.fell_at[sensors] != self.at[sensors])
            self.fell_from[sensors[begins]] = at[begins]
            self.fell_at[sensors[fell]] = at[fell]
            self.at[sensors], self.watts[sensors], self.before[sensors] = at, watts, level
            less = np.where(self.less_at[sensors] == NEVER, at, self.less_at[sensors])
            self.less_at[sensors] = np.where(watts < _LESS * np.fmax(level, self.hour[sensors]), less, NEVER)
            self.drop[sensors] = np.fmax(self.drop[sensors], level / np.maximum(watts, 1.0) - 1)
            self.level[sensors] = level + (1 - np.exp(-spent / _MEMORY_MS)) * (watts - level)
            hour = np.where(np.isnan(self.hour[sensors]), watts, self.hour[sensors])
            self.hour[sensors] = hour + (1 - np.exp(-spent / _HOUR_MS)) * (watts - hour)

    def drops(self) -> FloatArray:
        """Return by how much watts fell at the readings since this was last asked, (n,)."""
        found: FloatArray = self.drop[np.isfinite(self.drop)]
        self.drop[:] = np.nan
        return found

    def since(self, node: int, since: Instant) -> tuple[float, float]:
        """Return a node's watts by a reading after `since`, and what they used to be; NaN where there is none."""
        those = self._read(node, since)
        if not len(those):
            return np.nan, np.nan
        return float(self.watts[those[0]]), float(self.before[those[0]])

    def off(self, node: int, since: Instant) -> bool:
        """Return whether a node is off, by a reading after `since`."""
        return self._below(node, since, _OFF)

    def low(self, node: int, since: Instant) -> bool:
        """Return whether a node draws far less than in the last hour, by a reading after `since`."""
        return self._below(node, since, LIVES)

    def held(self, node: int, since: Instant) -> bool:
        """Return whether a node draws what it did, by all readings after `since`, or by those of two minutes and more
        after a dip: one that dies does not draw it again, one that saves a checkpoint does. Nor does what draws less
        ever since it fell silent.
        """
        those = self._read(node, since)
        if not len(those):
            return False
        back = (self.at[those] - self.fell_at[those] >= _BACK_MS) & (self.watts[those] >= LIVES * self.hour[those])
        back &= self.fell_at[those] - self.fell_from[those] <= _DIP_MS
        at_once = self._less_from(those, since, since + _BACK_MS)
        return bool((((self.fell_at[those] <= since) | back) & ~at_once).all())

    def less_since(self, node: int, since: Instant, until: float) -> bool:
        """Return whether a node is no longer at work: it draws three quarters at most, and has drawn less without a
        pause, from some moment between `since`, or shortly before, and `until` on.
        """
        those = self._read(node, since)
        little = self.watts[those] < _HANGS * np.fmax(self.level[those], self.hour[those])
        return bool((little & self._less_from(those, since, until)).any())

    def _less_from(self, those: IntArray, since: Instant, until: float) -> BoolArray:
        less_at = self.less_at[those]
        return np.asarray((less_at != NEVER) & (less_at >= since - _BACK_MS) & (less_at <= until))

    def _below(self, node: int, since: Instant, share: float) -> bool:
        those = self._read(node, since)
        return bool(len(those)) and bool(self.watts[those[0]] < share * self.hour[those[0]])

    def _read(self, node: int, since: Instant) -> IntArray:
        """Return the sensors of a node's power that were read after `since`."""
        owner = self._roster.owners("bmc", len(self))
        return np.flatnonzero((owner == node) & self.counts & np.isfinite(self.watts) & (self.at > since))
