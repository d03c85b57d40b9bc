"""GPU-hours that troubles cost, and what an alert in time would have saved of them, by assumptions that are stated."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, fields

from detectors.contract import Instant
from services.backtest.truth import Truth
from services.kit.errors import UsageError
from services.recording.model import Job, Topology

_MINUTE_MS = 60_000
_WENT_WELL = frozenset({"COMPLETED", "RUNNING", "CANCELLED", "PENDING"})


@dataclass(frozen=True)
class Assumptions:
    """What is not in the telemetry; each can be set by its name."""

    checkpoint_min: float = 30
    """Minutes between a job's checkpoints."""
    restart_min: float = 10
    """Minutes from a job's stop until it works again, checkpoint loaded."""
    reaction_min: float = 5
    """Minutes from an alert until somebody, or something, acts on it."""
    repair_h: float = 4
    """Hours that a drained node is away."""
    spares: float = 2
    """Nodes that idle, ready to take a drained one's place."""

    @property
    def restart_h(self) -> float:
        """Hours that a restart costs a job's GPUs: half a checkpoint interval, and the restart itself."""
        return (self.checkpoint_min / 2 + self.restart_min) / 60


def assumptions(given: Iterable[str]) -> Assumptions:
    """Return the assumptions with what ``NAME=NUMBER`` changes. UserError (exit code 2): there is no such one."""
    known = [one.name for one in fields(Assumptions)]
    found: dict[str, float] = {}
    for text in given:
        name, _, value = text.partition("=")
        try:
            found[name] = float(value)
        except ValueError:
            found[name] = -1
        if name not in known or not 0 <= found[name] < float("inf"):
            raise UsageError(f"--assume {text!r} is none", remedy=f"write NAME=NUMBER; there are {', '.join(known)}")
    return Assumptions(**found)


class Ledger:
    """The jobs of a part of the history, and what each trouble cost them."""

    def __init__(self, jobs: Iterable[Job], topology: Topology, assumed: Assumptions) -> None:
        self._jobs = list(jobs)
        self._gpus = {node.name: len(node.gpus) for node in topology.nodes}
        self.assumed = assumed

    def jobs_on(self, truth: Truth, at: Instant) -> list[Job]:
        """Return the jobs on what a label or ticket is about that run at an instant."""
        nodes = {str(one["node"]) for one in (truth.label.entity, *truth.label.also) if "node" in one}
        names = {truth.label.job_id, truth.label.entity.get("job_id")}
        return [one for one in self.running(at) if one.job_id in names or nodes.intersection(one.nodes)]

    def running(self, at: Instant) -> list[Job]:
        """Return the jobs that run at an instant."""
        return [one for one in self._jobs if one.start <= at and (one.end is None or one.end > at)]

    def gpus_of(self, job: Job) -> int:
        """Return how many GPUs a job has."""
        if job.gpus:
            return sum(len(those) for those in job.gpus.values())
        return sum(job.gpus_per_node or self._gpus.get(node, 0) for node in job.nodes)

    def lost(self, truth: Truth) -> float | None:
        """Return the GPU-hours that a trouble cost; None where neither it nor the end of a job says so.

        What a label or ticket states counts; else a job that it ended has lost half a checkpoint interval and a
        restart.
        """
        stated = (truth.label.impact or {}).get("gpu_hours_lost")
        if stated is not None:
            return float(stated)
        ended = self._ended(truth)
        return sum(self.gpus_of(job) * self.assumed.restart_h for job in ended) if ended else None

    def _ended(self, truth: Truth) -> list[Job]:
        label = truth.label
        return [
            job
            for job in self.jobs_on(truth, label.onset)
            if job.end is not None and label.onset <= job.end <= label.end and job.state.upper() not in _WENT_WELL
        ]

    def saved(self, truth: Truth, alerted_at: Instant) -> float | None:
        """Return the GPU-hours that acting on an alert would have saved; None where the loss is not known.

        A loss is taken to be spread evenly over the trouble's time; acting ends it, and costs the jobs on it a restart.
        A job that the trouble ended is saved the half checkpoint interval, if there was time to write one.
        """
        lost = self.lost(truth)
        if lost is None:
            return None
        acted = alerted_at + round(self.assumed.reaction_min * _MINUTE_MS)
        label = truth.label
        if (label.impact or {}).get("gpu_hours_lost") is None:
            half_h = self.assumed.checkpoint_min / 120
            return sum(self.gpus_of(job) * half_h for job in self._ended(truth) if acted <= (job.end or 0))
        left = max(0, label.end - max(acted, label.onset)) / max(label.end - label.onset, 1)
        cost = sum(self.gpus_of(job) for job in self.jobs_on(truth, acted)) * self.assumed.restart_h
        return max(0.0, lost * left - cost)


def total(values: Sequence[float | None]) -> tuple[float, int]:
    """Return the sum of what is known, and of how many nothing is."""
    known = [one for one in values if one is not None]
    return sum(known), len(values) - len(known)
