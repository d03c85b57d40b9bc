"""straggler on what counts as evidence: another cause that is known, spikes, and work that nobody waits for."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import Finding, FloatArray
from detectors.core.evidence import Rises
from detectors.core.tails import Tails
from detectors.fleet.fleet import INFERRED, Job
from detectors.signals.throttle_bits import HW_POWER_BRAKE
from detectors.spec import configure
from detectors.straggler.comparison import Comparison
from detectors.straggler.detector import Straggler
from detectors.straggler.examples import (
    CLOCK,
    CULPRIT,
    DRAM,
    PLAIN,
    POWER,
    REASONS,
    SM,
    TENSOR,
    UTIL,
    Slow,
    from_to,
    tape_of,
)
from detectors.straggler.readings import STARVED
from detectors.straggler.suspects import Suspect
from detectors.straggler.test_detector import GPU, entities
from detectors.straggler.test_readings import SEEN, without_steps
from detectors.straggler.windows import SIGNALS
from detectors.tapes.gpus import instant, name
from detectors.tapes.tape import Tape, play


def test_a_slow_step_after_a_brake_is_no_straggler() -> None:
    braked = {
        REASONS: from_to(HW_POWER_BRAKE, 600, 720, range(4, 8)),
        POWER: from_to(100.0, 600, 720, range(4, 8)),
    }
    slow = [Slow(range(4, 8), 600, 720, factor=1.8), Slow([CULPRIT], 905, 930, factor=1.6)]
    assert entities(replace(PLAIN, minutes=20, felt="clock", dcgm=braked, slow=slow)) == []


def alerts_of(tape: Tape, job_id: str = "812") -> list[Finding]:
    """Return what fires and is no note, of a tape whose job is called `job_id`."""
    jobs = [replace(event, job=replace(event.job, job_id=job_id)) for event in tape.jobs]
    choice = (Straggler, configure(Straggler.config_type, Straggler.spec, {}))
    found = play(replace(tape, jobs=jobs), [choice])[0]
    return [one for one in found if one.severity != "info" and one.state == "firing"]


@pytest.mark.parametrize("job_id", ["812", f"{INFERRED}v000"])
@pytest.mark.parametrize("felt", ["clock", "memory"])
def test_of_a_node_by_itself_whose_job_reports_no_steps_who_is_slow_is_named_where_the_others_wait(
    felt: str, job_id: str
) -> None:
    tape = tape_of(replace(SEEN, nodes=1, felt=felt, slow=[Slow([3], 900, factor=1.3)]))
    found = alerts_of(replace(tape, rows=tape.rows[1:]), job_id)
    assert [dict(finding.entity) for finding in found] == [{"node": name(0), "gpu": 3}]


def test_a_gpu_that_its_host_starves_is_waited_for_though_the_others_idle_between_steps_too() -> None:
    def used(at_s: FloatArray, values: FloatArray) -> FloatArray:
        return np.where((at_s >= 900) & (np.arange(values.shape[1]) == 3), 75.0, np.full_like(values, 93.0))

    slow = replace(SEEN, nodes=1, felt="clock", slow=[Slow([3], 900, factor=1.25)])
    same = {CLOCK: from_to(1410.0, 0, 1e9, range(8)), UTIL: used, SM: from_to(np.nan, 0, 1e9, range(8))}
    same[POWER] = lambda at_s, values: values * np.where((at_s >= 900) & (np.arange(values.shape[1]) == 3), 0.85, 1.0)
    tape = tape_of(replace(slow, dcgm=same | dict.fromkeys((TENSOR, DRAM), others_do)))
    (found,) = alerts_of(replace(tape, rows=tape.rows[1:]), f"{INFERRED}v000")
    assert dict(found.entity) == {"node": name(0), "gpu": 3}
    assert "busy 75 % of the time" in found.summary


def others_do(_: FloatArray, values: FloatArray) -> FloatArray:
    """Return for all GPUs what the first reads."""
    return np.repeat(values[:, :1], values.shape[1], axis=1)


@pytest.mark.parametrize(("factor", "steps", "found"), [(1.4, False, True), (1.4, True, False), (1.15, False, False)])
def test_where_demand_sets_the_pace_a_gpu_that_takes_far_longer_for_the_same_work_costs_time_to_answer(
    factor: float, *, steps: bool, found: bool
) -> None:
    def times(by: float) -> Any:
        return lambda at_s, values: values * np.where((at_s >= 900) & (np.arange(values.shape[1]) == 3), by, 1.0)

    tape = tape_of(replace(SEEN, nodes=1, felt="clock", dcgm={CLOCK: times(1 / factor), TENSOR: times(factor)}))
    alerts = alerts_of(tape if steps else replace(tape, rows=tape.rows[1:]))
    assert [dict(one.entity) for one in alerts] == ([{"node": name(0), "gpu": 3}] if found else [])


def test_a_gpu_that_takes_thirteen_times_as_long_is_named_though_its_activity_shows_less() -> None:
    def resident(at_s: Any, values: Any) -> Any:
        return np.where(at_s < 600, 0.8, np.where(np.arange(values.shape[1]) == 3, 1.0, 0.2))

    reads = {SM: resident, DRAM: from_to(np.nan, 0, 1e9, range(32))}
    slow = replace(SEEN, felt="memory", slow=[Slow([3], 600, factor=13.0)], dcgm=reads)
    (found,) = [one for one in without_steps(slow) if one.severity != "info" and one.state == "firing"]
    assert dict(found.entity) == {"node": name(0), "gpu": 3}
    assert found.detected_at <= instant(600 + 360)


def test_a_chip_that_is_active_for_longer_by_its_slow_clock_has_a_slow_clock() -> None:
    """As nothing names the job, work that is longer by itself would alert nobody."""

    def resident(at_s: Any, values: Any) -> Any:
        return np.where(at_s < 600, 0.7, np.where(np.arange(values.shape[1]) == 3, 0.95, 0.6))

    slow = replace(SEEN, felt="clock", slow=[Slow([3], 600, factor=1.4)], dcgm={SM: resident})
    tape = tape_of(slow)
    alerts = alerts_of(replace(tape, rows=tape.rows[1:]), f"{INFERRED}v000")
    assert [dict(one.entity) for one in alerts] == [{"node": name(0), "gpu": 3}]
    assert alerts[0].detected_at <= instant(600 + 300)


@pytest.mark.parametrize("less", [1.0, 0.85])
def test_gpus_that_render_frames_have_work_of_their_own_each(less: float) -> None:
    """One fetches more from memory, and the others have a little less to do at that time: nobody waits for anybody."""

    def its(more: float, others: float) -> Any:
        return lambda at_s, values: (
            values * np.where(at_s < 900, 1.0, np.where(np.arange(values.shape[1]) == 3, more, others))
        )

    renders = replace(SEEN, nodes=1, dcgm={DRAM: its(1.3, less), TENSOR: its(1.1, less)})
    assert [finding for finding in without_steps(renders) if finding.severity != "info"] == []


@pytest.mark.parametrize(("less", "named"), [(1.0, [GPU]), (0.8, [])], ids=["none", "another"])
def test_work_that_moved_from_one_rank_to_another_makes_nobody_slow(less: float, named: list[Any]) -> None:
    moved = [Slow([CULPRIT], 600, factor=1.3), Slow([CULPRIT + 3], 600, factor=less)]
    assert entities(replace(PLAIN, minutes=14, slow=moved)) == named


@pytest.mark.parametrize("high", [0.0, 60.0])
def test_what_lasts_is_worth_an_alert_however_restless_the_cluster(high: float) -> None:
    """However high evidence rises here by chance, the wealth that is kept is enough for an alert."""
    rises = Rises()
    rises.counts += np.array([100.0, high])
    assert float(rises.worth(np.array([rises.wealth(30.0)]))[0]) == pytest.approx(30.0)


@pytest.mark.parametrize(("more", "severities"), [(1.0, ["ticket"]), (1.4, [])])
def test_who_is_far_more_active_at_a_slower_clock_has_work_of_its_own(more: float, severities: list[str]) -> None:
    """As of an array's programs on one node, or of servers that nothing names: others do not wait for it."""
    chance = np.random.default_rng(3)

    def its(at_s: Any, values: Any) -> Any:
        return np.where((at_s >= 600) & (np.arange(values.shape[1]) == 0), more, 1.0)

    def noisy(at_s: Any, values: Any) -> Any:
        return values * its(at_s, values) * np.exp(0.3 * chance.standard_normal((len(values), 1)))

    busier = {TENSOR: noisy, DRAM: noisy, UTIL: lambda at_s, values: 0.6 * values * its(at_s, values)}
    slow = replace(SEEN, nodes=1, felt="clock", slow=[Slow([0], 600, factor=1.2)], dcgm=busier)
    alerts = [one.severity for one in without_steps(slow) if one.severity != "info" and one.state == "firing"]
    assert alerts == severities


@pytest.mark.parametrize(
    ("odd", "looks"), [(0b1, 1), (0b111, 3), (0b1011001, 7), (0b1010001, 1), (0b1000, 0)], ids="{0:b}".format
)
def test_who_was_not_odd_for_three_looks_has_been_slow_since_then(odd: int, looks: int) -> None:
    one = Comparison(("rank",), 1, Tails(None), Rises())
    one.grow(1)
    one.odd[0], one.run[0] = odd, 12
    assert one.without_pause(0) == looks


@pytest.mark.parametrize(("node", "found"), [(2, [{"node": name(2)}]), (7, [])], ids=["in the middle", "the last"])
def test_the_ends_of_a_pipeline_have_other_work_from_the_first_step_on(node: int, found: list[Any]) -> None:
    def longer(_at_s: FloatArray, values: FloatArray) -> FloatArray:
        return np.where(np.arange(values.shape[1]) // 8 == node, 0.92, np.full_like(values, 0.8))

    fired = without_steps(replace(SEEN, nodes=8, felt="work", dcgm={SM: longer}))
    assert [dict(one.entity) for one in fired if one.state == "firing" and one.severity != "info"] == found


@pytest.mark.parametrize(
    ("nodes", "crowd", "gpu", "many"),
    [(2, 1, {}, False), (3, 2, {}, True), (3, 2, {"gpu": 0}, False), (5, 2, {}, False), (100, 6, {}, True)],
)
def test_whole_nodes_that_are_half_of_a_job_are_too_many_to_be_slow_by_themselves(
    nodes: int, crowd: int, gpu: dict[str, int], *, many: bool
) -> None:
    unread = np.full(SIGNALS, np.nan)
    job = Job("1", tuple(map(name, range(nodes))), 0, 8)
    entity: dict[str, str | int] = {"node": name(1), **gpu}
    one = Suspect(job, entity, np.arange(8), STARVED, 0.2, 0, 5, 5, crowd, True, 1.0, unread, unread, "")
    assert one.is_one_of_many() == many
