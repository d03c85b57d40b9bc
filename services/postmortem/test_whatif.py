from collections.abc import Iterator
from concurrent.futures import Executor
from dataclasses import replace

import pytest

from detectors.engine.engine import Choice
from detectors.registry import choose
from services.kit.executors import alone, executor_of
from services.postmortem.case import Case
from services.postmortem.whatif import eased, nearness, on_log, trials, without_streams


@pytest.mark.parametrize("choice", choose(), ids=lambda choice: choice[0].spec.name)
def test_easing_moves_every_setting_to_where_more_is_seen(choice: Choice) -> None:
    now, changed = choice[1].model_dump(), eased(*choice, 0.5, patience=True, level=True)
    assert changed
    for setting, value in changed.items():
        if choice[0].spec.defaults[setting].fires in ("below", "within"):
            assert value > now[setting]
        else:
            assert value < now[setting]


@pytest.fixture
def pool() -> Iterator[Executor]:
    """Where trials run."""
    with alone() as here:
        yield here


def test_half_the_patience_finds_the_hang_sooner_and_by_running_it(hang: Case, pool: Executor) -> None:
    tried = {one.name: one for one in trials(hang, pool)}
    half = tried["half the patience"]
    assert half.settings["hang_spinning_s"] == 75
    assert half.gain_s == pytest.approx(90, abs=15)  # 90 s less to wait
    assert half.false_alarms == 0
    assert half.worth_it
    assert not tried["thresholds at three quarters"].worth_it


def test_other_processes_find_the_same(brake: Case, pool: Executor) -> None:
    with executor_of(1) as others:
        assert list(trials(brake, others)) == list(trials(brake, pool))
        assert list(without_streams(brake, others)) == list(without_streams(brake, pool))


def test_a_detector_that_is_kept_silent_is_near_by_as_much_as_it_was_kept(brake: Case) -> None:
    """The GPUs fall to 0.39 of their clock: 0.3 keeps the detector silent, and three quarters of the way do not."""
    hard = choose({"power_throttle": {"clock_ratio": 0.3}})
    members = [replace(member, detector="another") for member in brake.incident.members]
    case = replace(
        brake,
        choices=[choice for choice in hard if choice[0].spec.name in {"power_throttle", "gpu_lost"}],
        incident=replace(brake.incident, members=tuple(members)),
    )
    near = {one.detector: one for one in nearness(case)}
    assert (near["power_throttle"].share, near["power_throttle"].at_culprit) == (0.75, True)
    assert near["power_throttle"].settings["clock_ratio"] == pytest.approx(0.475)
    assert near["gpu_lost"].share is None


def test_an_alert_on_the_supplys_line_comes_before_the_gpus_slow_down(brake: Case) -> None:
    found = on_log(brake, brake.lines())
    assert found is not None
    assert "Power Supply" in found.line.message
    assert found.gain_s == (brake.root.detected_at - found.line.timestamp) / 1000 > 1
    alike = [event for event in brake.recording.events() if "Failure detected | Asserted" in event.message]
    assert found.elsewhere == len(alike) - 1 == 0
    assert on_log(brake, []) is None


def test_without_the_readings_of_the_gpus_a_brake_is_not_found_and_without_the_controller_it_is(
    brake: Case, pool: Executor
) -> None:
    blind = {one.name: one for one in without_streams(brake, pool)}
    assert set(blind) == {"bmc", "dcgm"}
    assert blind["dcgm"].gain_s is None
    gain = blind["bmc"].gain_s
    assert gain is not None
    assert gain <= 0
