"""Jobs of a live cluster: as the series that name them come and go, or as its scheduler lists them."""

from collections.abc import Callable, Sequence
from typing import Any

from detectors.fleet.fleet import Job, JobEvent
from services.recording import model
from services.recording.embedded import fleet_job
from services.recording.importers.contract import Report
from services.recording.importers.parts.schedulers.derived_jobs import JobSpans

Listed = Callable[[], Sequence[model.Job]]
"""Returns the jobs that a scheduler lists at the moment: one that runs has no end."""


class LiveJobs:
    """Says when jobs start, grow and end: by the traces in `spans`, or, with a scheduler, by what it lists."""

    def __init__(self, spans: JobSpans, listed: Listed | None = None) -> None:
        self.spans, self._listed = spans, listed
        self._running: dict[str, Job] = {}
        self._over: set[tuple[str, int]] = set()
        """Jobs that are over and still listed, with their start."""

    def events(self, until: int, topology: model.Topology) -> list[JobEvent]:
        """Return what is news when all series were read up to an instant (epoch ms).

        By traces an end is known when a GPU of the job goes on without it, or none was heard of for five minutes.
        """
        events = []
        entries = self.spans.jobs(until, topology, Report().skip) if self._listed is None else self._scheduled(until)
        for entry in entries:
            job = fleet_job(entry)
            if self._running.get(job.job_id) != job:
                events.append(JobEvent(job.start, "start", job))
                self._running[job.job_id] = job
            if entry.end is not None:
                events.append(JobEvent(entry.end, "end", job, entry.state.upper()))
                del self._running[job.job_id]
                self.spans.forget(job.job_id)
        if self._listed is not None:
            there = {entry.job_id for entry in entries}
            # No longer listed: when it ended nobody says, and now is the latest.
            events += [JobEvent(until, "end", self._running.pop(name)) for name in self._running.keys() - there]
        return events

    def _scheduled(self, until: int) -> list[model.Job]:
        """Return the jobs that had started by `until` and are news or running, as of then."""
        listed = self._listed() if self._listed is not None else ()
        self._over &= {(job.job_id, job.start) for job in listed}
        begun = [job for job in listed if job.start <= until and (job.job_id, job.start) not in self._over]
        self._over |= {(job.job_id, job.start) for job in begun if job.end is not None and job.end <= until}
        return [
            job if job.end is None or job.end <= until else job.model_copy(update={"end": None})
            for job in sorted(begun, key=lambda job: (job.start, job.job_id))
        ]

    def snapshot(self) -> dict[str, Any]:
        """Return all that is needed to go on, as JSON can say it."""
        running = [
            [job.job_id, job.nodes, job.start, job.gpus_per_node, dict(job.gpus), job.maintenance]
            for job in self._running.values()
        ]
        return {"spans": self.spans.snapshot(), "running": running, "over": sorted(self._over)}

    def restore(self, state: dict[str, Any]) -> None:
        """Go on from what `snapshot` returned."""
        self.spans.restore(state["spans"])
        for name, nodes, start, gpus_per_node, gpus, *keeps in state["running"]:  # older ones do not say what it is for
            parts = {node: tuple(numbers) for node, numbers in gpus.items()}
            self._running[name] = Job(name, tuple(nodes), start, gpus_per_node, parts, *keeps)
        self._over = {(name, start) for name, start in state["over"]}
