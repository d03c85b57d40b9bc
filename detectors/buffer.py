"""Rows of one kind that wait for the watermark, in order of event time."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray, Kind
from detectors.fleet import KEYS, EntityKey, Fleet
from detectors.rows import KeyColumn, Rows

_EXACT = 2.0**53
"""From here on a float holds no bits any more."""


@dataclass(frozen=True, slots=True)
class _Block:
    """n rows: `times` and `keys` (n,), `values` and `valid` (fields, n)."""

    times: IntArray
    keys: IntArray
    values: FloatArray
    valid: BoolArray

    def take(self, which: Any) -> "_Block":
        return _Block(self.times[which], self.keys[which], self.values[:, which], self.valid[:, which])


class RowBuffer:
    """Takes rows in any order, hands them out in order of time, one row a (time, entity).

    Of several rows of the same time and entity the first to come counts. Entities get their index in the fleet when
    their first row is handed out, by time and name, so that the order of arrival and the cuts leave no trace.
    """

    def __init__(self, kind: Kind, fields: Iterable[str]) -> None:
        self.kind = kind
        self.fields = tuple(fields)
        self._names: list[EntityKey] = []
        self._key_of: dict[EntityKey, int] = {}
        self._fleet_index = np.empty(0, np.int64)
        self._sorted = self._block(0)
        self._start = 0
        self._came: list[_Block] = []

    def __len__(self) -> int:
        """Return how many rows wait, rows that came twice included."""
        return len(self._sorted.times) - self._start + sum(len(block.times) for block in self._came)

    def add(self, rows: Rows, after: Instant) -> int:
        """Take the rows that are later than `after`; return how many were not."""
        fresh = rows.times > after
        kept = int(fresh.sum())
        if not kept:
            return len(fresh)
        block = self._block(len(fresh))
        block.times[:] = rows.times
        block.keys[:] = self._encode(rows.keys)
        for number, name in enumerate(self.fields):
            if name in rows.values:
                block.values[number] = rows.values[name]
                block.valid[number] = rows.valid[name]
        self._came.append(block if kept == len(fresh) else block.take(fresh))
        return len(fresh) - kept

    def first(self) -> Instant | None:
        """Return the time of the earliest row that waits."""
        self._settle()
        return int(self._sorted.times[self._start]) if self._start < len(self._sorted.times) else None

    def first_with(self, field: str, bits: int, upto: Instant) -> Instant | None:
        """Return the time of the earliest row up to `upto` whose `field` has one of `bits` set; None if none has."""
        self._settle()
        start, stop = self._start, int(np.searchsorted(self._sorted.times, upto, side="right"))
        if stop <= start:
            return None
        row = self.fields.index(field)
        value = self._sorted.values[row, start:stop]
        whole = self._sorted.valid[row, start:stop] & (value >= 0) & (value < _EXACT)
        hits = np.flatnonzero(np.where(whole, value, 0).astype(np.int64) & bits)
        return int(self._sorted.times[start + hits[0]]) if len(hits) else None

    def hand_out(self, upto: Instant, fleet: Fleet) -> Batch | None:
        """Return the rows with a time up to `upto` as a batch, and forget them; None if there are none."""
        self._settle()
        times = self._sorted.times
        start, stop = self._start, int(np.searchsorted(times, upto, side="right"))
        if stop <= start:
            return None
        self._start = stop
        return self._batch(self._sorted.take(slice(start, stop)), fleet)

    def _batch(self, block: _Block, fleet: Fleet) -> Batch:
        entities = self._enter(block, fleet)
        order = np.argsort(entities, kind="stable")  # rows are in order of time: each entity's stay so
        columns, first, counts = np.unique(entities[order], return_index=True, return_counts=True)
        ticks = int(counts.max())
        if ticks == 1:
            present = np.ones((1, len(columns)), bool)
            at = block.times[order][None, :]
            values = {name: block.values[f][order][None, :] for f, name in enumerate(self.fields)}
            valid = {name: block.valid[f][order][None, :] for f, name in enumerate(self.fields)}
            return _sealed(Batch(self.kind, columns, at, present, values, valid))
        column = np.repeat(np.arange(len(columns)), counts)
        tick = np.arange(len(order)) - first[column]
        shape = (ticks, len(columns))

        def spread(cells: NDArray[Any]) -> Any:
            grid = np.zeros(shape, cells.dtype)
            grid[tick, column] = cells[order]
            return grid

        present = spread(np.ones(len(order), bool))
        at = spread(block.times)
        values = {name: spread(block.values[f]) for f, name in enumerate(self.fields)}
        valid = {name: spread(block.valid[f]) for f, name in enumerate(self.fields)}
        return _sealed(Batch(self.kind, columns, at, present, values, valid))

    def _enter(self, block: _Block, fleet: Fleet) -> IntArray:
        index = self._fleet_index[block.keys]
        if (index < 0).any():
            keys, first = np.unique(block.keys[index < 0], return_index=True)
            since = block.times[index < 0][first]
            names = [self._names[key] for key in keys]
            for key, _, name in sorted(zip(keys, since, names, strict=True), key=_time_and_name):
                self._fleet_index[key] = fleet.index(self.kind, name)
            index = self._fleet_index[block.keys]
        return index

    def _encode(self, columns: Mapping[str, KeyColumn]) -> IntArray:
        parts = [columns[name] for name in KEYS[self.kind]]
        code = parts[0].codes
        for part in parts[1:]:
            code = code * len(part.categories) + part.codes
        distinct, inverse = np.unique(code, return_inverse=True)
        keys = np.empty(len(distinct), np.int64)
        for number, combined in enumerate(distinct.tolist()):
            name: list[str | int] = []
            for part in reversed(parts[1:]):
                combined, last = divmod(combined, len(part.categories))  # noqa: PLW2901 - peels one part after another
                name.append(part.categories[last])
            name.append(parts[0].categories[combined])
            keys[number] = self._key(tuple(reversed(name)))
        return keys[inverse]

    def _key(self, name: EntityKey) -> int:
        key = self._key_of.get(name)
        if key is None:
            key = self._key_of[name] = len(self._names)
            self._names.append(name)
            if key >= len(self._fleet_index):
                grown = np.full(max(64, 2 * key), -1, np.int64)
                grown[: len(self._fleet_index)] = self._fleet_index
                self._fleet_index = grown
        return key

    def _settle(self) -> None:
        """Put what came since into order, without what came twice."""
        if not self._came:
            return
        rest = self._sorted.take(slice(self._start, None))
        blocks = [rest, *self._came] if len(rest.times) else self._came
        merged = blocks[0]
        if len(blocks) > 1:
            merged = _Block(
                np.concatenate([block.times for block in blocks]),
                np.concatenate([block.keys for block in blocks]),
                np.concatenate([block.values for block in blocks], axis=1),
                np.concatenate([block.valid for block in blocks], axis=1),
            )
        order = np.lexsort((merged.keys, merged.times))  # stable: of equal rows the first to come stays the first
        times, keys = merged.times[order], merged.keys[order]
        again = (times[1:] == times[:-1]) & (keys[1:] == keys[:-1])
        self._sorted = merged.take(order[np.concatenate([[True], ~again])] if again.any() else order)
        self._start = 0
        self._came = []

    def _block(self, rows: int) -> _Block:
        shape = (len(self.fields), rows)
        return _Block(np.empty(rows, np.int64), np.empty(rows, np.int64), np.zeros(shape), np.zeros(shape, bool))

    def snapshot(self) -> tuple[list[EntityKey], dict[str, NDArray[Any]]]:
        """Return the names of the entities, and the rows that wait as arrays."""
        self._settle()
        rest = self._sorted.take(slice(self._start, None))
        index = self._fleet_index[: len(self._names)]
        arrays = {"times": rest.times, "keys": rest.keys, "values": rest.values, "valid": rest.valid, "index": index}
        return self._names, arrays

    def restore(self, names: Iterable[Iterable[str | int]], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned, into a buffer that is still empty."""
        for name in names:
            self._key(tuple(name))
        self._fleet_index[: len(self._names)] = arrays["index"]
        self._sorted = _Block(arrays["times"], arrays["keys"], arrays["values"], arrays["valid"])


def _sealed(batch: Batch) -> Batch:
    """Make a batch read-only: every detector sees the same one."""
    for array in (batch.entities, batch.at, batch.present, *batch.values.values(), *batch.valid.values()):
        array.setflags(write=False)
    return batch


def _time_and_name(entry: tuple[Any, Any, EntityKey]) -> tuple[int, tuple[str, ...]]:
    _key, since, name = entry
    return int(since), tuple(f"{part:>12}" if isinstance(part, int) else str(part) for part in name)
