"""Long to wide: samples of many series of one stream to its rows, one for each time and entity."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from services.recording.importers.parts.series.amd_series import folded
from services.recording.importers.parts.series.census import Key
from services.recording.schema import TIMESTAMP, name_column

Ints = NDArray[np.int64]
Floats = NDArray[np.float64]

_LARGEST_WHOLE = 2**53
_LAYOUTS_COMPARED = 8
"""The latest: columns of one scrape come one after the other."""


@dataclass
class Wide:
    """Collects the samples of a stretch of one stream; `rows` gives them as a batch and empties it."""

    stream: str
    _keys: list[Key] = field(default_factory=list)
    _numbers: dict[Key, int] = field(default_factory=dict)
    _parts: list[tuple[str, Ints, Ints, Floats]] = field(default_factory=list)
    _loose: dict[str, tuple[list[int], list[int], list[float]]] = field(default_factory=dict)
    samples: int = 0
    repeated: int = 0
    """Samples for a time, entity and column that had one already: the first stays."""

    def entity(self, key: Key) -> int:
        """Return the number of an entity; it stays the same for the object's life."""
        number = self._numbers.setdefault(key, len(self._keys))
        if number == len(self._keys):
            self._keys.append(key)
        return number

    def add(self, column: str, entities: Ints, times: Ints, values: Floats) -> None:
        """Take n samples of a column: entity numbers, epoch milliseconds, values."""
        if len(times):
            self._parts.append((column, entities, times, values))
            self.samples += len(times)

    def add_few(self, column: str, entities: Iterable[int], times: Iterable[int], values: Sequence[float]) -> None:
        """Take samples of a column, a few at a time: the same as `add`, without the cost of an array each."""
        loose = self._loose.setdefault(column, ([], [], []))
        loose[0].extend(entities)
        loose[1].extend(times)
        loose[2].extend(values)
        self.samples += len(values)

    def rows(self) -> pa.RecordBatch | None:
        """Return all samples taken since the last call as rows sorted by time; None where there are none."""
        for column, (entities, times, numbers) in self._loose.items():
            part = np.array(entities, np.int64), np.array(times, np.int64), np.array(numbers, np.float64)
            self._parts.append((column, *part))
        self._loose = {}
        parts, self._parts, self.samples = self._parts, [], 0
        if not parts:
            return None
        first = min(int(part[2].min()) for part in parts)
        # Columns of one scrape have the same times and entities: few layouts, each looked up once.
        layouts: list[Ints] = []
        which = [_index(layouts, (part[2] - first) * len(self._keys) + part[1]) for part in parts]
        found = np.unique(np.concatenate(layouts))
        rows = [np.searchsorted(found, layout) for layout in layouts]
        once = [len(layout) == np.count_nonzero(np.bincount(row)) for layout, row in zip(layouts, rows, strict=True)]
        values: dict[str, tuple[Floats, NDArray[np.bool_]]] = {}
        for (column, _, _, part_values), layout in zip(parts, which, strict=True):
            new = column not in values
            cells, there = values.setdefault(column, (np.zeros(len(found)), np.zeros(len(found), np.bool_)))
            here = rows[layout]
            if new and once[layout]:
                cells[here] = part_values
                there[here] = True
            else:
                self.repeated += _fill(cells, there, here, part_values)
        return self._batch(found // len(self._keys) + first, found % len(self._keys), values)

    def _batch(
        self, times: Ints, entities: Ints, values: Mapping[str, tuple[Floats, NDArray[np.bool_]]]
    ) -> pa.RecordBatch:
        columns: dict[str, Any] = {"timestamp": pa.array(times).cast(TIMESTAMP)}
        columns |= _KEYS[self.stream](self._keys, entities)
        for name, (cells, there) in sorted(values.items()):
            columns[name] = _typed(self.stream, name, cells, there)
        if self.stream == "bmc" and "reading" not in columns:
            columns["reading"] = pa.nulls(len(times), pa.float64())
        if self.stream == "steps":
            return _steps(columns)
        if self.stream == "dcgm":
            return folded(pa.RecordBatch.from_pydict(columns))
        return pa.RecordBatch.from_pydict(columns)


def _index(layouts: list[Ints], codes: Ints) -> int:
    """Return the number of a layout, which is taken in if it is new."""
    for number in range(max(0, len(layouts) - _LAYOUTS_COMPARED), len(layouts)):
        if np.array_equal(layouts[number], codes):
            return number
    layouts.append(codes)
    return len(layouts) - 1


def _fill(cells: Floats, there: NDArray[np.bool_], rows: Ints, values: Floats) -> int:
    """Put values into rows that have none yet, the first of several; return how many were not put."""
    new = np.flatnonzero(~there[rows])
    before = int(there.sum())
    cells[rows[new][::-1]] = values[new][::-1]
    there[rows] = True
    return len(rows) - (int(there.sum()) - before)


def interval_s(batch: pa.RecordBatch, keys: Sequence[str]) -> float | None:
    """Return how often an entity has a row, in seconds: the median; None where none has two."""
    times = np.asarray(batch.column("timestamp").cast(pa.int64()), dtype=np.int64)
    codes = np.zeros(len(times), np.int64)
    for name in keys:
        column: Any = batch.column(name)
        encoded = column if pa.types.is_dictionary(column.type) else column.dictionary_encode()
        codes = codes * (len(encoded.dictionary) + 1) + np.asarray(encoded.indices.fill_null(-1), np.int64) + 1
    order = np.lexsort((times, codes))
    gaps = np.diff(times[order])[np.diff(codes[order]) == 0]
    return round(float(np.median(gaps))) / 1000 if len(gaps) else None


def _typed(stream: str, name: str, cells: Floats, there: NDArray[np.bool_]) -> Any:
    """Return a column in the smallest type that holds exactly what was read."""
    mask = ~there
    if stream == "bmc" and name == "state":
        state = np.isin(cells, (0, 1, 2)) & there
        return pa.array(np.where(state, cells, 0).astype(np.uint8), mask=~state)
    if stream == "steps" and name == "iteration":
        whole = there & (np.abs(cells) < _LARGEST_WHOLE)
        return pa.array(np.where(whole, cells, 0).astype(np.int64), mask=~whole)
    if stream == "bmc":
        return pa.array(cells, mask=mask)
    with np.errstate(over="ignore"):
        single = cells.astype(np.float32)
    if np.array_equal(single.astype(np.float64)[there], cells[there], equal_nan=True):
        return pa.array(single, mask=mask)
    return pa.array(cells, mask=mask)


def _names(keys: Sequence[Key], entities: Ints, part: int) -> Any:
    names = list(dict.fromkeys(str(key[part]) for key in keys))
    number = {name: index for index, name in enumerate(names)}
    codes = np.array([number[str(key[part])] for key in keys], np.int64)[entities]
    empty = codes == number.get("", -1)
    return name_column(codes, names, empty)


def _numbers(keys: Sequence[Key], entities: Ints, part: int) -> Ints:
    return np.array([int(key[part]) for key in keys], np.int64)[entities]


_KEYS: dict[str, Callable[[Sequence[Key], Ints], dict[str, Any]]] = {
    "dcgm": lambda keys, rows: {
        "node": _names(keys, rows, 0),
        "gpu": pa.array(_numbers(keys, rows, 1).astype(np.uint8)),
    },
    "nic": lambda keys, rows: {"node": _names(keys, rows, 0), "nic": _names(keys, rows, 1)},
    "switch": lambda keys, rows: {"switch": _names(keys, rows, 0), "port": _names(keys, rows, 1)},
    "bmc": lambda keys, rows: {
        "node": _names(keys, rows, 0),
        "sensor": _names(keys, rows, 1),
        "unit": _names(keys, rows, 2),
    },
    "steps": lambda keys, rows: {
        "job_id": _names(keys, rows, 0),
        "rank": pa.array(_numbers(keys, rows, 1).astype(np.int32)),
        "node": _names(keys, rows, 2),
    },
    "storage": lambda keys, rows: {"node": _names(keys, rows, 0), "mount": _names(keys, rows, 1)},
}


def _steps(columns: dict[str, Any]) -> pa.RecordBatch:
    """Return the rows that say which iteration they are of: the format needs it."""
    rows = len(columns["timestamp"])
    columns.setdefault("iteration", pa.nulls(rows, pa.int64()))
    columns.setdefault("step_time_s", pa.nulls(rows, pa.float32()))
    batch = pa.RecordBatch.from_pydict(columns)
    return batch.filter(batch.column("iteration").is_valid())
