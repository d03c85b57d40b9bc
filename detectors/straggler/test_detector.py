"""straggler on what jobs do: one slow GPU or node among many that wait, and all that only looks like it."""

from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from typing import Any

import numpy as np
import pytest

from detectors.contract import Finding, FloatArray, LogRecord
from detectors.engine.rows import KeyColumn
from detectors.fleet.fleet import Job, JobEvent
from detectors.spec import configure
from detectors.straggler.detector import Straggler
from detectors.straggler.examples import (
    BRAKED,
    CAPPED,
    CLOCK,
    CULPRIT,
    FROM_START,
    JOB,
    LIMIT,
    NODE,
    ONSET_S,
    PLAIN,
    POWER,
    REASONS,
    SUDDEN,
    TEMP,
    UTIL,
    Slow,
    Training,
    from_to,
    tape_of,
)
from detectors.tapes.gpus import START, instant, kernel, name
from detectors.tapes.tape import play

GPU = {"node": name(1), "gpu": 2}
UNREAD = {REASONS: from_to(np.nan, 0, 1e9, range(32))}


def run(training: Training, **overrides: Any) -> list[Finding]:
    choice = (Straggler, configure(Straggler.config_type, Straggler.spec, overrides))
    return play(tape_of(training), [choice])[0]


def entities(training: Training, **overrides: Any) -> list[dict[str, str | int]]:
    return [dict(finding.entity) for finding in run(training, **overrides) if finding.state == "firing"]


def since(finding: Finding) -> float:
    return (finding.detected_at - START) / 1000


def test_the_culprit_is_named_with_its_figures_beside_its_peers_until_it_keeps_up() -> None:
    fired, resolved = run(replace(SUDDEN, minutes=20, slow=[Slow([CULPRIT], ONSET_S, 600)]))
    assert (fired.state, resolved.state, fired.id) == ("firing", "resolved", resolved.id)
    assert dict(fired.entity) == GPU
    assert abs((fired.started_at - START) / 1000 - ONSET_S) <= 7
    assert 600 < since(resolved) <= 900
    evidence = fired.evidence
    assert (evidence["job_id"], evidence["rank"], evidence["peers"]) == (JOB, CULPRIT, 11)
    assert float(evidence["compute_s"]) == pytest.approx(1.4 * float(evidence["compute_s_own_level"]), rel=0.05)
    assert float(evidence["compute_s_peers"]) == pytest.approx(4.0, rel=0.05)
    assert float(evidence["comm_wait_s"]) < 0.5 * float(evidence["comm_wait_s_peers"])
    assert evidence["sm_clock_mhz"] == pytest.approx(1395, abs=20)
    assert f"{name(1)} GPU 2" in fired.summary


def test_a_node_whose_gpus_are_slow_together_is_one_finding() -> None:
    (fired,) = [finding for finding in run(NODE) if finding.state == "firing"]
    assert dict(fired.entity) == {"node": name(1)}
    assert fired.evidence["ranks"] == 4


@pytest.mark.parametrize(
    ("slow_data", "named"),
    [
        ([Slow([4, 5, 6, 7], ONSET_S)], [{"node": name(1)}]),
        ([Slow([6], ONSET_S)], []),
        ([Slow(range(12), ONSET_S)], []),
        ([Slow(range(12), ONSET_S), Slow([4, 5, 6, 7], ONSET_S, factor=1.2)], []),
    ],
    ids=["a node", "one rank", "all", "all, and a node more than others"],
)
def test_a_node_that_alone_waits_for_its_data_holds_up_the_job(slow_data: list[Slow], named: list[Any]) -> None:
    found = [one for one in run(replace(PLAIN, slow_data=slow_data)) if one.state == "firing"]
    assert [dict(one.entity) for one in found] == named
    for one in found:
        assert float(one.evidence["data_wait_s"]) > 10 * float(one.evidence["data_wait_s_peers"])
        assert float(one.evidence["compute_s"]) == pytest.approx(float(one.evidence["compute_s_peers"]), rel=0.05)
        assert "a step for data, its peers 0.02 s" in one.summary
        assert "data loaders" in one.recommended_action


@pytest.mark.parametrize(("jobs", "named"), [([1], [name(5)]), ([0, 2], []), ([0, 1, 2], [])])
def test_nodes_of_several_jobs_that_wait_for_data_at_once_wait_for_their_storage(
    jobs: list[int], named: list[str]
) -> None:
    slow_data = [Slow(range(16 * job + 4, 16 * job + 8), ONSET_S) for job in jobs]
    tape = tape_of(replace(PLAIN, nodes=12, minutes=12, slow_data=slow_data))
    steps, *rest = tape.rows
    rank = np.array(steps.keys["rank"].categories)[steps.keys["rank"].codes]
    keys = {"job_id": KeyColumn(rank // 16, ("1", "2", "3")), "rank": KeyColumn(rank % 16, tuple(range(16)))}
    started = [Job(str(job + 1), tuple(map(name, range(4 * job, 4 * job + 4))), tape.jobs[0].at, 4) for job in range(3)]
    events = [JobEvent(job.start, "start", job) for job in started]
    shared = replace(tape, rows=[replace(steps, keys=keys), *rest], jobs=events)
    choice = (Straggler, configure(Straggler.config_type, Straggler.spec, {}))
    assert [one.entity["node"] for one in play(shared, [choice])[0] if one.state == "firing"] == named


@pytest.mark.parametrize(("second_s", "named"), [(1.0, []), (2.0, [name(1), name(2)])], ids=["alike", "not alike"])
def test_two_nodes_of_a_job_that_come_to_wait_alike_for_data_wait_for_their_storage(
    second_s: float, named: list[str]
) -> None:
    slow_data = [Slow(range(4, 8), 300, factor=1.0), Slow(range(8, 12), 300, factor=second_s)]
    found = entities(replace(PLAIN, nodes=8, minutes=15, slow_data=slow_data))
    assert sorted(str(entity["node"]) for entity in found) == named


@pytest.mark.parametrize(("now", "named"), [(1.09, []), (1.14, [{"node": name(1), "gpu": 2}])])
def test_a_rank_that_was_quick_holds_up_nobody_until_it_is_behind_all_others(now: float, named: list[Any]) -> None:
    quick, heavier = Slow([CULPRIT], until_s=ONSET_S, factor=0.92), Slow([0, 9], factor=1.08)
    found = run(replace(PLAIN, slow=[quick, Slow([CULPRIT], ONSET_S, factor=now), heavier]))
    assert [dict(one.entity) for one in found if one.state == "firing"] == named


@pytest.mark.parametrize(("ranks", "named"), [([4, 5, 6, 7], [{"node": name(1)}]), ([6], [])])
def test_a_whole_node_counts_from_a_tenth_of_its_computation_on(ranks: list[int], named: list[Any]) -> None:
    """Here that is 8 % of the step; of one rank's work as much may come and go."""
    slow = [Slow(ranks, 300, factor=1.13)]
    assert entities(replace(PLAIN, nodes=4, minutes=20, collective_s=2.0, slow=slow)) == named


def test_a_rank_is_the_longest_by_turns_and_steps_are_as_ever() -> None:
    """Where ranks are all alike otherwise, work does not go from one to another: the second is slow as well."""
    turns = [Slow([CULPRIT], until_s=900, factor=1.2), Slow([11], 900, factor=1.2)]
    assert entities(replace(PLAIN, minutes=30, slow=turns, spread=0.03)) == [GPU]
    assert entities(replace(PLAIN, minutes=30, slow=turns)) == [GPU, {"node": name(2), "gpu": 3}]


def test_where_work_is_not_read_who_is_late_must_stand_apart_from_what_ranks_come_to_differ_by() -> None:
    sizes = np.exp(0.1 * np.random.default_rng(2).standard_normal(24))
    uneven = [Slow([rank], 600, 1500, factor=size) for rank, size in enumerate(sizes.tolist())]
    assert entities(replace(PLAIN, nodes=6, minutes=30, slow=uneven)) == []
    assert entities(replace(PLAIN, nodes=6, minutes=30, slow=uneven[4:5])) == [{"node": name(1), "gpu": 0}]


@pytest.mark.parametrize(("ranks", "named"), [([8, 9, 10, 11], [{"node": name(2)}]), ([10], [])])
def test_so_it_does_from_the_jobs_first_step_on(ranks: list[int], named: list[Any]) -> None:
    """However much more or less than their host each of its ranks has been slow by ever since."""
    slow = [Slow(ranks, factor=1.13)]
    assert entities(replace(PLAIN, nodes=6, minutes=12, starts_s=10.0, collective_s=2.0, slow=slow, seed=3)) == named


@pytest.mark.parametrize("slow", [[0, 1, 2, 3], [4, 5, 6, 7]], ids=["the first", "the second"])
def test_of_two_nodes_the_one_that_changed_is_named(slow: list[int]) -> None:
    assert entities(replace(PLAIN, nodes=2, slow=[Slow(slow, ONSET_S)])) == [{"node": name(slow[0] // 4)}]


def test_of_ranks_that_report_one_step_in_forty_a_few_reports_are_enough() -> None:
    """A minute of slow steps is long over, though no more than seconds of it are reported."""
    (fired,) = run(replace(PLAIN, every=40, minutes=80, slow=[Slow([CULPRIT], 3000)]))
    assert dict(fired.entity) == GPU
    assert since(fired) < 3000 + 5 * 40 * 6.2
    assert (fired.started_at - START) / 1000 == pytest.approx(3000, abs=40 * 6.2)


def test_two_culprits_are_two_findings() -> None:
    found = entities(replace(PLAIN, slow=[Slow([1], ONSET_S), Slow([CULPRIT], ONSET_S, factor=1.45)]))
    assert sorted(found, key=str) == [{"node": name(0), "gpu": 1}, GPU]


def test_a_rank_that_is_slow_from_the_first_step_on_is_found_and_dated_back() -> None:
    (fired,) = [finding for finding in run(FROM_START) if finding.state == "firing"]
    assert dict(fired.entity) == GPU
    assert (fired.started_at - START) / 1000 == pytest.approx(30, abs=1)


def test_a_node_in_the_middle_that_is_slow_from_the_first_step_on_is_no_stage() -> None:
    assert entities(replace(FROM_START, slow=[Slow([4, 5, 6, 7], factor=1.6)])) == [{"node": name(1)}]


def test_what_grows_over_minutes_is_found_before_it_is_at_its_worst() -> None:
    ramp = Slow([CULPRIT], 120, factor=1.5, ramp_s=1200)
    (fired,) = [finding for finding in run(replace(PLAIN, minutes=20, slow=[ramp])) if finding.state == "firing"]
    assert dict(fired.entity) == GPU
    assert since(fired) < 120 + 900


def test_what_comes_and_goes_is_one_finding() -> None:
    bursts = [Slow([CULPRIT], at, at + 150) for at in range(120, 1500, 360)]
    found = run(replace(PLAIN, minutes=33, compute_s=8.0, slow=bursts))
    assert [finding.state for finding in found] == ["firing", "resolved"]
    assert 1350 < since(found[1]) <= 1350 + 300


def test_what_is_back_within_the_hour_is_held_until_it_stays_away() -> None:
    """Six minutes slow and twelve in time, four times over: an alert, a second, and no third."""
    bouts = [Slow([CULPRIT], at, at + 360) for at in range(300, 4000, 1080)]
    found = run(replace(PLAIN, minutes=105, compute_s=8.0, slow=bouts))
    assert [finding.state for finding in found] == ["firing", "resolved", "firing", "resolved"]
    assert 1800 <= since(found[3]) - (300 + 3 * 1080 + 360) <= 1800 + 60


def test_a_job_of_two_ranks_is_compared_with_its_own_past() -> None:
    pair = replace(PLAIN, nodes=2, gpus=1, minutes=12, slow=[Slow([1], 300)])
    assert entities(pair) == [{"node": name(1), "gpu": 0}]
    assert entities(replace(pair, slow=[], uniform=[(300, 600, 1.5)])) == []


@pytest.mark.parametrize(
    "training",
    [
        replace(SUDDEN, columns=("step_time_s", "comm_wait_s", "data_wait_s")),
        replace(SUDDEN, columns=("step_time_s", "compute_s")),
        replace(SUDDEN, missing=0.2),
        replace(SUDDEN, lengths=0.1),
        replace(SUDDEN, last_stage=1.12, nodes=4),
        replace(SUDDEN, topology_known=False),
        replace(SUDDEN, checkpoints=[100, 150, 200]),
        replace(SUDDEN, compute_s=20.0, minutes=9),
        replace(SUDDEN, compute_s=0.4, collective_s=0.05),
        replace(SUDDEN, interval_s=60.0),
    ],
    ids=["no computation", "no waits", "rows lost", "lengths vary", "a longer last stage", "no topology", "checkpoints",
         "steps of 20 s", "steps of half a second", "scrapes of 60 s"],
)  # fmt: skip
def test_the_culprit_is_named_with_less_to_go_on(training: Training) -> None:
    assert entities(training) == [GPU]


def test_a_whole_stage_that_is_longer_is_the_models_cut() -> None:
    assert entities(replace(PLAIN, nodes=4, last_stage=1.6, starts_s=5.0)) == []
    assert entities(replace(PLAIN, nodes=1, gpus=8, last_stage=1.64, starts_s=5.0)) == []


def test_so_many_that_are_slow_at_once_are_no_individuals() -> None:
    assert entities(replace(PLAIN, nodes=8, slow=[Slow([0, 9, 17], ONSET_S)])) == []


def test_a_rank_that_is_slow_and_makes_nobody_wait_is_no_straggler() -> None:
    tape = tape_of(SUDDEN)
    steps = tape.rows[0]
    steps.values["comm_wait_s"][:] = 0.5
    choice = (Straggler, configure(Straggler.config_type, Straggler.spec, {}))
    assert play(tape, [choice])[0] == []


def test_the_start_of_another_job_is_not_the_old_ones_change() -> None:
    ended = replace(SUDDEN, ends_s=240.0)
    assert [(finding.state, since(finding)) for finding in run(ended)][1] == ("resolved", 240)


def test_a_power_limit_below_its_peers_is_named_as_the_cause() -> None:
    fired = run(CAPPED)[0]
    assert dict(fired.entity) == {"node": name(1), "gpu": 2}
    assert (fired.evidence["power_limit_w"], fired.evidence["power_limit_peers_w"]) == (250, 400)
    assert "nvidia-smi -pl 400" in fired.recommended_action


@pytest.mark.parametrize(
    ("watts", "held", "named"), [(250.0, range(12), []), (160.0, range(12), [5]), (250.0, range(4, 8), [5])]
)
def test_under_a_cap_that_all_were_given_chips_differ_and_that_is_nobodys_fault(
    watts: float, held: Sequence[int], named: list[int]
) -> None:
    """At like power they run at unlike clocks; one that draws less than the others is slow for another reason."""
    drawn = from_to(watts, 120, 1e9, [5])
    dcgm = {
        LIMIT: lambda at_s, _: from_to(250.0, 120, 1e9, held)(at_s, np.full(at_s.shape, 400.0)),
        POWER: lambda at_s, _: drawn(at_s, from_to(248.0, 120, 1e9, held)(at_s, np.full(at_s.shape, 380.0))),
        CLOCK: from_to(1100.0, 120, 1e9, [5]),
    }
    found = entities(Training(minutes=9, slow=[Slow([5], 120)], uniform=[(120, 1e9, 1.1)], dcgm=dcgm))
    assert found == [{"node": name(rank // 4), "gpu": rank % 4} for rank in named]


def test_a_hot_gpu_is_held_down_by_heat_though_scrapes_see_full_clocks_in_a_pause_and_as_it_ends() -> None:
    def paused(at_s: FloatArray, values: FloatArray, pause_s: float, pausing: float, working: float) -> FloatArray:
        hot = (at_s >= ONSET_S) & (np.arange(values.shape[1]) == CULPRIT)
        return np.where(at_s % 300 < pause_s, pausing, np.where(hot, working, values))

    fields = {CLOCK: (180, 1410.0, 1230.0), TEMP: (120, 65.0, 84.0), UTIL: (120, 0.0, 100.0)}
    dcgm = {
        field_: partial(paused, pause_s=pause_s, pausing=pausing, working=working)
        for field_, (pause_s, pausing, working) in fields.items()
    }
    slow = replace(SUDDEN, minutes=30, interval_s=60.0, slow=[Slow([CULPRIT], ONSET_S, factor=1.12)])
    assert entities(slow) == [GPU]
    assert entities(replace(slow, dcgm=dcgm)) == []


def test_where_another_fault_explains_it_that_one_is_the_finding() -> None:
    assert entities(BRAKED) == []
    assert entities(replace(BRAKED, interval_s=100.0, seed=3)) == [], "the next reading is waited for"
    heat = replace(SUDDEN, dcgm={REASONS: from_to(0x20, ONSET_S, 1e9, [CULPRIT])})
    link = replace(SUDDEN, dcgm={"DCGM_FI_DEV_PCIE_LINK_WIDTH": from_to(8, ONSET_S, 1e9, [CULPRIT])})
    resent = replace(SUDDEN, dcgm={"DCGM_FI_DEV_PCIE_REPLAY_COUNTER": _grows(CULPRIT)})
    assert entities(heat) == []
    assert entities(link) == []
    assert entities(resent) == []
    # Of sixteen lanes of the fourth generation DCGM allows 16 a minute, half of the fifth's.
    fewer = [{"DCGM_FI_DEV_PCIE_REPLAY_COUNTER": _grows(CULPRIT, a_second)} for a_second in (0.3, 0.1)]
    assert [entities(replace(SUDDEN, dcgm=one)) for one in fewer] == [[], [GPU]]
    halved = {CLOCK: from_to(705, ONSET_S, 1e9, [CULPRIT]), **UNREAD}
    assert entities(replace(SUDDEN, dcgm=halved)) == [], "from the first reading on, though no reason is read"
    cut = from_to(705, ONSET_S, 1e9, [CULPRIT])
    comes_and_goes = {CLOCK: lambda at_s, values: np.where(at_s % 120 < 60, cut(at_s, values), values), **UNREAD}
    assert entities(replace(SUDDEN, dcgm=comes_and_goes)) == [], "a minute's mean does not show it"


def _grows(gpu: int, a_second: float = 1.0) -> Any:
    """Return a counter that grows from the onset on, at one GPU."""
    return lambda at_s, values: np.floor(a_second * np.maximum(at_s - ONSET_S, 0)) * (np.arange(values.shape[1]) == gpu)


@pytest.mark.parametrize(
    "training",
    [
        replace(NODE, dcgm={"DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": _grows(5)}),
        replace(NODE, logs=[kernel(ONSET_S + 2, 1, "NVRM: Xid (PCI:0000:0f:00): 74, NVLink: fatal error")]),
        replace(
            NODE,
            logs=[LogRecord(int(instant(ONSET_S)), "fabricmanager", "NVLink fatal error on GPU", "error", name(1))],
        ),
    ],
    ids=["counters", "the kernel's line", "the fabric manager's line"],
)
def test_a_node_whose_nvlinks_fail_is_not_called_slow(training: Training) -> None:
    assert entities(training) == []


def test_an_applications_own_xid_excuses_nobody() -> None:
    line = kernel(ONSET_S + 2, 1, "NVRM: Xid (PCI:0000:0f:00): 31, pid=7, name=python, MMU Fault")
    assert entities(replace(SUDDEN, logs=[line])) == [GPU]


def test_a_rank_that_is_now_behind_and_now_ahead_has_a_bad_minute() -> None:
    bad = [Slow([CULPRIT], at, at + 10, 1.6 if at % 20 else 0.5) for at in range(400, 800, 10)]
    assert entities(replace(PLAIN, minutes=18, slow=bad)) == []


def test_where_work_is_uneven_from_step_to_step_and_rank_to_rank_one_that_is_slow_is_found() -> None:
    uneven = replace(PLAIN, nodes=16, jitter=0.14, minutes=15, slow=[Slow([CULPRIT], 300, factor=1.5)])
    assert entities(uneven) == [GPU]


def test_ranks_lie_on_the_nodes_that_their_steps_name_whatever_order_a_list_gives() -> None:
    tape = tape_of(replace(SUDDEN, minutes=10, slow=[Slow([CULPRIT], 300)]))
    steps, *rest = tape.rows
    rank = np.array(steps.keys["rank"].categories)[steps.keys["rank"].codes]
    named = replace(steps, node=KeyColumn(rank // 4, tuple(map(name, range(3)))))
    (start,) = tape.jobs
    listed = replace(start, job=replace(start.job, nodes=(name(1), name(0), name(2))))
    choice = (Straggler, configure(Straggler.config_type, Straggler.spec, {}))
    found = play(replace(tape, rows=[named, *rest], jobs=[listed]), [choice])[0]
    assert [dict(one.entity) for one in found if one.state == "firing"] == [GPU]
