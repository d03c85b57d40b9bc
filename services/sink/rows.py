"""Kafka values of one stream to columns: times, entities, and a matrix of values.

A producer sends the same few nodes in the same order again and again. A message's bytes before its values (schema,
dictionaries, buffer positions) and its key columns then repeat, and decoding it anew through Arrow costs more than all
the rest. So a layout is learnt once, and messages of known layouts are stacked and read by position, many at a time.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from services.kit.entities import Entities as Numbered
from services.kit.wire import WireError, times_of
from services.sink.encode import EARLIEST_MS, LATEST_MS, Floats
from services.sink.naming import Key
from services.sink.pages import Bytes, Ints

Mask = NDArray[np.bool_]

LEARN_BYTES = 128 * 1024
"""Larger messages carry enough rows that Arrow's own cost does not matter."""
LAYOUTS = 8192
"""Layouts kept (some 5 kB each); beyond that they evidently do not repeat, and all are forgotten."""


@dataclass(slots=True)
class Rows:
    """n rows: `times` (n,) epoch ms, `entities` (n,) indices, `values` (n, c) by `columns`; `valid` None: all are."""

    times: Ints
    entities: Ints
    columns: tuple[str, ...]
    values: Floats
    valid: Mask | None


class Entities(Numbered):
    """What rows of a message are about: all keys as text, "" for null."""

    keys: list[Key]

    def column(self, batch: pa.RecordBatch, name: str) -> tuple[Ints, list[str]]:
        """Return a key column as codes and texts; raise WireError if it is missing (`unit` may be)."""
        if name not in batch.schema.names:
            if name == "unit":
                return np.zeros(batch.num_rows, np.int64), [""]
            raise WireError(f"column {name} is missing")
        codes, values = super().column(batch, name)
        return codes, ["" if value is None else str(value) for value in values]


@dataclass(frozen=True, slots=True)
class _Field:
    """Where a column lies in a message's body: byte offset of its values, and of its validity bits if it has any."""

    start: int
    dtype: np.dtype[Any]
    bits: int | None

    def read(self, bodies: Bytes, rows: int) -> NDArray[Any]:
        return bodies[:, self.start : self.start + rows * self.dtype.itemsize].view(self.dtype)

    def valid(self, bodies: Bytes, rows: int) -> Mask | None:
        if self.bits is None:
            return None
        octets = bodies[:, self.bits : self.bits + (rows + 7) // 8]
        return np.unpackbits(octets, axis=1, count=rows, bitorder="little").astype(np.bool_)


@dataclass(frozen=True, slots=True, eq=False)
class _Shape:
    """What messages must share to be stacked: sizes, columns, and where in the body everything lies.

    Compared by identity: `Reader` keeps one of a kind.
    """

    rows: int
    body: int
    columns: tuple[str, ...]
    times: _Field
    fields: tuple[_Field, ...]
    keys: tuple[tuple[int, int], ...]
    """Byte ranges of the body that hold the key columns."""


@dataclass(slots=True)
class _Layout:
    """A prefix seen before: its shape, and the entities by the key columns' bytes."""

    shape: _Shape
    entities: dict[bytes, Ints] = field(default_factory=dict)


class Reader:
    """Reads the messages of one stream of one unit."""

    def __init__(self, entities: Entities) -> None:
        self._entities = entities
        self._layouts: dict[bytes, _Layout] = {}
        self._shapes: dict[tuple[object, ...], _Shape] = {}
        self._prefix_sizes: dict[int, list[int]] = {}

    def knows(self, value: bytes) -> bool:
        """Return whether the layout of a message is known."""
        return self._find(value) is not None

    def known(self, values: Sequence[bytes]) -> tuple[list[Rows], list[int]]:
        """Return the rows of all messages whose layout is known, and the positions of those that are not."""
        stacks: dict[_Shape, list[tuple[int, bytes, Ints]]] = {}
        unknown: list[int] = []
        for position, value in enumerate(values):
            found = self._find(value)
            if found is None:
                unknown.append(position)
            else:
                stacks.setdefault(found[0], []).append((position, value, found[1]))
        rows: list[Rows] = []
        for shape, stack in stacks.items():
            try:
                rows.append(_stacked(shape, stack))
            except WireError:
                # One of them has an impossible time: read one by one they will say which.
                unknown.extend(position for position, _, _ in stack)
        return rows, sorted(unknown)

    def decoded(self, batch: pa.RecordBatch, value: bytes | None = None) -> Rows:
        """Return a batch's rows; learn its layout if `value` is the message it came from.

        Raises WireError if a column is missing, or of the wrong type, or a time is out of range.
        """
        times = _checked(times_of(batch))
        entities = self._entities.of(batch)
        columns = tuple(
            name
            for name, kind in zip(batch.schema.names, batch.schema.types, strict=True)
            if name not in self._entities.columns and (pa.types.is_integer(kind) or pa.types.is_floating(kind))
        )
        values = np.empty((batch.num_rows, len(columns)))
        valid: Mask | None = None
        for i, name in enumerate(columns):
            column: Any = batch.column(name)
            if column.null_count:
                if valid is None:
                    valid = np.ones(values.shape, np.bool_)
                valid[:, i] = column.is_valid().to_numpy(zero_copy_only=False)
                column = column.fill_null(0)
            values[:, i] = column.to_numpy(zero_copy_only=False)
        if value is not None and len(value) <= LEARN_BYTES:
            self._learn(batch, value, columns, entities)
        return Rows(times, entities, columns, values, valid)

    def _find(self, value: bytes) -> tuple[_Shape, Ints] | None:
        for size in self._prefix_sizes.get(len(value), ()):
            layout = self._layouts.get(value[:size])
            if layout is not None:
                key = b"".join(value[size + start : size + stop] for start, stop in layout.shape.keys)
                entities = layout.entities.get(key)
                return None if entities is None else (layout.shape, entities)
        return None

    def _learn(self, batch: pa.RecordBatch, value: bytes, columns: tuple[str, ...], entities: Ints) -> None:
        place = _Place(value, batch)
        if not place.inside:
            return
        times = place.field("timestamp")
        fields = [place.field(name) for name in columns]
        keys = [place.key(name) for name in self._entities.columns if name in batch.schema.names]
        if batch.schema.field("timestamp").type != pa.timestamp("ms", "UTC") or times is None or None in fields:
            return
        if len(self._layouts) >= LAYOUTS:
            self._layouts.clear()
            self._prefix_sizes.clear()
            self._shapes.clear()
        parts = (
            batch.num_rows,
            len(value) - place.body,
            columns,
            times,
            tuple(f for f in fields if f is not None),
            tuple(part for parts in keys for part in parts),
        )
        shape = self._shapes.setdefault(parts, _Shape(*parts))
        layout = self._layouts.setdefault(value[: place.body], _Layout(shape))
        if len(layout.entities) < LAYOUTS:
            layout.entities[b"".join(value[place.body + a : place.body + b] for a, b in shape.keys)] = entities
        sizes = self._prefix_sizes.setdefault(len(value), [])
        if place.body not in sizes:
            sizes.append(place.body)


class _Place:
    """Where the buffers of a decoded batch lie in the message that it was decoded from."""

    def __init__(self, value: bytes, batch: pa.RecordBatch) -> None:
        self._batch = batch
        self._base = pa.py_buffer(value).address
        buffers = [b for column in batch.columns for b in column.buffers() if b is not None]
        starts = [b.address - self._base for b in buffers]
        # Buffers that were decompressed, or moved for alignment, lie elsewhere: such messages are not learnt.
        self.inside = bool(starts) and all(
            start >= 0 and start + b.size <= len(value) for start, b in zip(starts, buffers, strict=True)
        )
        self.body = min(starts) if self.inside else 0

    def field(self, name: str) -> _Field | None:
        column: Any = self._batch.column(name)
        bits, data = column.buffers()
        if column.offset or data is None:
            return None
        dtype = np.dtype(np.int64) if name == "timestamp" else np.dtype(column.type.to_pandas_dtype())
        has_nulls = bits is not None and column.null_count
        return _Field(self._at(data), dtype, self._at(bits) if has_nulls else None)

    def key(self, name: str) -> list[tuple[int, int]]:
        column: Any = self._batch.column(name)
        # Of a dictionary these are its indices; the dictionary itself is part of the prefix.
        own = column.indices.buffers() if pa.types.is_dictionary(column.type) else column.buffers()
        return [(self._at(b), self._at(b) + b.size) for b in own if b is not None]

    def _at(self, buffer: Any) -> int:
        return int(buffer.address) - self._base - self.body


def _stacked(shape: _Shape, stack: Sequence[tuple[int, bytes, Ints]]) -> Rows:
    joined = b"".join(value[-shape.body :] for _, value, _ in stack)
    bodies = np.frombuffer(joined, np.uint8).reshape(len(stack), shape.body)
    values = np.empty((len(stack), shape.rows, len(shape.columns)))
    valid: Mask | None = None
    for i, place in enumerate(shape.fields):
        values[:, :, i] = place.read(bodies, shape.rows)
        bits = place.valid(bodies, shape.rows)
        if bits is not None:
            if valid is None:
                valid = np.ones(values.shape, np.bool_)
            valid[:, :, i] = bits
    times = _checked(shape.times.read(bodies, shape.rows).reshape(-1))
    width = len(shape.columns)
    return Rows(
        times,
        np.concatenate([entities for _, _, entities in stack]),
        shape.columns,
        values.reshape(-1, width),
        None if valid is None else valid.reshape(-1, width),
    )


def _checked(times: Ints) -> Ints:
    """Return the times; raise WireError if one is outside what hindcast writes."""
    if len(times) and (times.min() < EARLIEST_MS or times.max() > LATEST_MS):
        raise WireError("a timestamp lies outside the years 1971 to 2109")
    return times


def together(parts: Sequence[Rows]) -> Rows:
    """Return all rows as one, over the union of their columns."""
    if len(parts) == 1:
        return parts[0]
    times = np.concatenate([part.times for part in parts])
    entities = np.concatenate([part.entities for part in parts])
    columns = parts[0].columns
    if all(part.columns == columns for part in parts):
        values = np.concatenate([part.values for part in parts])
        if all(part.valid is None for part in parts):
            return Rows(times, entities, columns, values, None)
        masks = [np.ones(p.values.shape, np.bool_) if p.valid is None else p.valid for p in parts]
        return Rows(times, entities, columns, values, np.concatenate(masks))
    columns = tuple(dict.fromkeys(name for part in parts for name in part.columns))
    values = np.zeros((len(times), len(columns)))
    valid = np.zeros(values.shape, np.bool_)
    row = 0
    for part in parts:
        where = np.ix_(range(row, row + len(part.times)), [columns.index(name) for name in part.columns])
        values[where] = part.values
        valid[where] = True if part.valid is None else part.valid
        row += len(part.times)
    return Rows(times, entities, columns, values, valid)
