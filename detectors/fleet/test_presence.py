import numpy as np
import pytest

from detectors.contract import Batch
from detectors.fleet.fleet import Fleet
from detectors.fleet.presence import Attendance, Progress, Roster


def heard(times_s: list[float], entity: int = 0) -> Attendance:
    attendance = Attendance("dcgm")
    attendance.readings.grow(entity + 1)
    for at in times_s:
        attendance.readings.heard(np.array([entity]), np.array([int(at * 1000)]))
        attendance.look(int(at * 1000))
    return attendance


@pytest.mark.parametrize("interval_s", [1.0, 5.0, 30.0, 60.0])
def test_the_interval_is_learnt_and_an_outage_moves_it_little(interval_s: float) -> None:
    times = [n * interval_s for n in range(20)]
    attendance = heard([*times, times[-1] + 40 * interval_s])
    assert attendance.last[0] == int((times[-1] + 40 * interval_s) * 1000)
    assert attendance.usual[0] == pytest.approx(interval_s * 1000, rel=0.11)


def test_a_scrape_that_a_look_divides_is_one() -> None:
    attendance, owner = Attendance("bmc"), np.array([0, 0, 0])
    attendance.readings.grow(3)
    for scrape in range(1, 200):
        away = 2 if 20 < scrape < 60 else -1
        for entity, late_ms in ((0, -1), (1, 1), (2, 700)):
            if entity == away:
                continue
            attendance.readings.heard(np.array([entity]), np.array([15_000 * scrape + late_ms]))
            attendance.look(15_000 * scrape + late_ms, owner, 1)
            assert not len(attendance.late)
        assert np.isnan(attendance.usual[0]) or attendance.usual[0] == pytest.approx(15_000, rel=0.01)


def test_a_new_cadence_is_learnt_within_some_readings() -> None:
    attendance = heard([*(n * 5.0 for n in range(20)), *(95 + n * 10.0 for n in range(1, 15))])
    assert attendance.usual[0] == pytest.approx(10_000, rel=0.05)


def test_a_node_is_heard_when_any_of_its_entities_is() -> None:
    fleet = Fleet({"nodes": [{"name": "a", "gpus": [{"gpu": 0}, {"gpu": 1}]}, {"name": "b", "gpus": [{"gpu": 0}]}]})
    roster, attendance = Roster(fleet), Attendance("dcgm")
    attendance.readings.grow(3)
    attendance.readings.heard(np.array([1, 2]), np.array([5000, 7000]))
    attendance.look(10_000)
    roster.owners("dcgm", 3)
    last, _ = roster.latest(attendance)
    assert dict(zip(roster.names, last.tolist(), strict=True)) == {"a": 5000, "b": 7000}


def test_a_job_goes_on_while_steps_come_and_has_stopped_when_the_next_is_overdue() -> None:
    fleet = Fleet()
    progress = Progress(fleet)
    index = fleet.index("steps", ("812", 0))
    for at in range(5000, 105_000, 5000):
        cells = np.array([[at - 1000]])
        progress.take(Batch("steps", np.array([index]), cells, np.ones((1, 1), bool), {}, {}))
        progress.settle(at)
    assert progress.goes_on("812", 50_000, 100_000)
    assert not progress.goes_on("812", 99_500, 100_000)
    assert progress.stopped("812", 100_000) is False
    assert progress.stopped("812", 115_000) is True
    assert progress.stopped("999", 115_000) is None
    again = Progress(fleet)
    again.take_saved(*progress.saved())
    assert again.of("812") == progress.of("812")
