"""Finds rows that repeat an earlier one: the same time and the same entity."""

from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from services.recording.schema import StreamSchema

Ints = NDArray[np.int64]


@dataclass
class Codes:
    """Numbers for names, the same in every batch."""

    numbers: dict[str | None, int] = field(default_factory=dict)

    def of(self, column: Any) -> Ints:
        """Return the number of each name of a column, -1 for null; numbers stay as they are."""
        if not pa.types.is_dictionary(column.type):
            return np.asarray(column.cast(pa.int64()).fill_null(-1).to_numpy(zero_copy_only=False), dtype=np.int64)
        names = column.dictionary.to_pylist()
        table = np.array([*(self.numbers.setdefault(name, len(self.numbers)) for name in names), -1], dtype=np.int64)
        codes = column.indices.fill_null(len(names)).to_numpy(zero_copy_only=False)
        return np.asarray(table[codes], dtype=np.int64)

    def name(self, code: int) -> str | None:
        """Return the name that has a number."""
        return list(self.numbers)[code] if code >= 0 else None


class Repeats:
    """Looks at a stream batch by batch; where rows are in order of time, no repeat escapes it."""

    def __init__(self, schema: StreamSchema) -> None:
        self.codes = {name: Codes() for name in schema.key_names}
        self._tail: tuple[Ints, Ints] = (np.empty(0, np.int64), np.empty((0, len(self.codes)), np.int64))

    def keys(self, batch: pa.RecordBatch) -> Ints:
        """Return the keys of n rows as numbers, n x keys."""
        return np.stack([codes.of(batch.column(name)) for name, codes in self.codes.items()], axis=1)

    def of(self, times: Ints, keys: Ints) -> NDArray[np.bool_]:
        """Return which of n rows repeat an earlier row, of this batch or of the last moment of those before."""
        new = len(times)
        if not new:
            return np.zeros(0, np.bool_)
        times, keys = np.r_[self._tail[0], times], np.concatenate([self._tail[1], keys])
        order = np.lexsort((*keys.T, times))  # stable: of equal rows the earlier comes first
        same = (np.diff(times[order]) == 0) & np.all(np.diff(keys[order], axis=0) == 0, axis=1)
        repeated = np.zeros(len(times), np.bool_)
        repeated[order[1:][same]] = True
        last = times == times.max()
        self._tail = times[last], keys[last]
        return repeated[-new:]
