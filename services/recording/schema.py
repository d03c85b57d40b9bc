"""What each stream of a recording holds: key columns, their types, and the values it cannot do without.

The contract is the recording format, version 1. Columns that are not named here are kept as they are.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

FORMAT = "hindcast.recording/v1"
MAX_ROW_GROUP_ROWS = 1_000_000  # of the format: what a reader must be ready to stream
TIMESTAMP = pa.timestamp("ms", tz="UTC")
NAME = pa.dictionary(pa.int32(), pa.string())


@dataclass(frozen=True)
class StreamSchema:
    """One stream: ``keys`` (with ``timestamp``) identify a row, ``required`` values must be there."""

    name: str
    keys: tuple[tuple[str, pa.DataType], ...]
    required: tuple[str, ...] = ()
    nullable_keys: frozenset[str] = field(default_factory=frozenset)
    text_values: frozenset[str] = field(default_factory=frozenset)

    @property
    def file(self) -> str:
        """The stream's file name inside a recording."""
        return f"{self.name}.parquet"

    @property
    def key_names(self) -> tuple[str, ...]:
        """Key columns without the timestamp."""
        return tuple(name for name, _ in self.keys)

    def key_type(self, column: str) -> pa.DataType | None:
        """Return the type a key column (or the timestamp) must have; None for a value column."""
        return TIMESTAMP if column == "timestamp" else dict(self.keys).get(column)

    @property
    def must_have(self) -> tuple[str, ...]:
        """Every column without which the stream cannot be read."""
        return ("timestamp", *self.key_names, *self.required)


STREAMS: dict[str, StreamSchema] = {
    schema.name: schema
    for schema in (
        StreamSchema("dcgm", (("node", NAME), ("gpu", pa.uint8()))),
        StreamSchema("nic", (("node", NAME), ("nic", NAME))),
        StreamSchema("switch", (("switch", NAME), ("port", NAME))),
        StreamSchema(
            "bmc",
            (("node", NAME), ("sensor", NAME)),
            required=("reading", "unit"),
            text_values=frozenset({"unit"}),
        ),
        StreamSchema(
            "steps",
            (("job_id", NAME), ("rank", pa.int32()), ("node", NAME), ("iteration", pa.int64())),
            required=("step_time_s",),
            nullable_keys=frozenset({"node"}),
        ),
        StreamSchema("storage", (("node", NAME), ("mount", NAME))),
    )
}


def is_name_type(data_type: pa.DataType) -> bool:
    """Whether a type is a dictionary of strings, of whatever index width."""
    return pa.types.is_dictionary(data_type) and (
        pa.types.is_string(data_type.value_type) or pa.types.is_large_string(data_type.value_type)
    )


def name_column(codes: NDArray[np.integer[Any]], names: Sequence[str], null: NDArray[np.bool_] | None = None) -> Any:
    """Return an Arrow column of names in the format's type: ``names[code]`` for each code, null where ``null``."""
    indices: Any = pa.array(codes.astype(np.int32), mask=null)
    return pa.DictionaryArray.from_arrays(indices, pa.array(list(names))).cast(NAME)
