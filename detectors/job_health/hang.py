"""When a job stands still: no step for too long, nothing that explains it, and GPUs that do not work on."""

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

from detectors.contract import Instant
from detectors.fleet import Fleet, Job
from detectors.job_health.activity import Activity, Sight
from detectors.job_health.causes import Causes
from detectors.job_health.config import JobHealthConfig
from detectors.job_health.pace import Pace
from detectors.job_health.words import JobWords, Words

_TOGETHER_MS = 60_000


@dataclass(frozen=True, slots=True)
class Hang:
    """A job that stands still, with what is seen of it."""

    job: Job
    since: Instant
    """When its next step should have ended."""
    silent_ms: int
    usual_ms: float
    patience_ms: float
    pause_ms: int
    sight: Sight
    spinning: bool


class HangJudge:
    """Decides at a point of the grid."""

    def __init__(
        self, config: JobHealthConfig, fleet: Fleet, pace: Pace, words: Words, causes: Causes, activity: Activity
    ) -> None:
        self._config, self._fleet = config, fleet
        self._pace, self._words, self._causes, self._activity = pace, words, causes, activity

    def hanging(self, now: Instant) -> list[Hang]:
        """Return the jobs that stand still without a cause."""
        silent = now - self._pace.settled
        long = (self._pace.settled >= 0) & (silent > self._config.hang_spinning_s * 1000)
        long &= self._pace.steps >= self._config.minimum_steps
        found = []
        for number in long.nonzero()[0].tolist():
            job = self._fleet.jobs.get(self._pace.names[number])
            if job is not None and (hang := self._judge(now, job, number)) is not None:
                found.append(hang)
        return found

    def _judge(self, now: Instant, job: Job, number: int) -> Hang | None:
        last, usual = int(self._pace.settled[number]), float(self._pace.usual[number])
        words = self._words.of(job.job_id)
        if last < job.start or self.excused(job, last, words) or now - last <= self._config.hang_steps * usual:
            return None
        sight = self._activity.of(job, now, last)
        # What GPUs draw that another job has too says nothing of this one.
        working = None if self._shared(job) else sight.working(self._config.working_ratio)
        if sight.lost or working:
            return None
        pause = self._pace.longest_pause(number)
        spinning = working is False and sight.util_percent >= self._config.spinning_percent
        patience = self._patience(words, last, usual, pause, spinning=spinning)
        if now - max(last, words.latest if not words.saving else last) <= patience:
            return None
        if not sight.heard and self._all_silent(last):
            return None
        since = min(last + int(usual), now)
        return Hang(job, since, now - last, usual, patience, pause, sight, spinning)

    def _shared(self, job: Job) -> bool:
        """Return whether another job runs on nodes of this one, and nothing tells whose the GPUs are."""
        mine = set(job.nodes) - set(job.gpus)
        others = (other for other in self._fleet.jobs.values() if other.job_id != job.job_id)
        return any(not mine.isdisjoint(other.nodes) for other in others)

    def _patience(self, words: JobWords, last: Instant, usual: float, pause: int, *, spinning: bool) -> float:
        config = self._config
        needed = 1000 * (config.hang_spinning_s if spinning else config.hang_s)
        needed = max(needed, config.hang_steps * usual)
        if pause:
            needed = max(needed, config.pause_factor * pause + 1000 * config.pause_slack_s)
        if words.saving and words.saving_at >= last - usual:
            needed = max(needed, 1000 * config.saving_s, 2 * config.pause_factor * pause)
        if words.loading_at >= last:
            needed = max(needed, 1000 * config.loading_s)
        return needed

    def excused(self, job: Job, last: Instant, words: JobWords) -> bool:
        """Return whether a line explains why a job makes no step since `last`: it is over, suspended, or a victim."""
        if words.over_at >= last - 1000 or words.suspended_at >= last:
            return True
        return self._causes.of(job.nodes, last - int(1000 * self._config.cause_lead_s)) is not None

    def victims(self, now: Instant, jobs: Sequence[str]) -> list[str]:
        """Return the jobs some of whose GPUs fell silent: it is not they that hang."""
        found = []
        for job_id in jobs:
            job, number = self._fleet.jobs.get(job_id), self._pace.number(job_id)
            if job is None or number is None:
                continue
            if self._activity.of(job, now, int(self._pace.settled[number])).lost:
                found.append(job_id)
        return found

    def _all_silent(self, last: Instant) -> bool:
        """Return whether every job that made steps lately fell silent with this one: it is what collects them."""
        lately = (self._pace.settled >= last - 10 * _TOGETHER_MS) & (self._pace.steps >= self._config.minimum_steps)
        running = np.array([name in self._fleet.jobs for name in self._pace.names], bool)
        others = self._pace.settled[lately & running]
        return len(others) > 1 and bool((np.abs(others - last) <= _TOGETHER_MS).all())
