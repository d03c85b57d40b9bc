"""Jobs whose ranks report no times: a GPU at work whose clock is low among its job's, and says of no reason for it."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar

import numpy as np

from detectors.contract import Instant, IntArray
from detectors.gpus import GpuColumns
from detectors.statistics import peer_distance
from detectors.straggler.config import StragglerConfig
from detectors.straggler.excuses import Excuses

_EVERY_MS = 30_000
_FRESH_MS = 120_000
_MOST_SHARE = 0.1


@dataclass
class Judged:
    """What came of a look: `slow` has (job, GPU, its peers' clock in MHz), `back` the GPUs that are not slow now."""

    slow: list[tuple[str, int, float]] = field(default_factory=list)
    back: list[int] = field(default_factory=list)
    peers: dict[str, int] = field(default_factory=dict)


class LoneClocks(GpuColumns):
    """Columns over all GPUs: `since` when the clock has been low (-1: it is not), `free` since when it is not."""

    BLANK: ClassVar[dict[str, tuple[Any, float]]] = {"since": (np.int64, -1), "free": (np.int64, -1)}
    since: IntArray
    free: IntArray

    def __init__(self, config: StragglerConfig) -> None:
        super().__init__()
        self._config = config
        self.asked_at: Instant = -(2**61)

    def due(self, now: Instant) -> bool:
        """Return whether it is time for another look, and note that one is taken."""
        if now - self.asked_at < _EVERY_MS:
            return False
        self.asked_at = now
        return True

    def judge(self, now: Instant, groups: Sequence[tuple[str, IntArray]], readings: Excuses) -> Judged:
        """Compare the clocks within each job (its id, its GPUs)."""
        self.grow(readings.count)
        config, judged = self._config, Judged()
        looked = np.zeros(self.count, bool)
        for job_id, members in groups:
            working = (now - readings.busy_at[members] <= _FRESH_MS) & np.isfinite(readings.clock[members])
            gpus = members[working & (now - readings.told_at[members] <= _FRESH_MS)]
            free = now - readings.held_at[gpus] > config.excuse_s * 1000
            if len(gpus) <= config.peer_minimum:
                continue
            clocks = readings.clock[gpus]
            usual = float(np.median(clocks))
            far = peer_distance(clocks, clocks, config.clock_floor_mhz) <= -config.peer_deviations
            low = far & free & (clocks <= config.lone_clock_ratio * usual)
            if np.count_nonzero(low) > max(1.0, _MOST_SHARE * len(gpus)):
                low[:] = False
            looked[gpus] = True
            judged.peers[job_id] = len(gpus) - 1
            begins, ends = gpus[low & (self.since[gpus] < 0)], gpus[~low]
            self.since[begins] = now
            self.free[gpus[low]] = -1
            self.free[ends] = np.where(self.free[ends] < 0, now, self.free[ends])
            lasting = gpus[low & (now - self.since[gpus] >= config.lone_confirm_s * 1000)]
            judged.slow += [(job_id, int(gpu), usual) for gpu in lasting]
            over = ends[now - self.free[ends] >= config.lone_confirm_s * 1000 / 2]
            judged.back += over[self.since[over] >= 0].tolist()
            self.since[over] = -1
        self.since[~looked] = -1
        return judged
