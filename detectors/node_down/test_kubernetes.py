"""node_down where Kubernetes runs the nodes: kubelets restart, and autoscalers add nodes and take them away."""

from dataclasses import replace

import pytest

from detectors.contract import Finding, LogRecord
from detectors.node_down.examples import DIES_S, idle, silenced
from detectors.node_down.test_detector import CULPRIT, firing, run
from detectors.tapes.cluster import START, Scene, line, name, tape_of, without
from detectors.tapes.tape import Tape

SCENE = Scene(nodes=5, nics=1, minutes=12, kinds=("nic", "dcgm"))
NOT_READY = line(DIES_S + 4, "scheduler", f"Node {CULPRIT} status is now: NodeNotReady", node=CULPRIT)
READY = line(DIES_S + 360, "scheduler", f"Node {CULPRIT} status is now: NodeReady", node=CULPRIT, severity="info")


def after_s(finding: Finding) -> float:
    return (finding.detected_at - START) / 1000 - DIES_S


@pytest.mark.parametrize("logs", [[NOT_READY, READY], [NOT_READY]], ids=["ready again", "not ready for good"])
def test_a_node_that_reports_is_not_down_as_its_kubelet_is_not_ready(logs: list[LogRecord]) -> None:
    assert firing(tape_of(replace(SCENE, logs=logs))) == []


def test_a_silent_node_that_is_not_ready_is_down_at_once() -> None:
    (fired,) = firing(idle(silenced(tape_of(replace(SCENE, logs=[NOT_READY])), [CULPRIT]), DIES_S - 60))
    assert after_s(fired) <= 20
    assert fired.evidence["scheduler"] == NOT_READY.message
    assert "also shown by scheduler" in fired.summary


def test_a_node_that_nobody_gathers_is_down_after_five_minutes_of_it_until_it_is_ready() -> None:
    unheard = without(
        without(tape_of(replace(SCENE, logs=[NOT_READY, READY])), "nic", node=CULPRIT), "dcgm", node=CULPRIT
    )
    fired, resolved = run(unheard)
    assert (fired.state, resolved.state) == ("firing", "resolved")
    assert 290 <= after_s(fired) <= 305
    assert fired.summary == f"{CULPRIT} is down by the scheduler's word"
    assert 360 <= after_s(resolved) <= 370
    restarted = replace(READY, at=NOT_READY.at + 40_000)
    assert firing(replace(unheard, logs=[NOT_READY, restarted])) == []


def left(joins: bool, *, working: bool) -> Tape:
    """Return an hour in which one node falls silent for good, and before it another may join."""
    scene = replace(SCENE, minutes=70, working=working)
    tape = silenced(tape_of(scene), [CULPRIT], since_s=2400)
    return silenced(tape, [name(4)], since_s=0, until_s=2100) if joins else tape


def test_an_idle_node_that_leaves_a_cluster_whose_nodes_come_and_go_alerts_nobody() -> None:
    (fired,) = firing(left(joins=True, working=False))
    assert (fired.severity, dict(fired.entity)) == ("info", {"node": CULPRIT})
    assert "nodes come and go" in fired.summary
    assert [one.severity for one in firing(left(joins=False, working=False))] == ["page"]
    assert [one.severity for one in firing(idle(left(joins=True, working=True), 2340))] == ["page"]


def test_a_node_that_has_left_is_down_once_the_scheduler_misses_it() -> None:
    missed = line(3900, "scheduler", f"slurmctld: error: Nodes {CULPRIT} not responding, setting DOWN")
    tape = replace(left(joins=True, working=False), logs=[missed])
    assert [one.severity for one in firing(tape)] == ["info", "page"]
