"""The error counters of every GPU's NVLinks: sums over its links, through resets, and readings that lack one."""

from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray
from detectors.core.columns import Columns, column, keep_known
from detectors.core.counting import LOOK_MS, Bursts, Counter
from detectors.core.tails import Tails
from detectors.fleet.gpus import reported

_REPLAY = "DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL"
_COUNTED = (*(f"DCGM_FI_DEV_NVLINK_{what}_ERROR_COUNT_TOTAL" for what in ("CRC_FLIT", "CRC_DATA")), _REPLAY)
_RECOVERY = "DCGM_FI_DEV_NVLINK_RECOVERY_ERROR_COUNT_TOTAL"
_RECOVERIES_5 = "DCGM_FI_DEV_NVLINK_COUNT_LINK_RECOVERY_EVENTS"
"""NVLink 5's own count: how often a link went from up into recovery, whatever came of it (DCGM dcgm_fields.h)."""
_FATAL = 100.0 * LOOK_MS / 1000
"""CRC errors a look that DCGM calls a failure: 100 a second (DcgmHealthWatch.cpp)."""
_HARM = 1.0 * LOOK_MS / 1000
"""CRC errors a look below which nothing is lost: DCGM warns of any, and a flit a second sent again is one in 10^9. What
was replayed matters at any rate, as DCGM has it."""
_AWAY_MS = 180_000
_AGAIN_MS, _AT_ONCE_MS, _TIMES = 3_600_000, 600_000, 3
"""A link that went into recovery, and counts no errors beside it, is up again and cost nothing, but where it does so
twice within ten minutes or three times within the hour (judgement: DCGM's health check fails at one; in recordings of
others healthy links do so once in some hundred hours)."""


class LinkErrors(Columns):
    """Columns over all GPUs; times in ms, -1: never.

    `at` the last reading; `has` which counters it had, a bit each; `fatal` looks in a row with so many errors that DCGM
    calls them a failure; `retrained_at` the first recovery of which there was no sign yet, `retrained_last` the last;
    `retrained` recoveries of late; `reset_at` when the counters last began anew, or the GPU came back from a
    silence; `replays` as last read, and when there were more, `replayed_at`.
    """

    axis = "dcgm"
    at: IntArray = column(-1)
    has: NDArray[np.int8] = column(0, dtype=np.int8)
    fatal: NDArray[np.int8] = column(0, dtype=np.int8)
    retrained: NDArray[np.float32] = column(0.0, dtype=np.float32)
    retrained_at: IntArray = column(-1)
    retrained_last: IntArray = column(-1)
    reset_at: IntArray = column(-1)
    replays: FloatArray = column(np.nan)
    replayed_at: IntArray = column(-1)

    def __init__(self, tails: Tails, budget: float) -> None:
        super().__init__()
        self.bursts = Bursts("NVLink errors", tails, budget)
        self.recoveries = Counter()

    def grow(self, count: int) -> None:
        """Make room for `count` GPUs."""
        super().grow(count)
        self.bursts.grow(count)
        self.recoveries.grow(count)

    def take(self, batch: Batch, tick: int, here: Any) -> None:
        """Take one reading of each of the GPUs `here`."""
        gpus, at, where = batch.entities[here], batch.at[tick, here], batch.index(here, len(self))
        before, had = self.at[where], self.has[where]
        away = (before >= 0) & (at - before > _AWAY_MS)
        total, has = np.zeros(len(gpus)), np.zeros(len(gpus), np.int8)
        for bit, name in enumerate(_COUNTED):
            if name not in batch.sound:
                continue  # nobody reports it
            value = reported(batch, name, tick, here)
            known = np.isfinite(value)
            total += value if np.count_nonzero(known) == len(known) else np.where(known, value, 0.0)
            has |= known.astype(np.int8) << bit
            if name == _REPLAY:
                more = np.flatnonzero(value > self.replays[where])
                self.replayed_at[gpus[more]] = at[more]
                keep_known(self.replays, where, value)
        # A sum that lacks a counter it had is no reading; one that has another for the first time begins anew.
        counter, other = self.bursts.counter, (has != had).nonzero()[0]
        total[has == 0] = np.nan
        if len(other):  # mostly none
            lacks = (has[other] & had[other]) != had[other]
            total[other[lacks]], counter.value[gpus[other[~lacks]]] = np.nan, np.nan
            self.has[gpus[other]] |= has[other]
        fell = (total < counter.value[where]) | away
        counter.take(where, at, total)
        grown = np.zeros(len(gpus))
        if _RECOVERY in batch.sound or _RECOVERIES_5 in batch.sound:
            recovery, newer = reported(batch, _RECOVERY, tick, here), reported(batch, _RECOVERIES_5, tick, here)
            recovery = np.where(np.isnan(newer), recovery, newer)
            fell |= recovery < self.recoveries.value[where]
            grown = self.recoveries.take(where, at, recovery)
        self.reset_at[gpus[fell]] = at[fell]
        if (came := grown > 0).any():
            those, onset = gpus[came], (at[came] + np.maximum(before[came], at[came] - _AWAY_MS)) // 2
            first = self.retrained_at[those] < 0
            self.retrained_at[those[first]] = onset[first]
            self.retrained[those] += grown[came]
            self.retrained_last[those] = at[came]
        self.at[where] = at

    def signs(self, now: Instant, nodes: int, held: BoolArray) -> tuple[IntArray, IntArray]:
        """At a point of the grid: return the GPUs whose errors make a finding, and since when each."""
        bursts = self.bursts
        retrained = np.flatnonzero(self.retrained_at >= 0)
        most = len(retrained) > 2 and 2 * len(retrained) > int(np.count_nonzero(self.recoveries.at >= 0))
        errors = bursts.recent[retrained] + bursts.counter.grown[retrained]
        lasted = self.retrained_last[retrained] - self.retrained_at[retrained]
        again = self.retrained[retrained] >= np.where(lasted <= _AT_ONCE_MS, _TIMES - 1, _TIMES)
        certain = retrained[again | (errors >= 1) | held[retrained]]
        since: dict[int, int] = {int(gpu): int(self.retrained_at[gpu]) for gpu in certain if not most}
        forgotten = retrained if most else retrained[now - self.retrained_last[retrained] > _AGAIN_MS]
        self.retrained[forgotten], self.retrained_at[forgotten], self.retrained_at[certain] = 0.0, -1, -1
        if bursts.look(now, nodes, held):
            self.fatal = np.where(bursts.now >= _FATAL, np.minimum(self.fatal + 1, 2), 0).astype(np.int8)
            bursts.now[bursts.counter.at < now - 2 * LOOK_MS] = 0.0
            failed = np.flatnonzero(self.fatal >= 2)
            if 2 * len(failed) > max(int(np.count_nonzero(bursts.counter.at >= 0)), 4):
                failed = failed[:0]
            many = bursts.beyond_chance()
            harm = (bursts.now[many] >= _HARM) | (now - self.replayed_at[many] <= 2 * LOOK_MS)
            for gpu in np.union1d(many[harm], failed).tolist():
                began = int(bursts.evidence.since[gpu])
                since.setdefault(gpu, (began if began >= 0 else now) - LOOK_MS)
        return np.array(sorted(since), np.int64), np.array([since[gpu] for gpu in sorted(since)], np.int64)

    def error_at(self, gpus: IntArray) -> IntArray:
        """Return when each of `gpus` last counted errors that matter."""
        return np.maximum(self.bursts.hot_at[gpus], self.retrained_last[gpus])

    def begin_anew(self, gpus: IntArray) -> None:
        """Drop what was counted of some GPUs, whose finding is over."""
        self.bursts.begin_anew(gpus)
        self.retrained[gpus], self.retrained_at[gpus], self.fatal[gpus] = 0.0, -1, 0

    def says(self, gpu: int) -> dict[str, float | int | str]:
        """Return what a GPU's counters last reported, for evidence."""
        bursts, figures = self.bursts, {}
        if bursts.counter.at[gpu] >= 0:
            figures = {
                "nvlink_errors": bursts.counter.value[gpu],
                "nvlink_errors_per_s": bursts.now[gpu] * 1000 / LOOK_MS,
                "nvlink_errors_per_s_usual": bursts.level[gpu] * 1000 / LOOK_MS,
                "nvlink_errors_per_s_peers": bursts.usual_of_peers * 1000 / LOOK_MS,
            }
        if self.recoveries.at[gpu] >= 0:
            figures |= {
                "nvlink_recoveries": self.recoveries.value[gpu],
                "nvlink_recoveries_of_late": self.retrained[gpu],
            }
        return {name: float(value) for name, value in figures.items() if np.isfinite(value)}

    def arrays(self, prefix: str = "") -> dict[str, NDArray[Any]]:
        """Return the arrays by name, for a snapshot."""
        parts = self.bursts.arrays(f"{prefix}bursts_") | self.recoveries.arrays(f"{prefix}recoveries_")
        return super().arrays(prefix) | parts

    def load(self, arrays: Any, prefix: str = "") -> "LinkErrors":
        """Take what `arrays` returned."""
        super().load(arrays, prefix)
        self.bursts.load(arrays, f"{prefix}bursts_")
        self.recoveries.load(arrays, f"{prefix}recoveries_")
        return self
