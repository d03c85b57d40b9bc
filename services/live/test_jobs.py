import json

from services.live.jobs import Listed, LiveJobs
from services.recording.importers.parts.schedulers.derived_jobs import STILL_RUNNING_MS, JobSpans
from services.recording.importers.parts.series.census import Place
from services.recording.importers.parts.series.known_series import Reading
from services.recording.model import Gpu, Job, Node, Topology

TOPOLOGY = Topology(nodes=[Node(name=name, gpus=[Gpu(gpu=0), Gpu(gpu=1)]) for name in ("n1", "n2")])
START, POLL_MS = 1_700_000_000_000, 15_000


class Cluster:
    """GPUs of two nodes that report every fifteen seconds, polled as often."""

    def __init__(self, listed: Listed | None = None) -> None:
        self.jobs = LiveJobs(JobSpans(), listed)
        self.at = START

    def poll(self, held: dict[tuple[str, int], str | None]) -> list[tuple[str, str, tuple[str, ...], int]]:
        """Let GPUs report for which job they work; return the events with how long after START they were."""
        self.at += POLL_MS
        for (node, gpu), job in held.items():
            place = Place(Reading("dcgm", "DCGM_FI_DEV_GPU_UTIL"), (node, gpu), job)
            self.jobs.spans.seen("dcgm", place, self.at - POLL_MS + 1, self.at)
        events = self.jobs.events(self.at, TOPOLOGY)
        return [(one.event, one.job.job_id, one.job.nodes, one.at - START) for one in events]


ALL = [(node, gpu) for node in ("n1", "n2") for gpu in (0, 1)]


def test_a_job_starts_grows_and_ends_when_its_gpus_go_on_without_it() -> None:
    cluster = Cluster()
    assert cluster.poll(dict.fromkeys(ALL)) == []
    first: dict[tuple[str, int], str | None] = {gpu: "7" if gpu[0] == "n1" else None for gpu in ALL}
    assert cluster.poll(first) == [("start", "7", ("n1",), POLL_MS + 1)]
    assert cluster.poll(dict.fromkeys(ALL, "7")) == [("start", "7", ("n1", "n2"), POLL_MS + 1)]
    assert cluster.poll(dict.fromkeys(ALL, "7")) == []
    # A minute without it, and it is over since it was last named.
    ends = [event for _ in range(6) for event in cluster.poll(dict.fromkeys(ALL))]
    assert ends == [("end", "7", ("n1", "n2"), 4 * POLL_MS)]
    assert cluster.poll(dict.fromkeys(ALL, "7")) == [("start", "7", ("n1", "n2"), 10 * POLL_MS + 1)]


def test_another_job_on_its_gpus_ends_a_job_at_once() -> None:
    cluster = Cluster()
    cluster.poll(dict.fromkeys(ALL, "7"))
    kinds = [(kind, job) for kind, job, _, _ in cluster.poll(dict.fromkeys(ALL, "8"))]
    assert kinds == [("end", "7"), ("start", "8")]


def test_a_job_whose_gpus_are_silent_runs_on_for_five_minutes() -> None:
    cluster = Cluster()
    cluster.poll(dict.fromkeys(ALL, "7"))
    polls = STILL_RUNNING_MS // POLL_MS
    assert [event for _ in range(polls) for event in cluster.poll({})] == []
    assert cluster.poll({}) == [("end", "7", ("n1", "n2"), POLL_MS)]


def test_what_is_known_of_jobs_survives() -> None:
    one, other = Cluster(), Cluster()
    one.poll(dict.fromkeys(ALL, "7"))
    other.jobs.restore(json.loads(json.dumps(one.jobs.snapshot())))
    other.at = one.at
    for job in ("7", "8", None):
        assert one.poll(dict.fromkeys(ALL, job)) == other.poll(dict.fromkeys(ALL, job))


def test_a_scheduler_lists_the_jobs() -> None:
    """What it does not list any more is over; one that is over is news once, however long it is listed."""
    listed: list[Job] = []
    cluster = Cluster(lambda: listed)
    assert cluster.poll(dict.fromkeys(ALL, "by-its-label")) == []
    first = Job(job_id="7", nodes=["n1"], start=START - 1000, state="RUNNING")
    later = Job(job_id="8", nodes=["n2"], start=START + 4 * POLL_MS, state="RUNNING")
    listed = [later, first]
    assert cluster.poll({}) == [("start", "7", ("n1",), -1000)]
    assert cluster.poll({}) == []
    assert cluster.poll({}) == [("start", "8", ("n2",), 4 * POLL_MS)]
    done = first.model_copy(update={"end": START + 4 * POLL_MS, "state": "COMPLETED"})
    listed = [later, done]
    assert cluster.poll({}) == [("end", "7", ("n1",), 4 * POLL_MS)]
    assert cluster.poll({}) == []
    restarted = Cluster(lambda: listed)
    restarted.jobs.restore(json.loads(json.dumps(cluster.jobs.snapshot())))
    restarted.at = cluster.at
    listed = []
    assert restarted.poll({}) == [("end", "8", ("n2",), 7 * POLL_MS)]


def test_a_job_that_keeps_its_nodes_for_maintenance_does_so_after_a_restart() -> None:
    kept = Job(job_id="7", name="MAINT", user="root", nodes=["n1"], start=START - 1000, state="RUNNING")
    cluster, restarted = Cluster(lambda: [kept]), Cluster(lambda: [kept])
    (event,) = cluster.jobs.events(START, TOPOLOGY)
    assert event.job.maintenance
    restarted.jobs.restore(json.loads(json.dumps(cluster.jobs.snapshot())))
    assert restarted.jobs.events(START + POLL_MS, TOPOLOGY) == []
