"""Rows of one kind that wait for the watermark, in order of event time."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from detectors.contract import Batch, BoolArray, FloatArray, Instant, IntArray, Kind, plausible
from detectors.core.statistics import known_or, stable_order
from detectors.engine.rows import KeyColumn, Rows
from detectors.fleet.fleet import KEYS, EntityKey, Fleet


@dataclass(frozen=True, slots=True)
class _Block:
    """n rows: `times` and `keys` (n,), and of each field that they have its `values` and `valid` (n,)."""

    times: IntArray
    keys: IntArray
    values: Mapping[str, FloatArray]
    valid: Mapping[str, BoolArray]

    @property
    def nbytes(self) -> int:
        columns = (self.times, self.keys, *self.values.values(), *self.valid.values())
        return sum(column.nbytes for column in columns)

    def take(self, which: Any) -> "_Block":
        values = {name: column[which] for name, column in self.values.items()}
        valid = {name: column[which] for name, column in self.valid.items()}
        return _Block(self.times[which], self.keys[which], values, valid)

    @classmethod
    def joined(cls, blocks: Sequence["_Block"]) -> "_Block":
        """Return the rows of some blocks, one after the other."""
        names = dict.fromkeys(name for block in blocks for name in block.values)
        none = [(np.zeros(len(block.times)), np.zeros(len(block.times), bool)) for block in blocks]
        lacking = list(zip(blocks, none, strict=True))
        return cls(
            np.concatenate([block.times for block in blocks]),
            np.concatenate([block.keys for block in blocks]),
            {name: np.concatenate([block.values.get(name, value) for block, (value, _) in lacking]) for name in names},
            {name: np.concatenate([block.valid.get(name, never) for block, (_, never) in lacking]) for name in names},
        )


class RowBuffer:
    """Takes rows in any order, hands them out in order of time, one row a (time, entity). It keeps their columns, and
    does not copy them: they must not change.

    Of several rows of the same time and entity the first reading of each field to come counts: what a live cluster's
    Prometheus reads at once it may send in parts. Entities get their index in the fleet when
    their first row is handed out, by time and name, so that the order of arrival and the cuts leave no trace.
    """

    def __init__(self, kind: Kind, fields: Iterable[str]) -> None:
        self.kind = kind
        self.fields = tuple(sorted(fields))
        self._names: list[EntityKey] = []
        self._key_of: dict[EntityKey, int] = {}
        self._categories: tuple[tuple[str | int, ...], ...] = ()
        self._codes: IntArray = np.empty(0, np.int64)
        self._key_of_code: IntArray = np.empty(0, np.int64)
        """The codes of those categories that came, ascending, and their keys: mostly the same ones every time."""
        self._fleet_index = np.empty(0, np.int64)
        self._rows = _Block(np.empty(0, np.int64), np.empty(0, np.int64), {}, {})
        self._sound: dict[str, FloatArray] = {}
        """Their plausible readings, of each field that any of them reports: found once for all stretches."""
        self._by_entity = np.empty(0, np.int64)
        """Which of `_rows` comes first, second, ...; by entity and time."""
        self._by_time: tuple[IntArray, IntArray] | None = None
        """The same by time, and their times, once it is asked for: mostly all are handed out at once."""
        self._newest: Instant = 0
        """The time of the last of them."""
        self._start = 0
        """So many of them were handed out, by time."""
        self._came: list[_Block] = []
        self._hits: dict[tuple[str, int], IntArray] = {}
        """Where in that order a field has one of some bits set, as far as it was asked."""
        self.latest: Instant | None = None
        """The time of the last row that was handed out."""

    def __len__(self) -> int:
        """Return how many rows wait, rows that came twice included."""
        return len(self._by_entity) - self._start + sum(len(block.times) for block in self._came)

    @property
    def waiting_bytes(self) -> int:
        """What the rows that wait take in memory, about: of those in order so much as are not handed out."""
        waiting = len(self._by_entity) - self._start
        more = sum(own.nbytes for name, own in self._sound.items() if own is not self._rows.values[name])
        settled = (self._rows.nbytes + more) * waiting // max(1, len(self._rows.times))
        return settled + sum(block.nbytes for block in self._came)

    def add(self, rows: Rows, after: Instant) -> int:
        """Take the rows that are later than `after`; return how many were not."""
        fresh = rows.times > after
        kept = int(np.count_nonzero(fresh))
        if not kept:
            return len(fresh)
        reported = sorted(rows.values.keys() & set(self.fields))
        block = _Block(
            np.asarray(rows.times, np.int64),
            self._encode(rows.keys),
            {name: np.asarray(rows.values[name], np.float64) for name in reported},
            {name: rows.valid[name] for name in reported},
        )
        self._came.append(block if kept == len(fresh) else block.take(fresh.nonzero()[0]))
        return len(fresh) - kept

    def first(self) -> Instant | None:
        """Return the time of the earliest row that waits."""
        self._settle()
        return int(self._in_order()[1][self._start]) if self._start < len(self._by_entity) else None

    def first_with(self, field: str, bits: int, upto: Instant) -> Instant | None:
        """Return the time of the earliest row up to `upto` whose `field` has one of `bits` set; None if none has."""
        self._settle()
        hits = self._hits.get((field, bits))
        if hits is None:
            hits = np.empty(0, np.int64)
            if field in self._sound and np.count_nonzero(self._sound[field] >= (bits & -bits)):
                having = known_or(self._sound[field], 0.0).astype(np.int64) & bits
                if np.count_nonzero(having):
                    hits = np.flatnonzero(having[self._in_order()[0]])
            self._hits[field, bits] = hits
        if not len(hits):
            return None
        coming = int(hits.searchsorted(self._start))
        if coming == len(hits):
            return None
        first = int(self._in_order()[1][hits[coming]])
        return first if first <= upto else None

    def hand_out(self, upto: Instant, fleet: Fleet) -> Batch | None:
        """Return the rows with a time up to `upto` as a batch, and forget them; None if there are none."""
        self._settle()
        start, count = self._start, len(self._by_entity)
        if start == count:
            return None
        if start == 0 and self._newest <= upto:  # as mostly: then they need not be sorted
            self._start, self.latest = count, self._newest
            return self._batch(self._by_entity, fleet)
        order, times = self._in_order()
        stop = int(times.searchsorted(upto, side="right"))
        if stop <= start:
            return None
        self._start, self.latest = stop, int(times[stop - 1])
        return self._batch(order[start:stop], fleet)

    def _in_order(self) -> tuple[IntArray, IntArray]:
        """Return which of `_rows` comes first, second, ...; by time and entity; and their times in that order."""
        if self._by_time is None:
            order = self._by_entity[stable_order(self._rows.times[self._by_entity])]
            self._by_time = order, self._rows.times[order]
        return self._by_time

    def _waiting(self) -> IntArray:
        """Return which of `_rows` were not handed out, in order."""
        return self._in_order()[0][self._start :] if self._start < len(self._by_entity) else self._by_entity[:0]

    def _batch(self, rows: IntArray, fleet: Fleet) -> Batch:
        which = _stretch(rows)
        entities = self._enter(which, fleet)
        ascend = not np.count_nonzero(entities[1:] <= entities[:-1])
        if not ascend:
            order = stable_order(entities)  # an entity's rows are in order of time, and stay so
            entities, which = entities[order], _stretch(rows[order])
        begins = np.ones(len(entities), bool)
        if not ascend:
            np.not_equal(entities[1:], entities[:-1], out=begins[1:])
        if ascend or np.count_nonzero(begins) == len(begins):
            return self._sealed(entities, which, begins[None], lambda cells, _: cells[None])
        first = begins.nonzero()[0]
        column = np.cumsum(begins) - 1
        tick = np.arange(len(begins)) - first[column]
        shape = (int(tick.max()) + 1, len(first))
        if shape[0] * shape[1] == len(tick):  # every entity has as many rows, one after the other
            grid = shape[::-1]
            every = np.ones(shape, bool)
            return self._sealed(entities[first], which, every, lambda cells, _: cells.reshape(grid).T.copy())

        def spread(cells: NDArray[Any], blank: float) -> Any:
            grid = np.full(shape, blank, cells.dtype)
            grid[tick, column] = cells
            return grid

        return self._sealed(entities[first], which, spread(np.ones(len(begins), bool), 0), spread)

    def _sealed(
        self, entities: IntArray, which: Any, present: BoolArray, shaped: Callable[[NDArray[Any], float], NDArray[Any]]
    ) -> Batch:
        """Return a batch of some rows, `shaped` as `present` is; read-only: every detector sees it."""
        none, never = np.zeros(present.shape), np.zeros(present.shape, bool)
        rows, every = self._rows, np.count_nonzero(present)
        whole = every == present.size
        values, valid, sound = {}, {}, {}
        for name, plausibly in self._sound.items():  # mostly a tenth of the fields
            values[name] = shaped(rows.values[name][which], 0)
            if whole and plausibly is rows.values[name]:  # each row reports it
                valid[name], sound[name] = present, values[name]
                continue
            known = rows.valid[name][which]
            reported = np.count_nonzero(known)
            valid[name] = present if reported == every else shaped(known, 0)
            if reported:
                sound[name] = shaped(plausibly[which], np.nan)
        at = shaped(rows.times[which], 0)
        for array in (entities, at, present, none, never, *values.values(), *valid.values(), *sound.values()):
            array.flags.writeable = False
        blank, lacking = dict.fromkeys(self.fields, none), dict.fromkeys(self.fields, never)
        return Batch(self.kind, entities, at, present, blank | values, lacking | valid, sound)

    def _enter(self, rows: Any, fleet: Fleet) -> IntArray:
        every: IntArray = self._rows.keys[rows]
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
        count = len(self._codes)
        if count and self._codes[-1] == count - 1 and np.maximum.reduce(code, initial=0) < count:
            return self._key_of_code.take(code)  # every code up to the last came: each is its own place
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
        rest = self._waiting()
        blocks = [self._rows.take(rest), *self._came] if len(rest) else self._came
        merged = blocks[0] if len(blocks) == 1 else _Block.joined(blocks)
        entities = self._entities(merged.keys)
        order = stable_order(entities)
        ascend = not np.count_nonzero(entities[1:] <= entities[:-1])  # as mostly: a row of each, one after the other
        if not ascend and np.count_nonzero(np.diff(entities[order]) == 0):  # several rows of one
            order = stable_order(merged.times)
            order = order[stable_order(entities[order])]  # of equal ones the first to come stays the first
            again = (np.diff(merged.times[order]) == 0) & (np.diff(entities[order]) == 0)
            if np.count_nonzero(again):
                once = np.append(True, ~again)
                merged, order = _completed(merged, order, once), order[once]
        self._came = []
        self._hold(merged, order)

    def _entities(self, keys: IntArray) -> IntArray:
        """Return numbers of entities (n,): those in the fleet, in whose order rows mostly come, once all have one."""
        index = self._fleet_index.take(keys)
        return keys if np.count_nonzero(index < 0) else index

    def _hold(self, rows: _Block, by_entity: IntArray) -> None:
        """Go on with these rows, of which none was handed out."""
        self._rows, self._by_entity, self._by_time = rows, by_entity, None
        self._newest = int(np.maximum.reduce(rows.times)) if len(rows.times) else 0
        here = (name for name in sorted(rows.values) if np.count_nonzero(rows.valid[name]))
        self._sound = {name: plausible(rows.values[name], rows.valid[name]) for name in here}
        self._start = 0
        self._hits = {}

    def keeping(self, kept: IntArray) -> "RowBuffer":
        """Return a buffer with the same rows, for a fleet that has kept some entities of this kind.

        `kept` (n,) has their indices until now, in order of the new ones. Of the rest only those with rows are known.
        """
        names, arrays = self.snapshot()
        index, keys = arrays["index"], arrays["keys"]
        renumbered = np.full(max(int(index.max(initial=-1)), int(kept.max(initial=-1))) + 2, -1)
        renumbered[kept] = np.arange(len(kept))  # and the last place is for -1, which stays
        stay = np.unique(np.concatenate([np.flatnonzero(renumbered[index] >= 0), keys]))
        buffer = RowBuffer(self.kind, self.fields)
        moved = {"keys": stay.searchsorted(keys), "index": renumbered[index[stay]]}
        buffer.restore([names[key] for key in stay.tolist()], arrays | moved)
        return buffer

    def snapshot(self) -> tuple[list[EntityKey], dict[str, NDArray[Any]]]:
        """Return the names of the entities, and the rows that wait as arrays."""
        self._settle()
        waiting = self._waiting()
        waiting = waiting[stable_order(self._rows.keys[waiting])]
        rest = self._rows.take(waiting[stable_order(self._rows.times[waiting])])
        index = self._fleet_index[: len(self._names)]
        arrays: dict[str, NDArray[Any]] = {"times": rest.times, "keys": rest.keys, "index": index}
        for name in rest.values:
            arrays |= {f"values/{name}": rest.values[name], f"valid/{name}": rest.valid[name]}
        return self._names, arrays

    def restore(self, names: Iterable[Iterable[str | int]], arrays: Mapping[str, NDArray[Any]]) -> None:
        """Take what `snapshot` returned, into a buffer that is still empty."""
        for name in names:
            self._key(tuple(name))
        self._fleet_index[: len(self._names)] = arrays["index"]
        values, valid = (
            {name: arrays[f"{what}/{name}"] for name in self.fields if f"{what}/{name}" in arrays}
            for what in ("values", "valid")
        )
        rows = _Block(arrays["times"], arrays["keys"], values, valid)
        self._hold(rows, stable_order(self._entities(rows.keys)))  # they are in order of time


def _completed(block: _Block, order: IntArray, once: BoolArray) -> _Block:
    """Return rows of which the first of equal ones has, for each field it lacks, the reading of the next that has it.

    `order` (n,) is the rows with equal ones together, `once` (n,) which of them are the first of their kind.
    """
    first = order[once][np.cumsum(once) - 1]
    place = np.arange(len(once))
    rank = place - np.maximum.accumulate(np.where(once, place, 0))
    values = {name: column.copy() for name, column in block.values.items()}
    valid = {name: column.copy() for name, column in block.valid.items()}
    for number in range(1, int(rank.max()) + 1):
        here = rank == number
        whole, part = first[here], order[here]
        for name, known in valid.items():
            new = ~known[whole] & known[part]
            values[name][whole[new]] = values[name][part[new]]
            known[whole[new]] = True
    return _Block(block.times, block.keys, values, valid)


def _stretch(rows: IntArray) -> Any:
    """Return some rows (n,) as an index: mostly they came by entity and are one stretch, which needs no copy."""
    first, last = int(rows[0]), int(rows[-1])
    whole = last - first == len(rows) - 1 and not np.count_nonzero(rows[1:] - rows[:-1] != 1)
    return slice(first, last + 1) if whole else rows


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
