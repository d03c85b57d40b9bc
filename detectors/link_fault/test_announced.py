"""link_fault on links that go down for work: announced by the scheduler, a switch's kernel, or its own log."""

from dataclasses import replace
from typing import Any

import pytest

from detectors.link_fault.examples import AT_S, SCENE, lowered
from detectors.link_fault.test_detector import UPLINK, run
from detectors.tapes.cluster import line, name, tape_of


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
        (f"sudo: ops : COMMAND=/usr/sbin/ip link set {UPLINK['port']} down", "kernel", UPLINK["switch"], "info"),
        (f"sudo: ops : COMMAND=/usr/sbin/ip link show {UPLINK['port']}", "kernel", UPLINK["switch"], "page"),
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


@pytest.mark.parametrize(("later_s", "severity"), [(20, "info"), (70, "page")])
def test_the_line_on_a_port_that_was_taken_down_may_come_somewhat_later(later_s: float, severity: str) -> None:
    words = f"{UPLINK['switch']}: interface {UPLINK['port']} admin state changed to down"
    tape = lowered(tape_of(SCENE), "switch", [(AT_S, 1e9)], **UPLINK)
    (found,) = run(replace(tape, logs=[line(AT_S + later_s, "fabricmanager", words, node=None, severity="info")]))
    assert found.severity == severity
