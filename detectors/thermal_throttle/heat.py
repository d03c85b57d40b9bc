"""For how long heat has held every GPU's clock down: by the driver's word, by its counter, or as heat shows itself."""

from typing import Final

import numpy as np

from detectors.contract import BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import Columns, column
from detectors.gpus_at_work import STALE_MS, GpusAtWork
from detectors.thermal_throttle.config import ThermalThrottleConfig
from detectors.throttle_bits import THERMAL

_THROTTLED_SHARE: Final = 0.3
"""A violation counter that moves at all is noise (DCGM issue 285); at a third of the time work is slower by a tenth."""
_MOST_SPENT_MS: Final = 180_000.0
_LEAK: Final = 0.5
"""Time held down leaks away half as fast: throttling that pauses between steps adds up."""
_IDLE_MS: Final = 240_000
"""An idle GPU cannot show that it is free: it counts as free in part, so that a finding is over within five minutes."""


class Heat(Columns):
    """By GPU: `spent_ms` for how long it was held down of late (leaks away while it is not), `run` readings in that
    time, `since` its first, `before` the reading before; `told` whether the driver said so in it; `free_ms` since the
    last; `chip_limit`, `memory_limit` highest operating temperatures, degrees.
    """

    spent_ms: FloatArray = column(0.0)
    run: IntArray = column(0)
    since: IntArray = column(-1)
    before: IntArray = column(-1)
    told: BoolArray = column(False)
    free_ms: FloatArray = column(0.0)
    chip_limit: FloatArray = column(np.nan)
    memory_limit: FloatArray = column(np.nan)

    def __init__(self, config: ThermalThrottleConfig, gpus: GpusAtWork) -> None:
        super().__init__()
        self._config, self._gpus = config, gpus

    def judge(self, now: Instant, new: IntArray) -> None:
        """Take the new readings (indices of GPUs) of `gpus`."""
        gpus, ratio = self._gpus, self._config.clock_ratio
        temp, memory, clock, busy = (
            gpus.temp.take(new),
            gpus.memory.take(new),
            gpus.clock.take(new),
            gpus.busy.take(new),
        )
        has_bits = gpus.reasons.take(new) >= 0
        says = (np.maximum(gpus.reasons[new], 0) & THERMAL) != 0
        near = self._config.near_limit_k
        hot = (temp >= self.chip_limit.take(new) - near) | (memory >= self.memory_limit.take(new) - near)
        counts = gpus.throttled.share(new) >= _THROTTLED_SHARE
        held, told = np.zeros(len(new), bool), np.zeros(len(new), bool)
        own = gpus.usual["clock"].level.take(new)
        # Who may be held down is compared with the peers: where the driver says why a clock is low, it is asked alone.
        ask = busy & (
            says | counts | (~has_bits & (hot | (clock <= ratio * own) | (gpus.lost.take(new) > -np.log(ratio))))
        )
        if ask.any():
            peers_clock, peers_temp, warmest = gpus.lacks(new, now)
            slow = clock <= ratio * np.where(np.isfinite(peers_clock), peers_clock, own)
            beyond = temp >= peers_temp + self._config.peer_excess_k
            # A bit alone may be stuck: the temperature or the clock must bear it out, where either is known.
            blind = ~np.isfinite(temp) & ~np.isfinite(memory) & ~np.isfinite(clock)
            # A counter that creeps, in a unit that nothing tells, may look like a third of the time.
            sure = np.where(has_bits, self.run.take(new) > 0, slow | gpus.throttled.in_ns)
            told = busy & ((says & (hot | beyond | slow | blind)) | (counts & hot & sure))
            # Peers that are as warm and do not lose their clocks show that this is not the limit.
            held = told | (busy & ~has_bits & (hot | beyond) & slow & ~(temp <= warmest))
        self._count(new, held, told)
        gpus.add(new)
        gpus.mark(new, held | says, ~held)

    def _count(self, new: IntArray, held: BoolArray, told: BoolArray) -> None:
        gpus = self._gpus
        at, last = gpus.at[new], gpus.taken.take(new)
        elapsed = np.where(last >= 0, np.clip(at - last, 0, STALE_MS), 0.0)
        spent, run = self.spent_ms[new], self.run.take(new)
        starts = held & (spent <= 0)
        self.since[new[starts]], self.before[new[starts]] = at[starts], last[starts]
        # A run's first reading may be the sample of a moment: from then on the time between readings counts.
        gain = np.where(starts, np.minimum(elapsed, 1.0), elapsed)
        spent = np.clip(spent + np.where(held, np.maximum(gain, 1.0), -_LEAK * elapsed), 0.0, _MOST_SPENT_MS)
        self.spent_ms[new] = spent
        self.run[new] = np.where(spent > 0, np.minimum(run + held, 2**31), 0)
        self.told[new] = (spent > 0) & (self.told.take(new) | told)
        part = np.where(gpus.busy[new], 1.0, self._config.release_s * 1000 / _IDLE_MS)
        self.free_ms[new] = np.where(held, 0.0, np.minimum(self.free_ms.take(new) + part * elapsed, 1e9))

    def over(self, gpus: IntArray) -> None:
        """Let a run end: what comes after is another."""
        self.spent_ms[gpus], self.run[gpus], self.told[gpus] = 0.0, 0, False
