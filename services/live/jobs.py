"""Jobs of a live cluster, as the series that name them come and go."""

from typing import Any

from detectors.fleet import Job, JobEvent
from services.recording.embedded import fleet_job
from services.recording.importers.contract import Report
from services.recording.importers.parts.derived_jobs import JobSpans
from services.recording.model import Topology


class LiveJobs:
    """Says when jobs start, grow and end by the traces in `spans`."""

    def __init__(self, spans: JobSpans) -> None:
        self.spans = spans
        self.running: dict[str, Job] = {}

    def events(self, until: int, topology: Topology) -> list[JobEvent]:
        """Return what is news when all series were read up to an instant (epoch ms).

        An end is known when a GPU of the job goes on without it, or none was heard of for five minutes.
        """
        events = []
        for entry in self.spans.jobs(until, topology, Report()):
            job = fleet_job(entry)
            if self.running.get(job.job_id) != job:
                events.append(JobEvent(job.start, "start", job))
                self.running[job.job_id] = job
            if entry.end is not None:
                events.append(JobEvent(entry.end, "end", job))
                del self.running[job.job_id]
                self.spans.forget(job.job_id)
        return events

    def snapshot(self) -> dict[str, Any]:
        """Return all that is needed to go on, as JSON can say it."""
        return {"spans": self.spans.snapshot(), "running": sorted(self.running)}

    def restore(self, state: dict[str, Any], topology: Topology) -> None:
        """Go on from what `snapshot` returned."""
        self.spans.restore(state["spans"])
        known = {entry.job_id: fleet_job(entry) for entry in self.spans.jobs(0, topology, Report())}
        self.running = {name: known[name] for name in state["running"] if name in known}
