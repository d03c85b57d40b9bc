"""telemetry_gap on what collectors do: streams that stop, hang or repeat, and machines that are silent by right."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import Finding, FloatArray, Kind
from detectors.engine.rows import Rows
from detectors.spec import configure
from detectors.tapes.cluster import START, Scene, changed, line, name, seconds, tape_of, where, without
from detectors.tapes.tape import Tape, play
from detectors.telemetry_gap.detector import TelemetryGap
from detectors.telemetry_gap.examples import AT_S, ENERGY, GAUGES, SCENE, WHOLE, frozen

NODE = name(1)
EVERYTHING = (*GAUGES, ENERGY)


def run(tape: Tape, **overrides: Any) -> list[Finding]:
    return play(tape, [(TelemetryGap, configure(TelemetryGap.config_type, TelemetryGap.spec, overrides))])[0]


def firing(tape: Tape, **overrides: Any) -> list[Finding]:
    return [finding for finding in run(tape, **overrides) if finding.state == "firing"]


def entities(tape: Tape) -> list[dict[str, str | int]]:
    return [dict(finding.entity) for finding in firing(tape)]


@pytest.mark.parametrize("kind", ["dcgm", "nic"])
def test_a_stream_that_stops_while_the_node_lives_is_a_gap_until_it_is_back(kind: Kind) -> None:
    fired, resolved = run(without(tape_of(replace(SCENE, minutes=22)), kind, 242, 962, node=NODE))
    assert (fired.state, resolved.state) == ("firing", "resolved")
    assert dict(fired.entity) == {"node": NODE}
    assert (fired.evidence["stream"], fired.evidence["mode"], fired.evidence["affected"]) == (kind, "silent", 1)
    assert 242 + 275 <= (fired.detected_at - START) / 1000 <= 242 + 300
    assert 962 < (resolved.detected_at - START) / 1000 <= 962 + 300


def test_a_bmc_that_is_away_for_as_long_as_its_firmware_takes_is_nothing_and_one_that_stays_away_is_a_gap() -> None:
    tape = tape_of(replace(SCENE, minutes=52))
    assert entities(without(tape, "bmc", 242, 242 + 24 * 60)) == []
    (fired,) = firing(without(tape, "bmc", 242, node=NODE))
    assert (dict(fired.entity), fired.evidence["stream"]) == ({"node": NODE}, "bmc")
    assert fired.severity == "ticket"
    assert 1790 <= (fired.detected_at - START) / 1000 - 242 <= 1870


@pytest.mark.parametrize("kind", ["dcgm", "nic", "bmc"])
def test_less_than_five_minutes_are_nothing(kind: Kind) -> None:
    tape = tape_of(replace(SCENE, minutes=16))
    for begin in (200, 600):
        tape = without(tape, kind, begin, begin + 240, node=NODE)
    assert entities(tape) == []


def test_silences_that_end_by_themselves_teach_patience() -> None:
    tape = tape_of(replace(SCENE, minutes=26))
    for begin in (200, 600):
        tape = without(tape, "dcgm", begin, begin + 282, node=name(2))
    (fired,) = firing(without(tape, "dcgm", 1000, node=NODE))
    assert dict(fired.entity) == {"node": NODE}
    assert 305 <= (fired.detected_at - START) / 1000 - 1000 <= 320


def test_an_exporter_that_is_restarted_again_and_again_is_one_gap() -> None:
    tape = tape_of(replace(SCENE, minutes=40, missing=0.02))
    for begin in range(200, 2000, 200):
        tape = without(tape, "dcgm", begin, begin + 140, node=NODE)
    fired, resolved = run(tape)
    assert (fired.state, resolved.state) == ("firing", "resolved")
    assert (fired.detected_at - START) / 1000 <= 200 + 1500
    assert 1940 < (resolved.detected_at - START) / 1000 <= 1940 + 300


_OF_THE_NODE = [
    ("scheduler", "Back-off restarting failed container dcgm-exporter in pod dcgm-exporter-7kq2p_gpu-operator"),
    ("job", "step:1619/20344 train_loss:1.2798 train_time:27157619ms step_avg:3040.03ms"),
]


@pytest.mark.parametrize(("source", "words"), _OF_THE_NODE)
def test_with_the_whole_agent_gone_what_runs_there_shows_that_the_node_lives(source: Any, words: str) -> None:
    event = line(AT_S + 60, source, words, node=NODE)
    quiet = replace(SCENE, kinds=("nic", "dcgm"), working=False)
    gone = without(without(tape_of(quiet), "nic", AT_S, node=NODE), "dcgm", AT_S, node=NODE)
    assert firing(gone) == []
    (fired,) = firing(replace(gone, logs=[event]))
    assert dict(fired.entity) == {"node": NODE}
    assert fired.evidence["alive_by"] == "its own log lines"
    last = line(AT_S + 12, source, words, node=NODE)
    assert firing(replace(gone, logs=[last])) == [], "the last line of a node that died after a lost scrape"


def test_a_bmc_whose_sensors_are_read_one_after_the_other_is_read_once_a_minute() -> None:
    def swept(rows: Any) -> Any:
        sensors = np.unique(rows.keys["sensor"], return_inverse=True)[1]
        return replace(rows, times=rows.times + 4_000 * sensors)

    tape = tape_of(replace(SCENE, minutes=40))
    late = replace(tape, rows=[swept(rows) if rows.kind == "bmc" else rows for rows in tape.rows])
    assert firing(late) == []


def test_with_the_whole_agent_gone_the_steps_show_that_the_node_lives() -> None:
    tape = without(without(tape_of(SCENE), "nic", AT_S, node=NODE), "dcgm", AT_S, node=NODE)
    (fired,) = firing(tape)
    assert dict(fired.entity) == {"node": NODE}
    assert fired.evidence["alive_by"] == "steps of job 812"


def test_a_node_that_an_elastic_job_goes_on_without_is_no_gap() -> None:
    def off(rows: Rows, readings: FloatArray) -> FloatArray:
        return np.where(where(rows, AT_S, 1e9, node=NODE, sensor="node_power"), 100.0, readings)

    tape = without(without(tape_of(SCENE), "nic", AT_S, node=NODE), "dcgm", AT_S, node=NODE)
    assert firing(changed(tape, "bmc", "reading", off)) == []


def test_a_dead_node_is_no_gap_though_its_bmc_lives() -> None:
    tape = without(without(tape_of(SCENE), "nic", AT_S, node=NODE), "dcgm", AT_S, node=NODE)
    assert entities(without(tape, "steps", AT_S)) == []


def test_streams_that_come_back_one_by_one_after_a_crash_are_no_gap() -> None:
    scene = replace(SCENE, minutes=16)
    tape = without(without(tape_of(scene), "nic", AT_S, 480, node=NODE), "dcgm", AT_S, 700, node=NODE)
    assert entities(without(tape, "steps", AT_S)) == []


@pytest.mark.parametrize("working", [True, False])
def test_a_whole_collector_gone_is_one_gap(working: bool) -> None:
    scene = replace(SCENE, nodes=8, gpus=1, working=working, bmc_interval_s=15.0, minutes=25)
    tape = tape_of(scene if working else replace(scene, kinds=("bmc", "nic", "dcgm")))
    nodes = [name(n) for n in range(2, 7)]
    tape = without(without(tape, "nic", AT_S, 1100, node=nodes), "dcgm", AT_S, 1100, node=nodes)
    found = run(tape)
    assert [(f.state, dict(f.entity)) for f in found] == [
        ("firing", {"node": name(2)}),
        ("resolved", {"node": name(2)}),
    ]
    assert found[0].evidence["affected"] == 5


def test_a_rack_that_is_one_gap_is_named() -> None:
    nodes = [name(n) for n in range(4, 8)]
    (fired,) = firing(without(tape_of(replace(SCENE, nodes=8, gpus=1)), "dcgm", AT_S, node=nodes))
    assert (dict(fired.entity), fired.evidence["shared"]) == ({"node": name(4)}, "rack r01")


def test_two_nodes_are_two_gaps() -> None:
    found = firing(without(tape_of(SCENE), "dcgm", AT_S, node=[name(0), name(3)]))
    assert sorted(str(finding.entity["node"]) for finding in found) == [name(0), name(3)]


def test_a_frozen_gpu_is_named_and_is_over_when_it_moves() -> None:
    found = run(frozen(tape_of(replace(SCENE, minutes=14)), "dcgm", EVERYTHING, until_s=500, node=NODE, gpu=0))
    assert [f.state for f in found] == ["firing", "resolved"]
    assert dict(found[0].entity) == {"node": NODE, "gpu": 0}
    assert found[0].evidence["mode"] == "frozen"
    assert (found[1].detected_at - START) / 1000 <= 500 + 300


def test_gauges_that_freeze_while_the_energy_counter_runs_are_a_gap_where_a_job_goes_on() -> None:
    tape = frozen(tape_of(SCENE), "dcgm", GAUGES, node=NODE, gpu=0)
    (fired,) = firing(tape)
    assert dict(fired.entity) == {"node": NODE, "gpu": 0}
    assert "energy" in str(fired.evidence["alive_by"])
    assert entities(without(tape, "steps", AT_S)) == []


def test_gpus_at_work_that_draw_the_same_to_the_milliwatt_are_frozen_with_nothing_else_to_show_it() -> None:
    watts, tensor = GAUGES[:2]
    scene = replace(SCENE, kinds=("nic", "dcgm"))
    tape = changed(tape_of(scene), "dcgm", ENERGY, lambda _, values: np.full_like(values, np.nan))
    whole = changed(tape, "dcgm", watts, lambda _, values: np.round(values))
    no_tensor = changed(tape, "dcgm", tensor, lambda _, values: np.zeros_like(values))
    idle = changed(no_tensor, "dcgm", "DCGM_FI_DEV_GPU_UTIL", lambda _, values: np.zeros_like(values))
    found = [entities(frozen(one, "dcgm", GAUGES, node=NODE, gpu=0)) for one in (tape, whole, no_tensor, idle)]
    assert found == [[{"node": NODE, "gpu": 0}], [], [{"node": NODE, "gpu": 0}], []]


def test_a_job_on_other_gpus_of_the_node_does_not_make_an_idle_ones_readings_stale() -> None:
    tape = frozen(tape_of(SCENE), "dcgm", GAUGES, node=NODE, gpu=0)
    part = [replace(event, job=replace(event.job, gpus={NODE: (1,)})) for event in tape.jobs]
    assert entities(replace(tape, jobs=part)) == []
    other = frozen(tape_of(SCENE), "dcgm", GAUGES, node=NODE, gpu=1)
    assert entities(replace(other, jobs=part)) == [{"node": NODE, "gpu": 1}]


def test_all_gpus_of_a_node_frozen_are_the_node() -> None:
    assert entities(frozen(tape_of(SCENE), "dcgm", EVERYTHING, node=NODE)) == [{"node": NODE}]


def test_all_nodes_frozen_are_one_gap() -> None:
    (fired,) = firing(frozen(tape_of(SCENE), "dcgm", EVERYTHING))
    assert dict(fired.entity) == {"node": name(0)}
    assert fired.evidence["affected"] == 4


@pytest.mark.parametrize("interval_s", [5.0, 15.0, 30.0, 60.0])
def test_the_cadence_does_not_matter(interval_s: float) -> None:
    scene = replace(SCENE, interval_s=interval_s, minutes=max(40 * interval_s / 60, 9))
    at_s = 20 * interval_s
    silent = without(tape_of(scene), "dcgm", at_s, node=NODE)
    copies = frozen(tape_of(scene), "dcgm", EVERYTHING, at_s, node=NODE)
    for tape in (silent, copies):
        (fired,) = firing(tape)
        assert dict(fired.entity) == {"node": NODE}
        assert (fired.detected_at - START) / 1000 - at_s <= max(305, 7 * interval_s)
    assert firing(without(tape_of(scene), "dcgm", at_s, at_s + 5 * min(interval_s, 60), node=NODE)) == []


def test_repeats_by_design_are_no_freeze_and_a_freeze_under_them_is() -> None:
    scene = replace(SCENE, minutes=19, collected_s=30.0, missing=0.02)
    assert entities(tape_of(scene)) == []
    assert entities(frozen(tape_of(scene), "dcgm", EVERYTHING, 500, node=NODE, gpu=1)) == [{"node": NODE, "gpu": 1}]


def test_idle_gpus_whose_gauges_stand_still_are_idle() -> None:
    tape = tape_of(replace(SCENE, minutes=15, working=False, kinds=("bmc", "nic", "dcgm")))
    assert entities(frozen(tape, "dcgm", GAUGES)) == []


def test_a_switch_is_frozen_when_no_port_counts_while_nics_on_it_move_data() -> None:
    octets = ("SAI_PORT_STAT_IF_IN_OCTETS", "SAI_PORT_STAT_IF_OUT_OCTETS")
    assert entities(frozen(tape_of(WHOLE), "switch", octets, switch="leaf-1")) == [{"switch": "leaf-1"}]
    assert entities(frozen(tape_of(WHOLE), "switch", octets, switch="leaf-1", port="Ethernet0")) == []

    def unused(rows: Any, values: Any) -> Any:
        return np.where(where(rows, 0, switch="leaf-1", port="Ethernet100"), 0.0, values)

    tape = frozen(tape_of(WHOLE), "switch", octets, switch="leaf-1")
    for field in octets:
        tape = changed(tape, "switch", field, unused)
    assert entities(tape) == [{"switch": "leaf-1"}], "a port that carries nothing does not show that the switch is read"


def test_a_switch_whose_ports_correct_frames_is_read() -> None:
    octets, corrects = (
        ("SAI_PORT_STAT_IF_IN_OCTETS", "SAI_PORT_STAT_IF_OUT_OCTETS"),
        "SAI_PORT_STAT_IF_IN_FEC_CORRECTABLE_FRAMES",
    )
    tape = frozen(tape_of(WHOLE), "switch", octets, switch="leaf-1")

    def correcting(rows: Any) -> Any:
        if rows.kind != "switch":
            return rows
        frames, there = np.floor(50 * seconds(rows)), np.ones(len(rows.times), bool)
        return replace(rows, values={**rows.values, corrects: frames}, valid={**rows.valid, corrects: there})

    assert entities(replace(tape, rows=[correcting(rows) for rows in tape.rows])) == []


@pytest.mark.parametrize("pause_s", [295.0, 700.0])
def test_a_switch_that_has_had_nothing_to_count_is_not_frozen_when_its_nics_move_data_again(pause_s: float) -> None:
    tape = frozen(tape_of(replace(WHOLE, minutes=18)), "nic", ("port_xmit_data", "port_rcv_data"), AT_S, AT_S + pause_s)
    octets = ("SAI_PORT_STAT_IF_IN_OCTETS", "SAI_PORT_STAT_IF_OUT_OCTETS")
    read = AT_S + pause_s + 45  # the switch is read more seldom than its NICs
    assert entities(frozen(tape, "switch", octets, AT_S, read, switch="leaf-1")) == []


def test_nics_whose_counters_begin_anew_move_no_data() -> None:
    def begins(rows: Any, values: Any) -> Any:
        at = seconds(rows) - AT_S
        return np.where(at >= 250, 0.0, np.where(at >= 100, 5.0, values))

    idle = frozen(tape_of(WHOLE), "nic", ("port_xmit_data", "port_rcv_data"))
    idle = frozen(idle, "switch", ("SAI_PORT_STAT_IF_IN_OCTETS", "SAI_PORT_STAT_IF_OUT_OCTETS"))
    for field in ("port_xmit_data", "port_rcv_data"):
        idle = changed(idle, "nic", field, begins)
    assert entities(idle) == []


def test_all_switches_silent_are_one_gap() -> None:
    (fired,) = firing(without(tape_of(replace(WHOLE, nics=2)), "switch", AT_S, switch=["leaf-1", "leaf-2", "spine-1"]))
    assert dict(fired.entity) == {"switch": "leaf-1"}
    assert fired.evidence["affected"] == 3


@pytest.mark.parametrize(
    "message",
    ["slurmctld: update_node: node v002 state set to DRAIN", "badmin hclose v002", "slurmctld: reboot nodes v002"],
)
def test_what_the_scheduler_took_out_is_silent_by_right(message: str) -> None:
    drained = line(100, "scheduler", message, severity="info")
    assert entities(without(tape_of(replace(SCENE, logs=[drained])), "dcgm", AT_S, node=NODE)) == []


@pytest.mark.parametrize(("until_s", "found"), [(1000, []), (1e9, [1085])], ids=["back", "never back"])
def test_exporters_of_a_node_that_the_scheduler_takes_back_have_time_to_come_back(
    until_s: float, found: list[int]
) -> None:
    out = line(100, "scheduler", "node-controller: Node v002 cordoned: planned driver upgrade", severity="info")
    back = line(800, "scheduler", "node-controller: Node v002 uncordoned", severity="info")
    tape = without(tape_of(replace(SCENE, logs=[out, back], minutes=20)), "dcgm", AT_S, until_s, node=NODE)
    at = [(one.started_at - START, one.detected_at - START) for one in firing(tape)]
    assert [detected // 1000 for _, detected in at] == found
    assert all(800_000 <= started <= 815_000 for started, _ in at)


def test_nodes_that_never_reported_and_streams_that_end_with_the_recording_are_no_gaps() -> None:
    tape = without(tape_of(SCENE), "dcgm", 0, node=NODE)
    assert entities(tape) == []
    tape = tape_of(replace(SCENE, minutes=14))
    for kind in ("bmc", "nic", "dcgm"):
        tape = without(tape, kind, 200)
    assert entities(without(tape, "steps", 200)) == []


def test_lost_scrapes_are_nothing() -> None:
    for seed in range(3):
        scene = Scene(nodes=4, gpus=1, nics=1, minutes=20, missing=0.08, kinds=("nic", "steps", "dcgm"), seed=seed)
        assert entities(tape_of(scene)) == []


def test_an_idle_node_that_draws_what_it_did_is_a_gap_and_one_that_draws_less_is_not() -> None:
    tape = tape_of(replace(SCENE, minutes=19, working=False, kinds=("bmc", "nic", "dcgm")))
    tape = without(without(tape, "nic", AT_S, node=NODE), "dcgm", AT_S, node=NODE)
    (fired,) = firing(tape)
    assert (dict(fired.entity), fired.evidence["alive_by"]) == ({"node": NODE}, "watts by its BMC")
    assert float(fired.evidence["since_s"]) >= 900, "it may have been rebooting until then"


@pytest.mark.parametrize(
    ("left", "from_s", "until_s", "named"),
    [
        (0.2, AT_S, 1e9, []),
        (0.2, AT_S, AT_S + 130, [{"node": NODE}]),
        (0.75, AT_S, 1e9, []),
        (0.75, AT_S + 300, 1e9, [{"node": NODE}]),
    ],
    ids=["fall and stay low", "come back", "are those of an idle node at once", "later"],
)
def test_watts_say_that_a_silent_node_lives_but_where_they_fall_with_it_and_stay_low(
    left: float, from_s: float, until_s: float, named: list[dict[str, str]]
) -> None:
    tape = tape_of(replace(SCENE, minutes=24, working=False, kinds=("bmc", "nic", "dcgm")))
    tape = without(without(tape, "nic", AT_S, node=NODE), "dcgm", AT_S, node=NODE)
    fallen = changed(
        tape, "bmc", "reading",
        lambda rows, watts: np.where(where(rows, from_s, until_s, node=NODE, sensor="node_power"), left * watts, watts),
    )  # fmt: skip
    assert entities(fallen) == named


def test_a_switch_that_was_down_with_its_links_and_boots_is_no_gap() -> None:
    tape = without(tape_of(WHOLE), "switch", AT_S, 470, switch="spine-1")

    def down(rows: Any, up: Any) -> Any:
        return np.where(where(rows, AT_S, 440, switch="leaf-1", port="Ethernet100"), 0.0, up)

    assert entities(changed(tape, "switch", "oper_up", down)) == []
    assert entities(tape) == [{"switch": "spine-1"}]


def test_a_switch_whose_links_are_down_is_no_gap_though_a_job_goes_on_by_others() -> None:
    tape = without(tape_of(WHOLE), "switch", AT_S, switch="leaf-1")

    def down(rows: Any, up: Any) -> Any:
        return np.where(where(rows, AT_S, nic="mlx5_0"), 0.0, up)

    assert entities(tape) == [{"switch": "leaf-1"}]
    assert entities(changed(without(tape, "switch", AT_S), "nic", "state", down)) == []


def test_a_switch_that_was_down_for_long_has_not_stuttered() -> None:
    tape = without(tape_of(replace(WHOLE, minutes=26)), "switch", AT_S, 1022, switch="spine-1")
    tape = without(tape, "switch", 1052, 1100, switch="spine-1")

    def down(rows: Any, up: Any) -> Any:
        return np.where(where(rows, AT_S, 1012, switch="leaf-1", port="Ethernet100"), 0.0, up)

    assert entities(changed(tape, "switch", "oper_up", down)) == []


def test_a_node_that_was_off_and_boots_is_no_gap() -> None:
    tape = tape_of(replace(SCENE, minutes=60, working=False, kinds=("bmc", "nic", "dcgm")))
    dead = without(without(tape, "dcgm", 602, 3380, node=NODE), "nic", 602, 3380, node=NODE)

    def drawn(rows: Rows, watts: FloatArray) -> FloatArray:
        off = where(rows, 602, 3302, node=NODE, sensor="node_power")
        booted = where(rows, 3302, 3600, node=NODE, sensor="node_power")
        return np.asarray(np.where(off, 0.04 * watts, np.where(booted, 0.6 * watts, watts)))

    assert firing(changed(dead, "bmc", "reading", drawn)) == []
