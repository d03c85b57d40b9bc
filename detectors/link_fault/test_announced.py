"""link_fault on links that go down for work: announced by the scheduler, a switch's kernel, or its own log."""

from dataclasses import replace
from typing import Any

import pytest

from detectors.link_fault.announced import Announced
from detectors.link_fault.examples import AT_S, NIC, PORT, SCENE, cable_lowered, lowered
from detectors.link_fault.test_detector import UPLINK, firing, run
from detectors.tapes.cluster import START, line, name, tape_of, without


@pytest.mark.parametrize(
    ("words", "source", "node", "severity"),
    [
        ("slurmctld: notice: NET-505 leaf-1 NOS upgrade 10:45-11:12Z, drained", "scheduler", None, "info"),
        ("reboot: User requested a reload of the device", "kernel", "leaf-1", "info"),
        ("slurmctld: notice: NET-505 leaf-0 NOS upgrade 10:45-11:12Z, drained", "scheduler", None, "page"),
        (f"comment: CHG-17 {UPLINK['switch']} {UPLINK['port']} admin down, optics", "scheduler", None, "info"),
        (f"{UPLINK['switch']}: interface {UPLINK['port']} admin state changed to down", "fabricmanager", None, "info"),
        (f"{UPLINK['switch']}: Set port {UPLINK['port']} admin status to down", "fabricmanager", None, "info"),
        (f"{UPLINK['switch']}: {UPLINK['port']} changed, administratively down", "fabricmanager", None, "info"),
        (f"{UPLINK['switch']}: {UPLINK['port']} admin state from down to up", "fabricmanager", None, "page"),
        (f"{UPLINK['switch']}: interface {UPLINK['port']} is down", "fabricmanager", None, "page"),
        ("FEC errors beyond the threshold: replace the optic", "fabricmanager", UPLINK["switch"], "page"),
        (f"comment: CHG-17 {UPLINK['switch']} Ethernet99 admin down, optics", "scheduler", None, "page"),
        (f"ops: reseating optic {UPLINK['switch']} {UPLINK['port']}, no job on it", "scheduler", None, "info"),
        (f"CHG-18: {UPLINK['switch']} {UPLINK['port']} swap of the cable at ten", "scheduler", None, "info"),
        (f"ops: reseating optic {UPLINK['switch']} Ethernet99", "scheduler", None, "page"),
        (f"ops: CHG-20 optics swap on {UPLINK['switch']} {UPLINK['port']}: shutdown soon", "scheduler", None, "info"),
        (f"ops: CHG-20 optics swap on {UPLINK['switch']} Ethernet99: shutdown soon", "scheduler", None, "page"),
        (f"ops: QSFP replacement on {UPLINK['switch']} p98, spares carry the load", "scheduler", None, "page"),
        (f"ops: P1 transceiver swap on {UPLINK['switch']}", "scheduler", None, "info"),
        (f"CHG-19 {UPLINK['switch']} Ethernet99 admin down by operator for optic swap", "scheduler", None, "page"),
        (f"CHG-19 {UPLINK['switch']} Ethernet0-127 admin down for the swap of a line card", "scheduler", None, "info"),
        (f"CHG-19 {UPLINK['switch']} admin down by operator for line card swap", "scheduler", None, "info"),
        (
            f"netops: port {UPLINK['switch']}/{UPLINK['port']} shut by operator for re-cabling",
            "scheduler",
            None,
            "info",
        ),
        (f"health: port {UPLINK['switch']}/{UPLINK['port']} is shut", "scheduler", None, "page"),
        (f"sudo: ops : COMMAND=/usr/sbin/ip link set {UPLINK['port']} down", "kernel", UPLINK["switch"], "info"),
        (f"sudo: ops : COMMAND=/usr/sbin/ip link show {UPLINK['port']}", "kernel", UPLINK["switch"], "page"),
        (f"root[771]: ip link set {UPLINK['port']} down (operator: CHG-88)", "kernel", UPLINK["switch"], "info"),
        (f"ops: sudo ip link set {UPLINK['port']} down", "kernel", UPLINK["switch"], "info"),
        (f"root[771]: ip link set {UPLINK['port']} up", "kernel", UPLINK["switch"], "page"),
        (f"kernel: hint: use ip link set {UPLINK['port']} down", "kernel", UPLINK["switch"], "page"),
        (
            f"sonic {UPLINK['switch']} sudo: ops : COMMAND=/usr/local/bin/config interface shutdown {UPLINK['port']}",
            "kernel",
            None,
            "info",
        ),
        (f"{UPLINK['switch']} {UPLINK['port']}: module event: unplugged cable", "kernel", None, "page"),
        ("mlx5_core: firmware version: 28.39", "kernel", name(1), "page"),
    ],
)
def test_what_goes_down_for_work_that_was_announced_is_information(
    words: str, source: Any, node: str | None, severity: str
) -> None:
    tape = lowered(tape_of(SCENE), "switch", [(AT_S, 1e9)], **UPLINK)
    tape = replace(tape, logs=[line(AT_S - 60, source, words, node=node, severity="info")])
    (found,) = run(tape)
    assert (dict(found.entity), found.severity) == (UPLINK, severity)
    assert ("announced" in found.summary) == (severity == "info")


@pytest.mark.parametrize("words", ["NET-505 {switch} NOS upgrade", "CHG-20 optics swap on {switch} {port}"])
def test_work_that_is_announced_again_while_it_goes_on_was_announced_before(words: str) -> None:
    tape = lowered(tape_of(replace(SCENE, minutes=12)), "switch", [(AT_S, 1e9)], **UPLINK)
    text = words.format(**UPLINK)
    logs = [line(at_s, "scheduler", text, node=None, severity="info") for at_s in (AT_S - 60, AT_S + 120)]
    (found,) = run(replace(tape, logs=logs))
    assert found.severity == "info"


def test_lines_on_work_of_a_version_that_kept_the_last_alone_are_read() -> None:
    announced = Announced()
    announced.load([{"leaf-1": 1000}, [], {}, {}])
    ends = [("switch", "leaf-1", "Ethernet0")]
    assert [announced.covers(ends, at) for at in (999, 1000, 7_201_000, 7_201_001)] == [False, True, True, False]
    again = Announced()
    again.load(announced.snapshot())
    assert again.snapshot() == announced.snapshot()


@pytest.mark.parametrize(("later_s", "severity"), [(20, "info"), (70, "page")])
def test_the_line_on_a_port_that_was_taken_down_may_come_somewhat_later(later_s: float, severity: str) -> None:
    words = f"{UPLINK['switch']}: interface {UPLINK['port']} admin state changed to down"
    tape = lowered(tape_of(SCENE), "switch", [(AT_S, 1e9)], **UPLINK)
    (found,) = run(replace(tape, logs=[line(AT_S + later_s, "fabricmanager", words, node=None, severity="info")]))
    assert found.severity == severity


@pytest.mark.parametrize(("node", "before_s", "severity"), [(1, 20, "info"), (1, 700, "page"), (2, 20, "page")])
def test_a_nic_that_gets_its_firmware_starts_anew(node: int, before_s: float, severity: str) -> None:
    tape = cable_lowered(tape_of(replace(SCENE, minutes=15)), [(720.0, 1e9)])
    burn = line(720 - before_s, "kernel", "mlx5_core: firmware burn 28.43 requested by mlxfwreset", node=name(node))
    (found,) = run(replace(tape, logs=[burn]))
    assert (dict(found.entity), found.severity) == (NIC, severity)


@pytest.mark.parametrize(
    ("node", "before_s", "interface", "severity"),
    [(1, 20, "ens6np0", "info"), (1, 200, "ens6np0", "page"), (2, 20, "ens6np0", "page"), (1, 20, "docker0", "page")],
)
def test_a_nic_is_taken_down_by_the_name_that_the_kernel_has_for_it(
    node: int, before_s: float, interface: str, severity: str
) -> None:
    tape = cable_lowered(tape_of(replace(SCENE, minutes=15)), [(720.0, 1e9)])
    shut = f"sudo: netops : COMMAND=/usr/sbin/ip link set {interface} down"
    (found,) = run(replace(tape, logs=[line(720 - before_s, "kernel", shut, node=name(node), severity="info")]))
    assert (dict(found.entity), found.severity) == (NIC, severity)


def test_a_node_without_a_job_may_be_without_a_link_for_two_minutes() -> None:
    tape = tape_of(replace(SCENE, minutes=8))
    (event,) = tape.jobs
    elsewhere = replace(tape, jobs=[replace(event, job=replace(event.job, nodes=(name(0), name(2))))])
    swapped, lost = [(AT_S, AT_S + 90.0)], [(AT_S, 1e9)]
    assert firing(cable_lowered(tape, swapped)) == [("link_down", NIC)]
    assert firing(cable_lowered(elsewhere, swapped)) == []
    (found,) = run(cable_lowered(elsewhere, lost))
    assert (found.detected_at - START) / 1000 - AT_S <= 150


def test_what_nobody_waits_for_and_no_kernel_logged_is_information_until_a_job_has_the_node() -> None:
    """A port that its host took down leaves no line of the driver; the loss of a link does."""
    idle = line(20, "kernel", "smartd[39878]: Device: /dev/nvme0, no errors", node=name(1))
    text = "mlx5_core 0000:0c:00.0 {}: Link down"
    losses = [[idle, line(AT_S, "kernel", text.format(nic), node=name(1))] for nic in ("mlx5_0", "ens6np0")]
    tape = tape_of(replace(SCENE, minutes=12))
    (event,) = tape.jobs
    other = replace(event, job=replace(event.job, nodes=(name(0), name(2))))
    given = replace(
        event, at=START + 480_000, job=replace(event.job, job_id="813", nodes=(name(1),), start=START + 480_000)
    )
    elsewhere = cable_lowered(replace(tape, jobs=[other]), [(AT_S, 1e9)])
    (found,) = run(replace(elsewhere, logs=[idle]))
    assert (found.severity, dict(found.entity)) == ("info", NIC)
    assert "no job has the node" in found.summary
    assert [f.severity for logs in ([], *losses) for f in run(replace(elsewhere, logs=logs))] == ["page"] * 3
    found, urgent, over = run(replace(elsewhere, logs=[idle], jobs=[other, given]))
    assert (over.id, over.state, urgent.state, urgent.severity) == (found.id, "resolved", "firing", "page")
    assert 0 <= (urgent.detected_at - START) / 1000 - 480 <= 10


def test_a_job_that_ended_while_its_link_was_down_makes_no_idle_node_of_it() -> None:
    """Read every half minute, and the job has failed a minute and a half later: its node does not count as idle."""
    tape = tape_of(replace(SCENE, interval_s=30.0, minutes=10))
    (event,) = tape.jobs
    failed = replace(event, at=START + 200_000, event="end")
    other = replace(event, job=replace(event.job, job_id="813", nodes=(name(0), name(2))))
    (found,) = run(cable_lowered(replace(tape, jobs=[event, failed, other]), [(AT_S, 1e9)]))
    assert (found.detected_at - START) / 1000 - AT_S <= 100


@pytest.mark.parametrize(
    ("until_s", "found"), [(345.0, []), (1e9, [("link_down", PORT)])], ids=["trains", "stays down"]
)
def test_a_node_that_was_out_and_that_nobody_reads_has_some_minutes_for_its_links_to_train(
    until_s: float, found: list[Any]
) -> None:
    tape = lowered(tape_of(replace(SCENE, minutes=10)), "switch", [(AT_S, until_s)], **PORT)
    for kind in ("dcgm", "nic"):
        tape = without(tape, kind, node=name(1))
    words = (60, f'node {name(1)} state set to DRAIN reason="firmware"'), (310, f"node {name(1)} returned to service")
    logs = [line(at_s, "scheduler", message, node=name(1), severity="info") for at_s, message in words]
    assert firing(replace(tape, logs=logs)) == found
