"""node_down where a job ends or begins while a node is silent: what that says of the node."""

from dataclasses import replace

import numpy as np
import pytest

from detectors.contract import Finding, FloatArray
from detectors.engine.rows import Rows
from detectors.fleet.fleet import JobEvent
from detectors.node_down.detector import NodeDown
from detectors.node_down.examples import DIES_S, SCENE, idle, silenced
from detectors.registry import choose
from detectors.tapes.cluster import START, Scene, changed, name, tape_of, where, without
from detectors.tapes.tape import Tape, play

CULPRIT = name(1)


def firing(tape: Tape) -> list[Finding]:
    found, _ = play(tape, [choice for choice in choose() if choice[0] is NodeDown])
    return [finding for finding in found if finding.state == "firing"]


def ended(tape: Tape, after_s: float, state: str) -> Tape:
    """Return the tape whose job ends so long after the node has fallen silent."""
    end = JobEvent(START + int((DIES_S + after_s) * 1000), "end", tape.jobs[0].job, state)
    return replace(tape, jobs=[*tape.jobs, end])


def test_a_silent_node_is_down_when_the_scheduler_ends_its_job_for_a_failed_node() -> None:
    scene = Scene(nodes=5, nics=1, minutes=8, kinds=("nic", "dcgm"))
    tape = idle(silenced(tape_of(scene), [CULPRIT]), DIES_S)
    (fired,) = firing(ended(tape, 25, "NODE_FAIL"))
    assert dict(fired.entity) == {"node": CULPRIT}
    assert (fired.detected_at - START) / 1000 - DIES_S <= 30
    assert fired.evidence["scheduler"] == "job 812 ended by NODE_FAIL"
    (alone,) = firing(ended(tape, 25, "CANCELLED"))
    assert (alone.detected_at - START) / 1000 - DIES_S >= 280


def test_a_job_that_starts_again_after_a_node_failed_has_not_lost_another() -> None:
    scene = Scene(nodes=5, nics=1, minutes=8, kinds=("nic", "dcgm"))
    tape = ended(silenced(tape_of(scene), [CULPRIT], until_s=DIES_S + 100), -60, "NODE_FAIL")
    job = replace(tape.jobs[0].job, start=START + int((DIES_S - 30) * 1000))
    assert firing(replace(tape, jobs=[*tape.jobs, JobEvent(job.start, "start", job)])) == []


@pytest.mark.parametrize(("state", "found"), [("COMPLETED", 0), ("FAILED", 1), ("", 1)])
def test_the_steps_of_a_job_that_completed_did_not_stop_for_a_node(state: str, found: int) -> None:
    tape = tape_of(replace(SCENE, kinds=("nic", "steps", "dcgm")))
    stopped = without(silenced(tape, [CULPRIT], until_s=DIES_S + 120), "steps", DIES_S)
    assert len(firing(ended(idle(stopped, DIES_S), 10, state))) == found


def test_a_job_that_begins_on_a_silent_node_has_not_lost_the_power_that_the_one_before_drew() -> None:
    tape = tape_of(replace(SCENE, bmc_interval_s=20.0, kinds=("bmc", "nic", "dcgm")))
    silent = silenced(tape, [CULPRIT], until_s=DIES_S + 230)

    def over(rows: Rows, readings: FloatArray) -> FloatArray:
        return np.where(where(rows, DIES_S - 60, 1e9, node=CULPRIT, sensor="node_power"), 1500.0, readings)

    def beginning(at_s: float) -> Tape:
        job = replace(tape.jobs[0].job, start=START + int(at_s * 1000))
        return replace(changed(silent, "bmc", "reading", over), jobs=[JobEvent(job.start, "start", job)])

    assert firing(idle(beginning(DIES_S + 60), 0)) == []
    assert len(firing(idle(beginning(0), DIES_S))) == 1
