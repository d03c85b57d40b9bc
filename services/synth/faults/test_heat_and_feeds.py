"""Heat takes clocks back as far as it must; a lost feed brakes a rack; a loss goes wrong with no other sign."""

import numpy as np
import pytest

from detectors.signals.throttle_bits import HW_POWER_BRAKE, HW_SLOWDOWN, HW_THERMAL, SW_THERMAL
from services.recording.validate import validate_recording
from services.synth.conftest import GPUS, Telemetry, made_of

DEV = "DCGM_FI_DEV_"
TEMP, CLOCK, POWER = DEV + "GPU_TEMP", DEV + "SM_CLOCK", DEV + "POWER_USAGE"
REASONS, HEAT_NS = DEV + "CLOCK_THROTTLE_REASONS", DEV + "THERMAL_VIOLATION"
HOT = [
    {"kind": "heat_sink", "node": "t01", "gpu": 0, "at": "+00:02:00", "until": "+00:10:00", "ramp_s": 60,
     "factor": 2.4},
    {"kind": "fan_failure", "node": "t02", "fans": [1, 2, 3], "at": "+00:05:00", "until": "+00:08:20"},
    {"kind": "hot_air", "node": "t03", "at": "+00:02:00", "until": "+00:07:00", "ramp_s": 60, "rise_k": 30,
     "spread_s": 60, "passed_on": 0.3},
]  # fmt: skip
FED = [
    {"kind": "feed_lost", "node": "t02", "feed": 2, "at": "+00:05:00", "until": "+00:07:30", "gpu_cap_w": 150,
     "truth": {"id": "f1", "fault": "power_throttle", "within_s": 30, "incident": "i", "root": True}},
    {"kind": "gpu_power_cap", "node": "t03", "gpu": 1, "at": "+00:02:30", "until": "+00:04:10", "cap_w": 200},
    {"kind": "hbm_corruption", "node": "t04", "gpu": 0, "job": "812", "at": "+00:08:00", "until": "+00:10:00",
     "loss_factor": 1.5, "truth": {"id": "f2", "fault": "loss_anomaly", "within_s": 300}},
    *({"kind": "gpu_power_cap", "node": "t04", "gpu": gpu, "at": "+00:09:00", "until": "+00:09:40", "cap_w": watts,
       "by": "limit", "truth": {"id": name, "fault": "power_throttle", "within_s": 300}}
      for name, gpu, watts in (("f3", 0, 300), ("f4", 1, 440))),
]  # fmt: skip


@pytest.fixture(scope="module")
def hot(tmp_path_factory: pytest.TempPathFactory) -> Telemetry:
    return made_of(tmp_path_factory.mktemp("hot"), HOT)


@pytest.fixture(scope="module")
def fed(tmp_path_factory: pytest.TempPathFactory) -> Telemetry:
    return made_of(tmp_path_factory.mktemp("fed"), FED)


def sensor(telemetry: Telemetry, node: str, name: str, field: str, begin: float, end: float) -> np.ndarray:
    table, seconds = telemetry.table("bmc"), telemetry.seconds("bmc")
    pick = (np.array(table["node"].to_pylist()) == node) & (np.array(table["sensor"].to_pylist()) == name)
    return np.asarray(telemetry.column("bmc", field)[pick & (seconds >= begin) & (seconds < end)])


def test_they_are_valid(hot: Telemetry, fed: Telemetry) -> None:
    assert validate_recording(hot.recording.path) == []
    assert validate_recording(fed.recording.path) == []


def test_a_hot_gpu_settles_at_its_limit_by_giving_up_power_and_clock(hot: Telemetry) -> None:
    late = (380.0, 600.0)
    temperature = hot.of(TEMP, "t01", 0, *late)
    assert 83 <= np.median(temperature) <= 87
    assert temperature.max() < 90
    reasons = hot.of(REASONS, "t01", 0, *late).astype(int)
    assert (reasons & SW_THERMAL > 0).mean() > 0.7
    assert np.median(hot.of(POWER, "t01", 0, *late)) < 330
    assert np.median(hot.of(CLOCK, "t01", 0, *late)) < 1250
    beside = hot.of(REASONS, "t01", 1, *late).astype(int)
    assert not np.any(beside & (SW_THERMAL | HW_THERMAL | HW_SLOWDOWN))


def test_time_throttled_for_heat_is_counted_where_it_is_throttled(hot: Telemetry) -> None:
    counted = hot.of(HEAT_NS, "t01", 0, 450, 550)
    assert (np.diff(counted) >= 0).all()
    assert 0.7 < np.ptp(counted) / 1e9 / 95 <= 1.05
    assert np.ptp(hot.of(HEAT_NS, "t01", 1, 0, 600)) == 0


def test_still_fans_show_and_the_others_race(hot: Telemetry) -> None:
    still = (330.0, 480.0)
    assert set(sensor(hot, "t02", "fan2", "reading", *still)) == {0}
    assert set(sensor(hot, "t02", "fan2", "state", *still)) == {2}
    assert sensor(hot, "t02", "fan6", "reading", *still).min() > 12_500
    assert sensor(hot, "t04", "fan2", "reading", *still).min() > 3_000
    before, during = hot.of(TEMP, "t02", 0, 250, 300).mean(), hot.of(TEMP, "t02", 0, 420, 480).mean()
    assert during > before + 8


def test_hot_air_is_felt_first_where_it_begins(hot: Telemetry) -> None:
    first, second = (sensor(hot, node, "inlet_temp", "reading", 240, 410) for node in ("t03", "t04"))
    assert first.min() > 49
    assert 29 < second.mean() < 36
    assert set(sensor(hot, "t03", "inlet_temp", "state", 240, 410)) == {2}
    assert sensor(hot, "t01", "inlet_temp", "reading", 240, 410).max() < 29
    lines = [(event.node, event.message) for event in hot.recording.events() if "Temperature" in event.message]
    assert ("Upper Critical going high | Asserted" in lines[1][1], lines[1][0]) == (True, "t03")
    assert {node for node, _ in lines} == {"t03"}


def test_steps_go_at_the_hottest_gpus_pace(hot: Telemetry) -> None:
    seconds, rank = hot.seconds("steps"), hot.column("steps", "rank")
    times = hot.column("steps", "step_time_s")
    cool = np.median(times[(rank == -1) & (seconds > 80) & (seconds < 120)])
    slow = np.median(times[(rank == -1) & (seconds > 430) & (seconds < 490)])
    assert slow > 1.15 * cool


def test_a_lost_feed_brakes_the_rack_within_seconds_and_no_other(fed: Telemetry) -> None:
    for node in ("t01", "t02"):
        for gpu in range(GPUS):
            reasons = fed.of(REASONS, node, gpu, 308, 450).astype(int)
            assert set(reasons) == {HW_SLOWDOWN | HW_POWER_BRAKE}
            assert fed.of(POWER, node, gpu, 320, 445).max() < 156
        assert set(sensor(fed, node, "psu2_input_power", "reading", 310, 445)) == {0}
        assert set(sensor(fed, node, "psu_redundancy", "state", 310, 445)) == {2}
    for node in ("t03", "t04"):
        assert not np.any(fed.of(REASONS, node, 0, 300, 460).astype(int) & HW_POWER_BRAKE)
        assert set(sensor(fed, node, "psu2_status", "state", 0, 600)) == {0}
    nodes = [event.node for event in fed.recording.events() if "AC lost | Asserted" in event.message]
    assert sorted(name for name in nodes if name) == ["t01", "t02"]
    (label,) = [label for label in fed.recording.labels() if label.id == "f1"]
    assert [dict(entity) for entity in label.also or []] == [{"node": "t01"}]


def test_one_card_is_braked_alone(fed: Telemetry) -> None:
    span = (170.0, 235.0)
    assert set(fed.of(REASONS, "t03", 1, *span)) == {HW_SLOWDOWN | HW_POWER_BRAKE}
    assert fed.of(POWER, "t03", 1, *span).max() < 206
    assert not np.any(fed.of(REASONS, "t03", 0, *span).astype(int) & HW_POWER_BRAKE)
    assert set(sensor(fed, "t03", "psu_redundancy", "state", 0, 600)) == {0}


def test_corruption_shows_in_the_loss_alone(fed: Telemetry) -> None:
    rank, seconds = fed.column("steps", "rank"), fed.seconds("steps")
    loss = np.array([value if value is not None else np.nan for value in fed.table("steps")["loss"].to_pylist()])
    before = loss[(rank == -1) & (seconds < 480)]
    after = loss[(rank == -1) & (seconds > 490)]
    assert after.mean() / before.mean() == pytest.approx(1.5, rel=0.02)
    (label,) = [label for label in fed.recording.labels() if label.id == "f2"]
    assert dict(label.entity) == {"job_id": "812"}
    assert not fed.of(DEV + "ECC_DBE_VOL_TOTAL", "t04", 0, 0, 600).any()


def test_a_limit_that_no_job_reaches_is_not_due(fed: Telemetry) -> None:
    optional = {label.id: label.optional for label in fed.recording.labels()}
    assert (bool(optional["f3"]), optional["f4"]) == (False, True)
