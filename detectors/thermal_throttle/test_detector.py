"""thermal_throttle on what heat does: fans, air and heat sinks, and machines that are merely warm."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import Finding, LogRecord
from detectors.engine.rows import Rows
from detectors.signals.bmc_alarms import alarm_line
from detectors.signals.heat_limits import limits_of
from detectors.signals.throttle_bits import HW_THERMAL_NS, SW_THERMAL_NS
from detectors.spec import configure
from detectors.tapes.gpus import START, Cluster, changed, name
from detectors.tapes.tape import Tape, play
from detectors.thermal_throttle.detector import ThermalThrottle
from detectors.thermal_throttle.examples import FAN, INLET, NODE, SINK, Heat, Scene, tape_of

BITS = "DCGM_FI_DEV_CLOCK_THROTTLE_REASONS"


def run(tape: Tape) -> list[Finding]:
    config = configure(ThermalThrottle.config_type, ThermalThrottle.spec, {})
    return play(tape, [(ThermalThrottle, config)])[0]


def changes(found: list[Finding]) -> list[tuple[str, dict[str, Any]]]:
    return [(finding.state, dict(finding.entity)) for finding in found]


def firing(tape: Tape) -> list[dict[str, Any]]:
    return [dict(finding.entity) for finding in run(tape) if finding.state == "firing"]


def without(scene: Scene, *fields: str) -> Scene:
    return replace(scene, fields=[field for field in scene.fields if field not in fields])


def test_a_fan_is_the_node_s_from_its_failure_on_with_evidence_and_an_end() -> None:
    fired, resolved = run(tape_of(FAN))
    assert changes([fired, resolved]) == [("firing", {"node": name(1)}), ("resolved", {"node": name(1)})]
    assert fired.id == resolved.id
    assert fired.started_at == START + 120_400, "the fan's line is the onset"
    assert START + 330_000 < resolved.detected_at <= START + 630_000
    evidence = fired.evidence
    assert "Fan #0x32" in str(evidence["cooling_alarm"])
    assert float(evidence["gpu_temp_c"]) >= 84 > 70 > float(evidence["gpu_temp_peers_c"])
    assert float(evidence["sm_clock_mhz"]) < 0.92 * float(evidence["sm_clock_peers_mhz"])
    assert float(evidence["power_w"]) < float(evidence["power_peers_w"])
    assert float(evidence["thermal_violation_fraction"]) == pytest.approx(0.95, abs=0.05)
    assert (evidence["job_id"], evidence["gpus_held"], evidence["throttle_reasons"]) == ("812", 1, "0x20")
    assert "fans" in fired.recommended_action


def test_the_sensor_reports_the_fan_where_no_line_does() -> None:
    fired, _ = run(tape_of(replace(FAN, fan_lines=False)))
    assert fired.entity == {"node": name(1)}
    assert fired.evidence["cooling_alarm"] == "sensor fan2"


def test_warm_air_names_the_node_and_its_inlet() -> None:
    fired = run(tape_of(INLET))[0]
    assert fired.entity == {"node": name(2)}
    assert float(fired.evidence["inlet_c"]) > float(fired.evidence["inlet_usual_c"]) + 8
    assert "inlet" in fired.recommended_action


def test_one_gpu_alone_is_named_alone() -> None:
    found = run(tape_of(SINK))
    assert changes(found) == [("firing", {"node": name(0), "gpu": 3})]
    assert "heat sink" in found[0].recommended_action


def test_most_of_a_node_is_the_node() -> None:
    assert changes(run(tape_of(NODE))) == [("firing", {"node": name(1)}), ("resolved", {"node": name(1)})]


def test_a_gpu_that_others_follow_becomes_part_of_the_finding_on_its_node() -> None:
    heats = [Heat(1, 100, 460, gpus=[0], ramp_s=5), Heat(1, 240, 460, gpus=[1, 2, 3], ramp_s=5)]
    found = run(tape_of(Scene(heats=heats, bmc=False)))
    alone, whole = {"node": name(1), "gpu": 0}, {"node": name(1)}
    assert changes(found)[0] == ("firing", alone)
    assert sorted(changes(found)[1:], key=str) == [("firing", whole), ("resolved", alone)]


def test_checkpoints_in_between_make_no_further_findings() -> None:
    scene = replace(SINK, pauses=[(250, 285), (320, 350)], cluster=replace(SINK.cluster, minutes=7))
    assert firing(tape_of(scene)) == [{"node": name(0), "gpu": 3}]


@pytest.mark.parametrize(
    "scene",
    [
        without(SINK, "THERMAL_VIOLATION"),
        without(SINK, "CLOCK_THROTTLE_REASONS"),
        without(SINK, "CLOCK_THROTTLE_REASONS", "THERMAL_VIOLATION"),
        without(SINK, "GPU_TEMP", "MEMORY_TEMP"),
        without(SINK, "GPU_UTIL"),
        replace(without(SINK, "CLOCK_THROTTLE_REASONS"), violation_unit_ns=1000.0),
        replace(without(SINK, "CLOCK_THROTTLE_REASONS"), collected_s=30.0),
        replace(SINK, collected_s=30.0),
        replace(SINK, cluster=replace(SINK.cluster, missing=0.3)),
        replace(SINK, cluster=replace(SINK.cluster, job_known=False)),
        replace(SINK, cluster=replace(SINK.cluster, topology_known=False)),
        replace(SINK, cluster=replace(SINK.cluster, interval_s=15.0)),
        replace(SINK, cluster=replace(SINK.cluster, interval_s=30.0, minutes=10)),
        replace(SINK, cluster=replace(SINK.cluster, interval_s=60.0, minutes=10)),
        replace(SINK, bmc=False),
    ],
    ids=["no counter", "no reasons", "temperature and clock alone", "no temperature", "no utilisation",
         "counter of us", "counter of a slow exporter", "slow exporter", "missing scrapes", "no job", "no topology",
         "every 15 s", "every 30 s", "every 60 s", "no BMC"],
)  # fmt: skip
def test_the_gpu_is_named_with_less_to_go_on(scene: Scene) -> None:
    assert firing(tape_of(scene)) == [{"node": name(0), "gpu": 3}]


@pytest.mark.parametrize("reason", [SW_THERMAL_NS, HW_THERMAL_NS])
def test_a_counter_of_one_reason_suffices_where_that_of_all_is_not_there(reason: str) -> None:
    tape = tape_of(without(SINK, "CLOCK_THROTTLE_REASONS", "SM_CLOCK"))
    dcgm = tape.rows[0]
    values, valid = dict(dcgm.values), dict(dcgm.valid)
    counted, there = values.pop("DCGM_FI_DEV_THERMAL_VIOLATION"), valid.pop("DCGM_FI_DEV_THERMAL_VIOLATION")
    # The other reason's counter stands where it is.
    values |= {SW_THERMAL_NS: np.full_like(counted, 7e9), HW_THERMAL_NS: np.full_like(counted, 7e9)} | {reason: counted}
    valid |= {SW_THERMAL_NS: there, HW_THERMAL_NS: there}
    fired = run(replace(tape, rows=[Rows("dcgm", dcgm.times, dcgm.keys, values, valid), *tape.rows[1:]]))[0]
    assert dict(fired.entity) == {"node": name(0), "gpu": 3}
    assert float(fired.evidence["thermal_violation_fraction"]) > 0.9


DEFAULT_SINK = without(SINK, "CLOCK_THROTTLE_REASONS", "THERMAL_VIOLATION")
"""What dcgm-exporter sends of it by default."""


def test_on_default_fields_it_says_what_the_work_loses_and_how_seldom_chance_does_that() -> None:
    (fired,) = run(tape_of(replace(DEFAULT_SINK, bmc=False)))
    assert dict(fired.entity) == {"node": name(0), "gpu": 3}
    assert float(fired.evidence["work_rate"]) < 0.9
    assert "years" in str(fired.evidence["by_chance"])


def test_on_default_fields_an_alarm_of_the_fans_suffices_after_two_readings() -> None:
    stated = firing_at(FAN)
    seen = firing_at(without(FAN, "CLOCK_THROTTLE_REASONS", "THERMAL_VIOLATION"))
    assert stated <= seen <= stated + 30_000


@pytest.mark.parametrize("interval_s", [5.0, 30.0])
def test_on_default_fields_a_whole_node_is_found_beside_the_only_other_one_of_its_job(interval_s: float) -> None:
    pair = Cluster(nodes=2, gpus=4, minutes=30, interval_s=interval_s)
    heat = Heat(1, 600, 1500, ramp_s=600)
    scene = without(Scene(pair, [heat], bmc=False), "CLOCK_THROTTLE_REASONS", "THERMAL_VIOLATION")
    assert firing(tape_of(scene)) == [{"node": name(1)}]
    both = replace(scene, heats=[heat, replace(heat, node=0)])
    assert firing(tape_of(both)) == []  # a room that is too warm, or work that is: nobody is left to compare with


@pytest.mark.parametrize(
    ("ramp_s", "drawn_w", "found"), [(60, 320, [{"node": name(1)}]), (600, 320, [{"node": name(1)}]), (600, 380, [])]
)
def test_on_default_fields_the_only_node_of_a_job_is_found_by_its_own_clock_and_the_air_of_others(
    ramp_s: float, drawn_w: float, found: list[dict[str, Any]]
) -> None:
    """Nobody in its job is cooler. What takes clocks at the power limit is the work."""
    heat = Heat(1, 600, 1500, ramp_s=ramp_s, rise_k=60)
    scene = Scene(Cluster(nodes=4, gpus=4, minutes=30, interval_s=30), [heat], bmc=False)
    tape = tape_of(without(scene, "CLOCK_THROTTLE_REASONS", "THERMAL_VIOLATION"))
    tape = changed(tape, "DCGM_FI_DEV_POWER_USAGE", lambda *of: np.where(of[3] == 320, drawn_w, of[3]))
    (job,) = tape.jobs
    jobs = [replace(job, job=replace(job.job, job_id=node, nodes=(node,))) for node in job.job.nodes]
    limits = {"gpus": [{"gpu": gpu, "power_limit_w": 400.0} for gpu in range(4)]}
    topology = {"nodes": [node | limits for node in tape.topology["nodes"]]}
    assert firing(replace(tape, jobs=jobs, topology=topology)) == found


def firing_at(scene: Scene) -> int:
    return next(finding.detected_at for finding in run(tape_of(scene)) if finding.state == "firing")


def test_clocks_that_users_lock_now_and_then_hide_no_gpu_that_is_at_its_limit() -> None:
    scene = replace(DEFAULT_SINK, bmc=False)

    def locked(at_s: Any, node: Any, gpu: Any, clock: Any) -> Any:
        return np.where((node == name(2)) & (gpu < 2) & (at_s % 120 < 60), 0.7 * clock, clock)

    assert firing(changed(tape_of(scene), "DCGM_FI_DEV_SM_CLOCK", locked)) == [{"node": name(0), "gpu": 3}]


def test_a_gpu_as_warm_as_others_that_keep_their_clock_is_not_held_down_by_heat() -> None:
    scene = without(Scene(base_c=81), "CLOCK_THROTTLE_REASONS", "THERMAL_VIOLATION")
    slow = changed(
        tape_of(scene),
        "DCGM_FI_DEV_SM_CLOCK",
        lambda at, node, gpu, clock: np.where((node == name(0)) & (gpu == 1) & (at > 150), 0.8 * clock, clock),
    )
    cooler = changed(
        slow,
        "DCGM_FI_DEV_GPU_TEMP",
        lambda at, node, gpu, temp: np.where((node == name(0)) & (gpu == 1), np.minimum(temp, 82), temp),
    )
    assert firing(cooler) == []


def test_a_gpu_eight_degrees_warmer_for_good_is_a_property() -> None:
    warm = Scene(base_c=72, heats=[Heat(1, 0, 9999, gpus=[0], rise_k=8, ramp_s=1)])
    assert firing(tape_of(without(warm, "CLOCK_THROTTLE_REASONS", "THERMAL_VIOLATION"))) == []


def test_one_reading_of_no_turning_is_nothing_while_temperatures_stand() -> None:
    assert run(tape_of(Scene(fans_still=[(1, 120, 181)], fan_lines=False))) == []


def test_a_node_alone_is_judged_by_its_limit() -> None:
    scene = Scene(cluster=Cluster(nodes=1, gpus=2, minutes=6), heats=[Heat(0, 120, 360, gpus=[1], ramp_s=5)])
    assert firing(tape_of(scene)) == [{"node": name(0), "gpu": 1}]


def test_a_gpu_that_heats_up_while_it_is_warm_is_held_by_the_limit_that_dcgm_reports() -> None:
    tape = tape_of(Scene(base_c=70, heats=[Heat(0, 150, 400, gpus=[3], rise_k=8, ramp_s=5)]))
    limited = changed(
        tape, BITS, lambda at, node, gpu, bits: np.where((node == name(0)) & (gpu == 3) & (at > 155), 0x40, 0)
    )
    field = "DCGM_FI_DEV_GPU_MAX_OP_TEMP"
    assert firing(limited) == [], "the bit alone, far below the model's limit, with clocks as they were"
    assert firing(changed(limited, field, lambda at, *_: np.full(len(at), 80.0))) == [{"node": name(0), "gpu": 3}]


def healthy(**changes: Any) -> Tape:
    return tape_of(Scene(**changes))


def test_warm_at_full_load_is_nothing() -> None:
    assert run(healthy(base_c=80)) == []


def test_a_fan_that_fails_without_clocks_falling_is_nothing_here() -> None:
    assert run(tape_of(replace(FAN, heats=[]))) == []


def test_a_stuck_bit_is_nothing() -> None:
    assert run(changed(healthy(), BITS, lambda at, node, gpu, bits: np.where(node == name(1), 0x20, bits))) == []


def test_idle_gpus_are_not_looked_at_whatever_their_bits_say() -> None:
    tape = healthy(pauses=[(0, 480)], heats=[Heat(1, 100, 400, rise_k=60)])
    assert run(changed(tape, BITS, lambda at, node, gpu, bits: np.full_like(at, 0x41))) == []


@pytest.mark.parametrize("ns_a_second", [5e5, 2e6])
@pytest.mark.parametrize("fields", [(), ("CLOCK_THROTTLE_REASONS",)], ids=["reasons", "no reasons"])
def test_a_violation_counter_that_moves_a_little_is_noise(ns_a_second: float, fields: tuple[str, ...]) -> None:
    def creeps(at: Any, node: Any, gpu: Any, values: Any) -> Any:
        return values + np.floor(at * ns_a_second)

    assert run(changed(tape_of(without(Scene(base_c=82), *fields)), "DCGM_FI_DEV_THERMAL_VIOLATION", creeps)) == []


def test_a_power_brake_is_not_heat() -> None:
    tape = healthy(base_c=60)
    braked = changed(tape, BITS, lambda at, node, gpu, bits: np.where((node == name(1)) & (at > 100), 0x88, bits))
    slow = "DCGM_FI_DEV_SM_CLOCK"
    assert (
        run(changed(braked, slow, lambda at, node, gpu, clock: np.where((node == name(1)) & (at > 100), 500, clock)))
        == []
    )


def test_what_is_still_hot_stays_open_and_a_fan_still_down_too() -> None:
    assert changes(run(tape_of(replace(FAN, fans_still=[(1, 120, 9000)])))) == [("firing", {"node": name(1)})]


def test_the_same_heat_again_is_a_finding_of_its_own() -> None:
    heats = [Heat(1, 60, 150, ramp_s=5), Heat(1, 420, 560, ramp_s=5)]
    found = run(tape_of(Scene(cluster=Cluster(nodes=3, gpus=4, minutes=10), heats=heats, bmc=False)))
    assert [finding.state for finding in found] == ["firing", "resolved", "firing"]
    assert found[0].id != found[2].id


@pytest.mark.parametrize(
    ("message", "alarm"),
    [
        ("  5b | 03/22/2024 | 12:44:36 | Temperature #0x04 | Upper Critical going high | Asserted", ("inlet", False)),
        ("  5b | 03/22/2024 | 12:44:36 | Temperature #0x04 | Upper Critical going high | Deasserted", ("inlet", True)),
        ("  10 | 03/22/2024 | 12:44:36 | Fan #0x32 | Lower Non-recoverable going low  | Asserted", ("fan", False)),
        ("Fan 3 failure detected", ("fan", False)),
        ("   1 | 03/22/2024 | 12:44:36 | Power Supply #0x51 | Failure detected | Asserted", None),
        ("   1 | 03/22/2024 | 12:44:36 | Memory #0x87 | Correctable ECC | Asserted", None),
    ],
)
def test_lines_of_the_sel(message: str, alarm: tuple[str, bool] | None) -> None:
    line = alarm_line(LogRecord(START, "sel", message, node="v001"))
    assert (None if line is None or line[0] == "supply" else (line[0], line[2])) == alarm


def test_a_line_and_its_end_are_about_the_same() -> None:
    both = [
        f" {n} | 03/22/2024 | 12:44:3{n} | Fan #0x32 | Lower Critical going low | {s}"
        for n, s in ((1, "Asserted"), (2, "Deasserted"))
    ]
    first, second = (alarm_line(LogRecord(START, "sel", text, node="v001")) for text in both)
    assert first is not None
    assert second is not None
    assert first[1] == second[1]


@pytest.mark.parametrize(
    ("model", "limit"),
    [("NVIDIA A100-SXM4-80GB", 85), ("NVIDIA H100 80GB HBM3", 87), ("Tesla V100-SXM2-16GB", 83), ("", 85)],
)
def test_limits_by_model(model: str, limit: float) -> None:
    assert limits_of(model)[0] == limit


HOT = [{"node": name(0), "gpu": 3}]


@pytest.mark.parametrize(
    ("watts", "limit_w", "temp_c", "expected"),
    [(450.0, None, 82, []), (450.0, 480.0, 82, []), (450.0, 700.0, 82, HOT), (320.0, None, 82, HOT),
     (320.0, 325.0, 82, []), (320.0, 700.0, 80, HOT), (550.0, 700.0, 80, [])],
)  # fmt: skip
def test_what_draws_more_than_its_peers_is_warm_and_slow_by_its_load_at_the_limit(
    watts: float, limit_w: float | None, temp_c: float, expected: list[Any]
) -> None:
    """Of inference, without throttle reasons: the GPU with the longest queue is the warmest, at the lowest clock."""
    quiet = tape_of(without(Scene(bmc=False), "CLOCK_THROTTLE_REASONS", "THERMAL_VIOLATION"))
    limits = {} if limit_w is None else {"gpus": [{"gpu": gpu, "power_limit_w": limit_w} for gpu in range(4)]}
    quiet = replace(quiet, topology={"nodes": [node | limits for node in quiet.topology["nodes"]]})

    def while_loaded(value: float) -> Any:
        return lambda at, node, gpu, was: np.where((at >= 150) & (node == name(0)) & (gpu == 3), value, was)

    tape = changed(quiet, "DCGM_FI_DEV_GPU_TEMP", while_loaded(temp_c))
    tape = changed(tape, "DCGM_FI_DEV_SM_CLOCK", while_loaded(1230))
    assert firing(changed(tape, "DCGM_FI_DEV_POWER_USAGE", while_loaded(watts))) == expected


def test_heat_that_comes_and_goes_is_held_after_its_return() -> None:
    bouts = [Heat(0, at, at + 240, gpus=[3], ramp_s=10, rise_k=45) for at in range(150, 3600, 840)]
    found = run(tape_of(Scene(cluster=replace(SINK.cluster, minutes=100), heats=bouts, bmc=False)))
    assert [finding.state for finding in found] == ["firing", "resolved"] * 2
    assert found[-1].detected_at >= START + (150 + 840 * 4 + 240 + 1800) * 1000


@pytest.mark.parametrize(("others_c", "found"), [(70.0, [{"node": name(0), "gpu": 3}]), (96.0, [])])
def test_memory_at_its_limit_holds_down_a_gpu_whose_chip_is_cool(others_c: float, found: list[dict[str, Any]]) -> None:
    """Unless its peers' memory is as hot, and they keep their clocks."""
    scene = tape_of(replace(DEFAULT_SINK, bmc=False))
    tape = changed(scene, "DCGM_FI_DEV_GPU_TEMP", lambda _s, _node, _gpu, temp: np.minimum(temp, 55))

    def memory(at_s: Any, node: Any, gpu: Any, temp: Any) -> Any:
        own = (node == name(0)) & (gpu == 3)
        return np.where(own & (at_s > 150) & (at_s < 400), 96.0, np.where(own, 70.0, others_c) + 0 * temp)

    alerts = run(changed(tape, "DCGM_FI_DEV_MEMORY_TEMP", memory))
    assert [dict(one.entity) for one in alerts if one.state == "firing"] == found
    assert all("its memory 96 C" in one.summary for one in alerts if one.state == "firing")


@pytest.mark.parametrize(
    ("fields", "watts", "peers_c", "severities"),
    [(SINK, 320, 62, ["info", "ticket"]), (SINK, 320, 80, ["info"]), (DEFAULT_SINK, 320, 62, ["info", "ticket"]),
     (DEFAULT_SINK, 320, 80, []), (DEFAULT_SINK, 380, 62, [])],
    ids=["stated", "stated, all are warm", "default fields", "default fields, all are warm", "at its power limit"],
)  # fmt: skip
def test_a_heat_sink_that_costs_little_is_a_ticket_when_it_lasts(
    fields: Scene, watts: float, peers_c: float, severities: list[str]
) -> None:
    """At its limit and far hotter than its peers; by less than a tenth of the clock nobody is paged."""
    scene = replace(fields, heats=[replace(SINK.heats[0], until_s=600)], cluster=replace(SINK.cluster, minutes=15))
    tape, limits = tape_of(scene), {"gpus": [{"gpu": gpu, "power_limit_w": 400.0} for gpu in range(4)]}
    tape = replace(tape, topology={"nodes": [node | limits for node in tape.topology["nodes"]]})
    tape = changed(tape, "DCGM_FI_DEV_SM_CLOCK", lambda *of: np.where(of[3] < 1300, 1300, of[3]))
    tape = changed(tape, "DCGM_FI_DEV_POWER_USAGE", lambda *of: np.where(of[3] == 320, watts, of[3]))
    tape = changed(tape, "DCGM_FI_DEV_GPU_TEMP", lambda *of: np.where(of[3] < 80, of[3] - 62 + peers_c, of[3]))
    found = run(tape)
    assert [one.severity for one in found if one.state == "firing"] == severities
    assert [one.severity for one in found if one.state == "resolved"] == severities
    assert {str(dict(one.entity)) for one in found} <= {str(HOT[0])}
