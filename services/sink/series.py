"""The series of one stream of one unit: rows of values in, samples by series out."""

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from services.kit.series import Column
from services.sink.encode import STALE, Floats, Samples
from services.sink.naming import Naming
from services.sink.pages import Catalogue, Ints
from services.sink.rows import Entities, Rows

_NONE = -1
_CODE_BITS = 32


class SeriesTable:
    """Numbers of series by (entity, column), which of them reported last, and the code series of each entity.

    A column with a `code` (an XID) has a series per code instead of one: a new code begins a series and ends the
    one before with a staleness marker.
    """

    def __init__(self, naming: Naming, entities: Entities, catalogue: Catalogue) -> None:
        self._naming = naming
        self._entities = entities
        self._catalogue = catalogue
        self._columns: dict[str, int] = {}
        self._numbers = np.full((0, 0), _NONE, np.int64)
        self._present = np.zeros((0, 0), np.bool_)
        self._codes: dict[tuple[int, str, int], int] = {}
        self._current: dict[str, Ints] = {}

    def take(self, rows: Rows, *, parts: bool = False) -> Iterator[Samples]:
        """Yield the samples of `rows`, which are sorted by entity, then time, and staleness markers for what ended.

        A value that is null where the row before had one ends its series until it reports again, as a scrape
        that no longer shows it does; not so in rows that are `parts` of a scrape.
        """
        columns = [self._columns.setdefault(name, len(self._columns)) for name in rows.columns]
        self._grow()
        apart = [i for i, name in enumerate(rows.columns) if self._rule(name).code and self._changes(rows, i)]
        for i in apart:
            reporting = _reporting(rows, i) if parts else rows
            if len(reporting.times):
                yield from self._take_codes(reporting, i)
        if apart:
            keep = [i for i in range(len(columns)) if i not in apart]
            rows, columns = _only(rows, keep), [columns[i] for i in keep]
        self._scale(rows)
        starts = np.flatnonzero(np.diff(rows.entities, prepend=-1))
        numbers = self._numbers_of(rows.entities[starts], columns, rows.columns)
        yield from self._ended_cells(rows, starts, numbers, columns, parts=parts)
        yield from _dense(rows, starts, numbers)

    def ended(self, entities: Ints, times: Ints) -> Iterator[Samples]:
        """Yield staleness markers at `times` for whatever `entities` last reported."""
        if not len(entities):
            return
        where, column = np.nonzero(self._present[entities])
        yield _markers(self._numbers[entities[where], column], times[where])

    def _rule(self, name: str) -> Column:
        return self._naming.column(name)[0]

    def _grow(self) -> None:
        size = (len(self._entities.keys), len(self._columns))
        old = self._numbers.shape
        if size == old:
            return
        numbers = np.full(size, _NONE, np.int64)
        numbers[: old[0], : old[1]] = self._numbers
        present = np.zeros(size, np.bool_)
        present[: old[0], : old[1]] = self._present
        self._numbers, self._present = numbers, present
        for name, current in self._current.items():
            self._current[name] = np.concatenate([current, np.full(size[0] - len(current), _NONE)])

    def _numbers_of(self, entities: Ints, columns: list[int], names: tuple[str, ...]) -> Ints:
        numbers = self._numbers[entities[:, None], columns]
        missing = np.argwhere(numbers == _NONE)
        for e, c in missing.tolist():
            key = self._entities.keys[int(entities[e])]
            number = self._catalogue.add(self._naming.of_series(key, names[c]))
            numbers[e, c] = self._numbers[entities[e], columns[c]] = number
        return numbers

    def _scale(self, rows: Rows) -> None:
        for i, name in enumerate(rows.columns):
            rule = self._rule(name)
            if rule.scale != 1.0 or rule.offset:
                rows.values[:, i] = rows.values[:, i] * rule.scale + rule.offset

    def _ended_cells(
        self, rows: Rows, starts: Ints, numbers: Ints, columns: list[int], *, parts: bool
    ) -> Iterator[Samples]:
        entities = rows.entities[starts]
        cells = np.ix_(entities, np.array(columns, np.int64))
        before = self._present[cells]
        if rows.valid is None:
            self._present[cells] = True
            return
        if parts:
            self._present[cells] |= np.logical_or.reduceat(rows.valid, starts)
            return
        previous = np.empty_like(rows.valid)
        previous[1:] = rows.valid[:-1]
        previous[starts] = before
        ended = previous & ~rows.valid
        # Which entity of `numbers` each row belongs to.
        owner = np.repeat(np.arange(len(starts)), np.diff(starts, append=len(rows.times)))
        row, column = np.nonzero(ended)
        yield _markers(numbers[owner[row], column], rows.times[row])
        last = np.append(starts[1:], len(rows.times)) - 1
        self._present[cells] = rows.valid[last]

    def _changes(self, rows: Rows, column: int) -> bool:
        """Return whether a code is not what it was: if all are, their series are those already in `_numbers`."""
        current = self._current.setdefault(rows.columns[column], np.full(len(self._entities.keys), _NONE))
        if rows.valid is not None and not rows.valid[:, column].all():
            return True
        return not np.array_equal(rows.values[:, column], current[rows.entities])

    def _take_codes(self, rows: Rows, column: int) -> Iterator[Samples]:
        name, values = rows.columns[column], rows.values[:, column]
        codes = np.where(np.isfinite(values), values, 0).astype(np.int64)
        if rows.valid is not None:
            codes[~rows.valid[:, column]] = _NONE
        starts = np.flatnonzero(np.diff(rows.entities, prepend=-1))
        ends = np.append(starts[1:], len(codes)) - 1
        current = self._current[name]
        previous = np.empty_like(codes)
        previous[1:] = codes[:-1]
        previous[starts] = current[rows.entities[starts]]
        ended = np.flatnonzero((previous != codes) & (previous != _NONE))
        yield _markers(self._code_series(name, rows.entities[ended], previous[ended]), rows.times[ended])
        there = np.flatnonzero(codes != _NONE)
        series = self._code_series(name, rows.entities[there], codes[there])
        yield from grouped(series, rows.times[there], codes[there].astype(np.float64))
        last = rows.entities[ends]
        current[last] = codes[ends]
        where = self._columns[name]
        self._present[last, where] = codes[ends] != _NONE
        known = ends[codes[ends] != _NONE]
        self._numbers[rows.entities[known], where] = self._code_series(name, rows.entities[known], codes[known])

    def _code_series(self, name: str, entities: Ints, codes: Ints) -> Ints:
        # Few distinct pairs: a GPU has one code for days.
        pairs, inverse = np.unique(entities << _CODE_BITS | codes, return_inverse=True)
        numbers = np.empty(len(pairs), np.int64)
        for i, pair in enumerate(pairs.tolist()):
            entity, code = pair >> _CODE_BITS, pair & ((1 << _CODE_BITS) - 1)
            number = self._codes.get((entity, name, code))
            if number is None:
                number = self._catalogue.add(self._naming.of_code(self._entities.keys[entity], name, code))
                self._codes[entity, name, code] = number
            numbers[i] = number
        return numbers[inverse]


def _only(rows: Rows, keep: list[int]) -> Rows:
    """Return the rows with these columns only."""
    return Rows(
        rows.times,
        rows.entities,
        tuple(rows.columns[i] for i in keep),
        rows.values[:, keep],
        None if rows.valid is None else rows.valid[:, keep],
    )


def _reporting(rows: Rows, column: int) -> Rows:
    """Return the rows that have a value in this column."""
    if rows.valid is None:
        return rows
    there = rows.valid[:, column]
    return Rows(rows.times[there], rows.entities[there], rows.columns, rows.values[there], rows.valid[there])


def _markers(series: Ints, times: Ints) -> Samples:
    """Return one staleness marker each."""
    return Samples(series, times.reshape(-1, 1), np.full((len(series), 1), STALE))


def grouped(series: Ints, times: Ints, values: Floats) -> Iterator[Samples]:
    """Yield flat samples as matrices: the series with one sample, those with two, and so on, each in time order."""
    order = np.lexsort((times, series))
    series, times, values = series[order], times[order], values[order]
    starts = np.flatnonzero(np.diff(series, prepend=-1))
    counts = np.diff(starts, append=len(series))
    for count in np.flatnonzero(np.bincount(counts)):
        chosen = starts[counts == count]
        cells = chosen[:, None] + np.arange(count)
        yield Samples(series[chosen], times[cells], values[cells])


def _dense(rows: Rows, starts: Ints, numbers: Ints) -> Iterator[Samples]:
    """Yield the rows as matrices, one for each number of ticks that entities have here."""
    counts = np.diff(starts, append=len(rows.times))
    for count in np.flatnonzero(np.bincount(counts)):
        chosen = np.flatnonzero(counts == count)
        cells = starts[chosen] + np.arange(count)[:, None]
        # (ticks, entities, columns): rows are copied whole, and one tick of all series lies together.
        values = rows.values[cells]
        times = np.broadcast_to(rows.times[cells][:, :, None], values.shape)
        series = numbers[chosen]
        if rows.valid is None:
            flat = (int(count), series.size)
            yield Samples(series.reshape(-1), times.reshape(flat).T, values.reshape(flat).T)
        else:
            yield from _reported(series, times, values, rows.valid[cells])


def _reported(series: Ints, times: Ints, values: Floats, valid: NDArray[np.bool_]) -> Iterator[Samples]:
    """Yield what was reported of (ticks, entities, columns), by how many ticks of a series were."""
    reported = valid.sum(axis=0)
    for count in np.flatnonzero(np.bincount(reported.reshape(-1))):
        if count:
            chosen = reported == count
            mask = valid[:, chosen].T
            shape = (len(mask), int(count))
            yield Samples(
                series[chosen], times[:, chosen].T[mask].reshape(shape), values[:, chosen].T[mask].reshape(shape)
            )


def in_order(blocks: list[Samples]) -> list[Samples]:
    """Return the same samples with every series in one block only, so that its samples leave in time order."""
    series, times = np.unique(np.concatenate([block.series for block in blocks]), return_counts=True)
    shared = series[times > 1]
    if not len(shared):
        return blocks
    apart: list[Samples] = []
    flat: list[tuple[Ints, Ints, Floats]] = []
    for block in blocks:
        hit = np.isin(block.series, shared)
        rest = ~hit
        if rest.any():
            apart.append(Samples(block.series[rest], block.times[rest], block.values[rest]))
        width = block.times.shape[1]
        flat.append((np.repeat(block.series[hit], width), block.times[hit].reshape(-1), block.values[hit].reshape(-1)))
    merged = grouped(*(np.concatenate(part) for part in zip(*flat, strict=True)))
    return [*apart, *merged]
