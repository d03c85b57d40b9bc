"""What GPUs usually do in steps is not learnt from what they do while one never ends."""

from dataclasses import replace

from detectors.job_health.examples import HUNG, tape_of
from detectors.job_health.test_detector import fired_after_s


def test_what_gpus_do_while_a_long_step_never_ends_is_not_what_they_usually_do() -> None:
    hung = replace(HUNG, step_s=120.0, spin_w=300.0, minutes=95, hang=(3600, 1e9), interval_s=30.0)
    assert fired_after_s(tape_of(hung), 3600) <= 660
