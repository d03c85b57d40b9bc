"""A stream's Parquet file: opened, and read as it lies there, whatever is wrong with it."""

from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from services.kit.errors import UserError
from services.kit.times import parse_instant

_READ_BUFFER = 1 << 18  # bytes kept per column while streaming, instead of the column's whole chunk
DAMAGED = (pa.ArrowInvalid, pa.ArrowNotImplementedError, OSError, UnicodeDecodeError)
"""What reading a file raises of which bytes were changed."""
_AGAIN = "copy the file again from where it came from, and check it with `hindcast validate`"


def open_stream(path: Path) -> pq.ParquetFile:
    """Return a stream's Parquet file, opened for streaming. UserError: missing, damaged, or with a column twice."""
    try:
        file = pq.ParquetFile(path, buffer_size=_READ_BUFFER, pre_buffer=False)
        try:
            names = file.schema_arrow.names
            _look_at_every_chunk(file)
        except DAMAGED:
            file.close()
            raise
    except FileNotFoundError:
        raise missing(path) from None
    except DAMAGED as error:
        raise UserError(
            f"{path}: not a readable Parquet file (truncated?): {' '.join(str(error).split())[:200]}", remedy=_AGAIN
        ) from error
    twice = next((name for name in names if names.count(name) > 1), None)
    if twice is not None:
        file.close()
        raise UserError(f"{path}: column {twice!r} occurs twice", remedy="keep one of the two")
    return file


def _look_at_every_chunk(file: pq.ParquetFile) -> None:
    """Raise where what the footer has of a column in a row group cannot be right.

    Whoever asks `file.metadata` for it ends the process then (std::terminate; pyarrow 26). A reader checks it as well
    and raises, before it reads a page; it needs no more than to be made, which a batch of no rows does, and such a
    batch is not to be had but from the reader itself.
    """
    columns = list(range(file.metadata.num_columns))
    for group in range(file.num_row_groups):
        next(file.reader.iter_batches(0, row_groups=[group], column_indices=columns), None)


def missing(path: Path) -> UserError:
    """Return what to raise where a file of a recording is not there."""
    problem = f"{path}: missing, although recording.yaml lists it"
    return UserError(problem, remedy="make or copy the recording again, or take it out of the list")


def _milliseconds(value: object) -> int:
    return parse_instant(value) if isinstance(value, datetime) else int(str(value))


def overlaps(file: pq.ParquetFile, group: int, start: int | None, end: int | None) -> bool:
    """Return whether a row group can have rows with ``start <= timestamp < end`` (ms), by its statistics."""
    if start is None and end is None:
        return True
    index = file.schema_arrow.names.index("timestamp")
    statistics = file.metadata.row_group(group).column(index).statistics
    if statistics is None or not statistics.has_min_max:
        return True
    try:
        first, last = _milliseconds(statistics.min), _milliseconds(statistics.max)
    except (OverflowError, ValueError):  # no day of the calendar: reading the rows shows which they are
        return True
    return (start is None or last >= start) and (end is None or first < end)


def stored(
    file: pq.ParquetFile, path: Path, names: list[str], max_rows: int, groups: list[int]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a stream's file as they lie there. UserError: they cannot be read."""
    try:
        yield from sound(file, names, max_rows, groups)
    except DAMAGED as error:
        raise UserError(f"{path}: damaged data: {' '.join(str(error).split())[:200]}", remedy=_AGAIN) from error


def sound(file: pq.ParquetFile, names: list[str], max_rows: int, groups: list[int]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a stream's file; one of `DAMAGED` where they cannot be read, or their text is not UTF-8."""
    for batch in file.iter_batches(max_rows, groups, names, use_threads=False):
        for column in batch.columns:
            if isinstance(column, pa.DictionaryArray):
                column.dictionary.validate(full=True)
            elif pa.types.is_string(column.type):
                column.validate(full=True)
        yield batch
