"""power_throttle where neither reasons nor counters of throttled time are exported."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.fleet.fleet import INFERRED
from detectors.power_throttle.examples import Brake, tape_of
from detectors.power_throttle.test_detector import DEFAULT, REASONS, firing, lowered, run
from detectors.tapes.gpus import START, changed, name


def test_on_default_fields_a_line_of_the_supply_explains_why_clocks_and_power_fell() -> None:
    (fired,) = firing(tape_of(DEFAULT))
    assert dict(fired.entity) == {"node": name(2)}
    assert fired.detected_at <= START + 215_000
    assert fired.summary.startswith("v003: clock and power cut on 8 of 8 busy GPUs")
    assert "Power Supply #0x51" in fired.summary
    assert "by_chance" not in fired.evidence, "it rests on the supply: the odds of the first readings alone are poor"
    assert float(fired.evidence["work_rate"]) == pytest.approx(0.36, abs=0.02)


def test_on_default_fields_without_a_word_of_any_supply_it_takes_half_a_minute_or_evidence_of_one_gpu() -> None:
    """Nothing else halves the clocks of a node while the others of its job keep theirs."""
    found = [
        firing(tape_of(replace(DEFAULT, brakes=[Brake(2, 300, 500, gpus=gpus)], supply_lines=False)))
        for gpus in (range(8), [5])
    ]
    (node,), (gpu,) = found
    assert (dict(node.entity), dict(gpu.entity)) == ({"node": name(2)}, {"node": name(2), "gpu": 5})
    assert START + 330_000 <= node.detected_at <= START + 340_000
    assert START + 330_000 <= gpu.detected_at <= START + 360_000
    assert "by_chance" not in node.evidence
    assert "years" in str(gpu.evidence["by_chance"])


@pytest.mark.parametrize(("job_id", "found"), [(f"{INFERRED}{name(0)}", 1), ("9", 0)])
def test_a_job_that_is_inferred_as_a_brake_falls_has_worked_before(job_id: str, found: int) -> None:
    """Its nodes wait for each other as never before. Of a job that has only begun it is not known what it draws."""
    tape = tape_of(replace(DEFAULT, brakes=[Brake(2, 300, 500)], supply_lines=False))
    (event,) = tape.jobs
    at = START + 302_000
    assert (
        len(firing(replace(tape, jobs=[replace(event, at=at, job=replace(event.job, job_id=job_id, start=at))])))
        == found
    )


@pytest.mark.parametrize("interval_s", [5.0, 30.0, 60.0])
@pytest.mark.parametrize("supply_lines", [True, False])
def test_on_default_fields_a_brake_of_the_only_node_of_a_job_is_found(interval_s: float, supply_lines: bool) -> None:
    brakes = [Brake(2, 60 * interval_s, 80 * interval_s)]
    scene = replace(
        DEFAULT, nodes=12, interval_s=interval_s, minutes=1.6 * interval_s, brakes=brakes, supply_lines=supply_lines
    )
    tape = tape_of(scene)
    jobs = [
        replace(event, job=replace(event.job, job_id=node, nodes=(node,)))
        for event in tape.jobs
        for node in event.job.nodes
    ]
    (fired,) = firing(replace(tape, jobs=jobs))
    assert dict(fired.entity) == {"node": name(2)}
    assert fired.detected_at <= START + (60 * interval_s + max(6 * interval_s, 60)) * 1000


@pytest.mark.parametrize("elsewhere", [[], [Brake(4, 290, 480, gpus=[3])]], ids=["alone", "beside a single GPU"])
@pytest.mark.parametrize(("supply_lines", "within_s"), [(True, 20), (False, 60)])
def test_on_default_fields_a_feed_that_takes_all_of_a_job_is_found_node_by_node(
    supply_lines: bool, within_s: float, elsewhere: list[Brake]
) -> None:
    brakes = [Brake(0, 300, 480), Brake(1, 300, 480), *elsewhere]
    scene = replace(DEFAULT, nodes=6, brakes=brakes, supply_lines=supply_lines)
    tape = tape_of(scene)
    jobs = [
        replace(event, job=replace(event.job, job_id=f"{first}", nodes=event.job.nodes[first : first + 2]))
        for event in tape.jobs
        for first in (0, 2, 4)
    ]
    found = [one for one in firing(replace(tape, jobs=jobs)) if one.entity["node"] != name(4)]
    assert [dict(one.entity) for one in found] == [{"node": name(0)}, {"node": name(1)}]
    assert all(one.detected_at <= START + (300 + within_s) * 1000 for one in found)
    assert "2 nodes of the same feed are braked" in found[-1].summary


def test_a_brake_that_is_older_than_the_readings_is_found_by_the_supply_that_failed() -> None:
    """Whoever looks at a cluster for the first time may do so for the brake."""
    fired, resolved = run(tape_of(replace(DEFAULT, minutes=14, brakes=[Brake(2, 0, 400)])))
    assert (dict(fired.entity), fired.severity, resolved.state) == ({"node": name(2)}, "page", "resolved")
    assert fired.detected_at <= START + 150_000
    assert fired.started_at <= START + 10_000
    assert START + 400_000 < resolved.detected_at <= START + 700_000


@pytest.mark.parametrize(
    ("watts", "more", "named"), [(55.0, [], []), (55.0, [REASONS], []), (150.0, [], [name(0), name(1)])]
)
def test_where_no_utilisation_is_read_who_draws_next_to_nothing_is_idle(
    watts: float, more: list[str], named: list[str]
) -> None:
    """The job's first readings are of before it began, and its GPUs idle while it loads."""
    fields = [field for field in [*DEFAULT.fields, *more] if field != "DCGM_FI_DEV_GPU_UTIL"]
    tape = tape_of(replace(DEFAULT, nodes=6, brakes=[], fields=fields, supply_lines=False))
    (dcgm, *rest), (job,) = tape.rows, tape.jobs
    fell = np.isin(dcgm.keys["node"].codes, [0, 1]) & (dcgm.times >= START + 300_000)
    values = dict(dcgm.values)
    for field, value in (("DCGM_FI_DEV_POWER_USAGE", watts), ("DCGM_FI_DEV_SM_CLOCK", 210.0)):
        values[field] = np.where(fell, value, values[field])
    jobs = [
        replace(job, job=replace(job.job, job_id=f"{first}", nodes=job.job.nodes[first : first + 2]))
        for first in (0, 2, 4)
    ]
    found = firing(replace(tape, rows=[replace(dcgm, values=values), *rest], jobs=jobs))
    assert [one.entity["node"] for one in found] == named


@pytest.mark.parametrize(
    ("nodes", "is_set", "left", "named"),
    [(1, False, 0.75, []), (2, False, 0.75, [name(1)]), (2, True, 0.75, []), (2, True, 0.5, [name(1)])],
)
def test_clocks_that_somebody_set_are_no_cap(nodes: int, is_set: bool, left: float, named: list[str]) -> None:
    """Under a cap all draw as much, each at the clock that its chip reaches: at a clock that was set it is the other
    way around. Who has a job by himself may cap it, and half of both is a brake.
    """

    tape = tape_of(replace(DEFAULT, nodes=6, minutes=10, brakes=[], supply_lines=False))
    tape = lowered(tape, name(1), 240, left, is_set=is_set)
    (job,) = tape.jobs
    jobs = [
        replace(job, job=replace(job.job, job_id=f"{first}", nodes=job.job.nodes[first : first + nodes]))
        for first in range(0, 6, nodes)
    ]
    assert [one.entity["node"] for one in firing(replace(tape, jobs=jobs))] == named


@pytest.mark.parametrize(("full", "named"), [(0.35, [name(1)]), (0.0, [])], ids=["capped", "set"])
def test_a_cap_whose_clocks_float_is_no_clock_that_somebody_set(full: float, named: list[str]) -> None:
    """Where readings are instants, a part of them is of communication, that runs at full clocks below the cap."""
    chance = np.random.default_rng(7)

    def capped(at: Any, node: Any, _gpu: Any, values: Any) -> Any:
        return np.where((node == name(1)) & (at >= 900), 245 + 10 * chance.standard_normal(len(node)), values)

    def floating(at: Any, node: Any, gpu: Any, values: Any) -> Any:
        low = (node == name(1)) & (at >= 900) & (chance.random(len(node)) >= full)
        return np.where(low, 930.0 + gpu.astype(int) // 4 * 15, values)

    tape = tape_of(replace(DEFAULT, nodes=6, minutes=24, interval_s=30.0, brakes=[], supply_lines=False))
    tape = changed(changed(tape, "DCGM_FI_DEV_POWER_USAGE", capped), "DCGM_FI_DEV_SM_CLOCK", floating)
    assert [one.entity["node"] for one in firing(tape)] == named
    (job,) = tape.jobs
    alone = [replace(job, job=replace(job.job, job_id=node, nodes=(node,))) for node in job.job.nodes]
    assert firing(replace(tape, jobs=alone)) == [], "who has a node alone may cap it"


@pytest.mark.parametrize(
    ("nodes", "clock", "same_w", "named"),
    [(2, 0.85, True, [name(1)]), (2, 0.95, True, []), (2, 0.85, False, []), (1, 0.85, True, [])],
    ids=["capped", "at next to no cost", "each draws its own", "alone"],
)
def test_a_cap_at_three_quarters_leaves_more_of_the_clock(
    nodes: int, clock: float, same_w: bool, named: list[str]
) -> None:
    """Power falls faster than the clock, so that a cap is seen by the power that all of the node are given."""

    def left(share: float, spread: float) -> Any:
        def change(at: Any, node: Any, gpu: Any, values: Any) -> Any:
            lower = share * np.median(values) * (1 + spread * (gpu.astype(int) - 3.5) / 3.5)
            return np.where((node == name(1)) & (at >= 240), lower, values)

        return change

    tape = tape_of(replace(DEFAULT, nodes=6, minutes=10, brakes=[], supply_lines=False))
    tape = changed(tape, "DCGM_FI_DEV_POWER_USAGE", left(0.75, 0.003 if same_w else 0.03))
    tape = changed(tape, "DCGM_FI_DEV_SM_CLOCK", left(clock, 0.02))
    (job,) = tape.jobs
    jobs = [
        replace(job, job=replace(job.job, job_id=f"{first}", nodes=job.job.nodes[first : first + nodes]))
        for first in range(0, 6, nodes)
    ]
    assert [one.entity["node"] for one in firing(replace(tape, jobs=jobs))] == named
