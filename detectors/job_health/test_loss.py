"""What is remembered of a job's losses when it begins to do other work."""

from dataclasses import replace

import numpy as np

from detectors.contract import FloatArray
from detectors.core.tails import Tails
from detectors.job_health.examples import ENTITY, Training, from_then, nan_from, tape_of
from detectors.job_health.loss import Course, Steps
from detectors.job_health.test_detector import found, run


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
