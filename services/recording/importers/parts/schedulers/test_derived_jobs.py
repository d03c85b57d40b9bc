from services.recording.importers.contract import Report
from services.recording.importers.parts.schedulers.derived_jobs import STILL_RUNNING_MS, JobSpans
from services.recording.importers.parts.series.census import Place
from services.recording.importers.parts.series.known_series import Reading
from services.recording.model import Gpu, Node, Topology

TOPOLOGY = Topology(nodes=[Node(name=name, gpus=[Gpu(gpu=0), Gpu(gpu=1)]) for name in ("n1", "n2")])
END = 10_000_000


def gpu(job: str, node: str, number: int) -> Place:
    return Place(Reading("dcgm", "DCGM_FI_DEV_GPU_UTIL"), (node, number), job)


def rank(job: str, number: int, node: str) -> Place:
    return Place(Reading("steps", "step_time_s"), (job, number, node))


def test_a_jobs_span_is_that_of_its_traces() -> None:
    spans, report = JobSpans(), Report()
    spans.seen("steps", rank("1", -1, ""), 1000, 5000)
    spans.seen("steps", rank("1", 0, "n1"), 2000, 9000)
    spans.seen("steps", rank("1", 1, "n2"), 2000, 8000)
    spans.seen("dcgm", gpu("", "n2", 0), 0, END)
    (job,) = spans.jobs(END, TOPOLOGY, report.skip)
    assert (job.job_id, job.nodes, job.gpus_per_node, job.gpus) == ("1", ["n1", "n2"], 2, None)
    assert (job.start, job.end, job.state) == (1000, 9000, "UNKNOWN")


def test_a_job_with_traces_near_the_end_runs_on() -> None:
    spans = JobSpans()
    spans.seen("dcgm", gpu("1", "n1", 1), 0, END - STILL_RUNNING_MS)
    (job,) = spans.jobs(END, TOPOLOGY, Report().skip)
    assert (job.end, job.state, job.gpus, job.gpus_per_node) == (None, "RUNNING", {"n1": [1]}, 1)


def test_a_gpu_of_two_jobs_at_once_stays_with_the_first() -> None:
    spans, report = JobSpans(), Report()
    for number in (0, 1):
        spans.seen("dcgm", gpu("late", "n1", number), 500, 5000)
    spans.seen("dcgm", gpu("early", "n1", 0), 0, 1000)
    spans.seen("dcgm", gpu("after", "n1", 0), 5000, 6000)
    early, late, after = spans.jobs(END, TOPOLOGY, report.skip)
    assert (early.job_id, early.gpus) == ("early", {"n1": [0]})
    assert (late.job_id, late.gpus) == ("late", {"n1": [1]})
    assert (after.job_id, after.gpus) == ("after", {"n1": [0]})
    assert list(report.skipped.values()) == [1]
    assert report.first["a job's GPU is another job's at the same time"] == "job late on n1"


def test_pods_on_instances_of_one_gpu_are_jobs_beside_each_other() -> None:
    spans, report = JobSpans(), Report()
    for job in ("ml/a-0", "ml/b-0"):
        reading = Reading("dcgm", "DCGM_FI_DEV_FB_USED_MIG1")
        spans.seen("dcgm", Place(reading, ("n1", 0), job, part=True), 0, 5000)
    one, two = spans.jobs(END, TOPOLOGY, report.skip)
    assert (one.nodes, two.nodes, one.gpus, two.gpus) == (["n1"], ["n1"], {"n1": []}, {"n1": []})
    assert not report.skipped
