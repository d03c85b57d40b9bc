"""Whether jobs do what effects and their own ways make them: slow down, stand still, end, diverge, evaluate."""

import re
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from services.kit.errors import UserError
from services.recording.model import Job
from services.recording.validate import validate_recording
from services.synth.conftest import GPUS, NODES, Telemetry, Write
from services.synth.make import make_recording
from services.synth.physics.effects import Course, Effect, Effects, Floats
from services.synth.story.scenario import load_scenario
from tests.small import braked_vela

UTIL, POWER, TENSOR = "DCGM_FI_DEV_GPU_UTIL", "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"
USUAL = (120.0, 195.0)  # after warm-up, before the first checkpoint


def job(**changes: Any) -> dict[str, Any]:
    """The small story's job, changed: those of its training's values as `training`."""
    content = braked_vela()[0]["jobs"][0]
    training = content["training"] | {"launch_s": 10, "load_s": 10, "warm_up": [3.0, 1.5], "log_every": 5}
    training |= {"checkpoint_every": 38, "checkpoint_s": 20} | changes.pop("training", {})
    return dict(content) | {"submit": "+00:00:20", "start": "+00:00:30", "training": training} | changes


def made(write: Write, tmp_path: Path, **scenario: Any) -> Telemetry:
    path = write({"happenings": [], "distractors": [], "jobs": [job()]} | scenario)
    out = make_recording(path, tmp_path / "out" / "tiny-brake")
    assert validate_recording(out) == []
    return Telemetry(out)


def steps(telemetry: Telemetry, name: str, begin: float, end: float, job_id: str = "812", rank: int = -1) -> Floats:
    seconds, ranks = telemetry.seconds("steps"), telemetry.column("steps", "rank")
    pick = (seconds >= begin) & (seconds < end) & (ranks == rank)
    pick &= np.array(telemetry.column("steps", "job_id")) == job_id
    return np.asarray(telemetry.table("steps")[name].to_numpy(zero_copy_only=False)[pick], dtype=np.float64)


def job_of(telemetry: Telemetry, job_id: str = "812") -> Job:
    return next(one for one in telemetry.recording.jobs() if one.job_id == job_id)


def lines(telemetry: Telemetry, source: str, job_id: str = "812") -> list[str]:
    return [event.message for event in telemetry.recording.events() if (event.source, event.job_id) == (source, job_id)]


def test_a_hung_job_waits_busy_and_cool_and_goes_on_where_it_was(write: Write, tmp_path: Path) -> None:
    hang: dict[str, Any] = {"kind": "job_hang", "job": "812", "at": "+00:05:00", "until": "+00:08:00"}
    hang |= {"truth": {"id": "f1", "fault": "job_hang", "within_s": 120, "incident": "i", "root": True}}
    telemetry = made(write, tmp_path, happenings=[hang])
    assert len(steps(telemetry, "step_time_s", 306, 480)) == 0
    halted = (315.0, 470.0)
    assert telemetry.dcgm(UTIL, *halted).min() >= 94
    assert telemetry.dcgm(TENSOR, *halted).max() == 0
    assert 100 < telemetry.dcgm(POWER, *halted).mean() < 0.5 * telemetry.dcgm(POWER, *USUAL).mean()
    after = steps(telemetry, "step_time_s", 480, 600)
    assert 170 < after[0] < 190
    assert np.median(after[1:]) == pytest.approx(np.median(steps(telemetry, "step_time_s", *USUAL)), rel=0.05)
    iterations = steps(telemetry, "iteration", 0, 600)
    assert (np.diff(iterations) == 1).all()
    assert job_of(telemetry).state == "RUNNING"
    (label,) = [label for label in telemetry.recording.labels() if not label.distractor]
    assert label.entity == {"job_id": "812"}
    assert label.impact is not None
    assert label.impact["gpu_hours_lost"] == pytest.approx(NODES * GPUS * 180 / 3600, rel=0.1)


def test_a_watchdog_ends_a_hung_job_with_its_words_and_the_next_starts_after_it(write: Write, tmp_path: Path) -> None:
    hang = {"kind": "job_hang", "job": "812", "at": "+00:04:00", "until": "+00:10:00", "timeout_s": 120}
    again = job(id="813", after="812", submit=10, start=20)
    telemetry = made(write, tmp_path, happenings=[hang], jobs=[job(), again])
    first, second = job_of(telemetry), job_of(telemetry, "813")
    assert first.state == "FAILED"
    assert first.end is not None
    ended = (first.end - telemetry.recording.manifest.start) / 1000
    assert 360 < ended < 365
    assert second.start == first.end + 20_000
    watchdogs = [line for line in lines(telemetry, "job") if "Watchdog caught collective operation timeout" in line]
    assert len(watchdogs) == 4
    assert "Timeout(ms)=120000" in watchdogs[0]
    assert any("ChildFailedError" in line for line in lines(telemetry, "job"))
    assert "slurmctld: _job_complete: JobId=812 WEXITSTATUS 1" in lines(telemetry, "scheduler")
    assert telemetry.dcgm(UTIL, ended + 6, ended + 18).max() == 0
    assert len(steps(telemetry, "step_time_s", ended + 45, 600, "813")) > 10


@pytest.mark.parametrize(
    ("scheduler", "state", "says"),
    [
        ("slurm", "CANCELLED", "slurmctld: _slurm_rpc_kill_job: REQUEST_KILL_JOB JobId=812 uid"),
        ("slurm", "TIMEOUT", "slurmctld: Time limit exhausted for JobId=812"),
        ("slurm", "OUT_OF_MEMORY", "OOM failure"),
        ("lsf", "COMPLETED", "Job <812>: Done successfully."),
        ("lsf", "TIMEOUT", "TERM_RUNLIMIT: job killed after reaching LSF run time limit"),
    ],
)
def test_a_job_ends_as_it_should_in_the_words_of_its_scheduler(
    write: Write, tmp_path: Path, scheduler: str, state: str, says: str
) -> None:
    path = write({"happenings": [], "jobs": [job(end="+00:04:00", state=state)]}, {"scheduler": scheduler})
    telemetry = Telemetry(make_recording(path, tmp_path / "out" / "tiny-brake"))
    assert job_of(telemetry).state == state
    assert any(says in line for line in lines(telemetry, "scheduler"))
    assert telemetry.dcgm(UTIL, 246, 600).max() == 0
    assert len(steps(telemetry, "step_time_s", 240, 600)) == 0


def test_a_job_that_has_done_its_last_iteration_is_over(write: Write, tmp_path: Path) -> None:
    telemetry = made(write, tmp_path, jobs=[job(training={"first_iteration": 1, "last_iteration": 20})])
    assert len(steps(telemetry, "step_time_s", 0, 600)) == 20
    assert job_of(telemetry).state == "COMPLETED"
    assert telemetry.dcgm(UTIL, 240, 600).max() == 0


def test_a_loss_leaves_its_course_and_nothing_else_does(write: Write, tmp_path: Path) -> None:
    anomaly = {"kind": "loss_anomaly", "job": "812", "at": "+00:05:00", "until": "+00:10:00"}
    jump = made(write, tmp_path / "a", happenings=[anomaly | {"loss_factor": 1.4, "grad_factor": 6}])
    before, after = (steps(jump, "loss", *span).mean() for span in (USUAL, (310, 600)))
    assert after / before == pytest.approx(1.4, rel=0.02)
    assert steps(jump, "grad_norm", 310, 600).mean() > 4 * steps(jump, "grad_norm", *USUAL).mean()
    gradual = made(write, tmp_path / "b", happenings=[anomaly | {"loss_factor": 1.4, "ramp_s": 240}])
    assert 1.1 < steps(gradual, "loss", 400, 440).mean() / before < 1.3
    lost = made(write, tmp_path / "c", happenings=[anomaly | {"nan": True}])
    assert np.isnan(steps(lost, "loss", 310, 600)).all()
    assert np.isnan(steps(lost, "grad_norm", 310, 600)).all()
    summary = lost.table("steps")["loss"]
    assert summary.null_count == int((lost.column("steps", "rank") >= 0).sum())  # no number is a value, not a null
    (first, *later) = [line for line in lines(lost, "job") if "lm loss: NAN" in line]
    assert re.search(r"number of nan iterations: +[1-5] \|", first)
    assert all("number of nan iterations:   5" in line for line in later)
    for telemetry in (jump, gradual, lost):
        slow = steps(telemetry, "step_time_s", 310, 330).mean()
        assert slow == pytest.approx(steps(telemetry, "step_time_s", *USUAL).mean(), rel=0.05)


@pytest.mark.parametrize("gpu", [1, None])
def test_a_straggler_computes_longest_waits_least_and_shows_nothing_else(
    write: Write, tmp_path: Path, gpu: int | None
) -> None:
    slow = {"kind": "straggler", "node": "t02", "factor": 1.5, "at": "+00:05:00", "until": "+00:10:00"}
    telemetry = made(write, tmp_path, happenings=[slow if gpu is None else slow | {"gpu": gpu}])
    culprits = set(range(GPUS, 2 * GPUS)) if gpu is None else {GPUS + gpu}
    compute = {rank: steps(telemetry, "compute_s", 330, 600, rank=rank).mean() for rank in range(NODES * GPUS)}
    wait = {rank: steps(telemetry, "comm_wait_s", 330, 600, rank=rank).mean() for rank in range(NODES * GPUS)}
    assert set(sorted(compute, key=lambda rank: -compute[rank])[: len(culprits)]) == culprits
    assert set(sorted(wait, key=lambda rank: wait[rank])[: len(culprits)]) == culprits
    healthy = np.median([compute[rank] for rank in compute if rank not in culprits])
    assert all(compute[rank] / healthy == pytest.approx(1.5, rel=0.05) for rank in culprits)
    longer = steps(telemetry, "step_time_s", 330, 600).mean() / steps(telemetry, "step_time_s", *USUAL).mean()
    assert 1.35 < longer < 1.6
    for name in ("DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"):
        assert set(telemetry.dcgm(name, 330, 600, "t02")) <= set(telemetry.dcgm(name, *USUAL)) | {1410, 0, 4}
    done = {node: telemetry.dcgm(TENSOR, 330, 600, node).mean() for node in ("t01", "t02", "t03", "t04")}
    assert done["t02"] == pytest.approx(np.mean([done[node] for node in done]), rel=0.03), "as much work as its peers"
    # Its peers wait for it, busy and cooler than before.
    peers = telemetry.dcgm(POWER, 330, 600, but="t02").mean()
    assert peers < 0.95 * telemetry.dcgm(POWER, *USUAL, but="t02").mean()


def test_intermittent_and_gradual_stragglers_come_and_grow(write: Write, tmp_path: Path) -> None:
    slow = {"kind": "straggler", "node": "t02", "gpu": 0, "factor": 2.0, "at": "+00:04:00", "until": "+00:10:00"}
    often = made(write, tmp_path / "a", happenings=[slow | {"period_s": 120, "duty": 0.5}])
    on, off = steps(often, "step_time_s", 252, 300).mean(), steps(often, "step_time_s", 318, 360).mean()
    assert on > 1.6 * off
    grows = made(write, tmp_path / "b", happenings=[slow | {"ramp_s": 300}])
    halves = [steps(grows, "compute_s", *span, rank=GPUS).mean() for span in ((245, 330), (330, 420), (420, 520))]
    assert halves == sorted(halves)


def test_what_all_ranks_do_alike_slows_all_alike(write: Write, tmp_path: Path) -> None:
    drifting = made(write, tmp_path / "a", jobs=[job(training={"drift_per_hour": 2.0})])
    early, late = steps(drifting, "compute_s", *USUAL), steps(drifting, "compute_s", 500, 600)
    assert 1.12 < late.mean() / early.mean() < 1.35
    uneven = made(
        write, tmp_path / "b", jobs=[job(training={"pipeline_stages": 4, "last_stage_factor": 1.2, "jitter": 0.001})]
    )
    compute = [steps(uneven, "compute_s", *USUAL, rank=rank).mean() for rank in range(NODES * GPUS)]
    assert min(compute[-2:]) > 1.15 * max(compute[:-2])
    varied = made(write, tmp_path / "c", jobs=[job(training={"step_variation": 0.2})])
    assert steps(varied, "step_time_s", *USUAL).std() > 0.1 * steps(varied, "step_time_s", *USUAL).mean()


def test_a_job_that_evaluates_reports_no_step_meanwhile_and_is_labelled(write: Write, tmp_path: Path) -> None:
    telemetry = made(write, tmp_path, jobs=[job(training={"evaluate_every": 30, "evaluate_s": 60})])
    start = telemetry.recording.manifest.start
    spans = [
        ((label.onset - start) / 1000, (label.end - start) / 1000)
        for label in telemetry.recording.labels()
        if "evaluation" in label.id
    ]
    assert spans
    begin, end = spans[0]
    assert len(steps(telemetry, "step_time_s", begin + 1, end)) == 0
    assert telemetry.dcgm(UTIL, begin + 6, end - 6).min() > 90
    assert any("validation loss at iteration" in line for line in lines(telemetry, "job"))


def test_jobs_without_steps_are_seen_in_telemetry_only(write: Write, tmp_path: Path) -> None:
    """Bursts on some GPUs of a node, the others idle; and a job from long before the recording."""
    bursts = {"reports": False, "waits": "idle", "compute_s": 6.0, "data_wait_s": 12.0, "jitter": 0.3, "warm_up": []}
    part = job(id="9", nodes=["t01"], gpus=[1], training=bursts | {"intensity": 0.6, "checkpoint_s": 0})
    old = job(id="8", nodes="t03..t04", submit=-90000, start=-86400)
    telemetry = made(write, tmp_path, jobs=[part, old])
    assert job_of(telemetry, "9").gpus == {"t01": [1]}
    assert set(telemetry.column("steps", "job_id")) == {"8"}
    assert steps(telemetry, "iteration", 0, 600, "8").min() > 38201 + 10_000
    assert steps(telemetry, "step_time_s", 0, 30, "8").size >= 4
    gpu = telemetry.column("dcgm", "gpu")
    node = np.array(telemetry.column("dcgm", "node"))
    seconds = telemetry.seconds("dcgm")
    util = telemetry.column("dcgm", UTIL)
    busy = util[(node == "t01") & (gpu == 1) & (seconds > 60)]
    assert (busy < 10).mean() > 0.2
    assert (busy > 90).mean() > 0.1
    assert util[(node == "t01") & (gpu == 0)].max() == 0


def test_effects_find_jobs_by_id_or_by_node() -> None:
    from services.synth.jobs.pace import Fate

    course = Course.between(100.0, 200.0)
    effects = Effects(
        [
            Effect("job.halted", np.array([2]), 1.0, course),
            Effect("job.ended", np.array([2]), 1.0, course, {"state": "NODE_FAIL"}),
            Effect("node.collective_factor", np.array([1, 5]), 3.0, course),
            Effect("node.data_wait_factor", np.array([0, 1, 2]), 4.0, course, {"mount": "/a"}),
            Effect("job.loss_factor", np.array([], dtype=np.int64), 2.0, course, {"job": "7"}),
        ]
    )
    there, elsewhere = Fate(effects, "7", np.array([1, 2]), "/a", "/a"), Fate(effects, "8", np.array([3]), "/b", "/b")
    assert there.halts
    assert not elsewhere.halts
    assert there.resumed(90.0, 105.0) == pytest.approx(205.0, abs=0.1)
    assert elsewhere.resumed(90.0, 105.0) == 105.0
    end = there.first_end(0.0)
    assert end is not None
    assert (end.state, end.node, end.at) == ("NODE_FAIL", 2, 100.0)
    assert elsewhere.first_end(0.0) is None
    assert there.collective.worst(150.0) == pytest.approx(3.0)
    assert there.collective.worst(99.0) == 1.0
    assert there.data_wait.at(150.0) == pytest.approx([4.0, 4.0])
    assert there.loss(150.0) == (2.0, 1.0)
    assert elsewhere.loss(150.0) == (1.0, 1.0)


@pytest.mark.parametrize(
    ("jobs", "complaint"),
    [
        ([job(), job()], "jobs.1: there is a job 812 already"),
        ([job(after="813")], "jobs.0.after: there is no other job 813"),
        ([job(after="812")], "jobs.0.after: there is no other job 812"),
        ([job(state="VANISHED")], "jobs.0.state"),
    ],
)
def test_wrong_jobs_are_refused_by_field(write: Write, jobs: list[dict[str, Any]], complaint: str) -> None:
    with pytest.raises(UserError) as caught:
        load_scenario(write({"jobs": jobs}))
    assert complaint in caught.value.message


@given(
    start=st.floats(0, 1000),
    length=st.floats(1, 5000),
    ramp_s=st.floats(0, 6000),
    period_s=st.one_of(st.none(), st.floats(5, 900)),
    duty=st.floats(0.1, 0.9),
)
def test_the_spans_of_a_course_are_where_it_acts(
    start: float, length: float, ramp_s: float, period_s: float | None, duty: float
) -> None:
    course = Course.between(start, start + length, ramp_s=ramp_s, period_s=period_s, duty=duty)
    spans = course.spans()
    assert spans[0][0] == course.start
    assert spans[-1][1] == course.end
    for begin, end in spans:
        assert course.level(np.linspace(begin, end, 50)[1:-1]).min() > 0
    for (_, end), (begin, _) in pairwise(spans):
        assert end < begin
        assert course.level(np.array((begin + end) / 2)) == 0
