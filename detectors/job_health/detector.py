"""Jobs that stand still (job_hang), and jobs whose loss leaves its course (loss_anomaly).

A job hangs when it has reported no step for longer than its own intervals and pauses make likely: four of its usual
ones and `hang_spinning_s` where its GPUs spin at full utilisation and a fraction of their power, as in a collective
that never ends; six and `hang_s` where they idle or are not seen; and 1.7 times the longest of its last pauses. GPUs
that draw nearly what they do in steps work on something else, an evaluation say, or their steps are not collected. A
checkpoint or a load that the job's log announces gets ten minutes and more, and while its nodes write to their mounts
as one does that saves, it works. A job on one node whose GPUs idle, or that reports no steps, gets a quarter of an
hour: it may have a user at its prompt, and is information, unless it made steps for eight hours. NCCL's watchdog
decides at once. Where a job's steps are not gathered, what its log's lines report of iterations counts as steps
(`reports.py`). GPUs alone show of a job without steps that it stands since they last worked, if all of them spin, none
uses its tensor cores, and none draws what it did (the others wait for that one: a straggler); or if, after half an hour
of work, all GPUs of several nodes idle for eight minutes. A job one of whose GPUs fell silent, or whose node has a
fatal line in its log, is a victim of that; one that a debugger stops is information; nothing is known of what runs once
a job's processes have ended. It is wrong about a job that pauses for five minutes for the first time, idle, and neither
says so nor writes; it misses a job that hangs before its first eight steps, one on a single node without steps and such
lines whose GPUs idle, and one with a GPU that never comes to the end of what it computes.

Loss and gradient norm, of the steps or else of the log's lines, are compared, as logarithms, with the job's own course:
the lower quantile of its last medians of a minute (8 steps at least), or their highest while it still falls fast. How
improbable a look is says the tail of such residuals here; evidence adds up to the false alarms allowed. A finding needs
a rise that stays for 120 s, 8 steps (of long ones 3, and as many as ten minutes have) and two reports: of `loss_rise`,
of `grad_rise`, or part of both; the gradient counts for nothing while the loss still falls fast. Not a number is
stated: a loss twice in a row (the weights are spoilt), a gradient 32 times (every loss scale is exhausted; single
overflows are how fp16 works). Going back to an earlier iteration, and other work a step, begin a new course. It is
wrong where the data change for good at the same size of a step; it misses what creeps up over hours, and what lies
within three times a loss's own scatter or wander, which in reinforcement learning is a factor of two and more.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Final

import numpy as np

from detectors.base import BaseDetector
from detectors.contract import (
    Batch,
    BoolArray,
    DetectorConfig,
    DetectorSpec,
    Evidence,
    Finding,
    FloatArray,
    Instant,
    LogRecord,
)
from detectors.core.evidence import odds_in_words, threshold
from detectors.core.slots import Slots
from detectors.core.statistics import known_or, median_of
from detectors.fleet.fleet import Fleet
from detectors.job_health.activity import Activity
from detectors.job_health.config import JobHealthConfig
from detectors.job_health.hang import Hang, HangJudge, in_words, names_of, usual_evidence
from detectors.job_health.lines import Lines
from detectors.job_health.links import Links
from detectors.job_health.loss import FEW_STEPS, SIGNALS, Course, Steps, Waiting, logged
from detectors.job_health.pace import NEVER, Pace, StepPace
from detectors.job_health.reports import reports_of
from detectors.job_health.rises import shares_of, stand_out
from detectors.job_health.writes import Writes
from detectors.spec import load_spec

_FORGET_MS: Final = 3_600_000
_RESUMED = 2
"""So many points of the grid with new steps end a hang."""
_STOPPED_STEPS = 3.0
_ABORTED_MS: Final = 120_000
"""NCCL waits for ten minutes by default: after less without work a peer died, and its watchdog aborts what is left."""
_BAD: Final = {"loss": 2, "grad_norm": 32}
"""After a loss that is no number twice in a row the weights are none; a loss scale is halved at each overflow, and the
highest that frameworks begin with is 2^32 (Megatron-LM)."""
_SOUND = 5
_LOOK_AT = (
    "dump the stacks of all ranks (py-spy, NCCL flight recorder), find the rank that did not enter the collective"
)
_LOOK_IN = "stop the job, run a level-3 GPU diagnosis (dcgmi diag -r 3) on its nodes, restart from a checkpoint before"


class JobHealth(BaseDetector):
    """Finds job_hang and loss_anomaly on jobs."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = JobHealthConfig

    KEPT = ("_slots", "_lines", "_links", "_writes", "_activity", "_steps", "_work", "_courses", "_waiting")
    _config: JobHealthConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        super().__init__(config, fleet)
        self._slots = Slots(fleet, "steps")
        self._lines = Lines(fleet)
        self._activity = Activity(fleet, self._slots)
        self._links, self._writes = Links(fleet), Writes(fleet, self._activity.layout)
        self._steps, self._work = StepPace(), Pace()
        """When each job made steps, and when its GPUs worked."""
        self._alerts = np.log1p([[self._config.loss_rise], [self._config.grad_rise]])
        self._courses = {name: Course(name, self.tails) for name in SIGNALS}
        self._judge = HangJudge(
            self._config, fleet, self._slots, self._lines, self._links, self._writes, self._activity, self.tails
        )
        self._waiting = {name: Waiting() for name in SIGNALS}
        self._rank_of: FloatArray = np.empty(0)

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Note log lines on jobs and nodes; believe NCCL's watchdog at once."""
        found: list[Finding] = []
        for record in records:
            job_id = self._lines.take(record)
            if job_id is not None:
                found += self._timed_out(job_id, record)
        return found

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Note steps, what GPUs do, which links go down, and who saves; decide at the next point of the grid."""
        if batch.kind != "steps":
            takers = {"dcgm": self._activity.take, "nic": self._links.take, "storage": self._writes.take}
            takers[batch.kind](batch)
            return ()
        jobs = self._slots.of(batch.entities)
        self._grow()
        self._steps.take(jobs, np.where(batch.present, batch.at, NEVER).max(axis=0))
        sound = {name: batch.sound.get(name) for name in ("iteration", "step_time_s", "tokens_per_s")}
        step, tokens = sound["step_time_s"], sound["tokens_per_s"]
        phase = step if step is None or tokens is None else np.where(np.isnan(tokens), step, step * tokens)
        for name in SIGNALS:
            if name not in batch.valid:
                continue
            tick, column = np.nonzero(batch.valid[name] & batch.present)
            if not len(tick):
                continue
            self._steps.losses[jobs[column]] = True
            table = np.full((len(tick), 6), np.nan)
            table[:, 0], table[:, 1] = jobs[column], self._ranks(batch.reach)[batch.entities[column]]
            table[:, 2], table[:, 5] = batch.at[tick, column], batch.values[name][tick, column]
            for place, values in ((3, sound["iteration"]), (4, phase)):
                if values is not None:
                    table[:, place] = values[tick, column]
            self._waiting[name].tables.append(table)
        return ()

    def _ranks(self, count: int) -> FloatArray:
        """Return which rank of its job each of the first `count` entities is."""
        if (known := len(self._rank_of)) < count:
            more = [float(rank) for _, rank in self._fleet.entities("steps")[known:count]]
            self._rank_of = np.concatenate([self._rank_of, np.array(more)])
        return self._rank_of

    def _grow(self) -> None:
        for columns in (self._steps, self._work, self._activity, *self._courses.values()):
            columns.grow(len(self._slots))

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide on every job."""
        for job_id in self._fleet.jobs:
            self._slots.number(job_id)
        self._grow()
        self._take_lines()
        self._lines.forget(now)
        self._activity.look(now)
        names = [name for case in self._book.cases("job_hang") for name in names_of(case)]
        hung = np.array([self._slots.find(name) for name in names], np.int64)
        paused, pauses = self._steps.settle(hung)
        self.tails["pause_s"].learn(pauses[~self._steps.by_lines[paused]])
        silent = self._steps.silent(now)
        stepping = silent <= 1.5 * known_or(self._steps.usual, 0.0) + 1000
        works = self._activity.working()
        by_gpus = np.isnan(silent) | self._steps.by_lines
        at_work = np.where(by_gpus, works, stepping)
        learning = np.flatnonzero(at_work)
        self._activity.learn(learning, self._steps.usual[learning])
        self._writes.look(self._activity.nodes_of(at_work))
        computing = self._activity.computing() & ~self._activity.spinning()
        does_something = by_gpus & (self._activity.busy == now)  # who is slow, or waits now and then, goes on
        working = np.flatnonzero((works | computing | does_something) & (self._activity.heard > 0))
        self._work.take(working, now)
        self._activity.note_work(working)
        self._work.settle(hung)
        found = self._close_hangs(now)
        for hang in self._judge.look(now, self._steps, self._work):
            found += self._hang(now, hang)
        found += self._take_losses(now)
        self._forget(now)
        return found

    def _take_lines(self) -> None:
        """Take the steps that logs report since the last point of the grid, where no better is known of a job."""
        lines = self._lines.reports()
        if not lines:
            return
        reports = reports_of([line.text for line in lines])
        for job_id in sorted({name for line in lines for name in (line.job_id, line.runs_as)}):
            self._slots.number(job_id)
        self._grow()
        jobs, runs = np.array([[self._slots.find(line.job_id), self._slots.find(line.runs_as)] for line in lines]).T
        at = np.array([line.at for line in lines])
        ranks = np.array([np.nan if line.rank is None else line.rank for line in lines], float)
        some = np.logical_or(*reports.valid.values())
        for who in (jobs, runs):
            self._steps.take_lines(who[some], at[some])
        voices = logged(np.where(np.isnan(ranks), reports.rank, ranks))
        table = np.stack([jobs, voices, at, reports.iteration, reports.size, np.full(len(at), np.nan)], axis=1)
        for name, waiting in self._waiting.items():
            rows = np.flatnonzero(reports.valid[name] & ~self._steps.losses[jobs])
            table[:, 5] = reports.values[name]
            if len(rows):
                waiting.tables.append(table[rows])

    def _forget(self, now: Instant) -> None:
        """Forget jobs that are over and silent: the state must not grow with them."""
        quiet = now - np.maximum(self._steps.settled, self._work.settled) > _FORGET_MS
        kept = {*self._fleet.jobs, *(name for case in self._book.cases() for name in names_of(case))}
        gone = [n for n in np.flatnonzero(quiet).tolist() if self._slots.names[n] not in {*kept, None}]
        if gone:
            self._slots.forget(gone)
            for columns in (self._steps, self._work, self._activity, *self._courses.values()):
                columns.forget(np.array(gone))

    def _timed_out(self, job_id: str, record: LogRecord) -> list[Finding]:
        """Return a finding for a job whose watchdog has spoken, unless it makes steps or is a victim."""
        job, number = self._fleet.jobs.get(job_id), self._slots.find(job_id)
        if job is None or number >= len(self._steps):
            return []
        stepped = int(self._steps.settled[number]) if number >= 0 else NEVER
        by_steps = stepped != NEVER and not self._steps.by_lines[number]
        worked = int(self._work.settled[number]) if number >= 0 and not by_steps else NEVER
        last = max(stepped, worked, job.start)
        usual = float(np.nan_to_num(self._steps.usual[number])) if stepped != NEVER else 0.0
        goes_on = record.at - last <= _STOPPED_STEPS * usual if by_steps else record.at - worked <= _ABORTED_MS
        if goes_on or self._judge.excused(job, last):
            return []
        if number >= 0 and self._judge.victim(number, record.at, last):
            return []
        seen: Evidence = {"watchdog": record.message[:200], "silent_s": (record.at - last) / 1000}
        evidence: Evidence = {**seen, **usual_evidence(usual, "step")}
        summary = f"{in_words(job, job_id)} hangs: NCCL's watchdog gave up on a collective"
        return self._hang(record.at, Hang(job, min(last + int(usual), record.at), summary, evidence, 0.95, job_id))

    def _hang(self, now: Instant, hang: Hang) -> list[Finding]:
        number = self._slots.find(hang.job.job_id)
        open_ones = (case for case in self._book.cases("job_hang") if case.memo.get("runs_as") == hang.job.job_id)
        return self._book.fire(
            now,
            "job_hang",
            next((case.entity for case in open_ones), hang.entity),
            started_at=hang.since,
            severity=hang.severity,
            score=hang.score,
            summary=hang.summary,
            action=_LOOK_AT,
            evidence={**hang.evidence, "job_id": hang.job_id, "nodes": len(hang.job.nodes)},
            memo={"steps": self._progress(number), "start": hang.job.start, "runs_as": hang.job.job_id},
        )

    def _progress(self, number: int) -> int:
        """Return how often a job was seen to go on: by its steps, or by its GPUs and lines where these are unknown."""
        if number < 0:
            return 0
        steps, work = int(self._steps.steps[number]), int(self._work.steps[number])
        gathered = self._steps.settled[number] >= 0 and not self._steps.by_lines[number]
        return steps if gathered else steps + work

    def _close_hangs(self, now: Instant) -> list[Finding]:
        over = []
        for case in self._book.cases("job_hang"):
            runs_as = names_of(case)[-1]
            job, progress = self._fleet.jobs.get(runs_as), self._progress(self._slots.find(runs_as))
            case.memo["steps"] = min(case.memo["steps"], progress)  # steps that are gathered now are counted anew
            if job is None or job.start != case.memo["start"]:
                over.append(self._book.resolve(case, now, "the job ended"))
            elif progress >= case.memo["steps"] + _RESUMED:
                over.append(self._book.resolve(case, now, "it makes steps again"))
        return over

    def _take_losses(self, now: Instant) -> list[Finding]:
        """Take the steps since the last point of the grid; name the jobs whose loss or gradient left its course."""
        waits = any(waiting.tables for waiting in self._waiting.values())
        if not waits and not self._book.cases("loss_anomaly"):
            return []
        if not waits:
            return self._close_courses(now, self._rises()[1])
        suspected = self._suspected(self._shares([course.size() for course in self._courses.values()]))
        for name, course in self._courses.items():
            if tables := self._waiting[name].drain():
                course.take(Steps(np.concatenate(tables)), suspected)
        shares, risen, held = self._rises()
        found = self._close_courses(now, risen)
        loss = self._courses["loss"]
        loss.held_since = np.where(held, np.where(loss.held_since < 0, now, loss.held_since), -1)
        if np.count_nonzero(alerts := shares.sum(axis=0) >= 1):
            improbable = np.maximum(*(course.wealth for course in self._courses.values())) >= self._needed()
            for number in np.flatnonzero(alerts & improbable).tolist():
                found += self._rose(now, number, shares[:, number])
        for name, course in self._courses.items():
            for number in np.flatnonzero((course.bad >= _BAD[name]) & (course.sound >= _SOUND)).tolist():
                found += self._no_number(now, number, name)
        stale = held & (now - loss.held_since > _FORGET_MS)
        for number in np.flatnonzero(stale).tolist():
            if self._book.get("loss_anomaly", {"job_id": str(self._slots.names[number])}) is None:
                loss.forget(number)
                self._courses["grad_norm"].forget(number)
        return found

    def _rises(self) -> tuple[FloatArray, FloatArray, BoolArray]:
        """Return (2, jobs) how much of what alerts loss and gradient rose by and stay, how much they rose by whether
        they stay or fall back, and which jobs not to learn.
        """
        rises = [course.rise() for course in self._courses.values()]
        stays = np.array([lasting for _, lasting in rises])
        sizes = [size for size, _ in rises]
        risen = self._shares(sizes)
        held = self._suspected(risen)
        risen[1] = np.where(self._courses["loss"].young, 0.0, risen[1])
        stays &= (risen >= 1) | stand_out(self._courses.values(), sizes)
        return np.where(stays, risen, 0.0), risen, held

    def _shares(self, sizes: Sequence[FloatArray]) -> FloatArray:
        """Return (2, jobs) rises of loss and gradient as shares of what alerts, which is more than their scatter."""
        return shares_of(self._courses.values(), sizes, self._alerts)

    def _suspected(self, shares: FloatArray) -> BoolArray:
        """Return (jobs,) of which nothing is learnt: `shares` (2, jobs) half of what alerts, or with a finding open."""
        held = np.asarray((shares >= 0.5).any(axis=0))
        for case in self._book.cases("loss_anomaly"):
            held[self._slots.find(str(case.entity["job_id"]))] = True
        return held

    def _needed(self) -> FloatArray:
        """Return the wealth (jobs,) that chance reaches as seldom as the budget allows."""
        usual = np.maximum(known_or(self._steps.usual, 5000.0), 5000.0) / 1000
        jobs = max(int(np.count_nonzero(np.isfinite(self._steps.usual))), 1)
        nodes = max(len(self._fleet.nodes), sum(len(job.nodes) for job in self._fleet.jobs.values()), 1)
        least = threshold(self._config.false_alarms_per_100_node_days, 2 * jobs, nodes, 1.0)
        return least - np.log(usual)

    def _rose(self, now: Instant, number: int, shares: FloatArray) -> list[Finding]:
        name, job_id = SIGNALS[int(shares.argmax())], self._slots.names[number]
        course = self._courses[name]
        evidence, since = self._figures(number), course.since_when(number)
        wealth, look_s = float(course.wealth[number]), max(float(self._steps.usual[number]) / 1000, 5.0)
        evidence["by_chance"] = odds_in_words(wealth, 2 * len(self._slots), look_s)
        which = "loss" if shares[0] >= 0.5 else "grad_norm"
        figures = f"rose from {evidence[f'{which}_before']:.4g} to {evidence[which]:.4g} and stays there"
        what = f"the {'loss' if which == 'loss' else 'gradient norm'} of job {job_id} {figures}"
        return self._anomaly(now, number, since, "ticket", 0.6 + 0.2 * (shares[0] >= 1), what, evidence)

    def _no_number(self, now: Instant, number: int, name: str) -> list[Finding]:
        course, bad = self._courses[name], int(self._courses[name].bad[number])
        words = "loss" if name == "loss" else "gradient norm"
        what = f"the {words} of job {self._slots.names[number]} is no number for {bad} steps in a row"
        evidence = self._figures(number) | {"steps_not_a_number": bad}
        return self._anomaly(now, number, int(course.bad_since[number]), "page", 0.95, what, evidence)

    def _anomaly(
        self, now: Instant, number: int, since: Instant, severity: Any, score: float, what: str, evidence: Evidence
    ) -> list[Finding]:
        job_id = str(self._slots.names[number])
        job = self._fleet.jobs.get(job_id)
        return self._book.fire(
            now,
            "loss_anomaly",
            {"job_id": job_id},
            started_at=min(since, now),
            severity=severity,
            score=score,
            summary=what,
            action=_LOOK_IN,
            evidence={**evidence, "nodes": len(job.nodes) if job is not None else 0},
            memo={"known": job is not None, "sound": 0},
        )

    def _figures(self, number: int) -> dict[str, float | int | str]:
        evidence: dict[str, float | int | str] = {}
        for name, course in self._courses.items():
            rise, before = course.level[number] + course.size()[number], median_of(course.blocks[-5:, number])
            figures = {name: np.exp(rise), f"{name}_before": np.exp(before), f"{name}_noise": course.noise[number]}
            evidence |= {key: float(value) for key, value in figures.items() if np.isfinite(value)}
        iteration = self._courses["loss"].iteration[number]
        return evidence | ({"iteration": int(iteration)} if np.isfinite(iteration) else {})

    def _close_courses(self, now: Instant, risen: FloatArray) -> list[Finding]:
        over = []
        for case in self._book.cases("loss_anomaly"):
            job_id = str(case.entity["job_id"])
            number = self._slots.find(job_id)
            courses = list(self._courses.values())
            last = max((int(course.last[number]) for course in courses), default=-1)
            sound = int(min(course.sound[number] for course in courses if course.last[number] >= 0)) if last >= 0 else 0
            if any(course.bad[number] > 0 for course in courses) or sound < case.memo["sound"]:
                case.memo["sound"] = sound
            ended = case.memo["known"] and job_id not in self._fleet.jobs
            if ended or now - last > _FORGET_MS:
                why = "the job ended" if ended else "the job reports no loss any more"
                over.append(self._book.resolve(case, now, why))
                for course in courses:
                    course.forget(number)
            elif sound >= case.memo["sound"] + FEW_STEPS and float(risen[:, number].max()) < 0.5:
                over.append(self._book.resolve(case, now, "the loss is back on its course"))
        return over
