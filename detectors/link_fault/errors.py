"""Which ports of a kind count damaged frames or symbols at a rate: by a published bar at once, else by evidence.

Once a minute what each port counted is held against its own habit and against what its peers count, and evidence of
what is improbable here adds up (`detectors.core`). One burst is an event: it is learnt when it is over.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray, Kind
from detectors.core.columns import Columns, column
from detectors.core.evidence import Evidence, bet
from detectors.core.residuals import Habit
from detectors.core.tails import Tails
from detectors.link_fault.config import LinkFaultConfig
from detectors.statistics import median_of

LOOK_MS: Final = 60_000
COUNTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "nic": ("symbol_error", "port_rcv_errors", "link_error_recovery", "local_link_integrity_errors"),
    "switch": ("SAI_PORT_STAT_IF_IN_FEC_NOT_CORRECTABLE_FRAMES", "SAI_PORT_STAT_IF_IN_ERRORS"),
}
_MOST: Final = 4
_COLLECTED_MS = 30_000
"""A counter that stood still for longer did not grow in all that time: exporters collect at least so often."""
_FAST_READINGS = 2
_HABIT_S, _HABIT_LEAST_S = 3600.0, 110.0
_PLAUSIBLE = 1e18


class Errors(Columns):
    """By port and counter: the last `value`, when it `moved`, its last `rate` (1/s), readings in a row above the
    published bar (`fast`), what it `grown` since the last look, and what it counted since its evidence began
    (`total`); by port: when it was read (`at`), looked at (`looked`), and last erred unusually (`odd`); -1 never.
    """

    value: FloatArray = column(np.nan, _MOST)
    moved: IntArray = column(-1, _MOST)
    rate: FloatArray = column(0.0, _MOST)
    fast: IntArray = column(0, _MOST)
    grown: FloatArray = column(0.0, _MOST)
    total: FloatArray = column(0.0, _MOST)
    burst: FloatArray = column(np.nan, _MOST)
    at: IntArray = column(-1)
    looked: IntArray = column(-1)
    odd: IntArray = column(-1)

    BESIDE = ("evidence", "habits")

    def __init__(self, config: LinkFaultConfig, kind: Kind, tails: Tails) -> None:
        super().__init__()
        self.kind, self._config, self.tails = kind, config, tails
        self.counters = COUNTERS[kind]
        self.evidence = Evidence()
        self.habits = [Habit(_HABIT_S) for _ in range(_MOST)]

    def take(self, batch: Batch) -> None:
        """Take a batch, row after row of each port."""
        if len(batch.entities):
            self.grow(int(batch.entities.max()) + 1)
        told = [(row, name) for row, name in enumerate(self.counters) if name in batch.values]
        for tick, here in batch.ticks():
            ports, at = batch.entities[here], batch.at[tick, here]
            self.looked[ports] = np.where(self.looked[ports] < 0, at, self.looked[ports])
            # A counter that stood still for longer than exporters collect did not grow in all that time.
            apart = np.maximum(at - self.at[ports], _COLLECTED_MS)
            self.at[ports] = at
            for row, name in told:
                value = batch.values[name][tick, here]
                fine = batch.valid[name][tick, here] & (np.abs(value) < _PLAUSIBLE)
                self._count(row, ports[fine], at[fine], value[fine], apart[fine])

    def _count(self, row: int, ports: IntArray, at: IntArray, value: FloatArray, apart: IntArray) -> None:
        growth = value - self.value[row, ports]
        self.value[row, ports] = value
        anew = ~(growth >= 0)  # the first reading, or the first after a restart
        if np.count_nonzero(anew):
            self.moved[row, ports[anew]] = at[anew]
        grew = growth > 0
        if np.count_nonzero(grew):
            those, when, more = ports[grew], at[grew], growth[grew]
            elapsed = np.maximum(np.minimum(when - self.moved[row, those], apart[grew]), 1)
            rate = more / elapsed * 1000
            self.grown[row, those] += more
            self.rate[row, those] = rate
            high = rate >= self._config.errors_per_s
            self.fast[row, those] = np.where(high, np.minimum(self.fast[row, those] + 1, 100), 0)
            self.moved[row, those] = when
            self.odd[those[high]] = when[high]
        if np.count_nonzero(self.fast[row]):
            # A collector's cached copy does not grow, and takes nothing back.
            still = (growth == 0) & (at - self.moved[row, ports] > 1.2 * _COLLECTED_MS)
            self.fast[row, ports[still]] = 0

    def due(self) -> IntArray:
        """Return the ports that have been read for a minute since the last look at them."""
        return np.flatnonzero(self.at - self.looked >= LOOK_MS)

    def look(self, ports: IntArray, excused: BoolArray) -> None:
        """Look at what `ports` (n,) counted; nothing is made of it where it is `excused` (n,) by a loss of link."""
        minutes = (self.at[ports] - self.looked[ports]) / LOOK_MS
        odds = np.full((len(self.counters), len(ports)), np.nan)
        for row, name in enumerate(self.counters):
            odds[row] = self._odds(row, name, ports, minutes, ~excused)
        known = np.isfinite(odds)
        least = np.min(odds, axis=0, initial=1.0, where=known)
        chance = np.where(known.any(axis=0), np.minimum(least * known.sum(axis=0), 1.0), np.nan)
        self.evidence.look(ports, chance, self.at[ports])
        erring = self.evidence.wealth[ports] > 0
        self.total[:, ports] = np.where(erring, self.total[:, ports] + self.grown[:, ports], 0.0)
        odd = ports[bet(np.nan_to_num(chance, nan=1.0)) > 0]
        self.odd[odd] = self.at[odd]
        self.grown[:, ports] = 0.0
        self.looked[ports] = self.at[ports]

    def _odds(self, row: int, name: str, ports: IntArray, minutes: FloatArray, counts: BoolArray) -> FloatArray:
        """Return the odds of what `ports` counted by chance, and learn from it."""
        habit, tail = self.habits[row], self.tails[f"{self.kind}.{name}"]
        pace = np.where(np.isfinite(self.value[row, ports]) & counts, self.grown[row, ports] / minutes, np.nan)
        usual = np.where(habit.learnt_s[ports] >= _HABIT_LEAST_S, habit.level[ports], np.nan)
        # One error more than usual, and than half of the ports count, is twice as much.
        residual = (pace - np.fmax(usual, np.nan_to_num(median_of(pace)))) / (usual + 1)
        odds = tail.odds(residual)
        calm = ~(residual >= 1)
        tail.learn(residual[calm])
        tail.learn(self.burst[row, ports[calm]])
        self.burst[row, ports] = np.where(calm, np.nan, np.fmax(self.burst[row, ports], residual))
        habit.learn(ports[calm], pace[calm], 60 * minutes[calm])
        return odds

    def failing(self, wealth: float) -> dict[int, dict[str, float]]:
        """Return the ports whose errors are a fault, with what they counted: fast ones, and those by evidence."""
        fast = self.fast >= _FAST_READINGS
        for row in np.flatnonzero(fast.any(axis=1)).tolist():
            rates = np.where(np.isfinite(self.value[row]), np.where(self.fast[row] > 0, self.rate[row], 0.0), np.nan)
            fast[row] &= self.rate[row] >= self._config.errors_per_s * max(median_of(rates), 1.0)
        total = self.total.max(axis=0, initial=0.0)
        slow = (self.evidence.wealth >= wealth) & (total >= self._config.errors)
        found: dict[int, dict[str, float]] = {}
        for port in np.flatnonzero(fast.any(axis=0) | slow).tolist():
            told = found[port] = {}
            for row, name in enumerate(self.counters):
                counted = self.total[row, port] + self.grown[row, port]
                if counted > 0:
                    told[name] = float(counted)
                    told[f"{name}_per_s"] = float(self.rate[row, port])
                    told[f"{name}_per_min_usual"] = float(np.nan_to_num(self.habits[row].level[port]))
        return {port: told for port, told in found.items() if told}

    def began(self, port: int, now: Instant) -> Instant:
        """Return when a port began to err."""
        since = int(self.evidence.since[port])
        first = int(self.looked[port]) if since < 0 else since - LOOK_MS
        return min(max(first, 0), now)
