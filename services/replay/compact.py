"""Slices of a stream made small for the wire: only the names that a message uses, in the narrowest indices."""

from typing import Any

import numpy as np
import pyarrow as pa


def compact(batch: pa.RecordBatch) -> pa.RecordBatch:
    """Return the same rows with every dictionary cut down to the values used, in their old order."""
    columns = [_compact(column) if pa.types.is_dictionary(column.type) else column for column in batch.columns]
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def _compact(column: Any) -> Any:
    null = None if column.null_count == 0 else column.is_null().to_numpy(zero_copy_only=False)
    codes = column.indices.fill_null(0).to_numpy(zero_copy_only=False).astype(np.int64)
    present = codes if null is None else codes[~null]
    used = np.bincount(present, minlength=len(column.dictionary)) > 0
    renumbered = (np.cumsum(used) - 1)[codes] if len(used) else codes
    count = int(used.sum())
    narrow = np.int8 if count <= 2**7 else np.int16 if count <= 2**15 else np.int32
    indices = pa.array(renumbered.astype(narrow), mask=null)
    names = column.dictionary if count == len(used) else column.dictionary.take(pa.array(np.flatnonzero(used)))
    return pa.DictionaryArray.from_arrays(indices, names)


def samples_in(batch: pa.RecordBatch, keys: tuple[str, ...]) -> int:
    """Return how many readings the rows hold: the numbers that are there, in the columns that are not keys."""
    columns = (column for name, column in zip(batch.schema.names, batch.columns, strict=True) if name not in keys)
    return sum(len(c) - c.null_count for c in columns if pa.types.is_integer(c.type) or pa.types.is_floating(c.type))
