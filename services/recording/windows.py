"""Rows of several recordings side by side, one stretch of time after the other; and keys of rows as numbers."""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from services.recording.reader import times_of

Ints = NDArray[np.int64]


@dataclass
class _Input:
    """One recording's rows of a stream, as far as they are read."""

    batches: Iterator[pa.RecordBatch]
    pending: list[pa.RecordBatch] = field(default_factory=list)
    ended: bool = False

    def fill(self) -> None:
        """Read on, until there are rows or none are left."""
        batch = next(self.batches, None)
        self.ended = batch is None
        if batch is not None:
            self.pending.append(batch)

    @property
    def reach(self) -> int:
        """Time of the last row that was read; further rows of that very time may follow."""
        return int(times_of(self.pending[-1])[-1])

    def take(self, before: int | None) -> list[pa.RecordBatch]:
        """Return the rows before a time (None: all) and keep the others."""
        taken, kept = [], []
        for batch in self.pending:
            count = batch.num_rows if before is None else int(np.searchsorted(times_of(batch), before, side="left"))
            if count:
                taken.append(batch.slice(0, count))
            if count < batch.num_rows:
                kept.append(batch.slice(count))
        self.pending = kept
        return taken


def windows(streams: Sequence[Iterator[pa.RecordBatch]]) -> Iterator[list[list[pa.RecordBatch]]]:
    """Yield what each of several streams, in order of time, has of the same stretch: rows of one time lie in one.

    Memory holds a batch of each stream and no more.
    """
    inputs = [_Input(batches) for batches in streams]
    while True:
        for one in inputs:
            if not one.ended and not one.pending:
                one.fill()
        open_inputs = [one for one in inputs if not one.ended]
        behind = min(open_inputs, key=lambda one: one.reach, default=None)
        parts = [one.take(None if behind is None else behind.reach) for one in inputs]
        if any(parts):
            yield parts
        if behind is None:
            return
        # The one that is furthest behind holds the others up: only it need be read on.
        behind.fill()


def codes_of(column: Any) -> Ints:
    """Return numbers that are equal where the keys in a column of a table are; null is -1."""
    whole = column.combine_chunks()
    if pa.types.is_string(whole.type):
        whole = whole.dictionary_encode().indices
    return np.asarray(whole.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)
