"""job_health on what jobs do: hang and diverge in many ways, and pause and wander in ways that look like it."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import Finding
from detectors.engine.rows import KeyColumn, Rows
from detectors.fleet.fleet import JobEvent
from detectors.job_health.detector import JobHealth
from detectors.job_health.examples import (
    ENTITY,
    HUNG,
    WATCHDOG,
    Change,
    Training,
    from_then,
    line,
    nan_from,
    tape_of,
)
from detectors.registry import choose
from detectors.tapes.cluster import START, name
from detectors.tapes.tape import Tape, play

STEADY = Training()


def run(tape: Tape, **overrides: Any) -> list[Finding]:
    choices = [c for c in choose({"job_health": overrides}) if c[0] is JobHealth]
    return play(tape, choices)[0]


def found(tape: Tape, **overrides: Any) -> list[tuple[str, str]]:
    return [(finding.fault, finding.state) for finding in run(tape, **overrides)]


def fired_after_s(tape: Tape, onset_s: float) -> float:
    (fired,) = [finding for finding in run(tape) if finding.state == "firing"]
    return (fired.detected_at - START) / 1000 - onset_s


def test_a_hang_is_named_with_its_evidence_and_ends_with_the_job() -> None:
    fired, resolved = run(tape_of(replace(HUNG, ends_at=850)))
    assert (fired.fault, dict(fired.entity), fired.state) == ("job_hang", ENTITY, "firing")
    assert abs(fired.started_at - START - 480_000) <= 5_000
    assert 480_000 < fired.detected_at - START <= 480_000 + 190_000
    evidence = fired.evidence
    assert float(evidence["power_w"]) == pytest.approx(150, rel=0.1)
    assert float(evidence["power_in_steps_w"]) == pytest.approx(600, rel=0.1)
    assert float(evidence["gpu_util_percent"]) == 100
    assert float(evidence["usual_step_at_most_s"]) == pytest.approx(4, rel=0.3)
    assert (resolved.state, resolved.id) == ("resolved", fired.id)
    assert START + 850_000 <= resolved.detected_at <= START + 860_000
    assert "ended" in resolved.summary


def test_a_hang_that_goes_on_by_itself_is_over_and_no_pause_learnt() -> None:
    tape = tape_of(replace(STEADY, hang=(480, 760), minutes=24))
    assert found(tape) == [("job_hang", "firing"), ("job_hang", "resolved")]


@pytest.mark.parametrize("steps", [{"step_s": 0.5}, {"step_s": 2.0}, {"step_s": 10.0}, {"evaluations": [(100, 345)]}])
def test_the_patience_of_gpus_that_spin_hangs_neither_on_the_step_time_nor_on_evaluations(steps: Any) -> None:
    assert fired_after_s(tape_of(replace(HUNG, **steps)), 480) <= 290


@pytest.mark.parametrize("interval_s", [5.0, 15.0, 30.0, 60.0])
def test_cadences(interval_s: float) -> None:
    assert fired_after_s(tape_of(replace(HUNG, interval_s=interval_s)), 480) <= 290


def test_idle_or_unseen_gpus_get_more_time() -> None:
    assert fired_after_s(tape_of(replace(HUNG, spinning=False)), 480) == pytest.approx(280, abs=12)
    assert fired_after_s(tape_of(replace(HUNG, gpus_reported=False)), 480) == pytest.approx(280, abs=12)


@pytest.mark.parametrize(
    ("changes", "patience_s", "severity"),
    [({}, 150, "page"), ({"spinning": False}, 900, "info"), ({"gathered": False, "gpus": 8}, 900, "info")],
)
def test_a_job_on_one_node_that_idles_or_reports_no_steps_may_have_a_user(
    changes: Mapping[str, Any], patience_s: float, severity: str
) -> None:
    tape = tape_of(replace(replace(HUNG, nodes=1, minutes=30), **changes))
    assert fired_after_s(tape, 480) == pytest.approx(patience_s, abs=20)
    assert run(tape)[0].severity == severity


def test_the_watchdog_is_believed_at_once() -> None:
    tape = tape_of(replace(HUNG, lines=[line(540, WATCHDOG), line(541, WATCHDOG)]))
    assert fired_after_s(tape, 540) == 0
    assert found(tape) == [("job_hang", "firing")]


def test_the_watchdog_of_a_job_that_goes_on_is_not_believed() -> None:
    assert found(tape_of(replace(STEADY, lines=[line(540, WATCHDOG)]))) == []


XID = "NVRM: Xid (PCI:0000:05:00): 79, pid='<unknown>', name=<unknown>, GPU has fallen off the bus."


@pytest.mark.parametrize(
    "training",
    [
        replace(HUNG, lines=[line(479, XID, "kernel", "v001"), line(560, WATCHDOG)]),
        replace(HUNG, lines=[line(479, "mlx5_core 0000:9a:00.0 mlx5_3: Link down", "kernel", "v002")]),
        replace(HUNG, lines=[line(550, "slurmctld: error: Nodes v002 not responding", "scheduler")]),
        replace(HUNG, lines=[line(479, "Fatal SXid 20034", "fabricmanager", "v001")]),
        replace(HUNG, dead_node_at=478),
        replace(HUNG, dead_node_at=478, lines=[line(600, WATCHDOG)]),
        replace(HUNG, lines=[line(478, " iteration 100/ 100 | consumed samples: 1")]),
        replace(HUNG, ends_at=600),
        replace(HUNG, spinning=False, freed_at=479),
        replace(HUNG, freed_at=479, left_mib=15_000),
        replace(HUNG, spinning=False, lines=[line(480, "Job <812>: Done successfully.", "scheduler")]),
        replace(HUNG, spinning=False, lines=[line(480, "_job_complete: JobId=812 WEXITSTATUS 1", "scheduler")]),
        replace(STEADY, evaluations=[(300, 840)]),
        replace(STEADY, light=[(300, 540)]),
        replace(STEADY, light=[(300, 900)]),
        replace(STEADY, light=[(300, 640)], pauses=[(299, 840)]),
        replace(STEADY, pauses=[(300, 530)]),
        replace(STEADY, pauses=[(300, 840)], announced=True),
        replace(STEADY, pauses=[(100, 320), (420, 690)]),
        replace(HUNG, hang=(10, 1e9)),
        replace(HUNG, lines=[line(476, "INFO dataset: epoch finished, reshuffling and rebuilding index")]),
    ],
    ids=["xid", "link down", "scheduler", "fabric manager", "dead node", "dead node with watchdog", "at its end",
         "ends in time", "memory is free", "another's memory", "LSF says done", "Slurm says complete", "evaluation",
         "light evaluation", "long light evaluation", "evaluation and checkpoint", "short checkpoint",
         "announced checkpoint", "longer pauses", "before it ran", "epoch"],
)  # fmt: skip
def test_what_stands_still_for_a_reason(training: Training) -> None:
    assert found(tape_of(training)) == []


def test_an_old_or_harmless_line_excuses_nothing() -> None:
    old, recorded = line(120, XID, "kernel", "v001"), line(479, XID.replace(" 79,", " 63,"), "kernel", "v001")
    killed = line(479, "Out of memory: Killed process 4187 (python) total-vm:41kB", "kernel", "v001")
    lines = [old, recorded, killed, line(479, XID, "kernel", "v009")]
    assert found(tape_of(replace(HUNG, lines=lines))) == [("job_hang", "firing")]


def test_a_job_that_is_not_known_to_run_does_not_hang() -> None:
    tape = tape_of(HUNG)
    assert found(replace(tape, jobs=[])) == []


@pytest.mark.parametrize("at_work", [True, False])
def test_gpus_that_compute_have_not_stopped_whatever_they_draw_when_they_are_scraped(at_work: bool) -> None:
    tape = tape_of(replace(STEADY, minutes=24, hang=(480, 1000)))
    (dcgm,) = [rows for rows in tape.rows if rows.kind == "dcgm"]
    scrape = (dcgm.times - START) // 10_000
    in_turn = 0.3 * (scrape % 2) if at_work else np.zeros(len(scrape))
    tensor = np.where((scrape >= 48) & (scrape < 100), in_turn, 0.3)
    field = "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE"
    values, valid = {**dcgm.values, field: tensor}, {**dcgm.valid, field: np.isfinite(tensor)}
    alone = replace(tape, rows=[replace(dcgm, values=values, valid=valid)])
    assert [fault for fault, state in found(alone) if state == "firing"] == ([] if at_work else ["job_hang"])


@pytest.mark.parametrize(("clock", "expected"), [(1050.0, []), (1410.0, ["job_hang"]), (np.nan, ["job_hang"])])
def test_gpus_that_a_power_cap_holds_down_do_not_spin(clock: float, expected: list[str]) -> None:
    """Their power stands at the cap, without a wobble, and no tensor activity is read."""
    tape = tape_of(STEADY)
    (dcgm,) = [rows for rows in tape.rows if rows.kind == "dcgm"]
    capped = dcgm.times >= START + 480_000
    power, sm_clock = "DCGM_FI_DEV_POWER_USAGE", "DCGM_FI_DEV_SM_CLOCK"
    values = {
        **dcgm.values,
        power: np.where(capped, 250.0, dcgm.values[power]),
        sm_clock: np.where(capped, clock, 1410.0),
    }
    valid = {**dcgm.valid, sm_clock: np.isfinite(values[sm_clock])}
    alone = replace(tape, rows=[replace(dcgm, values=values, valid=valid)])
    assert [fault for fault, state in found(alone) if state == "firing"] == expected


def test_steps_of_every_job_that_stop_at_once_are_the_collectors_fault() -> None:
    tape = tape_of(replace(HUNG, gpus_reported=False))
    (steps,) = tape.rows
    both = replace_job(steps, ("812", "813"))
    started = [*tape.jobs, JobEvent(tape.jobs[0].at, "start", replace(tape.jobs[0].job, job_id="813"))]
    assert found(replace(tape, rows=[both], jobs=started)) == []


@pytest.mark.parametrize(("saved", "spins", "patience_s"), [(True, True, 300), (False, True, 600), (True, False, 600)])
def test_who_spins_in_a_checkpoint_and_saved_before_gets_less_time(saved: bool, spins: bool, patience_s: int) -> None:
    lines = [line(begin, "saving checkpoint at iteration 100 to /scale/ckpt") for begin in (200.5, 700.5)]
    done = [line(225, "  successfully saved checkpoint at iteration 100 to /scale/ckpt")] if saved else []
    lines = [*lines[:1], *done, *lines[1:]]
    hung = replace(STEADY, minutes=25, pauses=[(200, 225)], hang=(700, 1500), lines=lines, spinning=spins)
    assert patience_s <= fired_after_s(tape_of(hung), 700) <= patience_s + 20


STOPS = [("inferred-a", 480, 0), ("inferred-a", None, 1), ("8", 480, 1)]


@pytest.mark.parametrize(("job_id", "dead_at", "hangs"), STOPS)
def test_an_inferred_job_that_stops_as_a_node_dies_waits_for_that_node(
    job_id: str, dead_at: float | None, hangs: int
) -> None:
    tape = tape_of(replace(HUNG, gathered=False, nodes=3, gpus=8, dead_node_at=dead_at))
    (started,) = tape.jobs
    one = replace(started, job=replace(started.job, job_id=job_id, nodes=started.job.nodes[:2]))
    assert [fault for fault, state in found(replace(tape, jobs=[one])) if state == "firing"] == ["job_hang"] * hangs


@pytest.mark.parametrize(("names", "called"), [(("812",), {"job_id": "812"}), (("812", "813"), {"node": name(0)})])
def test_an_inferred_job_is_called_as_the_only_one_of_unknown_nodes_whose_steps_ended_with_it(
    names: tuple[str, ...], called: dict[str, str]
) -> None:
    tape = tape_of(replace(HUNG, minutes=30, hang=(600, 1200)))
    (started,), (steps, gpus) = tape.jobs, tape.rows
    inferred = replace(started, job=replace(started.job, job_id="inferred-a"))
    findings = run(replace(tape, rows=[replace_job(steps, names), gpus], jobs=[inferred]))
    states = [(dict(finding.entity), finding.state) for finding in findings]
    assert states == [(called, "firing"), (called, "resolved")]
    assert ("inferred" in findings[0].summary, "v001" in findings[0].summary) == (False, "node" in called)
    assert findings[1].detected_at < START + 1_300_000


def replace_job(steps: Any, names: tuple[str, ...]) -> Any:
    """Return the steps as those of several jobs."""
    count = len(steps.times)
    order = np.argsort(np.tile(steps.times, len(names)), kind="stable")
    jobs = np.repeat(np.arange(len(names)), count)[order]
    rank = np.tile(steps.keys["rank"].codes, len(names))[order]
    kind = type(steps.keys["rank"])
    keys = {"job_id": kind(jobs, names), "rank": kind(rank, steps.keys["rank"].categories)}
    values = {field: np.tile(column, len(names))[order] for field, column in steps.values.items()}
    valid = {field: np.tile(column, len(names))[order] for field, column in steps.valid.items()}
    return type(steps)("steps", np.tile(steps.times, len(names))[order], keys, values, valid)


@pytest.mark.parametrize(
    ("factor", "step_s", "noise"), [(1.4, 4.0, 0.01), (7, 4.0, 0.07), (7, 0.5, 0.07), (1.5, 10.0, 0.03)]
)
def test_a_loss_that_jumps_and_stays_is_named_with_its_figures(factor: float, step_s: float, noise: float) -> None:
    (fired,) = run(tape_of(replace(STEADY, loss=from_then(420, factor), step_s=step_s, noise=noise)))
    assert (fired.fault, dict(fired.entity)) == ("loss_anomaly", ENTITY)
    assert abs(fired.started_at - START - 420_000) <= 10_000
    assert float(fired.evidence["loss"]) / float(fired.evidence["loss_before"]) == pytest.approx(factor, rel=0.08)
    assert fired.detected_at - START <= 420_000 + 150_000
    assert "by chance" in str(fired.evidence["by_chance"])


@pytest.mark.parametrize("step_s", [45.0, 80.0])
def test_long_steps_take_eight(step_s: float) -> None:
    tape = tape_of(replace(STEADY, loss=from_then(5400, 7), step_s=step_s, minutes=120, gpus_reported=False))
    (fired,) = run(tape)
    assert 5400_000 < fired.detected_at - START <= 5_400_000 + 8 * step_s * 1000 + 5000


SPARSE = replace(STEADY, step_s=12.0, losses_every=12, minutes=75, gpus_reported=False)


def test_of_losses_that_every_twelfth_step_reports_three_are_enough() -> None:
    (fired,) = run(tape_of(replace(SPARSE, loss=from_then(2800, 2.6))))
    assert 2_800_000 < fired.detected_at - START <= 2_800_000 + 3 * 12 * 12_500


def test_one_report_of_a_high_loss_is_nothing_however_rare_reports_are() -> None:
    assert run(tape_of(replace(SPARSE, loss=from_then(2800, 2.6, 2950)))) == []


def test_a_loss_that_climbs_slowly_is_named() -> None:
    tape = tape_of(replace(STEADY, loss=from_then(400, 1.5, ramp_s=600), minutes=25))
    assert found(tape) == [("loss_anomaly", "firing")]


def test_a_gradient_that_is_ten_times_as_large_and_stays_is_named() -> None:
    (fired,) = run(tape_of(replace(STEADY, grad=from_then(720, 10))))
    assert fired.score < 0.7
    assert "gradient" in fired.summary
    assert float(fired.evidence["grad_norm"]) > 8 * float(fired.evidence["grad_norm_before"])


def test_steps_that_waited_for_a_moment_are_no_other_work() -> None:
    slow = from_then(660, 0.55, 685)
    (fired,) = run(tape_of(replace(STEADY, grad=from_then(720, 10), tokens=slow)))
    assert "gradient" in fired.summary


def test_loss_and_gradient_that_rise_together_need_less_of_each() -> None:
    assert len(run(tape_of(replace(STEADY, loss=from_then(720, 1.15), grad=from_then(720, 2.2))))) == 1
    assert run(tape_of(replace(STEADY, loss=from_then(720, 1.15)))) == []
    assert run(tape_of(replace(STEADY, grad=from_then(720, 2.2)))) == []


def test_a_loss_that_comes_back_is_over() -> None:
    tape = tape_of(replace(STEADY, loss=from_then(420, 1.4, 700), minutes=20))
    assert found(tape) == [("loss_anomaly", "firing"), ("loss_anomaly", "resolved")]


def test_a_few_steps_of_nan_are_named_soon_and_over_when_they_are() -> None:
    found_all = run(tape_of(replace(STEADY, loss=nan_from(420, 600))))
    assert [finding.state for finding in found_all] == ["firing", "resolved"]
    assert found_all[0].detected_at - START <= 435_000
    assert int(found_all[0].evidence["steps_not_a_number"]) <= 3


def recovering(by: float, steps: int) -> Change:
    """Return a jump at 2,000 s that is down to a third after some steps of 18 s."""
    return lambda at, value: value * (1 + by * np.exp(-np.maximum(at - 2000, 0) / (18 * steps)) * (at >= 2000))


@pytest.mark.parametrize(
    "training",
    [
        replace(STEADY, loss=from_then(420, 3.0, 490), grad=from_then(420, 20, 490)),
        replace(STEADY, loss=from_then(420, 7.0, 432), grad=from_then(420, 50, 432)),
        replace(STEADY, loss=from_then(420, 1.1)),
        replace(STEADY, loss=nan_from(420, 424)),
        replace(STEADY, grad=nan_from(300, 400)),
        replace(STEADY, step_s=0.5, loss=from_then(420, 7.0, 440)),
        replace(STEADY, step_s=45, minutes=120, loss=from_then(5400, 7.0, 5400 + 5 * 45), gpus_reported=False),
        replace(STEADY, loss=from_then(420, 1.3), tokens=from_then(420, 2.0)),
        replace(STEADY, loss=from_then(420, 0.5)),
        replace(STEADY, loss=lambda at, value: value * (4 - at / 400), noise=0.03),
        replace(STEADY, noise=0.15, minutes=30),
        replace(STEADY, loss=lambda at, value: value * np.exp(0.6 * np.sin(at / 180)), step_s=20, minutes=120),
        replace(STEADY, loss=lambda at, value: value * 0.01 * np.sin(at), noise=0.1),
        replace(STEADY, loss=lambda at, value: 1.2 * value - np.where(at > 500, 0, at / 2400), back=(500, 110)),
        replace(STEADY, loss=nan_from(0)),
        replace(STEADY, losses=False),
        replace(STEADY, step_s=18, minutes=60, gpus_reported=False, loss=recovering(0.3, 10), grad=recovering(7.0, 6)),
    ],
    ids=["a spike", "three bad steps", "a shift by a tenth", "one step of NaN", "overflows", "a spike of short steps",
         "five long steps", "a longer context", "a drop", "a young model", "a noisy loss", "reinforcement learning",
         "around zero", "back to a checkpoint", "never a number", "no loss",
         "a spike that the optimiser recovers from"],
)  # fmt: skip
def test_losses_that_are_no_anomaly(training: Training) -> None:
    assert found(tape_of(training)) == []


def test_a_course_is_known_on_while_only_steps_take_longer() -> None:
    longer = replace(STEADY, minutes=40, tokens=from_then(700, 1.3, 1300), grad=from_then(1500, 8.0))
    assert 0 < fired_after_s(tape_of(longer), 1500) <= 180


@pytest.mark.parametrize("loss", [nan_from(420), from_then(420, 7.0)])
def test_a_loss_of_a_job_that_nobody_lists_is_one_finding_long_after_its_last_step(loss: Change) -> None:
    tape = tape_of(replace(STEADY, loss=loss, minutes=80, ends_at=700))
    (steps,) = (rows for rows in tape_of(replace(STEADY, minutes=80)).rows if rows.kind == "steps")
    another = replace(steps, keys={**steps.keys, "job_id": replace(steps.keys["job_id"], categories=("another",))})
    assert [state for _, state in found(replace(tape, jobs=[], rows=[*tape.rows, another]))] == ["firing", "resolved"]


def test_a_loss_that_is_no_number_to_the_jobs_end_is_one_finding() -> None:
    spoilt = tape_of(replace(STEADY, loss=nan_from(420), ends_at=700))
    assert found(spoilt) == [("loss_anomaly", "firing"), ("loss_anomaly", "resolved")]


def test_losses_of_every_rank_count_once() -> None:
    tape = tape_of(replace(STEADY, loss=from_then(420, 1.2)))
    steps, dcgm = tape.rows
    everyone = {field: np.ones(len(column), bool) for field, column in steps.valid.items()}
    loss = np.repeat(steps.values["loss"][steps.valid["loss"]], 5)
    grad = np.repeat(steps.values["grad_norm"][steps.valid["loss"]], 5)
    values = dict(steps.values) | {"loss": loss, "grad_norm": grad}
    everywhere = type(steps)("steps", steps.times, steps.keys, values, everyone)
    assert run(replace(tape, rows=[everywhere, dcgm])) == run(tape)


def test_gpus_that_another_job_has_too_prove_no_work() -> None:
    tape = tape_of(replace(STEADY, evaluations=[(480, 1e9)]))
    other = JobEvent(tape.jobs[0].at, "start", replace(tape.jobs[0].job, job_id="900", nodes=("v001",)))
    assert found(tape) == []
    assert found(replace(tape, jobs=[*tape.jobs, other])) == [("job_hang", "firing")]


def test_what_a_gpu_last_read_for_another_job_is_nothing_of_the_one_that_has_it_now() -> None:
    """The next one draws less, without tensor cores: to the last reading of the one before it is a standstill."""
    tape = tape_of(replace(STEADY, hang=(430, 1e9), interval_s=60.0, minutes=30))
    one = tape.jobs[0].job
    following = replace(one, job_id="813", start=START + 429_000)
    jobs = [*tape.jobs, JobEvent(START + 428_000, "end", one), JobEvent(following.start, "start", following)]
    assert found(replace(tape, jobs=jobs)) == []


@pytest.mark.parametrize(
    ("down_s", "expected"), [(470, []), (100, [("job_hang", "firing")]), (1e9, [("job_hang", "firing")])]
)
def test_a_job_that_stands_because_a_link_of_its_node_went_down_does_not_hang(
    down_s: float, expected: list[tuple[str, str]]
) -> None:
    """Without logs a NIC's state says it; one that went down long before the last step stopped nobody."""
    tape = tape_of(HUNG)
    at_s = np.arange(0, HUNG.minutes * 60, 10.0)
    count = len(at_s)
    only = {"node": name(0), "nic": "mlx5_0"}
    keys = {key: KeyColumn(np.zeros(count, np.int64), (value,)) for key, value in only.items()}
    state = {"state": np.where(at_s < down_s, 1.0, 0.0)}
    nic = Rows("nic", START + (1000 * at_s).astype(np.int64), keys, state, {"state": np.ones(count, bool)})
    assert found(replace(tape, rows=[*tape.rows, nic])) == expected
