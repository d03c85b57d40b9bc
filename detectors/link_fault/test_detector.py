"""link_fault on what cables do: down, flapping, erring, silent; and on ports that are down for other reasons."""

from dataclasses import replace
from typing import Any

import numpy as np
import pytest

from detectors.contract import Finding, FloatArray
from detectors.engine.rows import Rows
from detectors.link_fault.detector import LinkFault
from detectors.link_fault.examples import (
    AT_S,
    NIC,
    PORT,
    SCENE,
    UNCORRECTABLE,
    cable_lowered,
    collector_gone,
    lowered,
    node_gone,
)
from detectors.spec import configure
from detectors.tapes.cluster import START, Scene, changed, growing, line, name, seconds, tape_of, where, without
from detectors.tapes.tape import Tape, play

UPLINK = {"switch": "leaf-1", "port": "Ethernet100"}
FAR = {"switch": "spine-1", "port": "Ethernet0"}


def run(tape: Tape, **overrides: Any) -> list[Finding]:
    return play(tape, [(LinkFault, configure(LinkFault.config_type, LinkFault.spec, overrides))])[0]


def firing(tape: Tape, **overrides: Any) -> list[tuple[str, dict[str, str | int]]]:
    return [(f.fault, dict(f.entity)) for f in run(tape, **overrides) if f.state == "firing"]


def test_a_cable_that_is_down_is_one_finding_at_the_nic_until_it_is_up() -> None:
    fired, resolved = run(cable_lowered(tape_of(SCENE), [(AT_S, 200.0)]))
    assert (fired.fault, fired.state, resolved.state, fired.id) == ("link_down", "firing", "resolved", resolved.id)
    assert dict(fired.entity) == NIC
    assert AT_S <= (fired.started_at - START) / 1000 <= AT_S + 6
    assert 200 < (resolved.detected_at - START) / 1000 <= 200 + 90
    assert fired.evidence["cable"] == "v002 mlx5_0 - leaf-1 Ethernet1"
    assert (fired.evidence["nic_up"], fired.evidence["port_leaf-1_up"]) == (0, 0)


def test_where_nics_do_not_report_the_switch_port_is_named() -> None:
    tape = lowered(tape_of(replace(SCENE, kinds=("switch", "dcgm"))), "switch", [(AT_S, 1e9)], **PORT)
    assert firing(tape) == [("link_down", PORT)]


def test_between_switches_one_end_is_named() -> None:
    both = lowered(lowered(tape_of(SCENE), "switch", [(AT_S, 1e9)], **UPLINK), "switch", [(AT_S, 1e9)], **FAR)
    assert firing(both) == [("link_down", UPLINK)]
    assert firing(lowered(tape_of(SCENE), "switch", [(AT_S, 1e9)], **FAR)) == [("link_down", FAR)]


@pytest.mark.parametrize("interval_s", [5.0, 15.0, 30.0, 60.0])
def test_the_cadence_does_not_matter(interval_s: float) -> None:
    scene = replace(SCENE, interval_s=interval_s, minutes=40 * interval_s / 60, missing=0.02)
    at_s = 20.3 * interval_s
    found = run(cable_lowered(tape_of(scene), [(at_s, 1e9)]))
    assert [(f.fault, dict(f.entity)) for f in found] == [("link_down", NIC)]
    assert (found[0].detected_at - START) / 1000 - at_s <= max(30, 3.5 * interval_s)


def test_a_node_that_dies_takes_its_ports_down_and_that_is_no_link_fault() -> None:
    assert firing(node_gone(tape_of(SCENE))) == []
    assert firing(node_gone(tape_of(replace(SCENE, minutes=8)), until_s=260.0)) == []


def test_links_that_train_after_a_boot_are_no_flap() -> None:
    tape = node_gone(tape_of(replace(SCENE, minutes=12)), until_s=260.0)
    for since_s in (265.0, 285.0, 305.0):
        tape = lowered(tape, "switch", [(since_s, since_s + 6)], **PORT)
    assert firing(tape) == []


def test_links_that_flap_when_a_collector_is_back_are_a_flap_as_counters_went_on() -> None:
    tape = collector_gone(tape_of(replace(SCENE, minutes=12)), 122.0, 260.0)
    for since_s in (265.0, 285.0, 305.0):
        tape = lowered(tape, "switch", [(since_s, since_s + 6)], **PORT)
    assert firing(tape) == [("link_flap", NIC)]


def test_a_drained_node_may_be_unplugged() -> None:
    drained = line(90, "scheduler", f"Host <{name(1)}> closed by administrator <lsfadmin>. repair", severity="info")
    assert firing(cable_lowered(tape_of(replace(SCENE, logs=[drained])), [(AT_S, 1e9)])) == []


def test_one_short_loss_is_nothing_and_three_are_a_flap_held_as_one() -> None:
    assert firing(cable_lowered(tape_of(SCENE), [(AT_S, AT_S + 6)])) == []
    times = [(at, at + 6.0) for at in (60.0, 100.0, 140.0, 180.0, 260.0)]
    found = run(cable_lowered(tape_of(replace(SCENE, minutes=12)), times))
    assert [(f.fault, f.state) for f in found] == [("link_flap", "firing"), ("link_flap", "resolved")]
    assert dict(found[0].entity) == NIC
    assert (found[0].detected_at - START) / 1000 <= 140 + 20
    assert 266 < (found[1].detected_at - START) / 1000 <= 266 + 300


@pytest.mark.parametrize("phase", range(10))
def test_a_link_that_is_down_is_found_as_soon_as_promised_wherever_between_readings_it_is_lost(phase: int) -> None:
    at_s = 100.0 + phase / 2
    (found,) = run(cable_lowered(tape_of(replace(SCENE, missing=0.0)), [(at_s, 1e9)]))
    assert (found.detected_at - START) / 1000 - at_s <= LinkFault.spec.latency_s


@pytest.mark.parametrize("interval_s", [5.0, 10.0, 15.0, 17.0, 20.0])
@pytest.mark.parametrize("phase", [0.1, 0.4, 0.7])
def test_a_loss_of_18_s_is_not_a_link_that_is_down(interval_s: float, phase: float) -> None:
    scene = replace(SCENE, interval_s=interval_s, minutes=10)
    at_s = (12 + phase) * interval_s
    assert firing(cable_lowered(tape_of(scene), [(at_s, at_s + 18.0)])) == []


def test_a_link_that_is_lost_for_good_after_a_flap_is_down() -> None:
    times = [(60.0, 66.0), (80.0, 86.0), (100.0, 106.0), (420.0, 1e9)]
    found = run(cable_lowered(tape_of(replace(SCENE, minutes=10)), times))
    assert [(f.fault, f.state) for f in found] == [
        ("link_flap", "firing"), ("link_flap", "resolved"), ("link_down", "firing"),
    ]  # fmt: skip


def test_a_flap_between_two_readings_shows_in_the_counter_or_in_the_log() -> None:
    def count(rows: Any, values: Any) -> Any:
        losses = sum((seconds(rows) >= at).astype(float) for at in (61.0, 101.0, 141.0))
        return values + np.where(where(rows, **NIC), losses, 0.0)

    assert firing(changed(tape_of(SCENE), "nic", "link_downed", count)) == [("link_flap", NIC)]
    text = "mlx5_core 0000:0c:00.0 mlx5_0: Link {}"
    lines = [line(at + late, "kernel", text.format(word), node=name(1))
             for at in (61, 101, 141) for late, word in ((0, "down"), (2, "up"))]  # fmt: skip
    assert firing(tape_of(replace(SCENE, logs=lines))) == [("link_flap", NIC)]


def test_the_kernel_line_counts_as_a_reading() -> None:
    logged = line(AT_S, "kernel", "mlx5_core 0000:0c:00.0: mlx5_0: Port: 1 Link DOWN", node=name(1))
    scene = replace(SCENE, interval_s=15.0, minutes=8, kinds=("nic", "dcgm"))
    bare = run(lowered(tape_of(scene), "nic", [(AT_S, 1e9)], **NIC))
    sooner = run(lowered(tape_of(replace(scene, logs=[logged])), "nic", [(AT_S, 1e9)], **NIC))
    assert sooner[0].evidence["kernel"] == logged.message
    assert sooner[0].score > bare[0].score
    assert sooner[0].detected_at <= bare[0].detected_at


@pytest.mark.parametrize(("end", "interval_s"), [("spine-1", 5.0), ("leaf-1", 5.0), ("spine-1", 60.0)])
def test_most_cables_of_a_switch_down_at_once_are_the_switch(end: str, interval_s: float) -> None:
    tape = tape_of(replace(SCENE, nics=3, nodes=4, interval_s=interval_s, minutes=interval_s))
    at_s = AT_S * interval_s / SCENE.interval_s
    if end == "spine-1":
        leaves = ["leaf-1", "leaf-2", "leaf-3"]
        tape = without(lowered(tape, "switch", [(at_s, 1e9)], switch=leaves, port="Ethernet100"), "switch", at_s,
                       switch="spine-1")  # fmt: skip
    else:
        tape = lowered(tape, "nic", [(at_s, 1e9)], nic="mlx5_0")
        tape = without(tape, "switch", at_s, switch="leaf-1")
    assert firing(tape) == [("link_down", {"switch": end})]


@pytest.mark.parametrize(
    ("kind", "field", "rate", "entity"),
    [
        ("switch", UNCORRECTABLE, 5.0, PORT),
        ("switch", "SAI_PORT_STAT_IF_IN_ERRORS", 40.0, UPLINK),
        ("switch", "SAI_PORT_STAT_IF_IN_ERRORS", 0.5, UPLINK),
        ("nic", "symbol_error", 60.0, NIC),
        ("nic", "symbol_error", 0.1, NIC),
        ("nic", "port_rcv_errors", 50.0, NIC),
        ("nic", "rx_crc_errors_phy", 50.0, NIC),
        ("nic", "link_error_recovery", 0.12, NIC),
    ],
)
def test_errors_at_a_rate_are_named_and_over_when_they_stop(kind: Any, field: str, rate: float, entity: Any) -> None:
    found = run(growing(tape_of(replace(SCENE, minutes=16)), kind, field, rate, 120, 540, **entity))
    assert [(f.fault, f.state, dict(f.entity)) for f in found] == [
        ("link_errors", "firing", entity),
        ("link_errors", "resolved", entity),
    ]
    assert found[0].detected_at - START < 450_000
    assert (found[1].detected_at - START) / 1000 <= 540 + 300


def test_errors_beside_losses_of_link_keep_no_finding_of_errors_open() -> None:
    erring = growing(tape_of(replace(SCENE, minutes=16)), "nic", "symbol_error", 0.3, 120, 420, **NIC)
    flapping = cable_lowered(erring, [(at, at + 8.0) for at in (450.0, 570.0, 690.0)])
    found = run(growing(flapping, "nic", "symbol_error", 8.0, 450, 760, **NIC))
    assert [(f.fault, f.state) for f in found] == [
        ("link_errors", "firing"), ("link_errors", "resolved"), ("link_flap", "firing"), ("link_flap", "resolved"),
    ]  # fmt: skip
    assert (found[1].detected_at - START) / 1000 <= 420 + 300


def test_errors_between_the_first_losses_of_a_flap_are_not_reported_anew() -> None:
    erring = growing(tape_of(replace(SCENE, minutes=23)), "nic", "symbol_error", 12.0, 60, 900, **NIC)
    flapping = cable_lowered(erring, [(at, at + 12.0) for at in (962.0, 1172.0, 1300.0)])
    found = run(growing(flapping, "nic", "symbol_error", 12.0, 962, 1360, **NIC))
    assert [f.fault for f in found if f.state == "firing"] == ["link_errors", "link_flap"]


def test_errors_that_all_ports_share_one_burst_or_a_reset_are_nothing() -> None:
    tape = tape_of(SCENE)
    assert firing(growing(tape, "nic", "symbol_error", 0.1, 60, 300)) == []
    assert firing(growing(tape, "nic", "symbol_error", 8.0, AT_S, AT_S + 4, **NIC)) == []
    reset = changed(tape, "nic", "symbol_error", lambda rows, values: np.where(seconds(rows) < AT_S, 5000.0, 7.0))
    assert firing(reset) == []


def test_collected_every_30_s_and_scraped_every_5_s_is_no_faster_error() -> None:
    scene = replace(SCENE, collected_s=30.0, minutes=8)

    def slow(rows: Any, values: Any) -> Any:
        return values + np.where(where(rows, **NIC), np.floor(np.floor(seconds(rows) / 30) * 30 * 0.02), 0)

    assert firing(changed(tape_of(scene), "nic", "symbol_error", slow)) == []


def test_a_rail_that_carries_nothing_while_its_siblings_do_is_down() -> None:
    def still(field: str) -> Any:
        def stop(rows: Any, values: Any) -> Any:
            stuck = where(rows, AT_S, **NIC)
            before = values[where(rows, 0, AT_S, **NIC)].max()
            return np.where(stuck, before, values)

        return lambda tape: changed(tape, "nic", field, stop)

    tape = still("port_rcv_data")(still("port_xmit_data")(tape_of(SCENE)))
    (fired,) = run(tape)
    assert (fired.fault, dict(fired.entity)) == ("link_down", NIC)
    assert (fired.detected_at - START) / 1000 - AT_S <= 90
    assert firing(still("port_xmit_data")(tape_of(SCENE))) == [], "it is read by"
    assert firing(tape_of(replace(SCENE, pauses=[(AT_S, 260.0)]))) == []
    part = [replace(one, job=replace(one.job, gpus={NIC["node"]: (0,)})) for one in tape.jobs]
    another = [replace(one, job=replace(one.job, job_id="2", nodes=(NIC["node"],))) for one in tape.jobs]
    assert firing(replace(tape, jobs=part)) == firing(replace(tape, jobs=[*tape.jobs, *another])) == []


@pytest.mark.parametrize(
    ("sent", "received"),
    [
        ((0.008, 0.012), (0.008, 0.012)),  # a hair under, over a hundredth of what they did
        ((0.002, 0.05), (0.002, 0.05)),
        ((0.0001, 1.0), (0.0001, 0.002)),  # the sibling writes a checkpoint
    ],
)
def test_a_node_that_pauses_has_no_silent_rail(sent: tuple[float, float], received: tuple[float, float]) -> None:
    def chatter(shares: tuple[float, float]) -> Any:
        def carry(rows: Any, values: Any) -> Any:
            values = values.copy()
            for nic, share in zip(("mlx5_0", "mlx5_1"), shares, strict=True):
                before = values[where(rows, 0, AT_S, node=name(1), nic=nic)]
                late = where(rows, AT_S, node=name(1), nic=nic)
                rate = (before.max() - before.min()) / AT_S
                values[late] = np.floor(before.max() + share * rate * (seconds(rows)[late] - AT_S))
            return values

        return carry

    tape = changed(tape_of(SCENE), "nic", "port_xmit_data", chatter(sent))
    assert firing(changed(tape, "nic", "port_rcv_data", chatter(received))) == []


def test_a_nic_whose_own_traffic_ends_is_no_rail_that_fell_silent() -> None:
    """A node reads its models by one NIC; by the others, and by that one afterwards, it carries next to nothing."""

    def reads(rows: Any, values: Any) -> Any:
        values = np.where(where(rows, node=name(1), nic="mlx5_1"), np.floor(values / 500), values)
        before, late = values[where(rows, 0, AT_S, **NIC)], where(rows, AT_S, **NIC)
        values[late] = np.floor(before.max() + (before.max() / 5e4) * (seconds(rows)[late] / AT_S - 1))
        return values

    tape = tape_of(SCENE)
    for field in ("port_rcv_data", "port_xmit_data"):
        tape = changed(tape, "nic", field, reads)
    assert firing(tape) == []


@pytest.mark.parametrize(("shrunk", "found"), [(1, [("link_down", NIC)]), (1e6, [])], ids=["a job's", "chatter"])
def test_a_nic_that_carries_next_to_nothing_is_no_rail(shrunk: float, found: list[Any]) -> None:
    def stop(rows: Any, values: Any) -> Any:
        values = np.floor(values / shrunk)
        values[where(rows, AT_S, **NIC)] = values[where(rows, 0, AT_S, **NIC)].max()
        return values

    tape = tape_of(SCENE)
    for field in ("port_rcv_data", "port_xmit_data"):
        tape = changed(tape, "nic", field, stop)
    assert firing(tape) == found


def test_a_nic_that_is_gone_while_its_siblings_report_is_down() -> None:
    assert firing(without(tape_of(SCENE), "nic", AT_S, **NIC)) == [("link_down", NIC)]


def test_a_port_that_nobody_uses_alerts_nobody() -> None:
    spare = replace(tape_of(replace(SCENE, working=False)), topology={})
    (finding,) = run(lowered(spare, "nic", [(AT_S, 1e9)], **NIC))
    assert (finding.fault, dict(finding.entity), finding.severity) == ("link_down", NIC, "info")
    (finding,) = run(lowered(replace(tape_of(SCENE), topology={}), "nic", [(AT_S, 1e9)], **NIC))
    assert finding.severity == "page"


@pytest.mark.parametrize("working", [True, False])
def test_a_port_whose_counters_nobody_gathers_is_used_where_a_job_of_several_nodes_runs(working: bool) -> None:
    words = [(AT_S + 30 * loss, f"Link {end}") for loss in range(3) for end in ("down", "up")]
    logs = [line(at + 8 * (end == "Link up"), "kernel", f"mlx5_core 0000:0c:00.0 mlx5_0: {end}", node=name(1))
            for at, end in words]  # fmt: skip
    tape = replace(tape_of(replace(SCENE, kinds=("dcgm",), working=working)), topology={}, logs=logs)
    (flap,) = [one for one in run(tape) if one.state == "firing"]
    assert (flap.fault, dict(flap.entity), flap.severity) == ("link_flap", NIC, "page" if working else "info")
    assert run(replace(tape, end=tape.end + 600_000))[-1].state == "resolved"


def test_two_ends_that_are_read_at_one_moment_are_one_reading_of_a_link_that_comes_back() -> None:
    scene = replace(SCENE, interval_s=20.0, minutes=8)
    for at_s in range(120, 140):
        assert firing(cable_lowered(tape_of(scene), [(float(at_s), at_s + 18.0)])) == []


def test_errors_that_were_there_from_the_start_are_a_property_unless_they_are_fast() -> None:
    tape = tape_of(replace(SCENE, minutes=20))
    assert firing(growing(tape, "nic", "symbol_error", 0.2, 0, 1200, **NIC)) == []
    assert firing(growing(tape, "nic", "symbol_error", 20.0, 0, 1200, **NIC)) == [("link_errors", NIC)]


def test_ports_that_were_never_up_are_not_in_use() -> None:
    assert firing(lowered(tape_of(SCENE), "switch", [(0, 1e9)], port=["Ethernet1", "Ethernet100"])) == []


def test_lost_scrapes_are_nothing() -> None:
    for seed in range(3):
        assert firing(tape_of(Scene(nodes=4, gpus=1, minutes=15, missing=0.08, kinds=SCENE.kinds, seed=seed))) == []


def test_what_a_switch_logs_of_its_ports_shows_flaps_between_two_readings() -> None:
    text = "swss#orchagent: :- updatePortOperStatus: Port Ethernet100 oper state set from {}"
    lines = [line(at + late, "kernel", text.format(words), node="leaf-1")
             for at in (61, 101, 141) for late, words in ((0, "up to down"), (8, "down to up"))]  # fmt: skip
    scene = replace(SCENE, interval_s=30.0, minutes=8)
    assert firing(tape_of(replace(scene, logs=lines))) == [("link_flap", UPLINK)]
    # A port that a reading saw down, and the log up again, is not down.
    seen = lowered(tape_of(replace(scene, logs=lines[:2])), "switch", [(60.0, 69.0)], **UPLINK)
    assert firing(seen) == []


@pytest.mark.parametrize("lost_s", [40.0, 80.0])
def test_of_ports_that_are_read_every_quarter_minute_three_readings_more_must_show_it(lost_s: float) -> None:
    slow = replace(SCENE, interval_s=15.0, minutes=10)
    expected = [("link_down", NIC)] if lost_s > 60 else []
    assert firing(cable_lowered(tape_of(slow), [(AT_S, AT_S + lost_s)])) == expected


def test_a_link_that_was_lost_a_while_ago_must_be_down_for_longer() -> None:
    assert firing(cable_lowered(tape_of(SCENE), [(60.0, 66.0), (AT_S, AT_S + 80.0)])) == []
    assert firing(cable_lowered(tape_of(SCENE), [(60.0, 66.0), (AT_S, AT_S + 120.0)])) == [("link_down", NIC)]


def test_a_link_that_errs_must_be_down_for_longer() -> None:
    scene = replace(
        SCENE, minutes=10, logs=[line(360, "kernel", "mlx5_core 0000:0c:00.0 mlx5_0: Link down", node=name(1))]
    )
    erring = growing(tape_of(scene), "nic", "symbol_error", 12.0, 60, 359, **NIC)
    assert firing(cable_lowered(erring, [(360.0, 386.0)])) == [("link_errors", NIC)]
    assert firing(cable_lowered(erring, [(360.0, 430.0)])) == [("link_errors", NIC), ("link_down", NIC)]


def test_a_port_that_has_always_erred_now_and_then_is_no_fault_whatever_the_others_count() -> None:
    scene = replace(SCENE, nodes=12, nics=6, minutes=240, interval_s=60.0, kinds=("nic",))
    steady = growing(tape_of(scene), "nic", "symbol_error", 0.47 / 60, 0, 1e9, **NIC)
    assert firing(steady) == []
    (found,) = firing(growing(steady, "nic", "symbol_error", 8 / 60, 7200, 1e9, **NIC))
    assert found == ("link_errors", NIC), "sixteen times as often is one finding"


def test_a_port_that_errs_fourteen_times_an_hour_is_no_fault_after_some_hours_of_it() -> None:
    """Most of its minutes are without an error, so that their usual is none; a few bad ones in a row are chance."""
    scene = replace(SCENE, nodes=12, nics=4, minutes=720, interval_s=60.0, kinds=("nic",))
    errors = np.sort(np.random.default_rng(4).uniform(0, 720 * 60, 168))

    def erring(rows: Rows, values: FloatArray) -> FloatArray:
        return np.asarray(values + np.where(where(rows, **NIC), np.searchsorted(errors, seconds(rows)), 0))

    tape = changed(tape_of(scene), "nic", "symbol_error", erring)
    assert firing(tape) == []


def test_errors_that_came_to_an_end_are_not_found_again_by_what_they_were() -> None:
    burst = growing(tape_of(replace(SCENE, minutes=60)), "nic", "symbol_error", 0.5, 600, 1500, **NIC)
    assert firing(growing(burst, "nic", "symbol_error", 0.3, 1870, 1890, **NIC)) == [("link_errors", NIC)]
