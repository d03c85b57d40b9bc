"""Jobs whose log alone reports their iterations: what its lines say, what is found by them, and when they count."""

import math
from dataclasses import replace

import numpy as np
import pytest

from detectors.contract import Finding, LogRecord
from detectors.fleet.fleet import JobEvent
from detectors.job_health.detector import JobHealth
from detectors.job_health.examples import (
    ENTITY,
    JOB,
    WATCHDOG,
    Training,
    Wording,
    from_then,
    hugging_face,
    line,
    megatron,
    nan_from,
    tape_of,
    torchtitan,
)
from detectors.job_health.lines import matter_of
from detectors.job_health.reports import reports_of
from detectors.laws import lines
from detectors.registry import choose
from detectors.tapes.cluster import START
from detectors.tapes.heads import heads
from detectors.tapes.tape import Handling, Tape, play, stretches, take

CHOICES = [choice for choice in choose() if choice[0] is JobHealth]
PRINTED = Training(gathered=False, wording=megatron)
HUNG = replace(PRINTED, print_every=5, hang=(480, 1e9))
RISEN = replace(PRINTED, loss=from_then(420, 1.5))
NAN = math.nan

MEGATRON = (
    " [2026-08-22 10:11:12.123456] iteration     120/  500000 | consumed samples:       245760 | elapsed time per "
    "iteration (ms): 12345.6 | throughput per GPU (TFLOP/s/GPU): 412 | learning rate: 1.500000E-04 | global batch "
    "size:  2048 | lm loss: 2.345678E+00 | loss scale: 1.0 | grad norm: 0.512 | num zeros: 0 | params norm: 1234.567 | "
    "number of skipped iterations:   0 | number of nan iterations:   0 |"
)
NEMO = (
    "0: Training epoch 1, iteration 28/99 | lr: 5.6e-06 | global_batch_size: 32 | global_step: 128 | reduced_train_"
    "loss: 2.778 | train_step_timing in s: 0.189 | consumed_samples: 928 | val_loss: 2.861 | val_ppl: 17.57"
)
DEEPSPEED = (
    "vm-0-1:  iteration       70/     100 | consumed samples: 280 | consumed tokens: 1 | learning rate: 1E-05 | global "
    "batch size:     4 | lm loss: 1.05E+01 | loss scale: 1.0 | actual seqlen:  2048 | number of nan iterations:   0 |"
)
OVERFLOWN = (
    " iteration  3/ 10 | loss scale: 65536.0 | number of skipped iterations:   1 | number of nan iterations:   {} |"
)
BAR = "Epoch 3:  45%|####5     | 450/1000 [01:23<01:42,  5.37it/s, v_num=12, val_loss=0.7, train_loss={}]"
DRAWN = "\r 10%|# | 9/100 [00:09<01:31,  1.0s/it]\r {'loss': 0.5, 'learning_rate': 1e-4, 'epoch': 0.1}\r"


@pytest.mark.parametrize(
    ("text", "rank", "iteration", "size", "loss", "norm"),
    [
        (MEGATRON, NAN, 120, 2048, 2.345678, 0.512),
        (MEGATRON.replace("2.345678E+00", "NAN"), NAN, 120, 2048, NAN, 0.512),
        (megatron(120, NAN, NAN), NAN, 120, 512, NAN, NAN),
        (OVERFLOWN.format(1), NAN, 3, NAN, NAN, None),
        (OVERFLOWN.format(0), NAN, 3, NAN, None, None),
        (" iteration  3/ 10 | lm-loss: 4.1E+00 | loss scale: -1.0 |", NAN, 3, NAN, 4.1, None),
        (" samples/sec: 22.3 | iteration  100/ 320 | lm_loss: 6.338E+00 | loss scale: 1 |", NAN, 100, NAN, 6.338, None),
        (DEEPSPEED, NAN, 70, 8192, 10.5, None),
        (NEMO, 0, 128, 32, 2.778, None),
        ("[default7]:" + NEMO[3:], 7, 128, 32, 2.778, None),
        ("steps: 20 loss: 2.1234 iter time (s): 0.512 samples/sec: 31.250", NAN, 20, NAN, 2.1234, None),
        ("{'loss': 1.7, 'grad_norm': 2.87, 'learning_rate': 2e-05, 'epoch': 0.16}", NAN, NAN, NAN, 1.7, 2.87),
        ("{'loss': '1.7', 'grad_norm': 'inf', 'learning_rate': '2e-05'}", NAN, NAN, NAN, 1.7, math.inf),
        ("{'loss': 0.0, 'grad_norm': nan, 'learning_rate': 2e-05, 'epoch': 0.16}", NAN, NAN, NAN, NAN, NAN),
        (DRAWN, NAN, NAN, NAN, 0.5, None),
        (torchtitan(20, 7.1301, 1.25), 0, 20, NAN, 7.1301, 1.25),
        ("[rank3]: step:  1  loss: -1.00000  grad_norm:  1.0000", 3, 1, NAN, -1, 1),
        ("1|52|Loss: 1.08936297893:   1%|5   | 52/5000 [00:10<..., 2it/s]", NAN, 52, NAN, 1.08936297893, None),
        (BAR.format(0.432), NAN, 3450, NAN, 0.432, None),
        (BAR.format("nan.0"), NAN, 3450, NAN, NAN, None),
        ("completed step: 12, seconds: 1.15, total_weights: 9, loss: 3.010, lm_loss: 3.000", NAN, 12, NAN, 3.01, None),
        ("iter 100: loss 2.4512, time 320.11ms, mfu 12.30%", NAN, 100, NAN, 2.4512, None),
        ("step:5/5100 train_loss:10.8258 train_time:300ms step_avg:nanms", NAN, 5, NAN, 10.8258, None),
        ('{"epoch": 1, "loss": "7.1", "gnorm": "1.2", "num_updates": "100"}', NAN, 100, NAN, 7.1, 1.2),
        ("validation loss at iteration 500 | lm loss value: 1.9E+00 | lm loss PPL: 6.7 |", NAN, 500, NAN, None, None),
        ("Validating: iteration 3/16 | global_step: 128 | reduced_train_loss: 2.9", NAN, 128, NAN, None, None),
        ("eval metrics after step: 12, loss=2.3, total_weights=100", NAN, 12, NAN, None, None),
        ("step 1000: train loss 2.1, val loss 2.3", NAN, 1000, NAN, None, None),
        ("{'eval_loss': 1.2, 'eval_runtime': 3.4, 'epoch': 1.0}", NAN, NAN, NAN, None, None),
        ("{'train_runtime': 19.9, 'train_loss': 1.5, 'epoch': 4.0}", NAN, NAN, NAN, None, None),
        ("step 3 aux_loss: 0.1 balancing loss: 0.2 loss 0.9e", NAN, 3, NAN, None, None),
        ("loss: 0.5 step: 3", NAN, 3, NAN, 0.5, None),
        ("loss: 0.5", NAN, NAN, NAN, None, None),
    ],
)  # fmt: skip
def test_what_frameworks_print(
    text: str, rank: float, iteration: float, size: float, loss: float | None, norm: float | None
) -> None:
    reports = reports_of(["nothing of interest", text, " iteration 77/ 88 | lm loss: 9.0 | grad norm: 8.0 |"])
    assert (reports.rank[1], reports.iteration[1], reports.size[1]) == pytest.approx(
        (rank, iteration, size), nan_ok=True
    )
    for name, value in (("loss", loss), ("grad_norm", norm)):
        assert reports.valid[name].tolist() == [False, value is not None, True]
        assert value is None or reports.values[name][1] == pytest.approx(value, nan_ok=True)


def run(tape: Tape, handling: Handling | None = None) -> list[Finding]:
    return play(tape, CHOICES, handling or Handling())[0]


@pytest.mark.parametrize("wording", [megatron, hugging_face, torchtitan])
def test_a_loss_that_jumps_is_found_by_what_the_job_prints(wording: Wording) -> None:
    (fired,) = run(tape_of(replace(RISEN, wording=wording)))
    assert (fired.fault, dict(fired.entity), fired.state) == ("loss_anomaly", ENTITY, "firing")
    assert abs(fired.started_at - START - 420_000) <= 10_000
    assert fired.detected_at - START <= 420_000 + 150_000
    assert float(fired.evidence["loss"]) / float(fired.evidence["loss_before"]) == pytest.approx(1.5, rel=0.08)


@pytest.mark.parametrize("print_every", [5, 20])
def test_lines_that_are_far_apart_take_eight(print_every: int) -> None:
    slow = replace(RISEN, print_every=print_every, minutes=90, loss=from_then(3600, 1.5), gpus_reported=False)
    (fired,) = run(tape_of(slow))
    assert 0 < fired.detected_at - START - 3_600_000 <= max(150_000, 8 * print_every * 4040 + 5000)


@pytest.mark.parametrize("wording", [megatron, hugging_face, torchtitan])
def test_a_loss_that_is_no_number_is_named_at_its_second_line(wording: Wording) -> None:
    (fired,) = run(tape_of(replace(PRINTED, wording=wording, loss=nan_from(420), grad=nan_from(420))))
    assert (fired.fault, fired.severity) == ("loss_anomaly", "page")
    assert fired.detected_at - START <= 420_000 + 15_000


@pytest.mark.parametrize("wording", [megatron, hugging_face, torchtitan])
@pytest.mark.parametrize(
    "training",
    [
        replace(PRINTED, noise=0.15, minutes=30),
        replace(PRINTED, loss=from_then(420, 7.0, 432), grad=from_then(420, 50, 432)),
        replace(PRINTED, loss=from_then(420, 3.0, 490), grad=from_then(420, 20, 490)),
        replace(PRINTED, loss=lambda at, value: value * (4 - at / 400), noise=0.03),
        replace(PRINTED, pauses=[(300, 530)]),
        replace(PRINTED, evaluations=[(300, 840)]),
        replace(PRINTED, ends_at=600),
    ],
    ids=["a noisy loss", "three bad steps", "a spike", "a young model", "a checkpoint", "an evaluation", "its end"],
)
def test_what_is_printed_of_a_job_that_is_well(training: Training, wording: Wording) -> None:
    assert run(tape_of(replace(training, wording=wording))) == []


def test_a_loss_that_comes_back_is_over() -> None:
    tape = tape_of(replace(PRINTED, loss=from_then(420, 1.5, 700), minutes=20))
    assert [finding.state for finding in run(tape)] == ["firing", "resolved"]


@pytest.mark.parametrize("training", [RISEN, HUNG, replace(RISEN, wording=hugging_face)])
def test_lines_in_any_batch_late_twice_and_after_a_crash_give_the_same(training: Training) -> None:
    tape = tape_of(training)
    cuts = [START + round(1000 * at) for at in (3.3, 301.1, 421.7, 424.2, 493.9, 512.0, 700.1)]
    whole = lines(run(tape))
    assert whole
    assert lines(run(tape, Handling(cuts, seed=3, carried=True))) == whole
    twice = replace(tape, logs=[record for record in tape.logs for _ in range(2)])
    assert lines(run(twice, Handling(cuts, seed=4))) == whole


def _gathered(training: Training) -> tuple[Tape, Tape]:
    """Return a tape with steps alone, and one whose log reports something else beside them."""
    alone = tape_of(replace(training, gathered=True, wording=None))
    wrong = tape_of(replace(training, loss=from_then(300, 9.0), grad=from_then(300, 9.0), hang=(200, 1e9), seed=9))
    return alone, replace(alone, logs=wrong.logs)


@pytest.mark.parametrize("training", [PRINTED, RISEN, replace(PRINTED, hang=(480, 1e9)), replace(HUNG, losses=True)])
def test_steps_that_are_gathered_count_alone(training: Training) -> None:
    alone, both = _gathered(training)
    assert len(both.logs) > len(alone.logs)
    assert lines(run(both)) == lines(run(alone))


def test_steps_with_a_loss_and_no_gradient_count_alone() -> None:
    alone, both = _gathered(PRINTED)
    (rows, dcgm) = alone.rows
    no_gradient = replace(rows, valid={**rows.valid, "grad_norm": np.zeros(len(rows.times), bool)})
    assert run(replace(both, rows=[no_gradient, dcgm])) == []


def test_steps_without_a_loss_leave_it_to_the_log_and_keep_the_pace() -> None:
    without = replace(RISEN, gathered=True, losses=False)
    assert [finding.fault for finding in run(tape_of(without))] == ["loss_anomaly"]
    few = tape_of(replace(PRINTED, hang=(200, 1e9))).logs
    assert run(replace(tape_of(replace(without, wording=None)), logs=few)) == []


def test_steps_that_are_gathered_later_begin_anew() -> None:
    tape = tape_of(replace(HUNG, gathered=True, minutes=20, hang=(800, 1e9)))
    (steps, dcgm) = tape.rows
    later = replace(tape, rows=[take(steps, np.flatnonzero(steps.times > START + 400_000)), dcgm])
    (fired,) = run(later)
    assert "made no step" in fired.summary
    assert float(fired.evidence["usual_step_at_most_s"]) == pytest.approx(4, rel=0.3)
    assert fired.detected_at - START <= 800_000 + 190_000


def test_pauses_between_lines_are_not_learnt_as_pauses_between_steps() -> None:
    tape = tape_of(replace(PRINTED, print_every=3, pauses=[(200, 300), (500, 600)]))
    *_, (_, engine) = stretches(tape, CHOICES, Handling())
    (detector,) = engine._detectors
    assert isinstance(detector, JobHealth)
    assert detector.tails["pause_s"].total == 0
    assert detector._steps.pauses.max() > 90_000


def test_the_lowest_rank_that_prints_a_loss_is_heard() -> None:
    last = tape_of(PRINTED)
    first = [replace(one, rank=0) for one in tape_of(RISEN).logs]
    unknown = [replace(one, rank=None) for one in tape_of(RISEN).logs]
    by_prefix = [replace(one, message=f"[rank0]:{one.message}") for one in unknown]
    assert len(run(replace(last, logs=[*last.logs, *first]))) == 1
    assert len(run(replace(last, logs=[*last.logs, *by_prefix]))) == 1
    assert run(replace(last, logs=[*last.logs, *unknown])) == []


def test_jobs_of_several_frameworks_are_each_judged_by_their_own() -> None:
    tapes = {job: tape_of(one) for job, one in (("1", RISEN), ("2", replace(RISEN, wording=hugging_face)),
                                                ("3", replace(PRINTED, wording=torchtitan)))}  # fmt: skip
    logs = [replace(one, job_id=job) for job, tape in tapes.items() for one in tape.logs]
    (start,) = tapes["1"].jobs
    jobs = [JobEvent(start.at, "start", replace(start.job, job_id=job)) for job in tapes]
    found = run(replace(tapes["1"], logs=logs, jobs=jobs, rows=[]))
    assert sorted(str(one.entity["job_id"]) for one in found) == ["1", "2"]


def test_a_line_without_a_job_is_that_of_the_job_on_its_node() -> None:
    tape = tape_of(RISEN)
    nameless = replace(tape, logs=[replace(one, job_id=None) for one in tape.logs])
    assert lines(run(nameless)) == lines(run(tape))
    assert run(replace(tape, logs=[replace(one, job_id=None, node=None) for one in tape.logs])) == []


def test_a_job_that_nothing_else_names_is_judged_and_forgotten() -> None:
    tape = replace(tape_of(RISEN), jobs=[], rows=[])
    (fired,) = run(tape)
    assert dict(fired.entity) == ENTITY
    later = [LogRecord(tape.end + n * 600_000, "kernel", "nothing of interest") for n in range(1, 20)]
    *_, (_, engine) = stretches(replace(tape, end=later[-1].at, logs=[*tape.logs, *later]), CHOICES, Handling())
    (detector,) = engine._detectors
    assert f'"{JOB}"'.encode() not in heads(detector.snapshot())


@pytest.mark.parametrize("spinning", [True, False])
def test_a_job_whose_lines_stop_hangs_where_its_gpus_do_not_work(spinning: bool) -> None:
    (fired,) = run(tape_of(replace(HUNG, spinning=spinning)))
    assert (fired.fault, dict(fired.entity)) == ("job_hang", ENTITY)
    assert abs(fired.started_at - START - 480_000) <= 20_000
    assert fired.detected_at - START <= 480_000 + (215_000 if spinning else 300_000)
    assert "printed no step" in fired.summary
    assert float(fired.evidence["usual_line_s"]) == pytest.approx(20, rel=0.2)


@pytest.mark.parametrize("lines_at", [(), (479.5, 481.0)], ids=["nothing", "a checkpoint"])
def test_lines_of_a_job_without_known_nodes_are_those_of_the_job_that_was_found_there(
    lines_at: tuple[float, ...],
) -> None:
    tape = tape_of(HUNG)
    (start,) = tape.jobs
    found = JobEvent(start.at, "start", replace(start.job, job_id="inferred-v001"))
    printed = [line(at, "saving checkpoint at iteration 100 to /ckpt", node="v001") for at in lines_at]
    fired = run(replace(tape, jobs=[found], logs=sorted([*tape.logs, *printed], key=lambda one: one.at)))
    assert [dict(one.entity) for one in fired] == ([] if printed else [{"node": "v001"}])
    assert not fired or "printed no step" in fired[0].summary
    other = JobEvent(start.at, "start", replace(start.job, job_id="813"))
    assert "printed no step" not in str(run(replace(tape, jobs=[other])))


@pytest.mark.parametrize(
    "training",
    [
        replace(HUNG, gpus_reported=False),
        replace(HUNG, spinning=False, freed_at=479),
        replace(HUNG, spinning=False, lines=[line(480, "{'train_runtime': 480.1, 'train_loss': 1.5, 'epoch': 3.0}")]),
        replace(HUNG, spinning=False, lines=[line(480, "`Trainer.fit` stopped: `max_epochs=3` reached.")]),
    ],
    ids=["GPUs are not seen", "memory is free", "Hugging Face says done", "Lightning says done"],
)
def test_lines_that_stop_for_a_reason(training: Training) -> None:
    assert run(tape_of(training)) == []


def test_a_hang_by_lines_is_over_when_they_go_on() -> None:
    tape = tape_of(replace(HUNG, hang=(480, 800), minutes=24))
    assert [(one.fault, one.state) for one in run(tape)] == [("job_hang", "firing"), ("job_hang", "resolved")]


@pytest.mark.parametrize(("at_s", "fires_s"), [(540, 765), (640, 640)], ids=["a peer died", "it waited"])
def test_the_watchdog_is_believed_however_far_lines_are_apart_once_gpus_have_not_worked_for_minutes(
    at_s: float, fires_s: float
) -> None:
    tape = tape_of(replace(HUNG, print_every=50, lines=[line(at_s, WATCHDOG)]))
    (fired,) = run(tape)
    assert fired.detected_at == START + 1000 * fires_s


@pytest.mark.parametrize(
    ("message", "matter"),
    [
        (WATCHDOG, "watchdog"),
        ("saving checkpoint at iteration   14100 to /scale/ckpt/granite", "saving"),
        ("  successfully saved checkpoint at iteration   14100 to /scale/ckpt", "saved"),
        ("  successfully loaded checkpoint from /scale/ckpt at iteration 14000", "loading"),
        ("> initialized 512 ranks, NCCL ready", "loading"),
        ("validation loss at iteration 14100 | lm loss value: 1.9 |", "evaluating"),
        (" iteration    500/    500 | consumed samples: 2048 |", "over"),
        ("step:5100/5100 val_loss:3.2783", "over"),
        (" iteration    100/    500 | consumed samples: 2048 |", None),
        ("hello", None),
    ],
)
def test_lines_of_jobs(message: str, matter: str | None) -> None:
    assert matter_of(message) == matter
