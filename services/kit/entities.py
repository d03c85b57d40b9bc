"""What rows are about, as numbers: every entity has one, by its keys, from its first row on."""

from collections.abc import Iterable
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

Ints = NDArray[np.int64]


class Entities:
    """Numbers entities in order of appearance: `keys` has the values of `columns` of each, None for null."""

    def __init__(self, columns: Iterable[str]) -> None:
        self.columns = tuple(columns)
        self.keys: list[tuple[Any, ...]] = []
        self._index: dict[tuple[Any, ...], int] = {}

    def of(self, batch: pa.RecordBatch) -> Ints:
        """Return the number of each row's entity."""
        codes = np.zeros(batch.num_rows, np.int64)
        known: list[list[Any]] = []
        for name in self.columns:
            column, values = self.column(batch, name)
            codes = codes * len(values) + column
            known.append(values)
        found, inverse = distinct(codes)
        numbers = np.empty(len(found), np.int64)
        for place, code in enumerate(found.tolist()):
            key: list[Any] = []
            for values in reversed(known):
                code, part = divmod(code, len(values))  # noqa: PLW2901 - peeled off column by column
                key.append(values[part])
            numbers[place] = self._number(tuple(reversed(key)))
        return numbers[inverse]

    def column(self, batch: pa.RecordBatch, name: str) -> tuple[Ints, list[Any]]:
        """Return a key column as codes and the values that they stand for."""
        column: Any = batch.column(name)
        encoded = column if pa.types.is_dictionary(column.type) else pc.dictionary_encode(column)
        values = encoded.dictionary.to_pylist()
        # Wide before the null is given a number: 128 names fill the int8 codes that the replay sends.
        codes = encoded.indices.cast(pa.int64()).fill_null(len(values)).to_numpy(zero_copy_only=False)
        return codes, [*values, None]

    def _number(self, key: tuple[Any, ...]) -> int:
        number = self._index.setdefault(key, len(self.keys))
        if number == len(self.keys):
            self.keys.append(key)
        return number


def distinct(values: Ints) -> tuple[Ints, Ints]:
    """Return the values there are, ascending, and the place of each; without sorting where they lie close together."""
    least = int(values.min()) if len(values) else 0
    reach = int(values.max()) - least + 1 if len(values) else 0
    if reach > 4 * len(values) + 65_536:
        found, inverse = np.unique(values, return_inverse=True)
        return found, inverse.astype(np.int64)
    there = np.zeros(reach, dtype=bool)
    there[values - least] = True
    place: Ints = np.cumsum(there) - 1
    return np.flatnonzero(there) + least, place[values - least]
