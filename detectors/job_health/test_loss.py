"""What is remembered of a job's losses when it begins to do other work."""

from dataclasses import replace

from detectors.job_health.examples import ENTITY, Training, from_then, nan_from, tape_of
from detectors.job_health.test_detector import run


def test_a_loss_that_is_no_number_is_found_soon_after_other_work_began() -> None:
    training = replace(Training(), tokens=from_then(90, 0.7), loss=nan_from(152))
    (fired,) = [one for one in run(tape_of(training)) if one.state == "firing"]
    assert (fired.fault, dict(fired.entity)) == ("loss_anomaly", ENTITY)
