"""Lines of kernels and of switches on their ports."""

from dataclasses import replace
from typing import Any

import pytest

from detectors.contract import LogRecord
from detectors.fleet.fleet import Fleet
from detectors.link_fault.examples import AT_S, NIC, SCENE, cable_lowered
from detectors.link_fault.lines import Lines
from detectors.link_fault.test_detector import firing, run
from detectors.tapes.cluster import START, line, name, tape_of


@pytest.mark.parametrize(
    ("message", "nic", "down"),
    [
        ("mlx5_core 0000:0c:00.0 mlx5_2: Link down", "mlx5_2", True),
        ("mlx5_core 0000:0c:00.0: mlx5_0: Port: 1 Link DOWN", "mlx5_0", True),
        ("systemd-networkd[812]: ib3: Lost carrier", "mlx5_3", True),
        ("systemd-networkd[812]: ib3: Gained carrier", "mlx5_3", False),
        ("mlx5_core 0000:0c:00.0: mlx5_1: Port module event: module 1, Cable unplugged", "mlx5_1", True),
        ("mlx5_core 0000:0c:00.0 mlx5_2: Link up", "mlx5_2", False),
    ],
)  # fmt: skip
def test_lines_of_kernels(message: str, nic: str, down: bool) -> None:
    lines = Lines(Fleet())
    lines.take([LogRecord(START, "kernel", message, node="v001")])
    assert (lines.down_line(("nic", "v001", nic), 0) is not None) is down
    assert bool(lines.downs(("nic", "v001", nic), 0)) is down


def test_a_nic_is_known_by_the_name_that_the_topology_gives_it() -> None:
    lines = Lines(Fleet({"nodes": [{"name": "v001", "nics": [{"nic": "ibp2"}, {"nic": "ens3f0"}]}]}))
    for nic in ("ibp2", "ens3f0"):
        lines.take([LogRecord(START, "kernel", f"mlx5_core 0000:9a:00.0 {nic}: Link down", node="v001")])
    assert [end for end, _ in lines.lost()] == [("nic", "v001", "ibp2"), ("nic", "v001", "ens3f0")]


@pytest.mark.parametrize(
    ("nic", "interface"),
    [
        ("mlx5_bond_0", "bond0"),
        ("rocep12s0f1", "enp12s0f1np1"),
        ("rocep12s0", "enp12s0f0np0"),
        ("rocep12s0", "enp12s0"),
    ],
)
def test_a_nic_is_known_by_its_network_interface_where_that_says_which_it_is(nic: str, interface: str) -> None:
    lines = Lines(Fleet({"nodes": [{"name": "v001", "nics": [{"nic": nic}]}]}))
    for other in ("bond-mgmt", "bond1", "eno1", "enp13s0f0", interface):
        lines.take([LogRecord(START, "kernel", f"mlx5_core 0000:0c:00.0 {other}: Link down", node="v001")])
    assert [end for end, _ in lines.lost()] == [("nic", "v001", nic)]
    assert len(lines.downs(("nic", "v001", nic), 0)) == 1


@pytest.mark.parametrize(
    ("message", "port", "down"),
    [
        ("swss#orchagent: :- updatePortOperStatus: Port Ethernet8 oper state set from up to down", "Ethernet8", True),
        ("swss#orchagent: :- updatePortOperStatus: Port Ethernet8 oper state set from down to up", "Ethernet8", False),
        ("%LINEPROTO-5-UPDOWN: Line protocol on Interface Ethernet4/1, changed state to down", "Ethernet4/1", True),
        ("%ETHPORT-5-IF_UP: Interface Ethernet1/7 is up in mode access", "Ethernet1/7", False),
    ],
)
def test_lines_of_switches(message: str, port: str, down: bool) -> None:
    lines = Lines(Fleet())
    lines.take([LogRecord(START, "kernel", message, node="leaf-1")])
    end = ("switch", "leaf-1", port)
    assert bool(lines.downs(end, 0)) is down
    assert lines.logged_up(end, 0) is not down


def test_where_no_state_is_read_a_nic_is_down_by_its_kernels_line_until_that_says_that_it_is_up() -> None:
    text = "mlx5_core 0000:0c:00.0: mlx5_0: Port 1 Link {}"
    logs = [line(at, "kernel", text.format(word), node=name(1)) for at, word in ((AT_S, "down"), (AT_S + 120, "up"))]
    scene = replace(SCENE, kinds=("dcgm",), minutes=8)
    fired, resolved = run(tape_of(replace(scene, logs=logs)))
    assert (fired.fault, dict(fired.entity), fired.severity) == ("link_down", NIC, "page")
    assert AT_S + 60 <= (fired.detected_at - START) / 1000 <= AT_S + 70
    assert AT_S + 180 <= (resolved.detected_at - START) / 1000 <= AT_S + 190
    assert firing(replace(tape_of(replace(scene, logs=logs, working=False)), topology={})) == [], "nobody uses it"
    soon = [logs[0], replace(logs[1], at=logs[0].at + 50_000)]
    assert firing(tape_of(replace(scene, logs=soon))) == []


@pytest.mark.parametrize(("lines_at", "within_s"), [((301,), (60, 75)), ((301, 340), (130, 215)), ((), (130, 215))])
def test_where_readings_are_slow_a_line_of_the_only_loss_confirms_it(
    lines_at: tuple[float, ...], within_s: tuple[float, float]
) -> None:
    logs = [line(at, "kernel", "mlx5_core 0000:0c:00.0: mlx5_0: Port 1 Link down", node=name(1)) for at in lines_at]
    scene = replace(SCENE, interval_s=60.0, minutes=15, logs=logs)
    (fired,) = run(cable_lowered(tape_of(scene), [(300, 1e9)]))
    assert (fired.fault, dict(fired.entity)) == ("link_down", NIC)
    assert within_s[0] <= (fired.detected_at - START) / 1000 - 300 <= within_s[1]


@pytest.mark.parametrize("interval_s", [30.0, 60.0])
def test_a_slow_reading_may_be_a_copy_from_before_the_line(interval_s: float) -> None:
    """What the collector hands out lags by more than a reading; one a minute after the line is enough beside it."""
    logs = [line(300, "kernel", "mlx5_core 0000:0c:00.0 mlx5_0: Link down", node=name(1))]
    tape = tape_of(replace(SCENE, interval_s=interval_s, minutes=15, logs=logs, kinds=("nic", "dcgm")))
    (fired,) = run(cable_lowered(tape, [(300 + 1.1 * interval_s, 1e9)]))
    assert (fired.fault, dict(fired.entity)) == ("link_down", NIC)
    assert 60 <= (fired.detected_at - START) / 1000 - 300 <= 60 + 1.2 * interval_s


@pytest.mark.parametrize("name_there", ["mlx5_0", "ens6np0"])
@pytest.mark.parametrize(("until_s", "found"), [(150.0, []), (185.0, [("link_down", NIC)])])
def test_a_reading_just_after_the_line_that_a_link_is_up_may_be_older(
    until_s: float, found: list[Any], name_there: str
) -> None:
    text = "mlx5_core 0000:0c:00.0 {}: Link {}"
    logs = [
        line(at, "kernel", text.format(name_there, word), node=name(1)) for at, word in ((AT_S, "down"), (144, "up"))
    ]
    tape = tape_of(replace(SCENE, interval_s=10.0, logs=logs))
    assert firing(cable_lowered(tape, [(AT_S, until_s)])) == found
