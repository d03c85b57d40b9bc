"""When a job stands still: no step for too long, nothing that explains it, and GPUs that do not work on."""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

import numpy as np

from detectors.case_book import OpenCase
from detectors.contract import Entity, Evidence, Instant, IntArray, Severity
from detectors.core.slots import Slots
from detectors.core.tails import Tails
from detectors.fleet.fleet import INFERRED, Fleet, Job
from detectors.job_health.activity import Activity
from detectors.job_health.config import JobHealthConfig
from detectors.job_health.lines import Lines
from detectors.job_health.links import Links
from detectors.job_health.pace import Pace, StepPace
from detectors.job_health.writes import Writes

MINIMUM_STEPS = 8
"""The first steps are slow and uneven (in 405B runs the first takes five times as long): no pace is known before."""
_SEEN_APART_MS = 6_000.0
"""Of steps that come faster only the latest of every five seconds is known, and so not how long one takes."""
_SPINNING_STEPS, _STEPS = 4.0, 6.0
"""In public runs single steps take up to 3.4 times as long, and validation pauses a job for 3 to 5 steps."""
_PAUSE_FACTOR = 1.7
"""Between the shortest and the longest of one run's pauses for validation lie 3 and 5 steps."""
_OTHER_PAUSE_FACTOR = 1.2
"""A silence no longer than one that the job has come back from, whatever its GPUs did in that one, is nothing new;
nor is one that is a little longer, where they idle. Where tensor activity is read, which shows who works, it is
compared with those silences alone in which they did not work either.
"""
_ENOUGH_PAUSES = 100
_ALONE_MS = 900_000
"""Of a job on one node whose GPUs idle, or that reports no steps: a user may sit at its prompt, or at a breakpoint, and
no other node waits for it. Information; so is a job whose log shows a debugger's prompt."""
_DAY_AT_WORK = 5760
"""Eight hours, a point of the grid every 5 s; a policy. Nobody sits through a working day at the prompt of a job that
makes its steps: one that has done so runs by itself, on one node, too."""
_HOUR_AT_WORK, _SPINS_ALONE_MS = 720, 600_000
"""Nor an hour at one whose GPUs work all that time (policy): if all of them spin for ten minutes then, a rank is gone.
"""
_LEAST_MS: Final[Mapping[Severity, int]] = {"info": _ALONE_MS, "ticket": _SPINS_ALONE_MS, "page": 0}
_WORKED, _IDLE_MS = 360, 480_000
"""Half an hour of work, a point of the grid every 5 s, and twice what evaluations take in public runs (MLPerf 405B): a
job of several nodes that idles for longer, as never before, has no user at its prompt."""
_SAVING_MS, _LOADING_MS = 600_000, 900_000
"""What a job announces: a large checkpoint to busy storage takes minutes, torchrun waits so long for a rendezvous, and
a model that is uploaded at the end takes no less."""
_EVALUATING_MS = 900_000
"""Policy: evaluations at two thirds of the power last up to a quarter of an hour."""
_SAVING_ALONE_MS = 900_000
"""Policy: while the first rank saves or uploads, its node idles and the others spin: for minutes, at a job's end."""
_SAVING_AGAIN_MS = 300_000
"""Of a job that has saved before, and not for so long: half of that, and twice its longest pause with room."""
_CAUSE_LEAD_MS = 120_000
"""A line so long before the last step may still be what stopped the job: NCCL retries for a minute or two."""
_TOGETHER_MS = 60_000


@dataclass(frozen=True, slots=True)
class Hang:
    """A job that stands still since `since`, with what is seen of it."""

    job: Job
    since: Instant
    summary: str
    evidence: Evidence
    score: float
    job_id: str
    """What its users call it, if that is known where `job` was inferred."""
    severity: Severity = "page"

    @property
    def entity(self) -> Entity:
        """The job; of one that nobody names, its first node, which its users know."""
        return {"node": self.job.nodes[0]} if self.job_id.startswith(INFERRED) else {"job_id": self.job_id}


class HangJudge:
    """Decides at a point of the grid, from what the jobs report and from what their GPUs do."""

    def __init__(
        self,
        config: JobHealthConfig,
        fleet: Fleet,
        slots: Slots,
        lines: Lines,
        links: Links,
        writes: Writes,
        activity: Activity,
        tails: Tails,
    ) -> None:
        self._config, self._fleet, self._slots, self._tails = config, fleet, slots, tails
        self._lines, self._links, self._writes, self._activity = lines, links, writes, activity

    def look(self, now: Instant, steps: StepPace, work: Pace) -> Iterator[Hang]:
        """Yield the jobs that stand still without a cause, those without steps by their GPUs alone.

        Those whose steps only their logs report by both: lines may be far apart, and may end where the job does not.
        """
        spinning = self._activity.spinning() & ~self._activity.shared
        working = self._activity.working() & np.isfinite(self._activity.power_level) & ~self._activity.shared
        stuck = self._activity.stuck() & ~self._activity.shared
        reports = (steps.settled >= 0) & ~(steps.by_lines & (self._activity.heard == 0))
        stands = reports & (steps.steps >= MINIMUM_STEPS) & ~working
        stuck |= self._activity.idle() & ~self._activity.shared & (work.steps >= _WORKED)
        stuck &= ~reports | steps.by_lines
        long = 1000 * min(self._config.hang_spinning_s, self._config.hang_s)
        for pace, which in ((steps, stands), (work, stuck)):
            for number in np.flatnonzero(which & (pace.silent(now) > long) & ~self._activity.freed).tolist():
                hang = self._stands(now, number, pace, work, steps, spinning=bool(spinning[number]))
                if hang is not None:
                    yield hang

    def _stands(
        self, now: Instant, number: int, pace: Pace, work: Pace, reported: StepPace, *, spinning: bool
    ) -> Hang | None:
        """Return the hang of a job that is silent by `pace`; None while anything else explains it."""
        job, settled = self._fleet.jobs.get(self._slots.names[number] or ""), int(pace.settled[number])
        steps = pace if isinstance(pace, StepPace) else None
        last = settled if steps is not None else self._activity.worked_until(number, settled)
        if job is None or last < job.start or self.excused(job, last) or self.victim(number, now, last):
            return None
        if int(self._activity.ended[number]) >= settled:  # nothing is known of its next processes
            return None
        works_alone = self._activity.one_node_works(number, now)
        patience = self._patience(job, number, pace, work, last, spinning=spinning and steps is not None)
        patience += max(settled - last, 0)  # pauses are those between points of the grid
        if works_alone:
            patience = max(patience, _EVALUATING_MS)
        if steps is None and not spinning:
            if job.inferred or len(job.nodes) == 1:
                return None
            patience = max(patience, _SAVING_ALONE_MS if self._activity.first_node_idles(number) else _IDLE_MS)
        severity = self._severity(job, last, int(work.steps[number]), by_steps=steps is not None, spinning=spinning)
        patience = max(patience, _LEAST_MS[severity])
        latest = self._lines.last(job.job_id, "saving", "saved", "loading", "uploading", "evaluating")
        # An evaluation at work, and a checkpoint after it, are two pauses.
        worked = last
        if not self._activity.shared[number]:
            worked = max(last, int(work.settled[number])) if steps is not None else last
            worked = self._writes.last(job.nodes, worked)
        if not works_alone and (alone := int(self._activity.alone[number])) - last <= _EVALUATING_MS:
            worked = max(worked, alone)  # what the others waited for is over, and a step takes its time
        if now - max(last, worked, last if self._saving(job.job_id) else latest) <= patience:
            return None
        if steps is not None and not self._activity.heard[number] and self._all_silent(steps, last):
            return None
        since = min(last + (int(np.nan_to_num(pace.usual[number])) if steps is not None else 0), now)
        if steps is not None and steps.by_lines[number]:
            since = min(since, max(last, worked))  # many steps lie between two lines
        name = self._name(job, last, reported)
        return self._hang(now, job, name, number, pace, patience, last, since, severity, spinning=spinning)

    def _severity(self, job: Job, last: Instant, worked: int, *, by_steps: bool, spinning: bool) -> Severity:
        """Return how much a hang matters: information, where a user may hold the job at a prompt; a ticket where its
        only node has `worked` for so many points of the grid, and spins.
        """
        held = self._lines.last(job.job_id, "debugging") >= last - _TOGETHER_MS
        # Who attaches a debugger later looks for what stopped the job.
        if held or abs(self._lines.last(job.job_id, "attached") - last) <= _TOGETHER_MS:
            return "info"
        if len(job.nodes) > 1 or (by_steps and (spinning or worked >= _DAY_AT_WORK)):
            return "page"
        return "ticket" if worked >= _HOUR_AT_WORK and not by_steps else "info"

    def _name(self, job: Job, last: Instant, reported: StepPace) -> str:
        """Return what a job is called: an inferred one as the only job of unknown nodes whose steps ended with it."""
        if not job.inferred:
            return job.job_id
        near = np.abs(reported.settled - last) <= _TOGETHER_MS + 2 * np.nan_to_num(reported.usual)
        numbers = np.flatnonzero(near & (reported.steps >= MINIMUM_STEPS) & ~reported.by_lines).tolist()
        names = [name for number in numbers if (name := self._slots.names[number]) and name not in self._fleet.jobs]
        return names[0] if len(names) == 1 else job.job_id

    def _saving(self, job_id: str) -> bool:
        return self._lines.last(job_id, "saving") > self._lines.last(job_id, "saved")

    def _patience(self, job: Job, number: int, pace: Pace, work: Pace, last: Instant, *, spinning: bool) -> float:
        """Return how long a silence must last, ms."""
        usual = float(pace.usual[number])
        needed = 1000 * (self._config.hang_spinning_s if spinning else self._config.hang_s)
        needed = max(needed, (_SPINNING_STEPS if spinning else _STEPS) * usual)
        pause = longest = float(pace.pauses[:, number].max())
        if not self._activity.shared[number]:
            # In an evaluation GPUs work: how long it lasts says little of how long they may only spin, or idle.
            without_work = float(work.pauses[:, number].max())
            if spinning:
                pause = min(pause, without_work)
            if np.isfinite(self._activity.tensor_level[number]):
                pause = longest = min(longest, without_work)
        if not pause and (pauses := self._tails["pause_s"]).total >= _ENOUGH_PAUSES:
            pause = 1000 * pauses.quantile(0.01)
        longest *= 1.0 if spinning else _OTHER_PAUSE_FACTOR
        needed = max(needed, 2 * usual + max(_PAUSE_FACTOR * pause, longest))
        if self._saving(job.job_id) and self._lines.last(job.job_id, "saving") >= last - usual:
            # Then its pauses show how long it saves, if not how long busy storage may take while GPUs idle.
            own = spinning and self._lines.last(job.job_id, "saved") >= job.start
            needed = max(needed, _SAVING_AGAIN_MS if own else _SAVING_MS, 2 * _PAUSE_FACTOR * pause)
        if self._activity.busy_with_less()[number]:
            needed = max(needed, _EVALUATING_MS)
        uploads = self._lines.last(job.job_id, "uploading") >= last - _TOGETHER_MS  # readings come after lines
        # The step during which it says so ends as ever: an epoch's last one, before its data are shuffled anew.
        if uploads or self._lines.last(job.job_id, "loading") >= last - usual:
            needed = max(needed, _LOADING_MS)
        return needed

    def _hang(
        self,
        now: Instant,
        job: Job,
        name: str,
        number: int,
        pace: Pace,
        patience: float,
        last: Instant,
        since: Instant,
        severity: Severity,
        *,
        spinning: bool,
    ) -> Hang:
        usual, seen = float(np.nan_to_num(pace.usual[number])), self._activity
        evidence: dict[str, float | int | str] = {
            "silent_s": (now - last) / 1000,
            "patience_s": patience / 1000,
            "longest_pause_s": int(pace.pauses[:, number].max()) / 1000,
            "gpus_heard": int(seen.heard[number]),
        }
        figures = {
            "power_w": seen.power[number],
            "power_in_steps_w": seen.power_level[number],
            "gpu_util_percent": seen.util[number],
            "tensor_active": seen.tensor[number],
            "tensor_active_in_steps": seen.tensor_level[number],
        }
        evidence |= {name: float(value) for name, value in figures.items() if np.isfinite(value)}
        steps = pace if isinstance(pace, StepPace) else None
        how = "all its GPUs are busy at a fraction of the power and do no work" if spinning else "its GPUs do not work"
        if seen.busy_with_less()[number]:
            how = "its GPUs are busy at less power than in steps"
        if steps is not None:
            verb, of = ("printed no step", "line") if steps.by_lines[number] else ("made no step", "step")
            evidence |= {**usual_evidence(usual, of), "intervals_seen": int(pace.steps[number])}
            many = f", {(now - last) / usual:.0f} of its usual" if usual > _SEEN_APART_MS else ""
            what = f"{verb} for {(now - last) / 1000:.0f} s{many}"
            how = how if seen.heard[number] else "its GPUs are not seen"
        else:
            what = f"stands still for {(now - last) / 1000:.0f} s"
        score = 0.9 if spinning else 0.75
        return Hang(job, since, f"{in_words(job, name)} {what}: {how}", evidence, score, name, severity)

    def excused(self, job: Job, last: Instant) -> bool:
        """Return whether a job that makes no step since `last` is over, suspended, or a victim.

        It is over, too, where another has begun on a node of its.
        """
        over, suspended = self._lines.last(job.job_id, "over"), self._lines.last(job.job_id, "suspended")
        if over >= last - 1000 or suspended >= last:
            return True
        latest = (self._fleet.job_of(node) for node in job.nodes)
        if any(other is not None and other.job_id != job.job_id and other.start > last for other in latest):
            return True
        since = last - _CAUSE_LEAD_MS
        return self._lines.cause(job.nodes, since) is not None or self._links.lost(job.nodes, since)

    def victim(self, number: int, now: Instant, last: Instant) -> bool:
        """Return whether some of a job's GPUs fell silent with it, or after: it is not the job that hangs.

        An inferred job may have nodes that are not known to be its: any that falls silent as it stops is taken for one.
        """
        one: IntArray = np.array([number])
        if self._activity.lost(one, now, np.array([last]))[0]:
            return True
        job = self._fleet.jobs.get(self._slots.names[number] or "")
        return job is not None and job.inferred and self._activity.any_fell_silent(now, last)

    def _all_silent(self, steps: StepPace, last: Instant) -> bool:
        """Return whether every job that made steps lately fell silent with this one: it is what collects them."""
        lately = (steps.settled >= last - 10 * _TOGETHER_MS) & (steps.steps >= MINIMUM_STEPS) & ~steps.by_lines
        running = np.array([name in self._fleet.jobs for name in self._slots.names], bool)
        others = steps.settled[lately & running]
        return len(others) > 1 and bool((np.abs(others - last) <= _TOGETHER_MS).all())


def names_of(case: OpenCase) -> list[str]:
    """Return what the job of an open hang is called, if it has a name, and as what it runs."""
    return [str(name) for name in (case.entity.get("job_id"), case.memo.get("runs_as")) if name]


def in_words(job: Job, name: str) -> str:
    """Return how a job is called in a message, by its nodes where nobody knows its name."""
    if not name.startswith(INFERRED):
        return f"job {name}"
    others = len(job.nodes) - 1
    return f"the job on {job.nodes[0]}" + (f" and {others} other node{'s' * (others > 1)}" if others else "")


def usual_evidence(usual_ms: float, of: str) -> dict[str, float]:
    """Return as evidence how long a step or line (`of`) usually takes, as far as it is known; 0: not at all."""
    if usual_ms <= 0:
        return {}
    return {f"usual_{of}_s" if usual_ms > _SEEN_APART_MS else f"usual_{of}_at_most_s": usual_ms / 1000}
