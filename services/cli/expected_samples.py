"""What a recording must become in Prometheus: samples and checksum by metric, straight from the columns."""

from collections import defaultdict
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from services.cli.stored_samples import Held
from services.kit.series import Stream, table
from services.recording.reader import Recording


def expected(recording: Recording, *, start_ms: int, end_ms: int) -> dict[str, Held]:
    """Return by metric name what lands of `recording` from `start_ms` to `end_ms`, both included; `up` left out.

    The sum is NaN where a value is NaN, as in Prometheus.
    """
    counts: dict[str, int] = defaultdict(int)
    totals: dict[str, float] = defaultdict(float)
    for name in recording.streams():
        stream = table().streams[name]
        for batch in recording.batches(name, start_ms, end_ms + 1):
            for metric, values in _samples(stream, batch):
                counts[metric] += len(values)
                totals[metric] += float(values.sum())
    return {metric: Held(counts[metric], totals[metric]) for metric in counts if counts[metric]}


def _samples(stream: Stream, batch: pa.RecordBatch) -> list[tuple[str, np.ndarray[tuple[int], np.dtype[np.float64]]]]:
    """Return metric and values of every numeric column that is not part of the entity's name."""
    found = []
    for name in batch.schema.names:
        column = batch.column(name)
        if name in stream.entity or not (pa.types.is_integer(column.type) or pa.types.is_floating(column.type)):
            continue
        rule, _ = stream.column(name)
        for metric, part in _by_unit(stream, name, rule.metric, batch, column):
            values = part.drop_null().to_numpy(zero_copy_only=False).astype(np.float64)
            found.append((metric, values * rule.scale + rule.offset))
    return found


def _by_unit(stream: Stream, name: str, metric: str, batch: pa.RecordBatch, column: Any) -> list[tuple[str, Any]]:
    if not stream.by_unit:
        return [(metric, column)]
    units = batch.column("unit").cast(pa.string())
    return [
        (stream.by_unit.get(unit.as_py(), {}).get(name, metric), column.filter(pc.equal(units, unit)))
        for unit in pc.unique(units)
    ]
