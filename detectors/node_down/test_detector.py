"""node_down on what clusters do: nodes that die in many ways, and nodes that are silent without being down."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import Finding, FloatArray
from detectors.engine.rows import KeyColumn, Rows
from detectors.fleet.fleet import INFERRED
from detectors.node_down.detector import NodeDown
from detectors.node_down.examples import DIES_S, DRAINED, FAILED, LOST, SCENE, dead, idle, silenced
from detectors.spec import configure
from detectors.tapes.cluster import START, Scene, changed, line, name, tape_of, where, without
from detectors.tapes.tape import Tape, play

CULPRIT = name(1)
IDLE_S = DIES_S - 60
"""So that no GPU of the job works on, and none stops with the node."""
MUTE = Scene(nodes=5, nics=1, minutes=20, kinds=("nic", "dcgm"))


def run(tape: Tape, **overrides: Any) -> list[Finding]:
    return play(tape, [(NodeDown, configure(NodeDown.config_type, NodeDown.spec, overrides))])[0]


def firing(tape: Tape, **overrides: Any) -> list[Finding]:
    return [finding for finding in run(tape, **overrides) if finding.state == "firing"]


def named(tape: Tape) -> list[str | int]:
    return [finding.entity["node"] for finding in firing(tape)]


def test_a_node_that_dies_is_named_with_its_evidence_and_its_return() -> None:
    tape = dead(tape_of(replace(SCENE, minutes=8)), [CULPRIT], until_s=300)
    fired, resolved = run(tape)
    assert (fired.state, resolved.state) == ("firing", "resolved")
    assert fired.id == resolved.id
    assert dict(fired.entity) == {"node": CULPRIT}
    assert DIES_S - 5 <= (fired.started_at - START) / 1000 <= DIES_S + 5
    assert 300 < (resolved.detected_at - START) / 1000 <= 300 + 120
    evidence = fired.evidence
    assert evidence["streams"] == "dcgm, nic"
    assert float(evidence["usual_interval_s"]) == pytest.approx(5, rel=0.1)
    assert float(evidence["intervals_missed"]) >= 3
    assert (evidence["silent_together"], evidence["nodes_reporting"], evidence["job_id"]) == (1, 5, "812")
    assert evidence["bmc"] == "reports"
    assert "steps" in str(evidence["support"])


def test_the_scheduler_word_decides_sooner_than_the_silence() -> None:
    alone = firing(dead(tape_of(SCENE), [CULPRIT]))
    (sooner,) = firing(dead(tape_of(replace(SCENE, logs=[FAILED])), [CULPRIT]))
    assert sooner.detected_at < alone[0].detected_at
    assert sooner.detected_at <= FAILED.at + 5000
    assert sooner.evidence["scheduler"] == FAILED.message
    assert sooner.score > alone[0].score


def test_not_responding_alone_is_nothing_while_the_node_reports() -> None:
    assert firing(tape_of(replace(SCENE, logs=[LOST]))) == []


@pytest.mark.parametrize(
    "record",
    [
        line(DIES_S - 1, "sel", "1 | 04/01/2024 | Processor #0x60 | IERR | Asserted", node=CULPRIT),
        line(DIES_S - 1, "kernel", "Kernel panic - not syncing: Fatal exception in interrupt", node=CULPRIT),
    ],
    ids=["event log", "kernel"],
)
def test_a_last_word_beside_the_silence_raises_the_score(record: Any) -> None:
    scene = replace(SCENE, kinds=("nic", "steps", "dcgm"))
    (bare,) = firing(dead(tape_of(scene), [CULPRIT]))
    (sooner,) = firing(dead(tape_of(replace(scene, logs=[record])), [CULPRIT]))
    assert sooner.score > bare.score
    assert sooner.detected_at <= bare.detected_at
    assert sooner.evidence["event_log"] == record.message


@pytest.mark.parametrize("interval_s", [5.0, 15.0, 30.0, 60.0])
@pytest.mark.parametrize("missing", [0.0, 0.01])
def test_steps_that_stop_with_it_name_it_within_some_readings_once_silences_here_are_known(
    interval_s: float, missing: float
) -> None:
    scene = Scene(nodes=8, gpus=1, nics=1, interval_s=interval_s, missing=missing, kinds=("nic", "steps", "dcgm"))
    dies_s = 360 * interval_s
    fired = firing(dead(tape_of(replace(scene, minutes=375 * interval_s / 60)), [CULPRIT], dies_s))
    assert [finding.entity["node"] for finding in fired] == [CULPRIT]
    assert (fired[0].detected_at - START) / 1000 - dies_s <= max(30, 6 * interval_s)
    assert "once in" in str(fired[0].evidence["by_chance"])


def test_a_job_that_pauses_while_scrapes_are_lost_is_no_dead_node() -> None:
    pauses = [(at, at + 40.0) for at in range(200, 1800, 200)]
    scene = Scene(nodes=8, gpus=1, nics=1, minutes=30, pauses=pauses, kinds=("nic", "steps", "dcgm"))
    tape = tape_of(scene)
    for number, (begin, _) in enumerate(pauses):
        tape = silenced(tape, [name(number)], begin, begin + 40)
    assert firing(tape) == []


def test_a_job_without_steps_whose_gpus_stand_since_a_node_fell_silent_has_lost_it() -> None:
    (fired,) = firing(idle(silenced(tape_of(MUTE), [CULPRIT]), DIES_S))
    assert 40 <= (fired.detected_at - START) / 1000 - DIES_S <= 55
    assert fired.evidence["support"] == "its job's GPUs"


def default_fields(tape: Tape, watts: float, by_energy: bool) -> Tape:
    """Return the tape without profiling; since the node is gone the others' GPUs are busy and draw `watts`, of 390."""
    gone = START + int(DIES_S * 1000)

    def used(rows: Rows, _: FloatArray) -> FloatArray:
        at = rows.times - START
        return 390.0 * np.minimum(at, gone - START) + watts * np.maximum(rows.times - gone, 0)

    unread = changed(tape, "dcgm", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", lambda rows, _: np.full(len(rows.times), np.nan))
    energy = used if by_energy else lambda rows, _: np.full(len(rows.times), np.nan)
    tape = changed(unread, "dcgm", "DCGM_FI_DEV_TOTAL_ENERGY_CONSUMPTION", energy)
    power = (
        (lambda rows, _: np.full(len(rows.times), 150.0))
        if by_energy
        else (lambda rows, was: np.where(rows.times > gone, watts, was))
    )
    return changed(tape, "dcgm", "DCGM_FI_DEV_POWER_USAGE", power)


@pytest.mark.parametrize("by_energy", [True, False])
@pytest.mark.parametrize(("interval_s", "most_s"), [(5.0, 55), (30.0, 190)])
def test_without_profiling_the_others_power_shows_whether_they_work_on(
    by_energy: bool, interval_s: float, most_s: float
) -> None:
    tape = silenced(tape_of(replace(MUTE, interval_s=interval_s, missing=0.0)), [CULPRIT])
    (fired,) = firing(default_fields(tape, 150, by_energy))
    assert (fired.detected_at - START) / 1000 - DIES_S <= most_s
    assert fired.evidence["support"] == "its job's GPUs"
    assert firing(default_fields(tape, 300, by_energy)) == []


@pytest.mark.parametrize("profiled", [True, False])
def test_of_a_job_that_nobody_lists_those_that_spin_wait_for_a_dead_node_and_those_that_idle_may_have_ended(
    profiled: bool,
) -> None:
    tape = silenced(tape_of(MUTE), [CULPRIT])
    found = [replace(event, job=replace(event.job, job_id=f"{INFERRED}{CULPRIT}")) for event in tape.jobs]
    tape = (
        idle(replace(tape, jobs=found), DIES_S) if profiled else default_fields(replace(tape, jobs=found), 150, False)
    )
    (fired,) = firing(tape)
    assert (fired.detected_at - START) / 1000 - DIES_S <= 55
    assert fired.evidence["support"] == "its job's GPUs"
    gone = START + int(DIES_S * 1000)
    ended = changed(tape, "dcgm", "DCGM_FI_DEV_GPU_UTIL", lambda rows, was: np.where(rows.times > gone, 0.0, was))
    (fired,) = firing(ended)
    assert (fired.detected_at - START) / 1000 - DIES_S >= 280


def test_on_silence_alone_it_takes_five_minutes_and_a_reboot_without_a_job() -> None:
    (fired,) = firing(idle(silenced(tape_of(MUTE), [CULPRIT]), IDLE_S))
    assert 280 <= (fired.detected_at - START) / 1000 - DIES_S <= 300
    (fired,) = firing(silenced(tape_of(replace(MUTE, working=False)), [CULPRIT]))
    assert 895 <= (fired.detected_at - START) / 1000 - DIES_S <= 905


@pytest.mark.parametrize("interval_s", [5.0, 15.0])
def test_silence_alone_takes_no_longer_where_readings_are_slower(interval_s: float) -> None:
    (fired,) = firing(idle(silenced(tape_of(replace(MUTE, interval_s=interval_s)), [CULPRIT]), IDLE_S))
    assert 285 <= float(fired.evidence["silent_s"]) <= 290


def test_a_mount_that_is_read_every_minute_makes_nobody_wait_for_nine_of_its_readings() -> None:
    nodes, minutes = tuple(name(node) for node in range(MUTE.nodes)), np.arange(1, MUTE.minutes)
    times = np.repeat(START + 60_000 * minutes.astype(np.int64), len(nodes)) + 2_000
    keys = {
        "node": KeyColumn(np.tile(np.arange(len(nodes)), len(minutes)), nodes),
        "mount": KeyColumn(np.zeros(len(times), np.int64), ("/data",)),
    }
    waiters = np.zeros(len(times))
    mounts = Rows("storage", times, keys, {"waiters": waiters}, {"waiters": np.isfinite(waiters)})
    tape = tape_of(MUTE)
    tape = replace(tape, rows=[*tape.rows, mounts])
    (fired,) = firing(without(idle(silenced(tape, [CULPRIT]), IDLE_S), "storage", DIES_S, node=CULPRIT))
    assert (fired.detected_at - START) / 1000 - DIES_S <= 305


def test_a_silent_node_is_not_down_while_the_gpus_of_its_job_compute_elsewhere() -> None:
    tape = silenced(tape_of(MUTE), [CULPRIT])
    assert firing(tape) == []
    inferred = [replace(event, job=replace(event.job, job_id=f"{INFERRED}{CULPRIT}")) for event in tape.jobs]
    assert firing(replace(tape, jobs=inferred)) == []

    def stands(rows: Rows, readings: FloatArray) -> FloatArray:
        return np.where(where(rows, DIES_S, node=name(2)), 0.0, readings)

    some = changed(replace(tape, jobs=inferred), "dcgm", "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE", stands)
    (fired,) = firing(some)
    assert fired.entity == {"node": CULPRIT}, "an inferred job's nodes are approximate: that most work on is no proof"


def test_streams_that_stop_one_by_one_are_no_dead_node() -> None:
    tape = without(tape_of(Scene(nodes=5, nics=1, minutes=12, kinds=("nic", "dcgm"))), "nic", 100, node=CULPRIT)
    assert firing(without(tape, "dcgm", DIES_S, node=CULPRIT)) == []


def test_silences_that_end_by_themselves_teach_patience() -> None:
    tape = idle(tape_of(replace(MUTE, minutes=30)), 0)
    for begin in (200, 600):
        tape = silenced(tape, [name(3)], begin, begin + 250)
    (fired,) = firing(silenced(tape, [CULPRIT], 1000))
    assert 500 <= (fired.detected_at - START) / 1000 - 1000 <= 520


def test_a_node_whose_job_goes_on_is_not_down_even_when_the_job_ends_later() -> None:
    tape = silenced(tape_of(SCENE), [CULPRIT])
    assert firing(tape) == []
    assert firing(without(tape, "steps", since_s=250)) == []


def test_a_node_that_panics_is_down_whatever_its_job_still_reports() -> None:
    panic = line(DIES_S + 1, "kernel", "Kernel panic - not syncing: Fatal exception", node=CULPRIT, severity="critical")
    (fired,) = firing(silenced(tape_of(replace(SCENE, logs=[panic])), [CULPRIT]))
    assert (fired.detected_at - START) / 1000 <= DIES_S + 25


def test_what_the_scheduler_took_out_before_is_maintenance() -> None:
    assert firing(dead(tape_of(replace(SCENE, logs=[DRAINED])), [CULPRIT])) == []
    reboot = line(DIES_S - 2, "scheduler", f"slurmctld: reboot_nodes: reboot nodes {CULPRIT}", severity="info")
    assert firing(dead(tape_of(replace(SCENE, logs=[reboot])), [CULPRIT], until_s=260)) == []


def test_a_reboot_that_is_logged_after_the_last_reading_is_part_of_the_drain_before_it() -> None:
    rebooting = line(DIES_S + 12, "kernel", "systemd-shutdown[1]: Rebooting.", node=CULPRIT, severity="info")
    assert firing(dead(tape_of(replace(SCENE, logs=[DRAINED, rebooting])), [CULPRIT])) == []


_OF_THE_NODE = [
    ("scheduler", "Back-off restarting failed container dcgm-exporter in pod dcgm-exporter-7kq2p_gpu-operator"),
    ("scheduler", "slurmd[1711]: launch task StepId=88798.0 request from UID:31881"),
    ("kernel", "python3[22119]: segfault at 28 ip 00007f77 sp 00007ffc error 4 in libcudart.so.12"),
    ("job", "step:1619/20344 train_loss:1.2798 train_time:27157619ms step_avg:3040.03ms"),
]


@pytest.mark.parametrize(("source", "words"), _OF_THE_NODE)
def test_a_node_where_something_outlives_its_telemetry_is_not_down(source: Any, words: str) -> None:
    event = line(DIES_S + 60, source, words, node=CULPRIT)
    tape = idle(silenced(tape_of(MUTE), [CULPRIT]), IDLE_S)
    assert named(tape) == [CULPRIT]
    assert firing(replace(tape, logs=[event])) == []


def test_a_last_line_after_a_lost_scrape_excuses_a_node_for_minutes_and_not_for_good() -> None:
    event = line(DIES_S + 12, "job", "step:1619/20344 train_loss:1.2798", node=CULPRIT)
    scene = replace(MUTE, minutes=MUTE.minutes + 6)
    (fired,) = firing(replace(idle(silenced(tape_of(scene), [CULPRIT]), IDLE_S), logs=[event]))
    assert 12 + 300 < (fired.detected_at - START) / 1000 - DIES_S <= 12 + 320


def test_a_drain_after_the_crash_excuses_nothing() -> None:
    late = line(DIES_S + 8, "scheduler", f"slurmctld: update_node: node {CULPRIT} state set to DRAIN")
    assert named(dead(tape_of(replace(SCENE, logs=[late])), [CULPRIT])) == [CULPRIT]


def test_a_node_taken_back_can_be_down_again() -> None:
    back = line(120, "scheduler", f"slurmctld: node {CULPRIT} returned to service", severity="info")
    assert named(dead(tape_of(replace(SCENE, logs=[DRAINED, back])), [CULPRIT])) == [CULPRIT]


def test_a_rack_that_dies_with_its_job_is_many_dead_nodes() -> None:
    scene = replace(SCENE, nodes=8, nics=1, seed=7, minutes=9)
    nodes = [name(n) for n in range(4)]
    assert sorted(map(str, named(dead(tape_of(scene), nodes)))) == nodes


@pytest.mark.parametrize("working", [True, False])
def test_a_collector_that_dies_is_no_dead_node(working: bool) -> None:
    scene = replace(SCENE, nodes=8, working=working, kinds=SCENE.kinds if working else ("bmc", "nic", "dcgm"))
    assert firing(silenced(tape_of(scene), [name(n) for n in range(4)])) == []


def test_when_everything_is_silent_nothing_is_reported() -> None:
    tape = silenced(tape_of(SCENE), [name(n) for n in range(SCENE.nodes)])
    assert firing(without(tape, "steps", since_s=DIES_S)) == []


def test_nodes_that_never_reported_are_not_down() -> None:
    tape = silenced(tape_of(SCENE), [CULPRIT], since_s=0.0)
    assert firing(tape) == []


def test_a_node_that_boots_twice_is_one_finding() -> None:
    tape = dead(dead(tape_of(replace(SCENE, minutes=9)), [CULPRIT], until_s=220), [CULPRIT], 260, 330)
    assert [finding.state for finding in run(tape)] == ["firing", "resolved"]


def test_lost_scrapes_are_nothing() -> None:
    for seed in range(3):
        scene = Scene(nodes=6, gpus=1, nics=1, minutes=20, missing=0.08, working=False, kinds=("dcgm",), seed=seed)
        assert firing(tape_of(scene)) == []


def test_power_at_idle_beside_the_silence_decides_sooner() -> None:
    scene = replace(SCENE, bmc_interval_s=5.0, kinds=("bmc", "nic", "dcgm"))
    (fired,) = firing(dead(tape_of(scene), [CULPRIT]))
    assert "power" in str(fired.evidence["support"])
    assert float(fired.evidence["node_power_w"]) < 700 < 4000 < float(fired.evidence["node_power_before_w"])


@pytest.mark.parametrize(("after_s", "found"), [(0.0, [CULPRIT]), (60.0, [])], ids=["with it", "a minute later"])
def test_a_node_is_down_that_draws_less_since_it_fell_silent(after_s: float, found: list[str]) -> None:
    scene = replace(SCENE, bmc_interval_s=20.0, kinds=("bmc", "nic", "dcgm"))
    silent = idle(silenced(tape_of(scene), [CULPRIT]), IDLE_S)

    def less(rows: Rows, readings: FloatArray) -> FloatArray:
        watts = where(rows, DIES_S + after_s, 1e9, node=CULPRIT, sensor="node_power")
        return np.where(watts, 0.7 * readings, readings)

    assert named(changed(silent, "bmc", "reading", less)) == found


def test_a_node_that_draws_no_power_is_down_though_its_job_goes_on_on_other_nodes() -> None:
    scene = replace(SCENE, bmc_interval_s=5.0, kinds=("bmc", "nic", "dcgm", "steps"))
    silent = silenced(tape_of(scene), [CULPRIT])

    def off(rows: Rows, readings: FloatArray) -> FloatArray:
        return np.where(where(rows, DIES_S, 1e9, node=CULPRIT, sensor="node_power"), 14.0, readings)

    assert named(changed(silent, "bmc", "reading", off)) == [CULPRIT]


def test_a_node_that_draws_what_it_did_lives_unless_the_steps_of_its_job_have_stopped() -> None:
    served = tape_of(replace(SCENE, minutes=16, kinds=("bmc", "dcgm")))
    alone = [replace(event, job=replace(event.job, nodes=(CULPRIT,))) for event in served.jobs]
    assert firing(without(replace(served, jobs=alone), "dcgm", DIES_S, node=CULPRIT)) == []
    trained = tape_of(replace(SCENE, minutes=16, kinds=("bmc", "steps", "dcgm")))
    assert named(without(without(trained, "dcgm", DIES_S, node=CULPRIT), "steps", DIES_S)) == [CULPRIT]


def test_a_node_that_has_worked_on_in_silence_is_not_down_when_its_work_is_over() -> None:
    served = tape_of(replace(SCENE, minutes=40, kinds=("bmc", "dcgm")))
    alone = [replace(event, job=replace(event.job, nodes=(CULPRIT,))) for event in served.jobs]
    silent = without(replace(served, jobs=alone), "dcgm", DIES_S, node=CULPRIT)

    def over(rows: Rows, readings: FloatArray) -> FloatArray:
        return np.where(where(rows, DIES_S + 1200, 1e9, node=CULPRIT, sensor="node_power"), 700.0, readings)

    assert firing(changed(silent, "bmc", "reading", over)) == []


def test_an_idle_node_that_draws_what_it_did_is_not_down_until_the_scheduler_misses_it() -> None:
    scene = replace(SCENE, working=False, kinds=("bmc", "nic", "dcgm"))
    assert firing(silenced(tape_of(scene), [CULPRIT])) == []
    missed = line(DIES_S + 90, "scheduler", f"slurmctld: error: Nodes {CULPRIT} not responding")
    (fired,) = firing(silenced(tape_of(replace(scene, logs=[missed])), [CULPRIT]))
    assert fired.detected_at - missed.at <= 5000
    assert named(dead(tape_of(replace(scene, minutes=19)), [CULPRIT])) == [CULPRIT]


def test_an_idle_node_that_draws_no_power_is_down_before_a_reboot_would_be_over() -> None:
    tape = tape_of(replace(SCENE, working=False, kinds=("bmc", "nic", "dcgm"), minutes=12))
    silent = silenced(tape, [CULPRIT])

    def drawing(watts: float, until_s: float) -> Tape:
        def fallen(rows: Rows, readings: FloatArray) -> FloatArray:
            return np.where(where(rows, DIES_S, until_s, node=CULPRIT, sensor="node_power"), watts, readings)

        return changed(silent, "bmc", "reading", fallen)

    (found,) = firing(drawing(110.0, 1e9))
    assert DIES_S + 275 <= (found.detected_at - START) / 1000 <= DIES_S + 300
    assert firing(drawing(110.0, DIES_S + 240)) == [], "it was power-cycled, and boots"
    assert firing(drawing(600.0, 1e9)) == [], "it may be rebooting"
