"""Rows of one kind that wait for the watermark, in order of event time."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.contract import EXACT, Batch, BoolArray, FloatArray, Instant, IntArray, Kind, plausible
from detectors.fleet import KEYS, EntityKey, Fleet
from detectors.rows import KeyColumn, Rows


@dataclass(frozen=True, slots=True)
class _Block:
    """n rows: `times` and `keys` (n,), `values` and `valid` (fields, n)."""

    times: IntArray
    keys: IntArray
    values: FloatArray
    valid: BoolArray

    def take(self, which: Any) -> "_Block":
        if isinstance(which, slice):
            return _Block(self.times[which], self.keys[which], self.values[:, which], self.valid[:, which])
        values, valid = self.values.take(which, axis=1), self.valid.take(which, axis=1)
        return _Block(self.times[which], self.keys[which], values, valid)


class RowBuffer:
    """Takes rows in any order, hands them out in order of time, one row a (time, entity).

    Of several rows of the same time and entity the first reading of each field to come counts: what a live cluster's
    Prometheus reads at once it may send in parts. Entities get their index in the fleet when
    their first row is handed out, by time and name, so that the order of arrival and the cuts leave no trace.
    """

    def __init__(self, kind: Kind, fields: Iterable[str]) -> None:
        self.kind = kind
        self.fields = tuple(fields)
        self._names: list[EntityKey] = []
        self._key_of: dict[EntityKey, int] = {}
        self._categories: tuple[tuple[str | int, ...], ...] = ()
        self._codes: IntArray = np.empty(0, np.int64)
        self._key_of_code: IntArray = np.empty(0, np.int64)
        """The codes of those categories that came, ascending, and their keys: mostly the same ones come again."""
        self._fleet_index = np.empty(0, np.int64)
        self._rows = self._block(0)
        self._order = np.empty(0, np.int64)
        """Which of `_rows` comes first, second, ...; by time and key; before `_start` they were handed out."""
        self._times = np.empty(0, np.int64)
        """Their times in that order."""
        self._start = 0
        self._came: list[_Block] = []
        self._hits: dict[tuple[str, int], IntArray] = {}
        """Where in that order a field has one of some bits set, as far as it was asked."""
        self.latest: Instant | None = None
        """The time of the last row that was handed out."""

    def __len__(self) -> int:
        """Return how many rows wait, rows that came twice included."""
        return len(self._order) - self._start + sum(len(block.times) for block in self._came)

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
        self._came.append(block if kept == len(fresh) else block.take(fresh.nonzero()[0]))
        return len(fresh) - kept

    def first(self) -> Instant | None:
        """Return the time of the earliest row that waits."""
        self._settle()
        return int(self._times[self._start]) if self._start < len(self._times) else None

    def first_with(self, field: str, bits: int, upto: Instant) -> Instant | None:
        """Return the time of the earliest row up to `upto` whose `field` has one of `bits` set; None if none has."""
        self._settle()
        hits = self._hits.get((field, bits))
        if hits is None:
            row = self.fields.index(field)
            value = self._rows.values[row]
            whole = self._rows.valid[row] & (value >= 0) & (value < EXACT)
            having = np.where(whole, value, 0).astype(np.int64) & bits
            hits = self._hits[field, bits] = np.flatnonzero(having[self._order])
        if not len(hits):
            return None
        coming = int(hits.searchsorted(self._start))
        if coming == len(hits):
            return None
        first = int(self._times[hits[coming]])
        return first if first <= upto else None

    def hand_out(self, upto: Instant, fleet: Fleet) -> Batch | None:
        """Return the rows with a time up to `upto` as a batch, and forget them; None if there are none."""
        self._settle()
        start, stop = self._start, int(self._times.searchsorted(upto, side="right"))
        if stop <= start:
            return None
        self._start = stop
        self.latest = int(self._times[stop - 1])
        return self._batch(self._order[start:stop], fleet)

    def _batch(self, rows: IntArray, fleet: Fleet) -> Batch:
        entities = self._enter(rows, fleet)
        if np.count_nonzero(entities[1:] <= entities[:-1]):
            order = entities.argsort(kind="stable")  # rows are in order of time: each entity's stay so
            entities, rows = entities[order], rows[order]
        # Mostly the rows came by entity: what the two sorts made is then one stretch again, and needs no copy.
        stretch = np.count_nonzero(np.diff(rows) == 1) == len(rows) - 1
        block = self._rows.take(slice(int(rows[0]), int(rows[-1]) + 1) if stretch else rows)
        begins = np.empty(len(entities), bool)
        begins[0] = True
        np.not_equal(entities[1:], entities[:-1], out=begins[1:])
        if np.count_nonzero(begins) == len(begins):
            at, present = block.times[None, :], np.ones((1, len(begins)), bool)
            return self._sealed(entities, at, present, block.values[:, None, :], block.valid[:, None, :])
        first = begins.nonzero()[0]
        column = np.cumsum(begins) - 1
        tick = np.arange(len(begins)) - first[column]
        shape = (int(tick.max()) + 1, len(first))

        def spread(cells: NDArray[Any]) -> Any:
            grid = np.zeros((*cells.shape[:-1], *shape), cells.dtype)
            grid[..., tick, column] = cells
            return grid

        present = spread(np.ones(len(begins), bool))
        return self._sealed(entities[first], spread(block.times), present, spread(block.values), spread(block.valid))

    def _sealed(
        self, entities: IntArray, at: IntArray, present: BoolArray, values: FloatArray, valid: BoolArray
    ) -> Batch:
        """Return a batch of fields in rows, read-only: every detector sees the same one."""
        sound = np.full(values.shape, np.nan)
        for number in np.flatnonzero(valid.any(axis=(1, 2))).tolist():  # many fields are reported by nobody
            sound[number] = plausible(values[number], valid[number])
        for array in (entities, at, present, values, valid, sound):
            array.setflags(write=False)
        named = (dict(zip(self.fields, table, strict=True)) for table in (values, valid, sound))
        return Batch(self.kind, entities, at, present, *named)

    def _enter(self, rows: IntArray, fleet: Fleet) -> IntArray:
        every = self._rows.keys[rows]
        index = self._fleet_index[every]
        if np.count_nonzero(index < 0):
            keys, first = np.unique(every[index < 0], return_index=True)
            since = self._rows.times[rows][index < 0][first]
            names = [self._names[key] for key in keys]
            for key, _, name in sorted(zip(keys, since, names, strict=True), key=_time_and_name):
                self._fleet_index[key] = fleet.index(self.kind, name)
            index = self._fleet_index[every]
        return index

    def _encode(self, columns: Mapping[str, KeyColumn]) -> IntArray:
        parts = [columns[name] for name in KEYS[self.kind]]
        code = parts[0].codes
        for part in parts[1:]:
            code = code * len(part.categories) + part.codes
        categories = tuple(part.categories for part in parts)
        if categories != self._categories:
            self._categories, self._codes, self._key_of_code = categories, code[:0], code[:0]
        place = self._codes.searchsorted(code)
        last = np.append(self._codes, -1)  # no code: where one higher than all is looked for
        new = last.take(place) != code
        if np.count_nonzero(new):
            distinct = np.unique(code[new])
            keys = np.array([self._key(_name(categories, combined)) for combined in distinct.tolist()], np.int64)
            where = self._codes.searchsorted(distinct)
            self._codes = np.insert(self._codes, where, distinct)
            self._key_of_code = np.insert(self._key_of_code, where, keys)
            place = self._codes.searchsorted(code)
        return self._key_of_code[place]

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
        rest = self._rows.take(self._order[self._start :])
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
        if np.count_nonzero(again):
            once = np.concatenate([[True], ~again])
            _complete(merged, order, once)
            order, times = order[once], times[once]
        self._rows, self._order, self._times = merged, order, times
        self._start = 0
        self._came = []
        self._hits = {}

    def _block(self, rows: int) -> _Block:
        shape = (len(self.fields), rows)
        return _Block(np.empty(rows, np.int64), np.empty(rows, np.int64), np.zeros(shape), np.zeros(shape, bool))

    def snapshot(self) -> tuple[list[EntityKey], dict[str, NDArray[Any]]]:
        """Return the names of the entities, and the rows that wait as arrays."""
        self._settle()
        rest = self._rows.take(self._order[self._start :])
        index = self._fleet_index[: len(self._names)]
        arrays = {"times": rest.times, "keys": rest.keys, "values": rest.values, "valid": rest.valid, "index": index}
        return self._names, arrays

    def restore(self, names: Iterable[Iterable[str | int]], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned, into a buffer that is still empty."""
        for name in names:
            self._key(tuple(name))
        self._fleet_index[: len(self._names)] = arrays["index"]
        self._rows = _Block(arrays["times"], arrays["keys"], arrays["values"], arrays["valid"])
        self._order, self._times, self._start = np.arange(len(self._rows.times)), self._rows.times, 0
        self._hits = {}


def _complete(block: _Block, order: IntArray, once: BoolArray) -> None:
    """Give the first of equal rows, where it lacks a field, the reading of the next that has it.

    `order` (n,) is the rows with equal ones together, `once` (n,) which of them are the first of their kind.
    """
    first = order[once][np.cumsum(once) - 1]
    place = np.arange(len(once))
    rank = place - np.maximum.accumulate(np.where(once, place, 0))
    for number in range(1, int(rank.max()) + 1):
        here = rank == number
        whole, part = first[here], order[here]
        new = ~block.valid[:, whole] & block.valid[:, part]
        block.values[:, whole] = np.where(new, block.values[:, part], block.values[:, whole])
        block.valid[:, whole] |= new


def _name(categories: tuple[tuple[str | int, ...], ...], combined: int) -> EntityKey:
    """Return the names that a code, combined of those of several columns, stands for."""
    name: list[str | int] = []
    for part in reversed(categories[1:]):
        combined, last = divmod(combined, len(part))
        name.append(part[last])
    name.append(categories[0][combined])
    return tuple(reversed(name))


def _time_and_name(entry: tuple[Any, Any, EntityKey]) -> tuple[int, tuple[str, ...]]:
    _key, since, name = entry
    return int(since), tuple(f"{part:>12}" if isinstance(part, int) else str(part) for part in name)
