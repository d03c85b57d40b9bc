"""Single-bit errors of every GPU in a sliding window of event time, and what is usual for each.

The window is a ring of slots by event time. Errors that have left the window, and were no part of a storm, become the
GPU's habit: a sum that halves every half-life.
"""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.contract import BoolArray, FloatArray, Instant, IntArray
from detectors.ecc_memory.config import EccMemoryConfig

_SLOT_MS = 30_000


class SingleBitErrors:
    """Errors by GPU and slot. A GPU without errors costs nothing but its place in the arrays."""

    def __init__(self, config: EccMemoryConfig) -> None:
        self._config = config
        self.slots = max(int(config.storm_window_s * 1000) // _SLOT_MS, 2)
        self._half_life_ms = config.habit_half_life_s * 1000
        self._quiet_ms = int(config.storm_quiet_s * 1000)
        self.errors = np.zeros((0, self.slots), np.float64)
        self._number = np.full((0, self.slots), -1, np.int64)
        self.grew_at: IntArray = np.empty(0, np.int64)
        self.burst_at: IntArray = np.empty(0, np.int64)
        """When the present burst began: errors less than the quiet time apart are one burst; -1: none."""
        self.storming: BoolArray = np.empty(0, bool)
        self._over_at: IntArray = np.empty(0, np.int64)
        self._hot_at: IntArray = np.empty(0, np.int64)
        self._habit: FloatArray = np.empty(0)
        self._habit_at: IntArray = np.empty(0, np.int64)

    def grow(self, count: int) -> None:
        """Make room for GPUs that were not known before."""
        more = count - len(self.grew_at)
        if more <= 0:
            return
        self.errors = np.concatenate([self.errors, np.zeros((more, self.slots))])
        self._number = np.concatenate([self._number, np.full((more, self.slots), -1, np.int64)])
        never = np.full(more, -1, np.int64)
        self.grew_at, self.burst_at = np.concatenate([self.grew_at, never]), np.concatenate([self.burst_at, never])
        self.storming = np.concatenate([self.storming, np.zeros(more, bool)])
        self._over_at, self._hot_at = np.concatenate([self._over_at, never]), np.concatenate([self._hot_at, never])
        self._habit = np.concatenate([self._habit, np.zeros(more)])
        self._habit_at = np.concatenate([self._habit_at, never])

    def take(self, gpus: IntArray, at: IntArray, before: IntArray, errors: FloatArray) -> None:
        """Take new errors of some GPUs, at most one reading each; `before` is the reading before it (-1: none).

        Growth over a long silence is spread over it: only what may have come within a window counts for it.
        """
        silent = np.maximum(at - before, 1)
        span = self.slots * _SLOT_MS
        errors = np.where(silent > span, errors * span / silent, errors)
        self._into_habit(gpus, at)
        number = at // _SLOT_MS
        slot = number % self.slots
        fresh = self._number[gpus, slot] != number
        self.errors[gpus, slot] = np.where(fresh, 0.0, self.errors[gpus, slot]) + errors
        self._number[gpus, slot] = number
        begins = (self.burst_at[gpus] < 0) | (at - self.grew_at[gpus] > self._quiet_ms)
        onset = np.where((before >= 0) & (silent <= self._quiet_ms), (at + before) // 2, at)
        self.burst_at[gpus[begins]] = onset[begins]
        self.grew_at[gpus] = at

    def note(self, gpu: int, at: Instant) -> None:
        """Note that the driver complains of errors of a GPU, counted or not."""
        if self.burst_at[gpu] < 0 or at - self.grew_at[gpu] > self._quiet_ms:
            self.burst_at[gpu] = at
        self.grew_at[gpu] = max(int(self.grew_at[gpu]), at)

    def calmed(self, gpus: IntArray, calm: BoolArray, now: Instant) -> BoolArray:
        """Return on which of `gpus`, calm now or not, a storm is over; one that has come back is waited out longer."""
        self._hot_at[gpus[~calm]] = now
        recurred = (self._over_at[gpus] >= 0) & (
            self.burst_at[gpus] - self._over_at[gpus] <= self._config.recurrence_s * 1000
        )
        wait_ms = np.where(recurred, int(self._config.recurrence_quiet_s * 1000), 0)
        over: BoolArray = calm & self.storming[gpus] & (now - self._hot_at[gpus] >= wait_ms)
        return over

    def over(self, gpu: int, now: Instant) -> None:
        """Note that the storm of a GPU is over: errors that come later are a new burst, and these no habit."""
        self.storming[gpu] = False
        self.burst_at[gpu] = -1
        self._over_at[gpu] = now
        self.errors[gpu], self._number[gpu] = 0.0, -1

    def _into_habit(self, gpus: IntArray, at: IntArray) -> None:
        """Move what has left the window to the habit of its GPU, unless it was part of a storm."""
        old = (self._number[gpus] >= 0) & (self._number[gpus] <= (at // _SLOT_MS - self.slots)[:, None])
        if not np.count_nonzero(old):
            return
        gone = np.where(old, self.errors[gpus], 0.0).sum(axis=1)
        gone[self.storming[gpus]] = 0.0
        self._habit[gpus] = self._decayed(gpus, at) + gone
        self._habit_at[gpus] = at
        self._number[gpus] = np.where(old, -1, self._number[gpus])
        self.errors[gpus] = np.where(old, 0.0, self.errors[gpus])

    def _decayed(self, gpus: IntArray, at: Any) -> FloatArray:
        age = np.maximum(at - np.where(self._habit_at[gpus] < 0, at, self._habit_at[gpus]), 0)
        decayed: FloatArray = self._habit[gpus] * np.exp2(-age / self._half_life_ms)
        return decayed

    def habit(self, gpus: IntArray, now: Instant) -> FloatArray:
        """Return the errors that each GPU usually has in a window."""
        window_ms = self.slots * _SLOT_MS
        usual: FloatArray = self._decayed(gpus, now) * (np.log(2) * window_ms / self._half_life_ms)
        return usual

    def active(self, now: Instant) -> IntArray:
        """Return the GPUs with errors in the window, or with a storm that is not over."""
        lately = (self.grew_at >= 0) & (now - self.grew_at <= self.slots * _SLOT_MS)
        return np.flatnonzero(lately | self.storming)

    def within(self, gpus: IntArray, now: Instant, slots: int | None = None) -> tuple[FloatArray, FloatArray]:
        """Return the errors of some GPUs in the last slots (all of the window), and without the worst slot."""
        recent = self._number[gpus] > now // _SLOT_MS - (slots or self.slots)
        errors = np.where(recent, self.errors[gpus], 0.0)
        total: FloatArray = errors.sum(axis=1)
        return total, total - errors.max(axis=1)

    def lately(self, gpus: IntArray, now: Instant) -> FloatArray:
        """Return the errors of the quiet time: none of them, or hardly any, and a storm is over."""
        errors, _ = self.within(gpus, now, max(self._quiet_ms // _SLOT_MS, 1))
        return errors

    def snapshot(self) -> dict[str, NDArray[Any]]:
        """Return the state as arrays."""
        return {
            "storm_errors": self.errors,
            "storm_number": self._number,
            "storm_grew_at": self.grew_at,
            "storm_burst_at": self.burst_at,
            "storming": self.storming,
            "storm_over_at": self._over_at,
            "storm_hot_at": self._hot_at,
            "storm_habit": self._habit,
            "storm_habit_at": self._habit_at,
        }

    def load(self, arrays: dict[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self.errors, self._number = arrays["storm_errors"], arrays["storm_number"]
        self.grew_at, self.burst_at = arrays["storm_grew_at"], arrays["storm_burst_at"]
        self.storming = arrays["storming"]
        self._over_at, self._hot_at = arrays["storm_over_at"], arrays["storm_hot_at"]
        self._habit, self._habit_at = arrays["storm_habit"], arrays["storm_habit_at"]
