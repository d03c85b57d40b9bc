"""Jobs that stand still (job_hang), and jobs whose loss leaves its course (loss_anomaly).

A job hangs when it has reported no step for eight of its usual ones and 180 s (GPUs that spin at full utilisation
and a fraction of their power, as in a collective that never ends) or 240 s (idle or unseen GPUs), and longer than
1.6 times the longest of its last pauses. GPUs that draw nearly what they do in steps work on something else, an
evaluation say: no hang. A checkpoint or a load that the job's log announces gets ten minutes and more. NCCL's watchdog
decides at once. A job one of whose nodes or GPUs fell silent, or has a fatal line in its log, is a victim of that: it
is left to the detector of the cause. It is wrong about a job that pauses for minutes for the first time, idle, and
does not say so; it misses a job that hangs before its first eight steps, or that never reports steps.

The loss is compared with the job's own course: the lower quantile of the medians of 16 steps, over the last 400. It is
anomalous when 25 of 30 steps, over two minutes, lie above by 6 % and four deviations (the gradient norm: twice the
level and six deviations), or when five in a row are no number. A spike that recovers within that is none; going back
to an earlier iteration, or another number of tokens a step, begins a new course. It is wrong where the data change for
good at the same batch size, and in reinforcement learning, whose loss means little; it misses what rises by 6 % in
more than about 400 steps.
"""

from collections.abc import Sequence
from typing import Any, ClassVar, Self

import numpy as np

from detectors.case_book import CaseBook
from detectors.contract import (
    Batch,
    DetectorConfig,
    DetectorSpec,
    Evidence,
    Finding,
    FloatArray,
    Instant,
    LogRecord,
)
from detectors.fleet import Fleet, Job
from detectors.job_health.activity import Activity
from detectors.job_health.causes import Causes
from detectors.job_health.config import JobHealthConfig
from detectors.job_health.hang import Hang, HangJudge
from detectors.job_health.loss import Course, Row, Verdict
from detectors.job_health.pace import Pace
from detectors.job_health.words import Words
from detectors.spec import load_spec
from detectors.state import pack, unpack
from detectors.statistics import known_or

_FIELDS = ("iteration", "loss", "grad_norm", "tokens_per_s", "step_time_s")
_FORGET_MS = 3_600_000
_RESUMED = 2
"""So many points of the grid with new steps end a hang."""
_STOPPED_STEPS = 3.0
_LOOK_AT = (
    "dump the stacks of all ranks (py-spy, NCCL flight recorder), find the rank that did not enter the collective"
)
_LOOK_IN = "stop the job, run a level-3 GPU diagnosis (dcgmi diag -r 3) on its nodes, restart from a checkpoint before"


class JobHealth:
    """Finds job_hang and loss_anomaly on jobs."""

    spec: ClassVar[DetectorSpec] = load_spec(__package__ or "")
    config_type: ClassVar[type[DetectorConfig]] = JobHealthConfig

    def __init__(self, config: DetectorConfig, fleet: Fleet) -> None:
        if not isinstance(config, JobHealthConfig):
            raise TypeError(f"{type(config).__name__} is not a JobHealthConfig")
        self._config = config
        self._fleet = fleet
        self._pace = Pace(fleet)
        self._words = Words(fleet)
        self._causes = Causes()
        self._activity = Activity(fleet)
        self._judge = HangJudge(config, fleet, self._pace, self._words, self._causes, self._activity)
        self._book = CaseBook(self.spec.name)
        self._courses: dict[str, Course] = {}
        self._voices: dict[str, int] = {}
        self._waiting: list[FloatArray] = []
        self._victims: list[str] = []

    def logs(self, records: Sequence[LogRecord]) -> Sequence[Finding]:
        """Note what is said of jobs and nodes; believe NCCL's watchdog at once."""
        found: list[Finding] = []
        for record in records:
            self._causes.take(record)
            job_id = self._words.take(record)
            if job_id is not None:
                found += self._timed_out(job_id, record)
        return found

    def observe(self, batch: Batch) -> Sequence[Finding]:
        """Note steps and what GPUs do; what follows is decided at the next point of the grid."""
        if batch.kind == "dcgm":
            self._activity.take(batch)
            return ()
        jobs = self._pace.take(batch)
        told = np.zeros(batch.present.shape, bool)
        for name in ("loss", "grad_norm"):
            if name in batch.valid:
                told |= batch.valid[name] & batch.present
        tick, column = np.nonzero(told)
        if len(tick):
            ranks = np.array([int(self._fleet.entities("steps")[e][1]) for e in batch.entities[np.unique(column)]])
            rank = ranks[np.searchsorted(np.unique(column), column)]
            rows = [jobs[column].astype(float), rank.astype(float), batch.at[tick, column].astype(float)]
            for name in _FIELDS:
                valid = batch.valid[name][tick, column] if name in batch.valid else np.zeros(len(tick), bool)
                rows += [valid.astype(float), batch.values[name][tick, column] if valid.any() else np.zeros(len(tick))]
            self._waiting.append(np.stack(rows, axis=1))
        return ()

    def advance(self, now: Instant) -> Sequence[Finding]:
        """Decide on every job."""
        hung = [self._pace.number(str(case.entity["job_id"])) for case in self._book.cases("job_hang")]
        self._pace.settle([number for number in hung if number is not None])
        self._causes.forget(now)
        self._words.keep(self._fleet.jobs)
        age, usual = now - self._pace.settled, known_or(self._pace.usual, 0.0)
        stepping = np.flatnonzero((self._pace.settled >= 0) & (age <= 1.5 * usual + 1000)).tolist()
        self._activity.learn([self._pace.names[number] for number in stepping], now)
        late = np.flatnonzero((self._pace.settled >= 0) & (age > _STOPPED_STEPS * usual)).tolist()
        self._victims = self._judge.victims(now, [self._pace.names[number] for number in late])
        found = [*self._close_hangs(now), *self._take_rows(now), *self._close_courses(now)]
        for hang in self._judge.hanging(now):
            found += self._fire_hang(now, hang)
        return found

    def _timed_out(self, job_id: str, record: LogRecord) -> list[Finding]:
        """Return a finding for a job whose watchdog has spoken, unless it makes steps or is a victim."""
        job, number = self._fleet.jobs.get(job_id), self._pace.number(job_id)
        if job is None or job_id in self._victims:
            return []
        last = int(self._pace.settled[number]) if number is not None else job.start
        usual = float(np.nan_to_num(self._pace.usual[number])) if number is not None else 0.0
        going_on = number is not None and record.at - last <= _STOPPED_STEPS * usual
        if going_on or self._judge.excused(job, max(last, job.start), self._words.of(job_id)):
            return []
        since = min(max(last + int(usual), job.start), record.at)
        evidence: Evidence = {
            "watchdog": record.message[:200],
            "silent_s": (record.at - last) / 1000,
            "usual_step_s": usual / 1000,
        }
        summary = f"job {job_id} hangs: NCCL's watchdog gave up on a collective"
        return self._hang(record.at, job, since, 0.95, summary, evidence)

    def _fire_hang(self, now: Instant, hang: Hang) -> list[Finding]:
        sight = hang.sight
        evidence: dict[str, float | int | str] = {
            "silent_s": hang.silent_ms / 1000,
            "usual_step_s": hang.usual_ms / 1000,
            "patience_s": hang.patience_ms / 1000,
            "longest_pause_s": hang.pause_ms / 1000,
            "gpus_heard": sight.heard,
        }
        figures = {
            "power_w": sight.power_w,
            "power_in_steps_w": sight.usual_power_w,
            "gpu_util_percent": sight.util_percent,
        }
        evidence |= {name: value for name, value in figures.items() if np.isfinite(value)}
        how = ", its GPUs spin at a fraction of their power" if hang.spinning else ""
        times = hang.silent_ms / max(hang.usual_ms, 1.0)
        summary = f"job {hang.job.job_id} made no step for {hang.silent_ms / 1000:.0f} s, {times:.0f} of its usual{how}"
        return self._hang(now, hang.job, hang.since, 0.9 if hang.spinning else 0.75, summary, evidence)

    def _hang(
        self, now: Instant, job: Job, since: Instant, score: float, summary: str, evidence: Evidence
    ) -> list[Finding]:
        number = self._pace.number(job.job_id)
        return self._book.fire(
            now,
            "job_hang",
            {"job_id": job.job_id},
            started_at=since,
            severity="page",
            score=score,
            summary=summary,
            action=_LOOK_AT,
            evidence={**evidence, "nodes": len(job.nodes)},
            memo={"steps": int(self._pace.steps[number]) if number is not None else 0},
        )

    def _close_hangs(self, now: Instant) -> list[Finding]:
        over = []
        for case in self._book.cases("job_hang"):
            job_id = str(case.entity["job_id"])
            number = self._pace.number(job_id)
            if job_id not in self._fleet.jobs:
                over.append(self._book.resolve(case, now, "the job ended"))
            elif number is not None and int(self._pace.steps[number]) >= case.memo["steps"] + _RESUMED:
                over.append(self._book.resolve(case, now, "it makes steps again"))
        return over

    def _take_rows(self, now: Instant) -> list[Finding]:
        """Take the steps since the last point of the grid, each job's from the rank that speaks for it."""
        if not self._waiting:
            return []
        rows = np.concatenate(self._waiting)
        self._waiting = []
        rows = rows[np.lexsort((rows[:, 1], rows[:, 2], rows[:, 0]))]
        found: list[Finding] = []
        for number in np.unique(rows[:, 0]).astype(int).tolist():
            job_id, mine = self._pace.names[number], rows[rows[:, 0] == number]
            voice = min(self._voices.get(job_id, int(mine[:, 1].min())), int(mine[:, 1].min()))
            if voice != self._voices.setdefault(job_id, voice):
                self._courses.pop(job_id, None)
                self._voices[job_id] = voice
            course = self._courses.setdefault(job_id, Course())
            for row in mine[mine[:, 1] == voice].tolist():
                course.take(_row(row), self._config)
                verdict = course.verdict(self._config)
                if verdict is not None:
                    found += self._fire_course(now, job_id, verdict)
        return found

    def _fire_course(self, now: Instant, job_id: str, verdict: Verdict) -> list[Finding]:
        evidence, job = verdict.evidence, self._fleet.jobs.get(job_id)
        said = {
            "nan": f"is no number for {evidence.get('steps_not_a_number')} steps",
            "loss": f"rose from {evidence.get('loss_before', 0):.4g} to {evidence.get('loss', 0):.4g} and stays there",
            "grad_norm": "stays, but the norm of its gradient rose from "
            f"{evidence.get('grad_norm_before', 0):.4g} to {evidence.get('grad_norm', 0):.4g}",
        }[verdict.what]
        return self._book.fire(
            now,
            "loss_anomaly",
            {"job_id": job_id},
            started_at=min(verdict.since, now),
            severity="page" if verdict.what == "nan" else "ticket",
            score=0.95 if verdict.what == "nan" else 0.8 if verdict.what == "loss" else 0.6,
            summary=f"the loss of job {job_id} {said}",
            action=_LOOK_IN,
            evidence=evidence | {"nodes": len(job.nodes) if job is not None else 0},
            memo={"known": job is not None},
        )

    def _close_courses(self, now: Instant) -> list[Finding]:
        over = []
        for case in self._book.cases("loss_anomaly"):
            job_id = str(case.entity["job_id"])
            course = self._courses.get(job_id)
            if case.memo["known"] and job_id not in self._fleet.jobs:
                over.append(self._book.resolve(case, now, "the job ended"))
            elif course is None or now - course.last_at > _FORGET_MS:
                over.append(self._book.resolve(case, now, "the job reports no loss any more"))
            elif course.calm(self._config):
                over.append(self._book.resolve(case, now, "the loss is back on its course"))
        gone = [j for j, course in self._courses.items() if now - course.last_at > _FORGET_MS]
        for job_id in gone:
            del self._courses[job_id]
            self._voices.pop(job_id, None)
        return over

    def snapshot(self) -> bytes:
        """Return the whole state."""
        names, arrays = self._pace.snapshot()
        activity, more = self._activity.snapshot()
        document: dict[str, Any] = {
            "pace": names,
            "words": self._words.snapshot(),
            "causes": self._causes.snapshot(),
            "activity": activity,
            "book": self._book.snapshot(),
            "courses": {job_id: course.snapshot() for job_id, course in self._courses.items()},
            "voices": self._voices,
            "victims": self._victims,
        }
        waiting = np.concatenate(self._waiting) if self._waiting else np.empty((0, 3 + 2 * len(_FIELDS)))
        return pack(document, arrays | more | {"waiting": waiting})

    @classmethod
    def restore(cls, config: DetectorConfig, fleet: Fleet, state: bytes) -> Self:
        """Return a detector that goes on exactly where `snapshot` was taken."""
        document, arrays = unpack(state)
        detector = cls(config, fleet)
        detector._pace.load(document["pace"], arrays)
        detector._words.load(document["words"])
        detector._causes.load(document["causes"])
        detector._activity.load(document["activity"], arrays)
        detector._book.load(document["book"])
        detector._courses = {job_id: Course(**fields) for job_id, fields in document["courses"].items()}
        detector._voices = document["voices"]
        detector._victims = document["victims"]
        detector._waiting = [arrays["waiting"]] if len(arrays["waiting"]) else []
        return detector


def _row(row: list[float]) -> Row:
    """Return a step from its columns: job, rank, at, then whether reported and value, of each of `_FIELDS`."""
    value = {name: row[4 + 2 * n] if row[3 + 2 * n] else None for n, name in enumerate(_FIELDS)}
    step, tokens = value["step_time_s"], value["tokens_per_s"]
    phase = step if step is None or tokens is None else step * tokens
    return Row(int(row[2]), value["iteration"], value["loss"], value["grad_norm"], phase)
