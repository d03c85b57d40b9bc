"""A job that saves a checkpoint which nobody announced, as what its nodes write shows; and one that uploads a model."""

from dataclasses import replace

import numpy as np
import pytest

from detectors.contract import FloatArray
from detectors.engine.rows import KeyColumn, Rows
from detectors.job_health.examples import HUNG, Training, line, tape_of
from detectors.job_health.test_detector import fired_after_s
from detectors.tapes.cluster import START, name
from detectors.tapes.tape import Tape

HANG = replace(HUNG, minutes=24)
PAUSE_S = 480.0


def written(training: Training, bytes_per_s: float, until_s: float, node: str = name(1)) -> Tape:
    """Return the tape with what one node writes to a mount from the pause on."""
    at_s = _read_at_s(training)
    return _with_mount(training, bytes_per_s * np.clip(at_s - PAUSE_S, 0, until_s - PAUSE_S), node)


def _read_at_s(training: Training) -> FloatArray:
    return np.arange(3.0, training.minutes * 60, 15)


def _with_mount(training: Training, total: FloatArray, node: str) -> Tape:
    """Return the tape with the `total` bytes that a node has written at each reading of a mount."""
    tape, at_s = tape_of(training), _read_at_s(training)
    keys = {
        "node": KeyColumn(np.zeros(len(at_s), np.int64), (node,)),
        "mount": KeyColumn(np.zeros(len(at_s), np.int64), ("/scale",)),
    }
    times = START + np.round(at_s * 1000).astype(np.int64)
    rows = Rows("storage", times, keys, {"write_bytes": total}, {"write_bytes": np.ones(len(at_s), bool)})
    return replace(tape, rows=[*tape.rows, rows])


@pytest.mark.parametrize("spinning", [True, False])
def test_a_silence_counts_from_the_last_that_was_written(spinning: bool) -> None:
    training = replace(HANG, spinning=spinning)
    alone = fired_after_s(tape_of(training), PAUSE_S)
    assert fired_after_s(written(training, 5e8, PAUSE_S + 420), PAUSE_S) == pytest.approx(420 + alone, abs=25)


@pytest.mark.parametrize(("bytes_per_s", "node"), [(5e6, name(1)), (5e8, "elsewhere")])
def test_logs_and_what_others_write_are_no_checkpoint(bytes_per_s: float, node: str) -> None:
    alone = fired_after_s(tape_of(HANG), PAUSE_S)
    assert fired_after_s(written(HANG, bytes_per_s, 1e9, node), PAUSE_S) == alone


def test_what_writes_so_now_and_then_while_steps_are_made_shows_nothing_when_none_are() -> None:
    at_s = _read_at_s(HANG)
    bursts = np.where(np.arange(len(at_s)) % 4 == 0, 5e8 * 15, 0.0)
    tape = _with_mount(HANG, np.cumsum(bursts), name(1))
    assert fired_after_s(tape, PAUSE_S) == fired_after_s(tape_of(HANG), PAUSE_S)


@pytest.mark.parametrize("steps", [True, False])
def test_a_model_that_is_uploaded_at_the_end_takes_a_quarter_of_an_hour(steps: bool) -> None:
    """The log is ahead of the readings that show GPUs at work for the last time."""
    upload = line(2088, "uploading artefacts to s3://models/base-7b (181 GiB)")
    tape = tape_of(replace(HANG, hang=(2100, 1e9), spinning=False, minutes=52, lines=[upload]))
    if not steps:
        tape = replace(tape, rows=[rows for rows in tape.rows if rows.kind != "steps"])
    assert fired_after_s(tape, 2100) == pytest.approx(900, abs=30)
