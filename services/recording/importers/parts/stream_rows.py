"""Readings one at a time to batches of a stream: each row has its own value columns, what it lacks is null."""

from collections.abc import Mapping
from typing import Any

import numpy as np
import pyarrow as pa

from services.recording.importers.contract import Draft
from services.recording.importers.parts.moments import interval_s
from services.recording.importers.parts.series.amd_series import folded
from services.recording.schema import STREAMS, TIMESTAMP

Value = float | str | None
_FLUSH_CELLS = 400_000  # some 50 MB of Python objects
_TIMED_ENTITIES, _TIMED_MOMENTS = 64, 2_000  # more entities and moments give no other interval
_TYPES: dict[str, pa.DataType] = {"unit": pa.string(), "state": pa.uint8(), "oper_up": pa.uint8()}


class StreamRows:
    """Collects rows of one stream for a draft. Numbers become float64, which holds counters up to 2^53 exactly."""

    def __init__(self, draft: Draft, stream: str) -> None:
        self._draft, self._schema = draft, STREAMS[stream]
        self._moments: dict[tuple[str | int, ...], set[int]] = {}
        self._clear()

    def _clear(self) -> None:
        self._times: list[int] = []
        self._keys: list[tuple[str | int, ...]] = []
        self._cells: dict[str, tuple[list[int], list[Any]]] = {}
        self._count = 0

    def add(self, at: int, entity: tuple[str | int, ...], values: Mapping[str, Value]) -> None:
        """Take the readings of an entity (its key columns in the format's order) at a time in ms."""
        row = len(self._times)
        for name, value in values.items():
            if value is not None:
                rows, cells = self._cells.setdefault(name, ([], []))
                rows.append(row)
                cells.append(value)
        self._times.append(at)
        self._keys.append(entity)
        self._count += len(values) + 2
        if entity in self._moments or len(self._moments) < _TIMED_ENTITIES:
            moments = self._moments.setdefault(entity, set())
            if len(moments) < _TIMED_MOMENTS:
                moments.add(at)
        if self._count >= _FLUSH_CELLS:
            self._flush()

    def finish(self) -> None:
        """Hand on what is left. The stream's interval is the median time between the readings of an entity."""
        if self._times:
            self._flush()

    def _flush(self) -> None:
        count = len(self._times)
        columns: dict[str, Any] = {"timestamp": pa.array(self._times, pa.int64()).cast(TIMESTAMP)}
        for place, (name, kind) in enumerate(self._schema.keys):
            names: list[Any] = [key[place] for key in self._keys]
            keys: Any = pa.array(names)
            columns[name] = keys.cast(kind) if pa.types.is_integer(kind) else keys.dictionary_encode().cast(kind)
        for name in sorted({*self._cells, *self._schema.required}):
            rows, cells = self._cells.get(name, ([], []))
            if _TYPES.get(name) == pa.string():
                text: list[str | None] = [None] * count
                for row, cell in zip(rows, cells, strict=True):
                    text[row] = cell
                columns[name] = pa.array(text, pa.string())
                continue
            held, missing = np.zeros(count), np.ones(count, bool)
            held[rows], missing[rows] = cells, False
            columns[name] = pa.array(held, mask=missing).cast(_TYPES.get(name, pa.float64()))
        interval = interval_s(self._moments.values())
        self._draft.add(self._schema.name, folded(pa.RecordBatch.from_pydict(columns)), interval_s=interval)
        self._clear()
