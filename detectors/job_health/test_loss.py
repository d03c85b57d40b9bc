"""What is remembered of a job's losses when it begins to do other work."""

from dataclasses import replace

import numpy as np
import pytest

from detectors.contract import FloatArray
from detectors.core.tails import Tails
from detectors.job_health.examples import ENTITY, Change, Training, from_then, nan_from, tape_of
from detectors.job_health.loss import Course, Steps
from detectors.job_health.test_detector import STEADY, found, run
from detectors.tapes.gpus import START


def test_a_loss_that_is_no_number_is_found_soon_after_other_work_began() -> None:
    training = replace(Training(), tokens=from_then(90, 0.7), loss=nan_from(152))
    (fired,) = [one for one in run(tape_of(training)) if one.state == "firing"]
    assert (fired.fault, dict(fired.entity)) == ("loss_anomaly", ENTITY)


def test_reports_that_overtake_each_other_are_of_one_course() -> None:
    tape = tape_of(replace(Training(), loss=nan_from(420)))
    (steps,) = [rows for rows in tape.rows if rows.kind == "steps"]
    swapped = steps.values["iteration"].astype(np.int64) ^ 1
    overtaken = replace(steps, values={**steps.values, "iteration": swapped.astype(np.float64)})
    tape = replace(tape, rows=[overtaken if rows is steps else rows for rows in tape.rows])
    (fired,) = [one for one in run(tape) if one.state == "firing"]
    assert (fired.fault, dict(fired.entity)) == ("loss_anomaly", ENTITY)


def test_a_loss_that_falls_back_slowly_is_one_finding_until_it_is_back() -> None:
    def falls_back(at: FloatArray, value: FloatArray) -> FloatArray:
        return np.asarray(value * (1 + 2 * np.exp(-np.maximum(at - 720, 0) / 500) * (at >= 420)))

    assert found(tape_of(replace(Training(), loss=falls_back, minutes=30))) == [("loss_anomaly", "firing")]
    assert found(tape_of(replace(Training(), loss=falls_back, minutes=60))) == [
        ("loss_anomaly", "firing"), ("loss_anomaly", "resolved"),
    ]  # fmt: skip


@pytest.mark.parametrize(("further", "anomalies"), [(0, []), (5000, ["loss_anomaly"])])
def test_gradients_of_a_job_that_goes_on_from_a_late_checkpoint_are_judged_soon(
    further: int, anomalies: list[str]
) -> None:
    tape = tape_of(replace(STEADY, grad=from_then(320, 8), back=(0, -further)))
    assert [one.fault for one in run(tape) if one.detected_at < START + 500_000] == anomalies


SLOW = replace(STEADY, step_s=330.0, minutes=600, noise=0.1, gpus_reported=False)
"""A job of reinforcement learning, whose steps take five and a half minutes each."""


def test_of_steps_that_take_minutes_three_are_enough() -> None:
    (fired,) = run(tape_of(replace(SLOW, loss=from_then(25_000, 7.0), grad=from_then(25_000, 9.0))))
    assert (fired.fault, dict(fired.entity)) == ("loss_anomaly", ENTITY)
    assert 25_000 + 2 * 330 < (fired.detected_at - START) / 1000 <= 25_000 + 3 * 330 + 60


@pytest.mark.parametrize(
    "loss",
    [
        from_then(25_000, 7.0, 25_000 + 2 * 330),
        lambda at, value: value * (1 + 6 * np.exp(-np.maximum(at - 25_000, 0) / 500) * (at >= 25_000)),
    ],
    ids=["two steps", "falls back"],
)
def test_a_spike_of_long_steps_is_nothing(loss: Change) -> None:
    assert run(tape_of(replace(SLOW, loss=loss))) == []


def test_a_state_without_what_is_known_of_the_past_takes_it_from_the_blocks() -> None:
    def begun() -> Course:
        course = Course("loss", Tails())
        course.grow(2)
        return course

    course, held = begun(), np.zeros(2, bool)
    for look in range(200):
        at, job = 5000 * look, look % 2
        course.take(Steps(np.array([[job, 0, at, look, 1.0, 3.0 - 0.01 * look * job]])), held)
    document, arrays = course.saved()
    past = ("level", "noise", "wanders", "young")
    assert np.isfinite(course.level).all()
    assert course.young.tolist() == [False, True]
    older = begun()
    older.take_saved(document, {name: array for name, array in arrays.items() if name not in past})
    for name in past:
        assert np.array_equal(getattr(older, name), getattr(course, name)), name


@pytest.mark.parametrize(("grad", "anomalies"), [(1.24, []), (2.0, ["loss_anomaly"])])
def test_a_loss_that_rises_by_less_than_alerts_needs_a_gradient_that_rises_by_more_than_it_scatters(
    grad: float, anomalies: list[str]
) -> None:
    """A diffusion model's loss wanders so, and its gradient a little with it."""
    tape = tape_of(replace(STEADY, minutes=60, loss=from_then(3000, 1.21), grad=from_then(3000, grad)))
    assert [one.fault for one in run(tape)] == anomalies
