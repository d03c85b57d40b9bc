"""For how long heat has held every GPU's clock down: by the driver's word, by its counter, or as heat shows itself."""

from typing import Any, Final

import numpy as np

from detectors.contract import BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import Columns, column
from detectors.signals.brakes import SLOWED
from detectors.signals.gpus_at_work import STALE_MS, GpusAtWork
from detectors.signals.heat_limits import NEAR_K
from detectors.signals.throttle_bits import THERMAL
from detectors.thermal_throttle.config import ThermalThrottleConfig

RELEASE_MS: Final = 150_000.0
"""At work: longer than a checkpoint or a step without throttling; short enough to resolve within five minutes."""
_THROTTLED_SHARE: Final = 0.3
"""A violation counter that moves at all is noise (DCGM issue 285); at a third of the time work is slower by a tenth."""
_MOST_SPENT_MS: Final = 180_000.0
_LEAK: Final = 0.5
"""Time held down leaks away half as fast: throttling that pauses between steps adds up."""
_ALARMED_RATIO: Final = 0.98
"""Of its own clock, two steps of 15 MHz at 1980: at its limit, in air that its BMC calls too warm, heat holds it."""
_EASED: Final = 0.95
"""Of its peers' clock and its own: a GPU at its limit and far hotter than its peers, well below its power limit, has no
other reason to lose half of what a power cap takes."""
_CAPPED: Final = 0.9
"""Of its power limit, at least: so much draws a GPU whose clock a power cap takes (A100: 360 to 400 of 400 W)."""
_AT_CAP: Final = 0.98
"""Of its power limit: there it is the cap that holds the clock. What heat holds down draws less."""
_AIR_C: Final = 30.0
"""Inlets are seldom warmer (ASHRAE A1 recommends 18 to 27 degrees)."""
_IDLE_MS: Final = 240_000
"""An idle GPU cannot show that it is free: it counts as free in part, so that a finding is over within five minutes."""


class Heat(Columns):
    """By GPU: `spent_ms` for how long it was held down of late (leaks away while it is not), `run` readings in that
    time, `since` its first, `before` the reading before; `stated` whether the driver says so, `plain` whether it is at
    its limit and far hotter than its peers, which chance does not bring; `free_ms` since the last; `chip_limit`,
    `memory_limit` highest operating temperatures, degrees.
    """

    axis = "dcgm"
    spent_ms: FloatArray = column(0.0)
    run: IntArray = column(0)
    since: IntArray = column(-1)
    before: IntArray = column(-1)
    stated: BoolArray = column(False)
    plain: BoolArray = column(False)
    free_ms: FloatArray = column(0.0)
    chip_limit: FloatArray = column(np.nan)
    memory_limit: FloatArray = column(np.nan)

    def __init__(self, config: ThermalThrottleConfig, gpus: GpusAtWork) -> None:
        super().__init__()
        self._config, self._gpus = config, gpus

    def judge(self, now: Instant, new: BoolArray, alarmed: BoolArray) -> None:
        """Take the readings of `gpus` that are `new` (count,); `alarmed` (count,) are those whose BMC reports heat."""
        gpus = self._gpus
        has_bits, says = gpus.reasons >= 0, (np.maximum(gpus.reasons, 0) & THERMAL) != 0
        counts = gpus.throttled_share() >= _THROTTLED_SHARE
        # Who may be held down is compared with the peers: where the driver says why a clock is low, it is asked alone.
        may = says | counts
        if np.count_nonzero(new & ~has_bits):
            slower = (gpus.clock <= SLOWED * gpus.usual["clock"].level) | (gpus.lost > -np.log(SLOWED))
            may |= ~has_bits & (slower | self._hot())
        ask = np.flatnonzero(new & may & gpus.busy)
        held, stated, plain = np.zeros((3, len(new)), bool)
        if len(ask):
            parts = self._held(now, ask, has_bits[ask], says[ask], counts[ask], alarmed[ask])
            held[ask], stated[ask], plain[ask] = parts
        self._count(new, held, stated, plain)
        gpus.mark(new, held | says, ~held)

    def _held(
        self, now: Instant, those: IntArray, has_bits: BoolArray, says: BoolArray, counts: BoolArray, alarmed: BoolArray
    ) -> tuple[BoolArray, BoolArray, BoolArray]:
        """Return which of some GPUs at work heat holds down, of which the driver says so, and of which it is plain."""
        gpus, hot = self._gpus, self._hot(those)
        temp, clock, own = gpus.temp[those], gpus.clock[those], gpus.usual["clock"].level[those]
        lacks = gpus.lacks(those, now)
        peers_clock, peers_power, _, warmest = lacks
        slow = clock <= SLOWED * np.where(np.isfinite(peers_clock), peers_clock, own)
        beyond = self._chip_beyond(those, lacks)
        # A bit alone may be stuck: the temperature or the clock must bear it out, where either is known.
        blind = ~np.isfinite(temp) & ~np.isfinite(gpus.memory[those]) & ~np.isfinite(clock)
        # A counter that creeps, in a unit that is nowhere stated, may look like a third of the time.
        sure = np.where(has_bits, self.run[those] > 0, slow | gpus.throttled_in_ns(those))
        stated = (says & (hot | beyond | slow | blind)) | (counts & hot & sure)
        # Work takes clocks down, too, and warms: what draws more than its peers is at work where they are not. It does
        # so at the power limit: far below that it may work harder, but keeps its clock.
        harder = (gpus.power[those] > peers_power) & ~(gpus.power[those] < _CAPPED * gpus.limit[those])
        harder |= gpus.power[those] >= _AT_CAP * gpus.limit[those]
        # Peers that are as warm and keep their clocks show that this is not the limit; a BMC's alarm, that it is.
        usual, most = self._memory_of_peers(those, now)
        memory, hbm = gpus.memory[those], self.hot_memory(those)
        beyond |= hbm & (memory >= usual + self._config.peer_excess_k)
        eased = hot & beyond & (clock <= _EASED * peers_clock) & ~(clock > _EASED * own)
        slow |= eased & (gpus.power[those] < _CAPPED * gpus.limit[those])
        by_heat = (hot | beyond) & slow & ~harder & (~(temp <= warmest) | (hbm & ~(memory <= most)))
        of_node = self._of_its_node(now, those, hot)
        shown = by_heat | of_node | (alarmed & hot & (clock <= _ALARMED_RATIO * own))
        return stated | (~has_bits & shown), stated, ~has_bits & ((by_heat & hot & beyond) | of_node)

    def alone(self, those: IntArray, now: Instant) -> BoolArray:
        """Return which of some GPUs are at their limit and far hotter than their peers: it is their own heat sink."""
        memory, (usual, _) = self._gpus.memory[those], self._memory_of_peers(those, now)
        beyond = self._chip_beyond(those, self._gpus.lacks(those, now))
        beyond |= self.hot_memory(those) & (memory >= usual + self._config.peer_excess_k)
        return self._hot(those) & beyond

    def _chip_beyond(self, those: IntArray, lacks: tuple[FloatArray, ...]) -> BoolArray:
        """Return which of some GPUs' chips are far hotter than their peers', of which they lack so much.

        What draws more is warmer for that: the rise above the air is proportional to power.
        """
        _, power, temp, _ = lacks
        rise = np.maximum(temp - _AIR_C, 0.0) * np.fmax(self._gpus.power[those] / power, 1.0)
        bar = np.fmax(temp, _AIR_C + rise) + self._config.peer_excess_k
        return np.asarray(self._gpus.temp[those] >= bar)

    def _of_its_node(self, now: Instant, those: IntArray, hot: BoolArray) -> BoolArray:
        """Return which of some GPUs at work are held down with all that they are compared with, by their node's air.

        Their job has no other node. Each is at its limit, far hotter than those of its model on other nodes, below its
        own clock, and draws less than a power cap allows: work that takes clocks does so at the cap.
        """
        gpus = self._gpus
        found = hot & gpus.known[those] & (gpus.clock[those] <= SLOWED * gpus.usual["clock"].level[those])
        found &= gpus.power[those] < _CAPPED * gpus.limit[those]
        if found.any():
            elsewhere = np.maximum(gpus.temp_elsewhere(those[found], now), _AIR_C)
            found[found] = gpus.temp[those[found]] >= elsewhere + self._config.peer_excess_k
        return found

    def _hot(self, gpus: Any = slice(None)) -> BoolArray:
        """Return which GPUs are near the highest temperature that they may work at."""
        return np.asarray((self._gpus.temp[gpus] >= self.chip_limit[gpus] - NEAR_K) | self.hot_memory(gpus))

    def hot_memory(self, gpus: Any = slice(None)) -> BoolArray:
        """Return of which GPUs the memory is near the highest temperature that it may work at."""
        return np.asarray(self._gpus.memory[gpus] >= self.memory_limit[gpus] - NEAR_K)

    def _memory_of_peers(self, those: IntArray, now: Instant) -> tuple[FloatArray, FloatArray]:
        """Return the median temperature of the memory of some GPUs' free peers, and the ninth decile; NaN unknown."""
        gpus = self._gpus
        if not np.count_nonzero(self.hot_memory(those)):
            unknown = np.full(len(those), np.nan)
            return unknown, unknown
        free = gpus.comparable(now)
        usual, most = (gpus.among_peers(gpus.memory, free, part)[those] for part in (0.5, 0.9))
        return usual, most

    def _count(self, new: BoolArray, held: BoolArray, stated: BoolArray, plain: BoolArray) -> None:
        gpus = self._gpus
        elapsed = np.minimum(gpus.at - gpus.taken, STALE_MS) * (new & (gpus.taken >= 0)).astype(np.float64)
        self.free_ms += np.where(gpus.busy, elapsed, RELEASE_MS / _IDLE_MS * elapsed)
        moved = np.flatnonzero(new & (held | (self.spent_ms > 0)))  # mostly few
        if not len(moved):
            return
        held, elapsed, spent = held[moved], elapsed[moved], self.spent_ms[moved]
        self.free_ms[moved[held]] = 0.0
        begins = moved[held & (spent <= 0)]
        self.since[begins], self.before[begins] = gpus.at[begins], gpus.taken[begins]
        # A run's first reading may be the sample of a moment: from then on the time between readings counts.
        gain = np.where(spent <= 0, np.minimum(elapsed, 1.0), elapsed)
        spent = np.clip(spent + np.where(held, np.maximum(gain, 1.0), -_LEAK * elapsed), 0.0, _MOST_SPENT_MS)
        self.spent_ms[moved] = spent
        self.run[moved] = np.where(spent > 0, np.minimum(self.run[moved] + held, 2**31), 0)
        self.stated[moved] = (spent > 0) & (self.stated[moved] | stated[moved])
        self.plain[moved] = (spent > 0) & (self.plain[moved] | plain[moved])

    def over(self, gpus: IntArray) -> None:
        """Let a run end: what comes after is another."""
        self.spent_ms[gpus], self.run[gpus], self.stated[gpus], self.plain[gpus] = 0.0, 0, False, False
