"""power_throttle on GPUs that heat holds down: theirs is no brake."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import LogRecord
from detectors.power_throttle.examples import Brake, Scene, tape_of
from detectors.power_throttle.test_detector import DEFAULT, REASONS, TEMP, firing
from detectors.tapes.gpus import START, changed, name

SUPPLY = "5a | 04/01/2024 | 08:00:50 | Power Supply #0x51 | Failure detected | Asserted"
FAN = "5b | 04/01/2024 | 08:01:00 | Fan #0x32 | Lower Critical going low | Asserted"


@pytest.mark.parametrize(
    ("degrees", "alarms", "braked"),
    [(45, [], True), (84, [], False), (60, [], True), (60, [FAN], False), (45, [SUPPLY], True), (84, [SUPPLY], False)],
)
def test_on_default_fields_who_is_warmer_on_less_power_is_held_down_by_heat(
    degrees: float, alarms: list[str], braked: bool
) -> None:
    """The others are at 55 to 61 degrees: on less power 60 are warm where a fan has failed."""

    def warmth(seconds: Any, node: Any, _gpu: Any, _values: Any) -> Any:
        return np.where((node == name(2)) & (seconds >= 300), degrees, 55.0 + 3.0 * (np.arange(len(node)) % 3))

    scene = replace(DEFAULT, brakes=[Brake(2, 300, 500)], supply_lines=False)
    tape = changed(tape_of(scene), TEMP, warmth)
    lines = [LogRecord(START + 280_000, "sel", line, "critical", name(2)) for line in alarms]
    found = firing(replace(tape, logs=[*tape.logs, *lines]))
    assert bool([one for one in found if one.severity != "info"]) == braked


@pytest.mark.parametrize(("degrees", "braked"), [(86.0, False), (60.0, True)])
def test_a_gpu_whose_memory_is_warmer_on_less_power_is_held_down_by_its_heat(degrees: float, braked: bool) -> None:
    """Its chip has cooled since, and its memory below the limit: that of its peers is at 62 to 66 degrees."""

    def warmth(seconds: Any, node: Any, gpu: Any, _values: Any) -> Any:
        one = (node == name(2)) & (gpu == 5) & (seconds >= 300)
        return np.where(one, degrees, 62.0 + 2.0 * (np.arange(len(node)) % 3))

    scene = replace(DEFAULT, brakes=[Brake(2, 300, 500, gpus=[5])], supply_lines=False)
    assert bool(firing(changed(tape_of(scene), "DCGM_FI_DEV_MEMORY_TEMP", warmth))) == braked


@pytest.mark.parametrize(("alarm_s", "braked"), [(290, True), (60, False)])
def test_a_supply_that_failed_long_before_makes_no_brake_of_a_node_that_warms_up(alarm_s: int, braked: bool) -> None:
    def warmth(seconds: Any, node: Any, _gpu: Any, _values: Any) -> Any:
        return np.where((node == name(2)) & (seconds >= 300), 76.0, 55.0 + 3.0 * (np.arange(len(node)) % 3))

    tape = changed(tape_of(replace(DEFAULT, brakes=[Brake(2, 300, 500)], supply_lines=False)), TEMP, warmth)
    alarm = LogRecord(START + 1000 * alarm_s, "sel", SUPPLY, "critical", name(2))
    assert bool([one for one in firing(replace(tape, logs=[alarm])) if one.severity != "info"]) == braked


@pytest.mark.parametrize(("until_s", "braked"), [(400, False), (600, True)])
def test_what_heat_held_down_is_not_braked_the_moment_that_it_is_cooler(until_s: int, braked: bool) -> None:
    """A clock that is low two minutes after the heat has another reason."""

    def warmth(seconds: Any, node: Any, _gpu: Any, _values: Any) -> Any:
        hot = (node == name(2)) & (seconds >= 300) & (seconds < 340)
        return np.where(hot, 86.0, np.where(node == name(2), 45.0, 55.0 + 3.0 * (np.arange(len(node)) % 3)))

    scene = replace(DEFAULT, brakes=[Brake(2, 300, until_s)], supply_lines=False)
    assert bool(firing(changed(tape_of(scene), TEMP, warmth))) == braked


@pytest.mark.parametrize(("share", "braked"), [(0.0, True), (0.8, False)], ids=["power alone", "heat, too"])
def test_time_that_is_counted_for_heat_as_well_as_for_power_is_no_brake(share: float, braked: bool) -> None:
    tape = tape_of(Scene(supply_lines=False, fields=[field for field in Scene.fields if field != REASONS]))

    def since(seconds: Any, node: Any, gpu: Any) -> Any:
        return np.where((node == name(0)) & (gpu == 5), np.maximum(seconds - 181, 0), 0.0)

    def less(seconds: Any, node: Any, gpu: Any, values: Any) -> Any:
        return np.where(since(seconds, node, gpu) > 0, 0.85 * values, values)

    def heat(seconds: Any, node: Any, gpu: Any, _values: Any) -> Any:
        return 1e9 * share * since(seconds, node, gpu)

    for field in ("DCGM_FI_DEV_SM_CLOCK", "DCGM_FI_DEV_POWER_USAGE"):
        tape = changed(tape, field, less)
    assert bool(firing(changed(tape, "DCGM_FI_DEV_THERMAL_VIOLATION", heat))) == braked
