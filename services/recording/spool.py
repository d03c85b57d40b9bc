"""Rows in any order to rows in order of time, in bounded memory: sorted runs on disk, merged window by window."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Self

import numpy as np
import pyarrow as pa

from services.recording.reader import times_of
from services.recording.schema import STREAMS
from services.recording.windows import codes_of

RUN_ROWS = 500_000
"""Rows that are sorted in memory and then written as one run."""
_WINDOW_ROWS = 200_000


class Spool:
    """The rows of one stream on their way into a recording: added in any order, drained sorted and without repeats.

    Batches may have different value columns: what one lacks is null. Of several rows of one time and entity the one
    that was added first stays; `repeated` counts the others. Use as a context manager: its files are removed at exit.
    """

    def __init__(self, stream: str, folder: Path) -> None:
        self.schema = STREAMS[stream]
        self.repeated = 0
        self._folder = folder / f"{stream}.spool"
        self._pending: list[pa.RecordBatch] = []
        self._pending_rows = 0
        self._runs: list[Path] = []

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take rows; the columns must have the types of the format."""
        if not batch.num_rows:
            return
        self._pending.append(batch)
        self._pending_rows += batch.num_rows
        if self._pending_rows >= RUN_ROWS:
            self._spill()

    def drain(self) -> Iterator[pa.RecordBatch]:
        """Yield all rows in order of time, each batch with the same columns."""
        if self._pending_rows:
            self._spill()
        runs = [pa.ipc.open_file(pa.memory_map(str(path))).read_all() for path in self._runs]
        if not runs:
            return
        columns = pa.unify_schemas([plain(run).schema for run in runs], promote_options="permissive")
        times = [times_of(run) for run in runs]
        marks = np.unique(np.concatenate([at[::_WINDOW_ROWS] for at in times]))
        for number, begin in enumerate(marks):
            end = marks[number + 1] if number + 1 < len(marks) else np.iinfo(np.int64).max
            parts = []
            for run, at in zip(runs, times, strict=True):
                first, last = np.searchsorted(at, [begin, end], side="left")
                if last > first:
                    parts.append(plain(run.slice(first, last - first)))
            merged = pa.concat_tables(parts, promote_options="permissive").combine_chunks()
            yield from self._settled(merged, columns)

    def _settled(self, merged: pa.Table, columns: pa.Schema) -> Iterator[pa.RecordBatch]:
        """Sort one window, drop repeats, and give it all columns in their types."""
        order = np.argsort(times_of(merged), kind="stable")
        merged = merged.take(order)
        keys = [codes_of(merged.column(name)) for name in ("timestamp", *self.schema.key_names)]
        _, first = np.unique(np.stack(keys), axis=1, return_index=True)
        self.repeated += merged.num_rows - len(first)
        if len(first) < merged.num_rows:
            merged = merged.take(np.sort(first))
        arrays = {}
        for column_field in columns:
            wanted = self.schema.key_type(column_field.name) or column_field.type
            if column_field.name in merged.column_names:
                arrays[column_field.name] = merged.column(column_field.name).combine_chunks().cast(wanted)
            else:
                arrays[column_field.name] = pa.nulls(merged.num_rows).cast(wanted)
        yield pa.RecordBatch.from_pydict(arrays)

    def _spill(self) -> None:
        table = pa.concat_tables(
            [plain(pa.Table.from_batches([batch])) for batch in self._pending], promote_options="permissive"
        ).combine_chunks()
        table = table.take(np.argsort(times_of(table), kind="stable"))
        self._folder.mkdir(parents=True, exist_ok=True)
        path = self._folder / f"{len(self._runs):05d}.arrow"
        with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
            writer.write_table(table)
        self._runs.append(path)
        self._pending, self._pending_rows = [], 0


def plain(table: pa.Table) -> pa.Table:
    """Return the table with names as plain strings: dictionaries of different batches do not go together."""
    for index, column_field in enumerate(table.schema):
        if pa.types.is_dictionary(column_field.type):
            table = table.set_column(index, column_field.name, table.column(index).cast(column_field.type.value_type))
    return table
