"""What the GPUs of a job do while it reports no step: work on, spin in a collective, idle, or are not heard."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, FloatArray, Instant, IntArray
from detectors.fleet import Fleet, Job
from detectors.gpus import GpuLayout, reported
from detectors.presence import Presence
from detectors.statistics import known_or

_POWER: Final = "DCGM_FI_DEV_POWER_USAGE"
_UTIL: Final = "DCGM_FI_DEV_GPU_UTIL"
_STEP = 0.05
"""How far one point of the grid moves a job's level of power: a minute and a half of steps makes it."""
_FRESH_INTERVALS, _FRESH_MS = 3.5, 12_000
_RECENT_MS = 600_000
"""A GPU last heard longer before the job's last step than this has nothing to do with its standing still."""
_MOST_MISSING = 0.8


@dataclass(frozen=True, slots=True)
class Sight:
    """What is seen of a job's GPUs: mean power and utilisation of those heard lately; NaN unknown."""

    gpus: int
    heard: int
    lost: int
    """GPUs that fell silent about when the job did, or after."""
    power_w: float
    usual_power_w: float
    util_percent: float

    @property
    def blind(self) -> bool:
        """Whether most GPUs are not heard any more: the collector, or the whole job's machines."""
        return self.gpus > 0 and self.lost >= _MOST_MISSING * self.gpus

    def working(self, ratio: float) -> bool | None:
        """Return whether the GPUs draw nearly what they do in steps; None if that cannot be told."""
        if not (np.isfinite(self.power_w) and self.usual_power_w > 0):
            return None
        return self.power_w >= ratio * self.usual_power_w


class Activity:
    """The last power and utilisation of every GPU, and each job's own level while it makes steps."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._layout = GpuLayout(fleet)
        self._presence = Presence("dcgm")
        self._power = np.empty(0)
        self._util = np.empty(0)
        self._levels: dict[str, float] = {}
        self._members: dict[str, tuple[int, IntArray]] = {}

    def take(self, batch: Batch) -> None:
        """Take note of the GPUs' readings."""
        self._presence.take(batch)
        self._layout.extend()
        more = len(self._presence) - len(self._power)
        if more > 0:
            self._power = np.concatenate([self._power, np.full(more, np.nan)])
            self._util = np.concatenate([self._util, np.full(more, np.nan)])
        for tick, here in enumerate(batch.present):
            for name, kept in ((_POWER, self._power), (_UTIL, self._util)):
                value = reported(batch, name, tick, here)
                known = np.isfinite(value)
                kept[batch.entities[here][known]] = value[known]

    def learn(self, stepping: list[str], now: Instant) -> None:
        """At a point of the grid: learn the power of jobs that make steps; forget jobs that are gone."""
        jobs = self._fleet.jobs
        self._levels = {job_id: level for job_id, level in self._levels.items() if job_id in jobs}
        self._members = {job_id: entry for job_id, entry in self._members.items() if job_id in jobs}
        for job_id in stepping:
            if job_id not in jobs:
                continue
            gpus = self._gpus(jobs[job_id])
            power = self._mean(self._power, gpus[self._fresh(gpus, now)])
            if np.isfinite(power):
                level = self._levels.get(job_id)
                self._levels[job_id] = power if level is None else level + _STEP * (power - level)

    def of(self, job: Job, now: Instant, since: Instant) -> Sight:
        """Return what is seen of a job that made its last step at `since`."""
        gpus = self._gpus(job)
        fresh = self._fresh(gpus, now)
        last = self._presence.last[gpus]
        lost = int(np.count_nonzero(~fresh & (last >= since - _RECENT_MS) & (last >= job.start)))
        heard = gpus[fresh]
        return Sight(
            gpus=len(gpus),
            heard=len(heard),
            lost=lost,
            power_w=self._mean(self._power, heard),
            usual_power_w=self._levels.get(job.job_id, np.nan),
            util_percent=self._mean(self._util, heard),
        )

    def _gpus(self, job: Job) -> IntArray:
        """Return the GPUs of a job that were ever heard."""
        count = len(self._presence)
        known = self._members.get(job.job_id)
        if known is not None and known[0] == count:
            return known[1]
        parts = []
        for node in job.nodes:
            members = self._layout.members(node)
            if node in job.gpus:
                members = members[np.isin(self._layout.gpu[members], job.gpus[node])]
            parts.append(members)
        gpus = np.concatenate([np.empty(0, np.int64), *parts])
        gpus = gpus[gpus < count]
        self._members[job.job_id] = count, gpus
        return gpus

    def _fresh(self, gpus: IntArray, now: Instant) -> NDArray[np.bool_]:
        last, usual = self._presence.last[gpus], known_or(self._presence.usual[gpus], 0.0)
        return np.asarray((last >= 0) & (now - last <= np.maximum(_FRESH_INTERVALS * usual, _FRESH_MS)))

    @staticmethod
    def _mean(values: FloatArray, gpus: IntArray) -> float:
        chosen = values[gpus]
        chosen = chosen[np.isfinite(chosen) & (chosen < 1e6)]
        return float(chosen.mean()) if len(chosen) else float("nan")

    def snapshot(self) -> tuple[dict[str, Any], dict[str, NDArray[Any]]]:
        """Return the state as JSON can say it, and arrays."""
        numbers, arrays = self._presence.snapshot()
        document = {"presence": numbers, "levels": self._levels}
        return document, arrays | {"gpu_power": self._power, "gpu_util": self._util}

    def load(self, document: Mapping[str, Any], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned."""
        self._presence.load(document["presence"], arrays)
        self._layout.extend()
        self._levels = dict(document["levels"])
        self._power, self._util = arrays["gpu_power"], arrays["gpu_util"]
