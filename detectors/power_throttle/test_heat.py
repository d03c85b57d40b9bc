"""power_throttle on GPUs that heat holds down: theirs is no brake."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import LogRecord
from detectors.power_throttle.examples import Brake, tape_of
from detectors.power_throttle.test_detector import DEFAULT, TEMP, changed, firing
from detectors.tapes.gpus import START, name

FAN = "5b | 04/01/2024 | 08:01:00 | Fan #0x32 | Lower Critical going low | Asserted"


@pytest.mark.parametrize(
    ("degrees", "fan", "braked"), [(45.0, [], True), (84.0, [], False), (60.0, [], True), (60.0, [FAN], False)]
)
def test_on_default_fields_who_is_warmer_on_less_power_is_held_down_by_heat(
    degrees: float, fan: list[str], braked: bool
) -> None:
    """The others are at 55 to 61 degrees: on less power 60 are warm where a fan has failed."""

    def warmth(seconds: Any, node: Any, _gpu: Any, _values: Any) -> Any:
        return np.where((node == name(2)) & (seconds >= 300), degrees, 55.0 + 3.0 * (np.arange(len(node)) % 3))

    scene = replace(DEFAULT, brakes=[Brake(2, 300, 500)], supply_lines=False)
    tape = changed(tape_of(scene), TEMP, warmth)
    lines = [LogRecord(START + 280_000, "sel", line, "critical", name(2)) for line in fan]
    assert bool(firing(replace(tape, logs=[*tape.logs, *lines]))) == braked
