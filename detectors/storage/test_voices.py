"""storage on whether anybody waits: what clients, GPUs and young jobs say of a mount that is slow."""

from dataclasses import replace

import numpy as np
import pytest

from detectors.storage.examples import SILENT, Site, Slow, tape_of, with_gpus
from detectors.storage.test_detector import firing
from detectors.tapes.cluster import changed, name, seconds
from detectors.tapes.tape import Tape

SLOW = replace(tape_of(Site(wait_share=0.0, slow=[Slow(0, 480, factor=6)])), jobs=[])
SLOW = replace(SLOW, rows=SLOW.rows[:1])
"""A mount that is six times as slow from 480 s on, and no job."""


def counted(tape: Tape, ops: float, nodes: tuple[int, ...] = (0, 1, 2, 3, 4), burst: float = 1.0) -> Tape:
    """Return the tape with `ops` reads a second of each client, and `burst` times as many of some from 480 s on."""
    (rows,) = [rows for rows in tape.rows if rows.kind == "storage"]
    some = np.isin(np.array(rows.keys["node"].categories)[rows.keys["node"].codes], [name(node) for node in nodes])
    at = seconds(rows)
    reads = np.floor(ops * (at + some * (burst - 1) * np.maximum(at - 480, 0)))
    more = replace(rows, values={**rows.values, "read_ops": reads}, valid={**rows.valid, "read_ops": reads >= 0})
    return replace(tape, rows=[more if one is rows else one for one in tape.rows])


@pytest.mark.parametrize(
    ("tape", "severity"),
    [
        (counted(SLOW, 100), "ticket"),
        (counted(SLOW, 1), "info"),
        (counted(SLOW, 1, (0, 1), 100), "info"),
        (counted(SLOW, 1, (0, 1, 2), 100), "ticket"),
    ],
    ids=["all ask", "hardly any", "two of five save", "three of five"],
)
def test_requests_hold_up_somebody_where_they_take_longer_at_most_clients(tape: Tape, severity: str) -> None:
    assert [one.severity for one in firing(tape)] == [severity]


@pytest.mark.parametrize(("reads", "severity"), [(True, "info"), (False, "ticket")], ids=["GPUs work", "unread"])
def test_gpus_that_work_as_ever_show_that_nobody_waits_for_requests_that_take_longer(
    severity: str, *, reads: bool
) -> None:
    tape = counted(replace(SLOW, jobs=SILENT.jobs), 100)
    tape = with_gpus(tape, lambda at_s: 0 * at_s) if reads else tape
    assert [one.severity for one in firing(tape)] == [severity]


@pytest.mark.parametrize(("more", "severity"), [(2.0, "info"), (0.7, "ticket")], ids=["twice", "less"])
def test_gpus_that_wait_while_their_job_moves_more_load_or_save(more: float, severity: str) -> None:
    tape = with_gpus(replace(SLOW, jobs=SILENT.jobs), lambda at_s: 0.4 * ((at_s >= 480) & (at_s < 720)))
    tape = changed(
        tape,
        "storage",
        "read_bytes",
        lambda rows, moved: moved + (more - 1) * 1e8 * np.clip(seconds(rows) - 480, 0, 240),
    )
    assert [one.severity for one in firing(tape)] == [severity]
