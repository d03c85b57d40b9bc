"""A node that falls silent while its job saves a checkpoint: what others write says why the job pauses."""

from dataclasses import replace

import numpy as np
import pytest

from detectors.engine.rows import KeyColumn, Rows
from detectors.node_down.examples import DIES_S, SCENE, dead
from detectors.node_down.test_detector import CULPRIT, firing
from detectors.tapes.cluster import START, name, tape_of
from detectors.tapes.tape import Tape

LIVE = replace(SCENE, minutes=9)


def writing(tape: Tape, bytes_per_s: float, since_s: float, until_s: float, nodes: list[str]) -> Tape:
    """Return the tape with what some nodes write to a mount in a stretch, read every 15 s."""
    at_s = np.arange(3.0, (tape.end - START) / 1000, 15)
    total = bytes_per_s * np.clip(at_s - since_s, 0, until_s - since_s)
    count, rows = len(nodes), len(at_s)
    times = np.repeat(START + np.round(at_s * 1000).astype(np.int64), count)
    keys = {
        "node": KeyColumn(np.tile(np.arange(count), rows), tuple(nodes)),
        "mount": KeyColumn(np.zeros(count * rows, np.int64), ("/scale",)),
    }
    values, valid = {"write_bytes": np.repeat(total, count)}, {"write_bytes": np.ones(count * rows, bool)}
    return replace(tape, rows=[*tape.rows, Rows("storage", times, keys, values, valid)])


OTHERS = [name(n) for n in range(SCENE.nodes) if name(n) != CULPRIT]
PAUSE = dead(tape_of(LIVE), [CULPRIT], until_s=DIES_S + 150)


def test_a_node_that_is_silent_while_its_job_saves_is_not_down() -> None:
    assert [one.entity["node"] for one in firing(PAUSE)] == [CULPRIT]
    assert firing(writing(PAUSE, 5e8, DIES_S, DIES_S + 150, OTHERS)) == []


@pytest.mark.parametrize(
    ("bytes_per_s", "since_s", "nodes"),
    [(5e6, DIES_S, OTHERS), (5e8, 30.0, OTHERS), (5e8, DIES_S, ["elsewhere"])],
    ids=["logs", "what they write all along", "what others write"],
)
def test_what_is_no_checkpoint_of_its_job_explains_nothing(
    bytes_per_s: float, since_s: float, nodes: list[str]
) -> None:
    (fired,) = firing(writing(PAUSE, bytes_per_s, since_s, 1e9, nodes))
    assert fired.detected_at == firing(PAUSE)[0].detected_at
    assert "steps" in str(fired.evidence["support"])


def test_a_node_that_is_silent_when_the_checkpoint_is_written_is_down() -> None:
    tape = dead(tape_of(LIVE), [CULPRIT])
    (fired,) = firing(writing(tape, 5e8, DIES_S, DIES_S + 60, OTHERS))
    assert firing(tape)[0].detected_at < fired.detected_at <= START + 1000 * (DIES_S + 60 + 60)


def test_a_node_that_is_silent_for_five_minutes_is_down_whatever_its_job_writes() -> None:
    (fired,) = firing(writing(dead(tape_of(LIVE), [CULPRIT]), 5e8, DIES_S, 1e9, OTHERS))
    assert (fired.detected_at - START) / 1000 - DIES_S == pytest.approx(290, abs=10)
    assert fired.evidence["support"] == ""
