"""node_down where Kubernetes runs the nodes: kubelets restart, and autoscalers take idle nodes away."""

from dataclasses import replace

import pytest

from detectors.contract import Finding, LogRecord
from detectors.node_down.examples import DIES_S, idle, silenced
from detectors.node_down.test_detector import CULPRIT, firing, run
from detectors.tapes.cluster import START, Scene, line, tape_of, without
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


def left(*, working: bool) -> Tape:
    """Return half an hour in which one node falls silent for good."""
    return silenced(tape_of(replace(SCENE, minutes=30, working=working)), [CULPRIT])


def test_an_idle_node_that_falls_silent_alerts_nobody_where_nothing_else_speaks_of_it() -> None:
    (fired,) = firing(left(working=False))
    assert (fired.severity, dict(fired.entity)) == ("info", {"node": CULPRIT})
    assert "it had no work" in fired.summary
    assert [one.severity for one in firing(idle(left(working=True), DIES_S - 60))] == ["page"]


@pytest.mark.parametrize("words", ["not responding", "not responding, setting DOWN"])
def test_an_idle_node_that_has_left_is_down_once_the_scheduler_misses_it(words: str) -> None:
    missed = line(1500, "scheduler", f"slurmctld: error: Nodes {CULPRIT} {words}")
    found = run(replace(left(working=False), logs=[missed]))
    assert sorted((one.severity, one.state) for one in found) == [
        ("info", "firing"), ("info", "resolved"), ("page", "firing"),
    ]  # fmt: skip
    (down,) = (one for one in found if one.severity == "page")
    assert down.detected_at - missed.at <= 5000


def test_a_node_that_is_not_ready_again_is_so_since_then() -> None:
    """Kubernetes counts what comes often in one event: that it was ready in between may be missing."""
    before = replace(NOT_READY, at=START + 30_000)
    again = replace(NOT_READY, at=START + 1_200_000)
    tape = silenced(tape_of(replace(SCENE, minutes=24, logs=[before, again])), [CULPRIT], since_s=1196)
    (fired,) = firing(idle(tape, DIES_S))
    assert fired.evidence["scheduler"] == NOT_READY.message
    assert (fired.detected_at - START) / 1000 <= 1196 + 20
