"""What is known of every GPU's host link: generation and width beside what they should be, while the GPU is at work."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import Columns, column
from detectors.core.counting import ONE_EVENT_MS
from detectors.core.shares import FEWEST
from detectors.fleet.gpus import reported

_LANE_GBPS = (0.0, 2.5, 5.0, 8.0, 16.0, 32.0, 64.0, 128.0)
"""Gb/s of a lane by generation."""
_REPLAYS_PER_MIN = 0.06
"""DCGM's bar, packets sent again a minute, for a lane's Gb/s (DcgmGPUHardwareLimits.h, bit error rate 1e-12)."""
_GEN_ELSE, _WIDTH_ELSE = 4.0, 16.0
"""For that bar where neither topology nor DCGM states what a link should be."""
_BUSY_UTILISATION, _BUSY_ENGINE, _BUSY_BYTES = 25.0, 0.1, 1e8
"""Links of idle GPUs train down by design: at work is what computes in a quarter of the time, or moves 0.1 GB/s."""
_CONFIRM_MS, _CONFIRM_READINGS = 29_000, 3
"""Half a minute at work less the jitter of scrapes, and three readings at slow cadences: links of consumer cards
changed generation 1415 times in two minutes (rtx6kpro issue 88)."""
_MOST_MS = 180_000.0
STALE_MS = 90_000
"""Three times the collection interval of dcgm-exporter's defaults."""
_AWAY_MS = 200_000
"""A GPU that was silent for so long has booted, which cures most links (95 %, 2407.05467, section 2.3.1)."""


class Links(Columns):
    """Columns over all GPUs; times in ms, -1: never.

    `at` last reading; `busy`; `gen`, `width` as read, `should_gen`, `should_width`; of links that were ever low at
    work: `low_ms` for how long of late, at work, `low_run` in how many readings, `low_since` from
    when, `low_at` the last; `well_ms` for how long since then the link was as it should be; `returned_at` when the GPU
    last came back from a silence; `resent` packets sent again a minute in the last three looks that had any, of which
    the last was at `resent_at`.
    """

    axis = "dcgm"
    at: IntArray = column(-1)
    busy: BoolArray = column(False)
    gen: NDArray[np.float32] = column(np.nan, dtype=np.float32)
    width: NDArray[np.float32] = column(np.nan, dtype=np.float32)
    should_gen: NDArray[np.float32] = column(np.nan, dtype=np.float32)
    should_width: NDArray[np.float32] = column(np.nan, dtype=np.float32)
    low_ms: NDArray[np.float32] = column(0.0, dtype=np.float32)
    low_run: NDArray[np.int32] = column(0, dtype=np.int32)
    low_since: IntArray = column(-1)
    low_at: IntArray = column(-1)
    well_ms: NDArray[np.float32] = column(0.0, dtype=np.float32)
    returned_at: IntArray = column(-1)
    resent: NDArray[np.float32] = column(0.0, 3, dtype=np.float32)
    resent_at: IntArray = column(-1)

    def take(self, batch: Batch, tick: int, here: Any, moved: FloatArray) -> None:
        """Take one reading each of the GPUs `here`; `moved` is what their links carry, bytes/s."""
        gpus, where, at = batch.entities[here], batch.index(here, len(self)), batch.at[tick, here]
        util = reported(batch, "DCGM_FI_DEV_GPU_UTIL", tick, here)
        busy, unsaid = util >= _BUSY_UTILISATION, np.isnan(util)
        if np.count_nonzero(unsaid):
            engine = reported(batch, "DCGM_FI_PROF_GR_ENGINE_ACTIVE", tick, here)
            busy |= unsaid & ((engine >= _BUSY_ENGINE) | (moved >= _BUSY_BYTES))
        before = self.at[where]
        elapsed = np.where(before >= 0, at - before, 0)
        away = np.flatnonzero(elapsed > _AWAY_MS)
        self.returned_at[gpus[away]] = at[away]
        self.at[where], self.busy[where] = at, busy

        low = np.zeros(len(gpus), bool)
        for name, most, should, own in (
            ("GEN", 8, self.should_gen, self.gen), ("WIDTH", 32, self.should_width, self.width),
        ):  # fmt: skip
            best = f"DCGM_FI_DEV_PCIE_MAX_LINK_{name}"
            if best in batch.sound:
                stated = reported(batch, best, tick, here, 1, most)
                better = np.isnan(should[where]) & np.isfinite(stated)
                should[gpus[better]] = stated[better]
            value = reported(batch, f"DCGM_FI_DEV_PCIE_LINK_{name}", tick, here, 1, most)
            low |= value < should[where]
            own[where] = value
        concerned = np.flatnonzero((low & busy) | (self.low_at[where] >= 0))  # mostly few
        if len(concerned):
            self._count(gpus[concerned], at[concerned], elapsed[concerned], low[concerned])

    def _count(self, gpus: IntArray, at: IntArray, elapsed: IntArray, low: BoolArray) -> None:
        """Count for how long links have been low, or well."""
        well = (np.isfinite(self.gen[gpus]) | np.isfinite(self.width[gpus])) & ~low
        busy, before = self.busy[gpus], self.low_ms[gpus]
        spent = np.minimum(elapsed, STALE_MS).astype(np.float64)
        # A link that is low while its GPU idles says nothing; one that is as it should be is well in any case.
        counts = low & busy
        starts = counts & (before <= 0)
        self.low_since[gpus[starts]] = at[starts]
        gain = np.where(starts, 1.0, np.maximum(spent, 1.0))
        now = before + np.where(counts, gain, np.where(well & busy, -spent, 0.0))
        self.low_ms[gpus] = np.minimum(np.maximum(now, 0.0), _MOST_MS)
        self.low_run[gpus] = np.where(self.low_ms[gpus] > 0, np.minimum(self.low_run[gpus] + counts, 2**20), 0)
        self.low_at[gpus] = np.where(counts, at, self.low_at[gpus])
        self.well_ms[gpus] = np.where(counts, 0.0, np.minimum(self.well_ms[gpus] + np.where(well, spent, 0.0), 1e7))

    def resend(self, now: Instant, gpus: IntArray, a_minute: FloatArray) -> None:
        """Take a look at `now`, in which links of `gpus` (n,) sent so many packets again (n,)."""
        those, more = gpus[a_minute > 0], a_minute[a_minute > 0]
        self.resent[:, those[now - self.resent_at[those] > ONE_EVENT_MS]] = 0.0
        self.resent[:, those] = np.stack([*self.resent[1:, those], more])
        self.resent_at[those] = now

    def kept_up(self, gpus: IntArray) -> FloatArray:
        """Return how many packets a minute links go on sending again (n,): one jump of a counter has no rate.

        It is the second largest of the last three looks that had any, less than `ONE_EVENT_MS` apart: where a collector
        is slow the looks between its readings have none. And it is no more than the three say together, less what a
        count of a minute scatters by: where some are always sent again, two looks of three more each are chance.
        """
        looks = self.resent[:, gpus]
        together = looks.mean(axis=0)
        return np.asarray(np.minimum(np.median(looks, axis=0), together - np.sqrt(together)))

    def suspects(self, now: Instant) -> IntArray:
        """Return whose link has been low for long enough; nobody where most of the fleet's are: the topology is
        wrong.
        """
        found = np.flatnonzero((self.low_run >= _CONFIRM_READINGS) & (self.low_ms >= _CONFIRM_MS))
        if len(found):
            fresh = (self.at >= 0) & (now - self.at <= STALE_MS)
            found = found[fresh[found]]
        if len(found):
            known = fresh & self.busy & (np.isfinite(self.gen) | np.isfinite(self.width))
            low = (self.gen < self.should_gen) | (self.width < self.should_width)
            if known.sum() >= FEWEST and 2 * (known & low).sum() > known.sum():
                return found[:0]
        return found

    def replay_bar(self, gpus: IntArray) -> FloatArray:
        """Return DCGM's bar for the links that GPUs should have, packets sent again a minute (n,)."""
        gen = np.where(np.isfinite(self.should_gen[gpus]), self.should_gen[gpus], _GEN_ELSE)
        width = np.where(np.isfinite(self.should_width[gpus]), self.should_width[gpus], _WIDTH_ELSE)
        return np.ceil(_REPLAYS_PER_MIN * np.array(_LANE_GBPS)[np.minimum(gen, 7).astype(np.int64)] * width)
