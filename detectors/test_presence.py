import numpy as np
import pytest

from detectors.contract import Batch
from detectors.fleet import Fleet
from detectors.presence import Presence, Progress, Roster


def heard(times_s: list[float], entity: int = 0) -> Presence:
    presence = Presence("dcgm")
    presence.grow(entity + 1)
    for at in times_s:
        presence.heard(np.array([entity]), np.array([int(at * 1000)]))
    return presence


@pytest.mark.parametrize("interval_s", [1.0, 5.0, 30.0, 60.0])
def test_the_interval_is_learnt_and_an_outage_moves_it_little(interval_s: float) -> None:
    times = [n * interval_s for n in range(20)]
    presence = heard([*times, times[-1] + 40 * interval_s])
    assert presence.last[0] == int((times[-1] + 40 * interval_s) * 1000)
    assert presence.usual[0] == pytest.approx(interval_s * 1000, rel=0.11)


def test_a_new_cadence_is_learnt_within_some_readings() -> None:
    presence = heard([*(n * 5.0 for n in range(20)), *(95 + n * 10.0 for n in range(1, 15))])
    assert presence.usual[0] == pytest.approx(10_000, rel=0.05)


def test_patience_grows_with_the_scrapes_that_get_lost() -> None:
    chance = np.random.default_rng(1)
    steady = heard([n * 5.0 for n in range(1000)])
    lossy = heard([n * 5.0 for n in range(1000) if chance.random() > 0.05])
    assert steady.patience == 3
    assert 6 <= lossy.patience <= 8


def test_a_node_is_heard_when_any_of_its_entities_is() -> None:
    fleet = Fleet({"nodes": [{"name": "a", "gpus": [{"gpu": 0}, {"gpu": 1}]}, {"name": "b", "gpus": [{"gpu": 0}]}]})
    roster, presence = Roster(fleet), Presence("dcgm")
    presence.grow(3)
    presence.heard(np.array([1, 2]), np.array([5000, 7000]))
    roster.owners("dcgm", 3)
    last, _ = roster.latest(presence)
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
    again.load(*progress.snapshot())
    assert again.of("812") == progress.of("812")
