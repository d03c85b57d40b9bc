"""NICs whose link came up at a lower speed than it had: a job's collectives go at the pace of its slowest rail.

Then no rank computes for longer and all wait as long: nothing but the speed of the link says whose fault it is. What it
does to the job, the job's pace before and since says. A link that errs has a finding of its own (`link_fault`).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from detectors.contract import Batch, FloatArray, Instant, IntArray, Severity
from detectors.core.columns import Columns, column
from detectors.fleet.fleet import Fleet, Job
from detectors.fleet.gpus import reported
from detectors.straggler.comparison import KEPT
from detectors.straggler.job_pace import STATED, Effect, History
from detectors.straggler.suspects import PAGE_SHARE, Report
from detectors.straggler.windows import WINDOW_S

_LOWER: Final = 0.75
"""Of the speed before: a lane less of four, or a rate of the generation before, and nothing in between."""
_WINDOW_MS: Final = 1000 * WINDOW_S
_ERRORS: Final = ("symbol_error", "port_rcv_errors", "rx_crc_errors_phy", "rx_symbol_err_phy")
_ERRS: Final = 20.0
"""Errors in some ten minutes: as many are `link_fault`'s least; to train a link anew takes fewer."""
_MEMORY_MS: Final = 600_000.0


@dataclass(frozen=True, slots=True)
class SlowLink:
    """A NIC that has run at `gbps` since then, and at `before` earlier; `effect` is what its job lost by it, None where
    nothing is known of before; it has been so for `windows` whole ones.
    """

    job: Job
    node: str
    nic: str
    gbps: float
    before: float
    since: Instant
    windows: int
    effect: Effect | None


class SlowLinks(Columns):
    """Columns over NICs: the latest `speed` and the `highest` (Gb/s); `since` when (ms) it is lower, -1: it is not; its
    count of `errors`, read `at` (ms), and of those of the last ten minutes (`lately`).
    """

    axis = "nic"
    speed: FloatArray = column(np.nan)
    highest: FloatArray = column(np.nan)
    since: IntArray = column(-1)
    errors: FloatArray = column(np.nan)
    at: IntArray = column(-1)
    lately: FloatArray = column(0.0)

    def __init__(self, fleet: Fleet) -> None:
        super().__init__()
        self._fleet = fleet

    def take(self, batch: Batch) -> None:
        """Take readings of NICs; a link that is down has no speed."""
        self.grow(len(self._fleet.entities("nic")))
        for tick, here in batch.ticks():
            speed = reported(batch, "speed_gbps", tick, here)
            up = speed > 0
            nics, at, speed = batch.entities[here][up], batch.at[tick, here][up], speed[up]
            self.speed[nics], self.highest[nics] = speed, np.fmax(self.highest[nics], speed)
            lower = speed < _LOWER * self.highest[nics]
            self.since[nics] = np.where(lower, np.where(self.since[nics] < 0, at, self.since[nics]), -1)
            counts = [reported(batch, name, tick, here) for name in _ERRORS if name in batch.sound]
            if counts:
                self._count(batch.entities[here], batch.at[tick, here], np.nansum(counts, axis=0))

    def _count(self, nics: IntArray, at: IntArray, errors: FloatArray) -> None:
        more = errors - self.errors[nics]
        kept = np.exp(-(at - self.at[nics]) / _MEMORY_MS)
        self.lately[nics] = kept * self.lately[nics] + np.where(more > 0, more, 0.0)
        self.errors[nics], self.at[nics] = errors, at

    def slow(self, now: Instant, histories: Mapping[str, History]) -> list[SlowLink]:
        """Return the links that are slow at the end of a window, of the jobs that have several nodes."""
        found = []
        for place in np.flatnonzero((self.since >= 0) & (self.lately < _ERRS)).tolist():
            node, nic = (str(part) for part in self._fleet.entities("nic")[place])
            job, since = self._fleet.job_of(node), int(self.since[place])
            windows = now // _WINDOW_MS - -(-since // _WINDOW_MS)
            if job is None or len(job.nodes) < 2 or windows < 1:
                continue
            known = job.start < since and windows < KEPT
            history = histories[job.job_id]
            effect = history.effect((1 << windows) - 1, windows + 1, 0.0, STATED) if known else None
            speed, highest = float(self.speed[place]), float(self.highest[place])
            found.append(SlowLink(job, node, nic, speed, highest, since, windows, effect))
        return found

    def errs(self, node: str) -> bool:
        """Return whether a link of a node has counted errors lately: what it waits for, it waits for by that."""
        keys = self._fleet.entities("nic")
        return any(str(keys[place][0]) == node for place in np.flatnonzero(self.lately >= _ERRS).tolist())

    def is_slow(self, node: str, nic: str) -> bool:
        """Return whether a NIC's link runs at a lower speed than it had."""
        keys = self._fleet.entities("nic")
        return any(keys[place] == (node, nic) for place in np.flatnonzero(self.since >= 0).tolist())


def report_on(link: SlowLink, now: Instant, *, harmless: bool) -> Report:
    """Return what a finding says of a link; `harmless`, where its job is hardly slower for it, as far as is known."""
    evidence: dict[str, float | int | str] = {
        "nic": link.nic, "speed_gbps": link.gbps, "speed_gbps_before": link.before, "job_id": link.job.job_id,
        "slow_for_s": (now - link.since) / 1000,
    }  # fmt: skip
    speeds = f"its {link.nic} runs at {link.gbps:g} Gb/s, at {link.before:g} before"
    if link.effect is None or harmless:
        what = "is hardly slower for it" if link.effect is not None else "was not seen at the speed before"
        return Report("info", 0.5, f"{link.node} has a slow link: {speeds}; job {link.job.job_id} {what}", evidence)
    effect, lost = link.effect, link.effect.slower
    evidence |= {"job_figure": effect.figure, "job_before": effect.before, "job_now": effect.now}
    evidence["job_slower_share"] = lost
    severity: Severity = "page" if lost >= PAGE_SHARE else "ticket"
    summary = f"{link.node} holds up job {link.job.job_id}: {speeds}; {effect.words}"
    return Report(severity, min(1.0, 0.8 + lost), summary, evidence)
