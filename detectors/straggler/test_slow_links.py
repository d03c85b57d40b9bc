"""straggler on a job whose ranks all wait as long, as one NIC's link came up at a lower speed."""

from dataclasses import replace

import pytest

from detectors.contract import Finding
from detectors.spec import configure
from detectors.straggler.detector import Straggler
from detectors.straggler.examples import PLAIN, Slow, Training, with_speeds
from detectors.tapes.gpus import START, name
from detectors.tapes.tape import play

HOUR = replace(PLAIN, minutes=40)
SLOWED = replace(HOUR, uniform=[(600, 1500, 1.12)])
HALF = [(0.0, 400.0), (600.0, 200.0), (1500.0, 400.0)]


def run(training: Training, speeds: list[tuple[float, float]], errors_per_s: float = 0.0) -> list[Finding]:
    tape = with_speeds(training, name(1), speeds, errors_per_s)
    return play(tape, [(Straggler, configure(Straggler.config_type, Straggler.spec, {}))])[0]


@pytest.mark.parametrize("training", [SLOWED, replace(SLOWED, only_whole=True)], ids=["ranks", "the job's steps alone"])
def test_a_node_whose_link_is_slower_while_its_job_is_holds_it_up_until_it_is_as_fast_again(training: Training) -> None:
    fired, resolved = run(training, HALF)
    assert (dict(fired.entity), fired.severity, resolved.state) == ({"node": name(1)}, "ticket", "resolved")
    assert "mlx5_0 runs at 200 Gb/s, at 400 before" in fired.summary
    assert fired.evidence["job_slower_share"] == pytest.approx(0.1, abs=0.03)
    assert (fired.detected_at - START) / 1000 <= 600 + 300
    assert 1500 < (resolved.detected_at - START) / 1000 <= 1500 + 330


@pytest.mark.parametrize("training", [HOUR, replace(HOUR, uniform=[(1700, 1e9, 1.12)])], ids=["never", "much later"])
def test_a_slower_link_that_slows_no_job_is_information(training: Training) -> None:
    (found,) = [one for one in run(training, [*HALF[:2]]) if one.state == "firing"]
    assert (found.severity, dict(found.entity)) == ("info", {"node": name(1)})
    assert found.summary.endswith("is hardly slower for it")


def test_a_link_that_is_down_for_a_moment_or_always_was_slower_is_none() -> None:
    assert run(SLOWED, [(0.0, 400.0), (600.0, 0.0), (660.0, 400.0)]) == []
    assert run(SLOWED, [(0.0, 200.0)]) == []


def test_a_link_that_errs_has_a_finding_of_its_own_and_a_few_errors_are_none() -> None:
    assert run(SLOWED, HALF, errors_per_s=0.2) == []
    assert [one.state for one in run(SLOWED, HALF, errors_per_s=0.01)] == ["firing", "resolved"]


@pytest.mark.parametrize(("errors_per_s", "named"), [(0.0, [name(1)]), (0.2, [])])
def test_a_node_that_waits_for_data_over_a_link_that_errs_waits_for_that(errors_per_s: float, named: list[str]) -> None:
    starved = replace(PLAIN, minutes=15, slow_data=[Slow(range(4, 8), 300)])
    found = run(starved, [(0.0, 400.0)], errors_per_s)
    assert [one.entity["node"] for one in found if one.state == "firing"] == named


def test_a_job_on_one_node_has_no_use_for_its_link() -> None:
    alone = replace(SLOWED, nodes=2)
    tape = with_speeds(alone, name(1), HALF)
    (start,) = tape.jobs
    own = replace(start, job=replace(start.job, nodes=(name(1),)))
    choice = (Straggler, configure(Straggler.config_type, Straggler.spec, {}))
    assert play(replace(tape, jobs=[own]), [choice])[0] == []
