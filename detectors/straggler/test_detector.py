"""straggler on what jobs do: one slow GPU or node among many that wait, and all that only looks like it."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import Finding, FloatArray, LogRecord
from detectors.fleet import INFERRED
from detectors.gpu_tapes import START, instant, kernel, name
from detectors.spec import configure
from detectors.straggler.detector import Straggler
from detectors.straggler.examples import (
    BRAKED,
    CAPPED,
    CLOCK,
    CULPRIT,
    DRAM,
    ENERGY,
    FROM_START,
    JOB,
    NODE,
    ONSET_S,
    PLAIN,
    REASONS,
    SUDDEN,
    TEMP,
    TENSOR,
    UNRANKED,
    UTIL,
    Slow,
    Training,
    from_to,
    tape_of,
)
from detectors.tape import play, take

GPU = {"node": name(1), "gpu": 2}


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
    ("ranks", "named"),
    [([4, 5, 6, 7], [{"node": name(1)}]), ([6], []), (range(12), [])],
    ids=["a node", "one rank", "all"],
)
def test_a_node_that_alone_waits_for_its_data_holds_up_the_job(ranks: list[int], named: list[Any]) -> None:
    found = [one for one in run(replace(PLAIN, slow_data=[Slow(ranks, ONSET_S)])) if one.state == "firing"]
    assert [dict(one.entity) for one in found] == named
    for one in found:
        assert float(one.evidence["data_wait_s"]) > 10 * float(one.evidence["data_wait_s_peers"])
        assert float(one.evidence["compute_s"]) == pytest.approx(float(one.evidence["compute_s_peers"]), rel=0.05)
        assert "a step for data, its peers 0.02 s" in one.summary
        assert "data loaders" in one.recommended_action


@pytest.mark.parametrize(("ranks", "named"), [([4, 5, 6, 7], [{"node": name(1)}]), ([6], [])])
def test_a_whole_node_counts_from_a_tenth_of_its_computation_on(ranks: list[int], named: list[Any]) -> None:
    """Here that is 8 % of the step; of one rank's work as much may come and go."""
    slow = [Slow(ranks, 300, factor=1.13)]
    assert entities(replace(PLAIN, nodes=4, minutes=20, collective_s=2.0, slow=slow)) == named


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


def test_where_another_fault_explains_it_that_one_is_the_finding() -> None:
    assert entities(BRAKED) == []
    assert entities(replace(BRAKED, interval_s=100.0, seed=3)) == [], "the next reading is waited for"
    heat = replace(SUDDEN, dcgm={REASONS: from_to(0x20, ONSET_S, 1e9, [CULPRIT])})
    link = replace(SUDDEN, dcgm={"DCGM_FI_DEV_PCIE_LINK_WIDTH": from_to(8, ONSET_S, 1e9, [CULPRIT])})
    assert entities(heat) == []
    assert entities(link) == []
    halved = {CLOCK: from_to(705, ONSET_S, 1e9, [CULPRIT]), **UNREAD}
    assert entities(replace(SUDDEN, dcgm=halved)) == [], "from the first reading on, though no reason is read"


def _retries(at_s: FloatArray, values: FloatArray) -> FloatArray:
    grown: FloatArray = np.floor(np.maximum(at_s - ONSET_S, 0)) * (np.arange(values.shape[1]) == 5)
    return grown


@pytest.mark.parametrize(
    "training",
    [
        replace(NODE, dcgm={"DCGM_FI_DEV_NVLINK_REPLAY_ERROR_COUNT_TOTAL": _retries}),
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


SEEN = replace(UNRANKED, nodes=4, gpus=8, minutes=32, interval_s=10.0)
FIRST = 8
UNREAD = {REASONS: from_to(np.nan, 0, 1e9, range(32))}
ONLY = {"node": name(1), "gpu": 0}


def without_steps(training: Training) -> list[Finding]:
    tape = tape_of(training)
    choice = (Straggler, configure(Straggler.config_type, Straggler.spec, {}))
    return play(replace(tape, rows=tape.rows[1:]), [choice])[0]


@pytest.mark.parametrize("found_in", [run, without_steps], ids=["the job's steps", "no steps"])
@pytest.mark.parametrize(
    ("felt", "ranks", "entity"),
    [("clock", [FIRST], ONLY), ("memory", [FIRST], ONLY), ("host", range(8, 16), {"node": name(1)})],
    ids=["clock", "memory", "host"],
)
def test_where_ranks_report_no_times_the_readings_name_who_computes_while_others_wait(
    found_in: Any, felt: str, ranks: Any, entity: dict[str, str | int]
) -> None:
    slow = replace(SEEN, felt=felt, slow=[Slow(list(ranks), 600, 1320, factor=1.15)])
    fired, resolved = found_in(slow)
    assert (dict(fired.entity), fired.state, resolved.state) == (entity, "firing", "resolved")
    assert 600 < since(fired) <= 1200
    assert abs((fired.started_at - START) / 1000 - 600) <= 120
    assert 1320 < since(resolved) <= 1320 + 600
    assert float(fired.evidence["job_slower_share"]) == pytest.approx(0.13, abs=0.03)
    assert "by chance" in str(fired.evidence["by_chance"])
    assert ("steps are 1" in fired.summary) == (found_in is run)


@pytest.mark.parametrize(("felt", "severity"), [("clock", "ticket"), ("memory", "info")])
def test_of_a_job_that_nothing_names_only_a_slow_clock_alerts(felt: str, severity: str) -> None:
    """Who works more may have work of its own: such a job's members are a guess."""
    tape = tape_of(replace(SEEN, felt=felt, slow=[Slow([FIRST], 600, 1920, factor=1.15)]))
    guessed = [replace(event, job=replace(event.job, job_id=f"{INFERRED}v001")) for event in tape.jobs]
    choice = (Straggler, configure(Straggler.config_type, Straggler.spec, {}))
    found = play(replace(tape, rows=tape.rows[1:], jobs=guessed), [choice])[0]
    assert [(dict(one.entity), one.severity) for one in found if one.state == "firing"] == [(ONLY, severity)]


def test_who_computes_more_because_it_is_busy_more_holds_up_nobody() -> None:
    def requests(at_s: FloatArray, values: FloatArray) -> FloatArray:
        return np.where((at_s >= 600) & (at_s < 1320) & (_only(values) == 0), values / 1.15, values)

    served = replace(SEEN, felt="memory", slow=[Slow([FIRST], 600, 1320, factor=1.15)], dcgm={UTIL: requests})
    assert [finding for finding in without_steps(served) if finding.severity != "info"] == []


def test_what_is_unlike_its_peers_since_it_was_first_seen_is_a_property() -> None:
    always = replace(SEEN, felt="clock", slow=[Slow([FIRST], factor=1.2)])
    assert run(always) == []
    assert run(replace(always, felt="memory")) == [], "a favoured expert reads the same"


@pytest.mark.parametrize(
    "training",
    [
        replace(SEEN, felt="clock", uniform=[(600, 1900, 1.4)]),
        replace(SEEN, felt="clock", slow=[Slow([FIRST], 600, 620, factor=2.0)]),
        replace(SEEN, felt="clock", slow=[Slow([1, 9, 17], 600, factor=1.2)]),
        replace(SEEN, felt="clock", slow=[Slow([FIRST], 600)], dcgm={REASONS: from_to(0x88, 600, 1e9, [FIRST])}),
        replace(SEEN, felt="clock", slow=[Slow([FIRST], 600, factor=2.1)], dcgm=UNREAD),
        replace(SEEN, felt="clock", slow=[Slow(range(8, 16), 600)], dcgm=UNREAD),
        replace(SEEN, felt="memory", slow=[Slow([FIRST], 600)], only_whole=False, columns=("step_time_s", "compute_s")),
        replace(SEEN, felt="memory", slow=[Slow([FIRST], 600)], logs=[kernel(605, 2, "mlx5_core: eth4: Link down")]),
    ],
    ids=["all slower", "a dip", "many at once", "a brake", "a halved clock, unread", "a node's power, unread",
         "every rank reports", "a link lost"],
)  # fmt: skip
def test_readings_that_only_look_like_it_alert_nobody(training: Training) -> None:
    if not training.only_whole:
        training = replace(training, slow=[], dcgm={DRAM: from_to(0.6, 600, 1e9, [FIRST])})
    assert [finding for finding in run(training) if finding.severity != "info"] == []


@pytest.mark.parametrize(("felt", "severity"), [("clock", "ticket"), ("memory", "info")])
def test_a_job_that_lost_far_more_than_a_gpus_longer_work_is_slow_for_another_reason(felt: str, severity: str) -> None:
    alone = replace(SEEN, felt=felt, minutes=40, slow=[Slow([FIRST], 600, factor=1.12)])
    assert [finding.severity for finding in run(alone)] == ["ticket"]
    assert [finding.severity for finding in run(replace(alone, uniform=[(600, 1e9, 1.12)]))] == [severity]


def test_what_is_odd_and_slows_nobody_is_reported_once_as_information() -> None:
    odd = replace(SEEN, felt="clock", minutes=60, dcgm={DRAM: from_to(0.42, 600, 1e9, [FIRST])})
    (finding,) = run(odd)
    assert (finding.severity, dict(finding.entity)) == ("info", ONLY)


def test_a_lag_beyond_doubt_counts_where_the_jobs_pace_is_too_noisy_to_show_the_loss() -> None:
    chance = np.random.default_rng(3)

    def noisy(_at_s: FloatArray, values: FloatArray) -> FloatArray:
        return values * np.exp(0.3 * chance.standard_normal((len(values), 1)))

    slow = replace(SEEN, nodes=1, felt="clock", slow=[Slow([0], 600, factor=1.2)], dcgm={TENSOR: noisy, DRAM: noisy})
    fired = next(finding for finding in without_steps(slow) if finding.state == "firing")
    assert (dict(fired.entity), fired.severity) == ({"node": name(0), "gpu": 0}, "ticket")
    assert "the others wait for it" in fired.summary
    assert "job_slower_share" not in fired.evidence


@pytest.mark.parametrize("reasons", [0.0, np.nan], ids=["no reason", "reasons not read"])
def test_a_hot_gpu_with_a_lower_clock_is_throttled_whether_or_not_it_says_so(reasons: float) -> None:
    hot = {
        REASONS: from_to(reasons, 0, 1e9, range(32)),
        TEMP: lambda at_s, values: 60.0 + 28.0 * (at_s > 600) * _only(values),
    }
    slow = replace(SEEN, felt="clock", slow=[Slow([FIRST], 600, factor=1.12)])
    assert [finding for finding in run(slow) if finding.severity != "info"] != []
    assert [finding for finding in run(replace(slow, dcgm=hot)) if finding.severity != "info"] == []


def _only(values: FloatArray) -> FloatArray:
    return np.broadcast_to(np.arange(values.shape[1]) == FIRST, values.shape).astype(float)


@pytest.mark.parametrize("interval_s", [30.0, 60.0])
def test_a_starved_host_is_found_at_slow_cadences(interval_s: float) -> None:
    starved = replace(SEEN, minutes=40, felt="host", interval_s=interval_s, slow=[Slow(range(8, 16), 900, factor=1.15)])
    (fired,) = run(starved)
    assert (dict(fired.entity), 900 < since(fired) <= 1500) == ({"node": name(1)}, True)


def test_pauses_that_the_scrapes_of_one_node_miss_are_no_evidence_against_it() -> None:
    def paused(at_s: FloatArray, values: FloatArray) -> FloatArray:
        others = (np.arange(values.shape[1]) // 8 != 1)[None, :]
        for begin, left in ((2160, 0.01), (2460, 0.85), (2760, 0.6)):
            values = np.where(others & (at_s >= begin) & (at_s < begin + 60), left * values, values)
        return values

    steady = replace(SEEN, minutes=60, felt="memory", interval_s=60.0, dcgm={TENSOR: paused, DRAM: paused})
    assert [finding for finding in without_steps(steady) if finding.severity != "info"] == []


def test_a_node_that_does_less_is_not_starved() -> None:
    less = {
        field: from_to(value, 900, 1e9, range(8, 16)) for field, value in ((UTIL, 70.0), (TENSOR, 0.25), (DRAM, 0.2))
    }
    assert [finding for finding in run(replace(SEEN, felt="host", dcgm=less)) if finding.severity != "info"] == []


def test_a_node_that_slows_down_by_and_by_is_one_finding() -> None:
    ramp = Slow(range(4, 8), 300, factor=1.25, ramp_s=1800)
    assert entities(replace(PLAIN, minutes=40, jitter=0.03, slow=[ramp])) == [{"node": name(1)}]


def test_a_rank_that_is_now_behind_and_now_ahead_has_a_bad_minute() -> None:
    bad = [Slow([CULPRIT], at, at + 10, 1.6 if at % 20 else 0.5) for at in range(400, 800, 10)]
    assert entities(replace(PLAIN, minutes=18, slow=bad)) == []


def test_only_the_slowest_of_a_job_holds_it_up() -> None:
    two = replace(SEEN, felt="clock", slow=[Slow([FIRST], 600, factor=1.8), Slow([1], 600, factor=1.15)])
    assert {str(dict(finding.entity)) for finding in run(two) if finding.state == "firing"} == {str(ONLY)}


def test_one_rank_that_reports_of_its_node_stands_for_the_node() -> None:
    tape = tape_of(replace(SEEN, felt="memory", only_whole=False, slow=[Slow(list(range(8, 16)), 600, factor=1.3)]))
    steps = tape.rows[0]
    first = np.flatnonzero((steps.keys["rank"].codes - 1) % 8 == 0)
    choice = (Straggler, configure(Straggler.config_type, Straggler.spec, {}))
    found = play(replace(tape, rows=[take(steps, first), *tape.rows[1:]]), [choice])[0]
    (fired,) = found
    assert (dict(fired.entity), fired.evidence["ranks"]) == ({"node": name(1)}, 1)


def test_readings_that_stand_still_make_nobody_slow() -> None:
    def busier(at_s: FloatArray, values: FloatArray) -> FloatArray:
        """From then on one GPU reads a fifth more, its node the same for ever, and the others a little less."""
        after = np.where(at_s >= 600, 0.95 * values, values)
        first = int(np.argmax(at_s[:, FIRST] >= 600))
        after[first:, 8:16] = values[first, 8:16] * np.where(np.arange(8, 16) == FIRST, 1.2, 1.0)
        return after

    def stands(at_s: FloatArray, _values: FloatArray) -> FloatArray:
        return 3e5 * np.where(np.arange(at_s.shape[1]) // 8 == 1, np.minimum(at_s, 600), at_s)

    fresh = replace(SEEN, felt="memory", dcgm={TENSOR: busier, DRAM: busier})
    (found,) = [finding for finding in without_steps(fresh) if finding.state == "firing"]
    assert dict(found.entity) == ONLY
    assert without_steps(replace(fresh, dcgm=dict(fresh.dcgm) | {ENERGY: stands})) == []
