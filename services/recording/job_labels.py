"""Jobs where nothing lists them but exporters named each GPU's: the labels that a stream of GPUs has as columns."""

from pathlib import Path
from typing import Any, Final

import pyarrow as pa
import pyarrow.compute as pc

from services.recording.importers.parts.schedulers.derived_jobs import JobSpans
from services.recording.importers.parts.schedulers.pod_labels import JOB_LABELS, job_of
from services.recording.importers.parts.series.census import Place
from services.recording.importers.parts.series.known_series import Reading
from services.recording.model import Job, Topology
from services.recording.schema import MAX_ROW_GROUP_ROWS, TIMESTAMP
from services.recording.stream_file import open_stream, stored

_GPU: Final = Reading("dcgm", "DCGM_FI_DEV_GPU_UTIL")


def jobs_by_labels(path: Path, topology: Topology, start: int, end: int) -> list[Job]:
    """Return the jobs that the columns of a file of GPUs from `start` to `end` (ms) name; none without such columns.

    A job has the GPUs that were ever labelled with it, from its first reading to its last. UserError: damaged.
    """
    spans = JobSpans()
    with open_stream(path) as gpus:
        columns = [name for name in JOB_LABELS if name in gpus.schema_arrow.names]
        if not columns:
            return []
        wanted, groups = ["timestamp", "node", "gpu", *columns], list(range(gpus.num_row_groups))
        for table in stored(gpus, path, wanted, MAX_ROW_GROUP_ROWS, groups):
            _see(table, columns, spans, start, end)
    return spans.jobs(end, topology, lambda _why, _where: None)


def _see(table: pa.RecordBatch, columns: list[str], spans: JobSpans, start: int, end: int) -> None:
    """Add to spans who was labelled with which job in some rows."""
    keys = {name: table[name].cast(pa.string()) for name in ("node", *columns)}
    times = table["timestamp"].cast(TIMESTAMP, safe=False).cast(pa.int64())
    plain = pa.table({**keys, "gpu": table["gpu"], "timestamp": times})
    within = (pc.field("timestamp") >= start) & (pc.field("timestamp") <= end)
    plain = plain.filter(within & pc.field("node").is_valid() & pc.field("gpu").is_valid())
    spent = plain.group_by(["node", "gpu", *columns]).aggregate([("timestamp", "min"), ("timestamp", "max")])
    rows: list[dict[str, Any]] = spent.sort_by("timestamp_min").to_pylist()
    for row in rows:
        labels: dict[str, str] = {name: row[name] for name in columns if row[name]}
        place = Place(_GPU, (row["node"], int(row["gpu"])), job_of(labels))
        spans.seen("dcgm", place, row["timestamp_min"], row["timestamp_max"])
