"""Arrow record batches and JSON rows to the engine's columns."""

from collections.abc import Collection, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from detectors.contract import Kind
from detectors.engine.rows import KeyColumn, Rows
from detectors.fleet.fleet import KEYS
from services.kit.errors import UserError
from services.kit.times import parse_time
from services.kit.wire import WireError, times_of


def rows_of(kind: Kind, batch: pa.RecordBatch, fields: Collection[str] | None = None) -> Rows:
    """Return the batch's rows, with only `fields` of the values if given; raise WireError on a bad shape."""
    names = set(batch.schema.names)
    missing = {"timestamp", *KEYS[kind]} - names
    if missing:
        raise WireError(f"column(s) {', '.join(sorted(missing))} missing")
    stamps = times_of(batch)
    keys = {name: _key(name, batch.column(name)) for name in KEYS[kind]}
    values: dict[str, Any] = {}
    valid: dict[str, Any] = {}
    for name in batch.schema.names:
        column = batch.column(name)
        if name == "timestamp" or name in keys or (fields is not None and name not in fields):
            continue
        if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
            valid[name] = column.is_valid().to_numpy(zero_copy_only=False)
            values[name] = column.fill_null(0).to_numpy(zero_copy_only=False).astype(np.float64)
    return Rows(kind, stamps, keys, values, valid, _rank_nodes(kind, batch))


def _rank_nodes(kind: Kind, batch: pa.RecordBatch) -> KeyColumn | None:
    """Return the nodes that ranks run on, code -1 for the job as a whole; None where the column is missing."""
    if kind != "steps" or "node" not in batch.schema.names:
        return None
    return _encoded(batch.column("node"))


def _key(name: str, column: Any) -> KeyColumn:
    if column.null_count:
        raise WireError(f"key column {name} has nulls")
    return _encoded(column)


def _encoded(column: Any) -> KeyColumn:
    """Return a column's names and codes, -1 for a null."""
    encoded = column if pa.types.is_dictionary(column.type) else pc.dictionary_encode(column)
    codes = encoded.indices.fill_null(-1).to_numpy(zero_copy_only=False).astype(np.int64)
    return KeyColumn(codes, tuple(encoded.dictionary.to_pylist()))


def batch_of(kind: Kind, rows: Sequence[dict[str, Any]]) -> pa.RecordBatch:
    """Return rows written by hand as a record batch; raise WireError naming the row that is wrong."""
    columns: dict[str, list[Any]] = {name: [] for row in rows for name in row}
    for number, row in enumerate(rows, start=1):
        try:
            columns["timestamp"].append(parse_time(row["timestamp"]))
        except (KeyError, UserError) as error:
            raise WireError(f"row {number}: timestamp: {error}") from None
        for name, cells in columns.items():
            if name != "timestamp":
                cells.append(row.get(name))
    try:
        arrays = {
            name: pa.array(cells, pa.timestamp("ms", "UTC")) if name == "timestamp" else pa.array(cells)
            for name, cells in columns.items()
        }
    except pa.ArrowException as error:
        raise WireError(f"{kind} rows do not form columns: {error}") from None
    return pa.RecordBatch.from_pydict(arrays)
