"""Which job has a node, or had it when something happened to it: a job on a dead node is ended soon."""

from typing import Any

from detectors.contract import Instant
from detectors.core.survivors import Survivors
from detectors.fleet.fleet import Fleet


class Tenancy:
    """By node: the job that last ended there, and when."""

    def __init__(self, fleet: Fleet) -> None:
        self._fleet = fleet
        self._jobs: dict[str, tuple[str, ...]] = {}
        self._ended: dict[str, tuple[Instant, str]] = {}

    def note(self, now: Instant) -> None:
        """At a point of the grid: take note of which jobs run. What ended since the point before is dated to this one.

        A job that exporters' labels name ends with the last reading of a node that dies, not before.
        """
        running = self._fleet.jobs
        for job_id in self._jobs.keys() - running.keys():
            for node in self._jobs[job_id]:
                self._ended[node] = max(self._ended.get(node, (-1, "")), (now, job_id))
        if running.keys() != self._jobs.keys():
            self._jobs = {job_id: job.nodes for job_id, job in running.items()}

    def job(self, node: str, since: Instant) -> str | None:
        """Return the job that a node has, or had after `since`."""
        job = self._fleet.job_of(node)
        ended, job_id = self._ended.get(node, (-1, ""))
        return job.job_id if job is not None else job_id if ended >= since else None

    def left(self, node: str, since: Instant, until: float) -> bool:
        """Return whether the last job that ended on a node did so after `since`, and before `until`."""
        return since < self._ended.get(node, (-1, ""))[0] <= until

    def go_on_with(self, survivors: Survivors) -> None:
        """Forget the last jobs of nodes that are gone."""
        for node in survivors.names("machine") & self._ended.keys():
            del self._ended[node]

    def snapshot(self) -> dict[str, Any]:
        """Return the state as JSON can say it."""
        return {
            "jobs": sorted(self._jobs.items()),
            "ended": sorted([node, at, job_id] for node, (at, job_id) in self._ended.items()),
        }

    def load(self, document: dict[str, Any]) -> None:
        """Take what `snapshot` returned."""
        self._jobs = {job_id: tuple(nodes) for job_id, nodes in document["jobs"]}
        self._ended = {node: (at, job_id) for node, at, job_id in document["ended"]}
