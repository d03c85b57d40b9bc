"""Writes a recording: streams in row groups as they come, documents at the end, the directory's name last of all.

The same content gives the same bytes, however it was cut into batches: row groups have a fixed size, and names get
their dictionary codes in order of first appearance within a row group.
"""

import hashlib
import os
import shutil
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq
import yaml
from pydantic import BaseModel

from services.kit.errors import UsageError
from services.recording.instants import format_instant
from services.recording.model import Event, Job, Label, Manifest, Topology
from services.recording.reader import times_of, to_json_line
from services.recording.schema import FORMAT, STREAMS, StreamSchema

ROW_GROUP_ROWS = 131_072  # some minutes of a thousand GPUs: small enough that a replay streams in little memory
_ZSTD_LEVEL = 3
_VARIED_SHARE = 0.1  # of distinct values in the first row group


class _Instant(str):
    """A time that YAML writes without quotes."""

    __slots__ = ()


class _ManifestDumper(yaml.SafeDumper):
    """Writes times plain, as people write them."""


_ManifestDumper.add_representer(
    _Instant, lambda dumper, text: dumper.represent_scalar("tag:yaml.org,2002:timestamp", str(text))
)


@dataclass
class _StreamFile:
    """One Parquet file being written, and the rows that do not fill a row group yet."""

    schema: StreamSchema
    path: Path
    interval_s: float | None
    writer: pq.ParquetWriter | None = None
    arrow: pa.Schema | None = None
    pending: list[pa.RecordBatch] = field(default_factory=list)
    pending_rows: int = 0
    rows: int = 0
    last: int | None = None
    copied: bool = False

    def append(self, batch: pa.RecordBatch) -> None:
        batch = self._checked(batch)
        self.pending.append(batch)
        self.pending_rows += batch.num_rows
        while self.pending_rows >= ROW_GROUP_ROWS:
            self._flush(ROW_GROUP_ROWS)

    def _checked(self, batch: pa.RecordBatch) -> pa.RecordBatch:
        missing = [name for name in self.schema.must_have if name not in batch.schema.names]
        if missing:
            raise ValueError(f"{self.schema.name}: batch has no column {missing[0]!r}")
        columns = {}
        for column_field, column in zip(batch.schema, batch.columns, strict=True):
            wanted = self.schema.key_type(column_field.name)
            columns[column_field.name] = column if wanted is None or column.type == wanted else column.cast(wanted)
        leading = ["timestamp", *self.schema.key_names]
        order = leading + [name for name in columns if name not in leading]
        ordered = pa.RecordBatch.from_pydict({name: columns[name] for name in order})
        if self.arrow is None:
            self.arrow = ordered.schema
        if not ordered.schema.equals(self.arrow):
            raise ValueError(f"{self.schema.name}: a batch has other columns than the first one")
        times = times_of(ordered)
        if len(times):
            if (self.last is not None and times[0] < self.last) or np.any(np.diff(times) < 0):
                raise ValueError(f"{self.schema.name}: rows are not sorted by timestamp")
            self.last = int(times[-1])
        return ordered

    def _flush(self, rows: int) -> None:
        table = pa.Table.from_batches(self.pending, schema=self.arrow).unify_dictionaries()
        head, tail = table.slice(0, rows), table.slice(rows)
        if self.writer is None:
            varied = _varied_columns(head)
            repeating = [name for name in table.schema.names if name not in varied]
            self.writer = pq.ParquetWriter(
                self.path,
                table.schema,
                compression="zstd",
                compression_level=_ZSTD_LEVEL,
                version="2.6",
                use_dictionary=repeating,  # type: ignore[arg-type]  # the stubs know only a bool
                use_byte_stream_split=varied,
            )
        self.writer.write_table(_renumbered(head), row_group_size=rows)
        self.rows += head.num_rows
        self.pending = tail.to_batches()
        self.pending_rows = tail.num_rows

    def close(self) -> None:
        if self.pending_rows:
            self._flush(self.pending_rows)
        if self.writer is not None:
            self.writer.close()


def _varied_columns(table: pa.Table) -> list[str]:
    """Return the columns of floats that hardly repeat: dictionaries only cost there, splitting bytes helps."""
    return [
        column.name
        for column in table.schema
        if pa.types.is_floating(column.type)
        and pc.count_distinct(table.column(column.name)).as_py() > _VARIED_SHARE * table.num_rows
    ]


def _renumbered(table: pa.Table) -> pa.Table:
    """Return the rows with dictionary codes in order of first appearance, however the rows were batched."""
    for index, column_field in enumerate(table.schema):
        if pa.types.is_dictionary(column_field.type):
            text = table.column(index).combine_chunks().cast(column_field.type.value_type)
            encoded = pc.cast(text.dictionary_encode(), column_field.type)
            table = table.set_column(index, column_field, encoded)
    return table


class RecordingWriter:
    """Writes one recording into ``out``, which appears under its name only when `finish` has succeeded.

    Use as a context manager: leaving it without `finish`, or with an exception, removes what was written.
    UserError: ``out`` exists already, or cannot be written. ValueError: a batch breaks the format (a fault of the
    calling program: columns missing, types that do not convert, rows out of order).
    """

    def __init__(self, out: Path) -> None:
        self.out = out
        if out.exists():
            raise UsageError(
                f"{out}: exists already, and a recording is immutable once written",
                remedy="choose another --out, or remove the directory first",
            )
        self._work = out.with_name(f".{out.name}.{os.getpid()}.partial")
        try:
            out.parent.mkdir(parents=True, exist_ok=True)
            shutil.rmtree(self._work, ignore_errors=True)
            self._work.mkdir()
        except OSError as error:
            raise UsageError(f"{out}: cannot be written: {error}", remedy="choose another --out") from error
        self._streams: dict[str, _StreamFile] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        for stream in self._streams.values():
            if stream.writer is not None:
                stream.writer.close()
        shutil.rmtree(self._work, ignore_errors=True)

    def write(self, stream: str, batch: pa.RecordBatch, *, interval_s: float | None = None) -> None:
        """Append rows, sorted by timestamp, to a stream. ``interval_s`` is taken from the first call."""
        if stream not in self._streams:
            schema = STREAMS[stream]
            self._streams[stream] = _StreamFile(schema, self._work / schema.file, interval_s)
        self._streams[stream].append(batch)

    def copy(self, stream: str, path: Path, *, interval_s: float | None = None) -> None:
        """Take a whole stream from a Parquet file of the format as it is; nothing else can be written to it."""
        target = _StreamFile(STREAMS[stream], self._work / STREAMS[stream].file, interval_s, copied=True)
        shutil.copyfile(path, target.path)
        target.rows = pq.read_metadata(target.path).num_rows
        self._streams[stream] = target

    def write_events(self, events: Iterable[Event]) -> None:
        """Write events.jsonl, sorted by timestamp."""
        ordered = sorted(events, key=lambda event: event.timestamp)
        self._write_lines("events.jsonl", ordered)

    def write_jobs(self, jobs: Iterable[Job]) -> None:
        """Write jobs.jsonl, sorted by start."""
        ordered = sorted(jobs, key=lambda job: (job.start, job.job_id))
        self._write_lines("jobs.jsonl", ordered)

    def write_labels(self, labels: Iterable[Label]) -> None:
        """Write labels.jsonl, sorted by onset."""
        ordered = sorted(labels, key=lambda label: (label.onset, label.id))
        self._write_lines("labels.jsonl", ordered)

    def _write_lines(self, name: str, records: Iterable[BaseModel]) -> None:
        with (self._work / name).open("w", encoding="utf-8", newline="\n") as file:
            file.writelines(to_json_line(record) + "\n" for record in records)

    def finish(self, header: Mapping[str, Any], topology: Topology) -> Manifest:
        """Write topology and manifest, and give the directory its name.

        ``header`` is recording.yaml without ``format``, ``cluster`` counts, ``streams`` and ``files``, which are
        worked out here; ``start`` and ``end`` in ms. ``header["cluster"]`` needs only its ``name``.
        """
        text = topology.model_dump_json(exclude_unset=True)
        (self._work / "topology.json").write_text(text + "\n", encoding="utf-8")
        streams: dict[str, dict[str, Any]] = {}
        for name in STREAMS:
            if name in self._streams:
                streams[name] = self._finished(self._streams[name])
        files = {
            path.name: {"sha256": sha256_of(path)}
            for path in sorted(self._work.iterdir())
            if path.suffix in {".json", ".jsonl"}
        }
        models = sorted({node.gpu_model for node in topology.nodes if node.gpu_model})
        content: dict[str, Any] = {"format": FORMAT, **header}
        content["cluster"] = {
            "name": header["cluster"]["name"],
            "nodes": len(topology.nodes),
            "gpus": sum(len(node.gpus) for node in topology.nodes),
            "gpu_model": ", ".join(models) or "unknown",
        }
        content |= {"streams": streams, "files": files}
        manifest = Manifest.model_validate(content)
        shown = content | {key: _Instant(format_instant(content[key])) for key in ("start", "end")}
        (self._work / "recording.yaml").write_text(
            yaml.dump(shown, Dumper=_ManifestDumper, sort_keys=False, allow_unicode=True, width=120), encoding="utf-8"
        )
        self._work.rename(self.out)
        return manifest

    def _finished(self, stream: _StreamFile) -> dict[str, Any]:
        stream.close()
        interval = {} if stream.interval_s is None else {"interval_s": stream.interval_s}
        if stream.writer is None and not stream.copied:
            raise ValueError(f"{stream.schema.name}: a stream without rows; leave it out instead")
        return {**interval, "rows": stream.rows, "sha256": sha256_of(stream.path)}


def sha256_of(path: Path) -> str:
    """Return the SHA-256 of a file's bytes, in hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
