"""What jobs say of themselves in their logs: checkpoints, evaluations, loading, and NCCL's watchdog.

Wordings of Megatron-LM, NeMo, DeepSpeed and PyTorch (ProcessGroupNCCL); what a trainer prints otherwise is not known,
and then the job's own pauses must do.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from detectors.contract import Instant, LogRecord
from detectors.fleet import Fleet

_WATCHDOG = re.compile(
    r"Watchdog caught collective operation timeout|collective operation timeout|Watchdog timeout.*NCCL|"
    r"Timed out waiting \d+ ?ms for|NCCL watchdog.*(?:timed out|hang)|ProcessGroup\w+.*timed out|"
    r"monitoredBarrier.*timeout",
    re.IGNORECASE,
)
_SAVED = re.compile(
    r"(?:successfully |finished |done )sav\w+|saved (?:a )?checkpoint|checkpoint (?:was )?saved", re.IGNORECASE
)
_SAVING = re.compile(
    r"\bsaving\b.*(?:checkpoint|state|model)|\bcheckpoint\b.*\b(?:being saved|saving|writing)\b", re.IGNORECASE
)
_LOADING = re.compile(
    r"\bload(?:ing|ed)\b.*checkpoint|\binitializ\w+\b|rendezvous|restart(?:ing)? worker|NCCL ready|compil(?:ing|ation)|"
    r"building (?:the )?(?:dataset|index)",
    re.IGNORECASE,
)
_EVALUATING = re.compile(r"\bevaluat\w+|\bvalidat\w+|val(?:idation)?[ _]loss", re.IGNORECASE)
_SUSPENDED = re.compile(r"\b(?:suspend\w*|preempt\w*|SSUSP|USUSP|bstop)\b", re.IGNORECASE)
_AT_STEP = re.compile(r"\biteration\s+(\d+)\s*/\s*(\d+)|\bstep[: ]+(\d+)\s*/\s*(\d+)", re.IGNORECASE)
_OVER = re.compile(r"training (?:is )?(?:done|finished|complete)|after training is done|exiting program", re.IGNORECASE)


@dataclass(slots=True)
class JobWords:
    """The last that a job said of each matter, ms; -1: never."""

    saving_at: Instant = -1
    saved_at: Instant = -1
    loading_at: Instant = -1
    evaluating_at: Instant = -1
    suspended_at: Instant = -1
    over_at: Instant = -1
    watchdog_at: Instant = -1

    def take(self, record: LogRecord) -> None:
        """Take a line of the job's log."""
        text = record.message
        if _WATCHDOG.search(text):
            self.watchdog_at = record.at
        elif _SAVED.search(text):
            self.saved_at = record.at
        elif _SAVING.search(text):
            self.saving_at = record.at
        elif _LOADING.search(text):
            self.loading_at = record.at
        elif _OVER.search(text):
            self.over_at = record.at
        elif (found := _AT_STEP.search(text)) is not None:
            done, total = (int(part) for part in found.groups() if part is not None)
            if done >= total - 1:
                self.over_at = record.at
        elif _EVALUATING.search(text):
            self.evaluating_at = record.at

    @property
    def saving(self) -> bool:
        """Whether a checkpoint was begun, and not said to be done."""
        return self.saving_at > self.saved_at

    @property
    def latest(self) -> Instant:
        """When the job last said that it is at something other than steps."""
        return max(self.saving_at, self.saved_at, self.loading_at, self.evaluating_at)


class Words:
    """The words of every job."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._jobs: dict[str, JobWords] = {}

    def take(self, record: LogRecord) -> str | None:
        """Take a line of a job or a scheduler, in order of time; return the job whose watchdog it is from."""
        if record.source == "job":
            job_id = record.job_id or self._job_on(record.node)
            if job_id is None:
                return None
            words = self._jobs.setdefault(job_id, JobWords())
            words.take(record)
            return job_id if words.watchdog_at == record.at else None
        if record.source == "scheduler" and record.job_id and _SUSPENDED.search(record.message):
            self._jobs.setdefault(record.job_id, JobWords()).suspended_at = record.at
        return None

    def _job_on(self, node: str | None) -> str | None:
        job = self._fleet.job_of(node) if node is not None else None
        return job.job_id if job is not None else None

    def of(self, job_id: str) -> JobWords:
        """Return the words of a job."""
        return self._jobs.get(job_id) or JobWords()

    def keep(self, jobs: Iterable[str]) -> None:
        """Forget the jobs that are not among `jobs`."""
        known = set(jobs)
        if not self._jobs.keys() <= known:
            self._jobs = {job_id: words for job_id, words in self._jobs.items() if job_id in known}

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON can say it."""
        return {job_id: asdict(words) for job_id, words in self._jobs.items()}

    def load(self, state: Mapping[str, Any]) -> None:
        """Take what `snapshot` returned."""
        self._jobs = {job_id: JobWords(**fields) for job_id, fields in state.items()}
