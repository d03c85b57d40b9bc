"""What GPUs do: what is usual is not learnt while a step never ends, and who works on hangs nobody."""

from dataclasses import replace

import numpy as np
import pytest

from detectors.job_health.examples import HUNG, tape_of
from detectors.job_health.test_detector import fired_after_s, run


def test_what_gpus_do_while_a_long_step_never_ends_is_not_what_they_usually_do() -> None:
    hung = replace(HUNG, step_s=120.0, spin_w=300.0, minutes=95, hang=(3600, 1e9), interval_s=30.0)
    assert fired_after_s(tape_of(hung), 3600) <= 660


@pytest.mark.parametrize(("watts", "hangs"), [(150.0, ["812"]), (590.0, [])], ids=["all wait", "all but one wait"])
def test_a_job_that_waits_for_one_gpu_which_works_on_does_not_hang_as_far_as_its_gpus_show(
    watts: float, hangs: list[str]
) -> None:
    _, dcgm = tape_of(HUNG).rows
    power = dcgm.values["DCGM_FI_DEV_POWER_USAGE"]
    first = (dcgm.keys["node"].codes == 0) & (dcgm.keys["gpu"].codes == 0) & (power < 300)
    values = dict(dcgm.values) | {"DCGM_FI_DEV_POWER_USAGE": np.where(first, watts, power)}
    alone = replace(tape_of(HUNG), rows=[replace(dcgm, values=values)])
    assert [str(one.entity["job_id"]) for one in run(alone) if one.state == "firing"] == hangs
