"""Which ports of a kind count damaged frames or symbols at a rate: by a published bar at once, else by evidence.

Once a minute what each port counted is held against its own habit and against what its peers count, and evidence of
what is improbable here adds up (`detectors.core`). One burst is an event: it is learnt when it is over.
"""

from collections.abc import Mapping
from typing import Final

import numpy as np

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray, Kind
from detectors.core.columns import Columns, column
from detectors.core.counting import Counter
from detectors.core.evidence import Evidence, bet, joint
from detectors.core.residuals import Habit, learn_together
from detectors.core.statistics import known_or, median_of, poisson_odds
from detectors.core.tails import Tails, learn_events
from detectors.link_fault.config import LinkFaultConfig

LOOK_MS: Final = 60_000
COUNTERS: Final[Mapping[str, tuple[str, ...]]] = {
    "nic": (
        "symbol_error",
        "port_rcv_errors",
        "link_error_recovery",
        "local_link_integrity_errors",
        "rx_crc_errors_phy",
        "rx_symbol_err_phy",
    ),
    "switch": ("SAI_PORT_STAT_IF_IN_FEC_NOT_CORRECTABLE_FRAMES", "SAI_PORT_STAT_IF_IN_ERRORS"),
}
"""RoCE ports often count damage in ethtool's counters of the physical layer only."""
_ELSE: Final = {"rx_crc_errors_phy": "rx_crc_errors"}
"""Where ethtool's counters are not read, the kernel's own of the same frames (struct rtnl_link_stats64): the mlx5
driver fills both from the port's a_frame_check_sequence_errors."""
_MOST: Final = 6
_COLLECTED_MS = 36_000
"""Exporters collect every 30 s at least, and some are late."""
_FAST_READINGS = 2
_LEAST_ERRORS: Final = 20
"""Fewer are no fault, however improbable: ten minutes at the IBTA's bit error rate of 1e-12, 120 an hour (NVSentinel
nic-health-monitor)."""
_STEADY: Final = 0.25
_STEADY_MS: Final = 75_000
"""A quarter of the published bar is enough where every reading of more than a minute has it: a burst takes seconds."""
_CALM_MINUTES: Final = 5.0
_BEYOND_USUAL: Final = 10.0
_HABIT_S, _HABIT_LEAST_S = 3600.0, 110.0
_PLAUSIBLE = 1e18
_OWN_RATE_MINUTES: Final = 1440.0
"""A port's own rate is that of its last day, quiet minutes and single errors alike; a habit is that of most minutes."""
_OWN_AFTER_MINUTES: Final = 60.0
"""So old errors become its own on average: those of a fault's first minutes are not, before it is known to be one."""
_ONE_UNSEEN: Final = 1.0
"""What a port's habit may have missed so far: one error in all the time that it was learnt."""


class Errors(Columns):
    """By port and counter: the growth since the last look (`counted`), the last `rate` (1/s), readings in a row above
    the published bar (`fast`), since when all are above a quarter of it (`steady`, ms), and what it counted since its
    evidence began (`total`); by port: when it was looked at (`looked`), and last erred unusually (`odd`); -1 never.
    `past` errors, those of faults aside, in `minutes`, both fading, are its own rate, and `recent` ones become it;
    `failed` while its errors are those of a fault.
    """

    BESIDE = ("counted", "evidence", "habits")
    rate: FloatArray = column(0.0, _MOST)
    fast: IntArray = column(0, _MOST)
    steady: IntArray = column(-1, _MOST)
    total: FloatArray = column(0.0, _MOST)
    burst: FloatArray = column(np.nan, _MOST)
    recent: FloatArray = column(0.0, _MOST)
    past: FloatArray = column(0.0, _MOST)
    minutes: FloatArray = column(0.0)
    failed: BoolArray = column(False)
    at: IntArray = column(-1)
    looked: IntArray = column(-1)
    odd: IntArray = column(-1)

    def __init__(self, config: LinkFaultConfig, kind: Kind, tails: Tails) -> None:
        super().__init__()
        self.kind = self.axis = kind
        self._config, self.tails = config, tails
        self.counters = COUNTERS[kind]
        self.counted, self.evidence = Counter(rows=_MOST), Evidence()
        self.habits = [Habit(_HABIT_S) for _ in range(_MOST)]

    def take(self, batch: Batch) -> None:
        """Take a batch, row after row of each port."""
        self.grow(batch.reach)
        shown = [name if name in batch.sound else _ELSE.get(name, name) for name in self.counters]
        known = [(row, name) for row, name in enumerate(shown) if name in batch.sound]  # others nobody reports
        for tick, here in batch.ticks():
            ports, at = batch.entities[here], batch.at[tick, here]
            self.looked[ports] = np.where(self.looked[ports] < 0, at, self.looked[ports])
            self.at[ports] = at
            if not known:
                continue
            value = np.full((_MOST, len(ports)), np.nan)
            for row, name in known:
                read = batch.values[name][tick, here]
                value[row] = np.where(batch.valid[name][tick, here] & (np.abs(read) < _PLAUSIBLE), read, np.nan)
            rate = 1000 * self.counted.rates(ports, at, value, _COLLECTED_MS)
            self._note(ports, at, rate)

    def _note(self, ports: IntArray, at: IntArray, rate: FloatArray) -> None:
        """Note the rates (counters, n) of one reading: NaN where a copy repeats the one before, or a counter fell."""
        grew, fast, steady = rate > 0, self.fast[:, ports], self.steady[:, ports]
        if not np.count_nonzero(grew) and not np.count_nonzero(fast) and not np.count_nonzero(steady >= 0):
            return
        high = rate >= self._config.errors_per_s
        self.rate[:, ports] = np.where(grew, rate, self.rate[:, ports])
        # A collector's cached copy does not grow, and takes nothing back.
        self.fast[:, ports] = np.where(high, np.minimum(fast + 1, 100), np.where(rate >= 0, 0, fast))
        since = np.where(rate >= _STEADY * self._config.errors_per_s, np.where(steady < 0, at, steady), -1)
        self.steady[:, ports] = np.where(rate >= 0, since, steady)
        odd = high.any(axis=0)
        self.odd[ports[odd]] = at[odd]

    def due(self) -> IntArray:
        """Return the ports that have been read for a minute since the last look at them."""
        return np.flatnonzero(self.at - self.looked >= LOOK_MS)

    def look(self, ports: IntArray, excused: BoolArray) -> None:
        """Look at what `ports` (n,) counted; nothing is made of it where it is `excused` (n,) by a loss of link."""
        minutes = (self.at[ports] - self.looked[ports]) / LOOK_MS
        chance = joint(self._odds(ports, minutes, ~excused))
        self.evidence.look(ports, chance, self.at[ports])
        erring = self.evidence.wealth[ports] > 0
        total = self.total[:, ports] + self.counted.grown[:, ports]
        self._learn(ports, minutes, np.where(erring | self.failed[ports] | excused, 0.0, total))
        self.failed[ports] &= erring
        self.total[:, ports] = np.where(erring, total, 0.0)
        odd = ports[bet(known_or(chance, 1.0)) > 0]
        self.odd[odd] = self.at[odd]
        self.counted.look(ports)
        self.looked[ports] = self.at[ports]

    def _learn(self, ports: IntArray, minutes: FloatArray, harmless: FloatArray) -> None:
        kept, waiting = np.exp(-minutes / _OWN_RATE_MINUTES), np.exp(-minutes / _OWN_AFTER_MINUTES)
        recent = self.recent[:, ports]
        self.past[:, ports] = self.past[:, ports] * kept + recent * (1 - waiting)
        self.recent[:, ports] = recent * waiting + harmless
        self.minutes[ports] = self.minutes[ports] * kept + minutes

    def _odds(self, ports: IntArray, minutes: FloatArray, counts: BoolArray) -> FloatArray:
        """Return the odds (counters, n) of what `ports` counted by chance, and learn from it."""
        rows, habits = slice(len(self.counters)), self.habits[: len(self.counters)]
        grown, known = self.counted.grown[rows, ports], np.isfinite(self.counted.value[rows, ports]) & counts
        pace = np.where(known, grown / minutes, np.nan)
        learnt_s = np.array([habit.learnt_s[ports] for habit in habits])
        usual = np.where(learnt_s >= _HABIT_LEAST_S, np.array([habit.level[ports] for habit in habits]), np.nan)
        middle = known_or(np.array([[median_of(own)] for own in pace]), 0.0)
        # One error more than usual, and than half of the ports count, is twice as much.
        residual = (pace - np.fmax(usual, middle)) / (usual + 1)
        # As many as a steady rate brings by chance are none too many, whatever the ports without errors count.
        own = self.past[rows, ports] / np.maximum(self.minutes[ports], 1.0)
        mean = (np.fmax(usual, own) + _ONE_UNSEEN / np.maximum(learnt_s / 60, 1.0)) * minutes
        odds, calm = poisson_odds(grown, mean), ~(residual >= 1)
        for row, name in enumerate(self.counters):
            tail = self.tails[f"{self.kind}.{name}"]
            if np.count_nonzero(known[row]):
                odds[row] = np.maximum(tail.odds(residual[row]), odds[row])
                tail.learn(residual[row, calm[row]])
            else:
                odds[row] = np.nan
            learn_events(tail, self.burst[row], ports, residual[row], calm[row])
        learn_together(habits, ports, np.where(calm, pace, np.nan), 60 * minutes)
        return odds

    def failing(self, wealth: float) -> dict[int, dict[str, float]]:
        """Return the ports whose errors are a fault, with what they counted: fast ones, and those by evidence."""
        fast, slow = (self.fast >= _FAST_READINGS) | self._steadily(), self.evidence.wealth >= wealth
        if not np.count_nonzero(fast) and not np.count_nonzero(slow):
            return {}
        for row in np.flatnonzero(fast.any(axis=1)).tolist():
            erring = (self.fast[row] > 0) | (self.steady[row] >= 0)
            rates = np.where(np.isfinite(self.counted.value[row]), np.where(erring, self.rate[row], 0.0), np.nan)
            bar = self._config.errors_per_s * np.where(self.fast[row] > 0, 1.0, _STEADY)
            fast[row] &= self.rate[row] >= bar * max(median_of(rates), 1.0)
        total = self.total.max(axis=0, initial=0.0)
        slow &= total >= _LEAST_ERRORS
        self.failed |= fast.any(axis=0) | slow
        found: dict[int, dict[str, float]] = {}
        for port in np.flatnonzero(fast.any(axis=0) | slow).tolist():
            figures = found[port] = {}
            for row, name in enumerate(self.counters):
                counted = self.total[row, port] + self.counted.grown[row, port]
                if counted > 0:
                    figures[name] = float(counted)
                    figures[f"{name}_per_s"] = float(self.rate[row, port])
                    figures[f"{name}_per_min_usual"] = self._usual(row, port)
        return {port: figures for port, figures in found.items() if figures}

    def _steadily(self) -> BoolArray:
        """Return which counters (counters, ports) have grown for long at a rate that the port was never used to."""
        lasts = self.steady >= 0
        if np.count_nonzero(lasts):
            lasts &= (self.at - self.steady >= _STEADY_MS) & (self.minutes >= _CALM_MINUTES)
        if not np.count_nonzero(lasts):
            return lasts
        own = self.past / np.maximum(self.minutes, 1.0)
        return np.asarray(lasts & (60 * self.rate >= _BEYOND_USUAL * (own + _ONE_UNSEEN)))

    def _usual(self, row: int, port: int) -> float:
        """Return what a port counts in a minute by itself."""
        own = self.past[row, port] / max(self.minutes[port], 1.0)
        return float(np.fmax(self.habits[row].level[port], own))

    def began(self, port: int, now: Instant) -> Instant:
        """Return when a port began to err."""
        since = int(self.evidence.since[port])
        first = int(self.looked[port]) if since < 0 else since - LOOK_MS
        return min(max(first, 0), now)
