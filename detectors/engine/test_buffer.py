"""Rows that wait: what is read at once and comes in parts is one row."""

import itertools

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from detectors.contract import Batch, index_of
from detectors.engine.buffer import RowBuffer
from detectors.engine.rows import KeyColumn, Rows
from detectors.fleet.fleet import Fleet

T0 = 1_700_000_000_000
FIELDS = ("X", "Y", "Z")
TIMES, GPUS = 3, 4


def rows(cells: list[tuple[int, int, str]], table: np.ndarray) -> Rows:
    """Rows of these (tick, gpu, field) cells of the table (ticks, gpus, fields), one row each."""
    ticks = np.array([tick for tick, _, _ in cells], np.int64)
    gpus = np.array([gpu for _, gpu, _ in cells], np.int64)
    keys = {"node": KeyColumn(np.zeros(len(cells), np.int64), ("a",)), "gpu": KeyColumn(gpus, tuple(range(GPUS)))}
    here = {name: np.array([field == name for _, _, field in cells], np.bool_) for name in FIELDS}
    values = {name: np.where(here[name], table[ticks, gpus, number], -1.0) for number, name in enumerate(FIELDS)}
    return Rows("dcgm", T0 + ticks * 5000, keys, values, here)


@given(st.sets(st.integers(0, 199)), st.integers(0, 60))
def test_an_index_picks_out_the_entities_it_is_of_in_whichever_form(left_out: set[int], more: int) -> None:
    those = np.array(sorted({*range(200)} - left_out), np.int64)
    kept = np.arange(200 + more)
    index = index_of(those, len(kept))
    assert kept[index].tolist() == those.tolist()
    kept[index] = -1
    assert np.flatnonzero(kept < 0).tolist() == those.tolist()


def test_an_index_is_a_slice_where_nobody_is_left_out_and_a_mask_where_few_are() -> None:
    everybody = np.arange(1000)
    assert index_of(everybody, 1000) == slice(0, 1000)
    assert index_of(np.delete(everybody, [7, 500]), 1000).dtype == bool
    assert index_of(everybody[::2], 1000).dtype == np.int64
    assert index_of(everybody[[1, 3]], 1000).dtype == np.int64


def handed_out(buffer: RowBuffer) -> Batch:
    batch = buffer.hand_out(T0 + TIMES * 5000, Fleet(None))
    assert batch is not None
    return batch


CELLS = [(tick, gpu, name) for tick in range(TIMES) for gpu in range(GPUS) for name in FIELDS]


@given(cells=st.permutations(CELLS), cuts=st.lists(st.integers(1, len(CELLS) - 1), max_size=4, unique=True))
def test_a_row_that_comes_in_parts_is_whole_when_it_is_handed_out(
    cells: list[tuple[int, int, str]], cuts: list[int]
) -> None:
    table = np.arange(TIMES * GPUS * len(FIELDS), dtype=np.float64).reshape(TIMES, GPUS, len(FIELDS))
    buffer = RowBuffer("dcgm", FIELDS)
    places = [0, *sorted(cuts), len(cells)]
    for first, last in itertools.pairwise(places):
        buffer.add(rows(cells[first:last], table), T0 - 1)
    batch = handed_out(buffer)
    for number, name in enumerate(FIELDS):
        assert batch.valid[name].all()
        assert (batch.values[name] == table[..., number]).all()


def test_of_a_field_that_comes_twice_the_first_reading_counts() -> None:
    table = np.ones((1, GPUS, len(FIELDS)))
    buffer = RowBuffer("dcgm", FIELDS)
    for factor, field in ((1, "Y"), (2, "Y"), (3, "X"), (4, "Y"), (5, "X")):
        buffer.add(rows([(0, 0, field)], table * factor), T0 - 1)
    batch = handed_out(buffer)
    assert [(batch.values[name].item(), batch.valid[name].item()) for name in ("X", "Y")] == [(3.0, True), (1.0, True)]
    assert not batch.valid["Z"].any()


def test_what_waits_takes_memory_until_it_is_handed_out() -> None:
    table = np.ones((TIMES, GPUS, len(FIELDS)))
    buffer = RowBuffer("dcgm", FIELDS)
    row_bytes = 2 * 8 + len(FIELDS) * (8 + 1)
    cells = [(tick, gpu, "X") for tick in range(TIMES) for gpu in range(GPUS)]
    for some in (cells[:5], cells[5:]):
        buffer.add(rows(some, table), T0 - 1)
    assert buffer.waiting_bytes == len(cells) * row_bytes
    buffer.hand_out(T0, Fleet(None))
    assert buffer.waiting_bytes == (len(cells) - GPUS) * row_bytes
    handed_out(buffer)
    assert buffer.waiting_bytes == 0
