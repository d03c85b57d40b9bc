"""Reads a recording: documents whole, streams batch by batch, never more than a few batches in memory."""

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Self, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray
from pydantic import BaseModel, ValidationError

from services.kit.documents import read_yaml
from services.kit.errors import UsageError, UserError
from services.recording.instants import format_instant
from services.recording.job_labels import jobs_by_labels
from services.recording.model import Event, Job, Label, Manifest, Topology
from services.recording.schema import FORMAT, MAX_ROW_GROUP_ROWS, STREAMS, StreamSchema
from services.recording.stream_file import missing, open_stream, overlaps, stored

Times = NDArray[np.int64]

_Line = TypeVar("_Line", bound=BaseModel)
_PROBE = 1 << 16  # bytes of lines that are read rather than looked for


def describe(error: ValidationError) -> str:
    """Return pydantic's complaints on one line: field and reason, without its links."""
    return "; ".join(
        f"{'.'.join(str(part) for part in item['loc']) or 'record'}: {item['msg'].removeprefix('Value error, ')}"
        for item in error.errors()
    )


def read_manifest(directory: Path) -> Manifest:
    """Return recording.yaml of a directory. UserError where it is missing, unreadable or of another format version."""
    path = directory / "recording.yaml"
    if not directory.is_dir():
        raise UsageError(f"{directory}: no such recording", remedy="give the directory that holds recording.yaml")
    try:
        content = read_yaml(path, exit_code=1)
    except FileNotFoundError:
        raise UserError(
            f"{path}: missing, so this is no recording (or one whose writing was broken off)",
            remedy="give the directory that holds recording.yaml, or make the recording again",
        ) from None
    version = content.get("format") if isinstance(content, dict) else None
    if version != FORMAT:
        raise UserError(
            f"{path}: format is {version!r}, and this program reads {FORMAT!r}",
            remedy="use the version of hindcast that wrote it, or convert it with `hindcast import`",
        )
    try:
        return Manifest.model_validate(content)
    except ValidationError as error:
        raise UserError(f"{path}: {describe(error)}", remedy="correct the manifest") from error


def read_topology(directory: Path) -> Topology:
    """Return topology.json of a directory. UserError where it is missing or malformed."""
    return topology_in(directory / "topology.json")


def topology_in(path: Path) -> Topology:
    """Return what a topology.json says. UserError where it cannot be read or is malformed."""
    try:
        return Topology.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        raise UserError(f"{path}: missing", remedy="every recording has a topology.json; make it again") from None
    except OSError as error:
        raise UserError(f"{path}: cannot be read: {error.strerror}", remedy="name a topology.json") from None
    except ValidationError as error:
        raise UserError(f"{path}: {describe(error)}", remedy="correct the topology") from error


def read_lines(path: Path, model: type[_Line], broken: list[int] | None = None, *, offset: int = 0) -> Iterator[_Line]:
    """Yield the records of a JSON-lines file, those from `offset` (bytes) on; nothing where the file is absent.

    UserError names a line that is none; with `broken` it is left out, and its number put there.
    """
    if not path.exists():
        return
    with path.open("rb") as lines:
        lines.seek(offset)
        for number, line in enumerate(lines, start=1):
            if not line.strip():
                continue
            try:
                yield model.model_validate_json(line)
            except ValidationError as error:
                if broken is None:
                    where = f"{path}: line {_lines_before(path, offset) + number}"
                    raise UserError(f"{where}: {describe(error)}", remedy="correct the line") from error
                broken.append(number)


def _lines_before(path: Path, offset: int) -> int:
    with path.open("rb") as file:
        return sum(file.read(min(_PROBE, offset - at)).count(b"\n") for at in range(0, offset, _PROBE))


def _offset_of(path: Path, start: int) -> int:
    """Return where in a file of events, which lie in order of time, one can begin to read without missing any from
    `start` (ms) on: a line's first byte. A window of a long history must not read all that was before it.
    """
    if not path.exists():
        return 0
    with path.open("rb") as file:
        low, high = 0, file.seek(0, os.SEEK_END)
        while high - low > _PROBE:
            file.seek((low + high) // 2)
            file.readline()
            begin, at = file.tell(), _next_time(file, high)
            if at is None or at >= start:
                high = (low + high) // 2
            else:
                low = begin
    return low


def _next_time(file: BinaryIO, end: int) -> int | None:
    """Return the time of the next line that begins before byte `end` and can be read; None where there is none."""
    while file.tell() < end and (line := file.readline()):
        try:
            return Event.model_validate_json(line).timestamp
        except ValidationError:
            continue
    return None


def times_of(rows: pa.RecordBatch | pa.Table) -> Times:
    """Return the ``timestamp`` column of rows, which must hold no null, as int64 milliseconds since the epoch."""
    column: Any = rows.column("timestamp").cast(pa.int64())
    return np.asarray(column.to_numpy(zero_copy_only=False), dtype=np.int64)


@dataclass(frozen=True)
class Recording:
    """An opened recording. Streams are read anew at every call; nothing is kept open in between."""

    path: Path
    manifest: Manifest
    topology: Topology
    left_out: str = ""
    """What reading it leaves out or puts in order, in words (services/recording/tidy.py); nothing: all is as it was."""

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Read manifest and topology, and check that every listed file is there. UserError where one is missing."""
        directory = Path(path)
        manifest = read_manifest(directory)
        recording = cls(directory, manifest, read_topology(directory))
        for name in (*(STREAMS[stream].file for stream in recording.streams()), *manifest.files):
            if not (directory / name).exists():
                raise missing(directory / name)
        return recording

    def streams(self) -> tuple[str, ...]:
        """Return the streams this recording has and this version knows, in the format's order."""
        return tuple(name for name in STREAMS if name in self.manifest.streams)

    def batches(
        self,
        stream: str,
        start: int | None = None,
        end: int | None = None,
        *,
        max_rows: int = 65536,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield the rows of a stream with ``start <= timestamp < end`` (ms), in order, at most ``max_rows`` at a time.

        Row groups outside the range are skipped by their statistics. ``columns`` picks value columns; timestamp and
        keys always come. Memory stays at a few batches however large the file's row groups are. Names come as
        dictionary<int32, string>, each batch with a dictionary of its own. UserError: the stream is absent, its
        file unreadable, a column missing, or a timestamp null, out of order or outside the recording.
        """
        schema = self._schema(stream)
        path = self.path / schema.file
        with open_stream(path) as file:
            names = self._columns(path, file, schema, columns)
            clock = _Clock(path, self.manifest)
            for group in range(file.num_row_groups):
                if not overlaps(file, group, start, end):
                    clock.row += file.metadata.row_group(group).num_rows
                    continue
                for raw in stored(file, path, names, max_rows, [group]):
                    batch = canonical(raw, schema, path)
                    batch = within(batch, clock.times(batch), start, end)
                    if batch.num_rows:
                        yield batch

    def _schema(self, stream: str) -> StreamSchema:
        if stream not in self.streams():
            raise UserError(
                f"{self.path}: has no stream {stream!r}",
                remedy=f"it has: {', '.join(self.streams()) or 'no stream at all'}",
            )
        return STREAMS[stream]

    def _columns(
        self, path: Path, file: pq.ParquetFile, schema: StreamSchema, wanted: Sequence[str] | None
    ) -> list[str]:
        present = file.schema_arrow.names
        asked = list(schema.must_have) if wanted is None else ["timestamp", *schema.key_names, *wanted]
        missing = [name for name in asked if name not in present]
        if missing:
            raise UserError(
                f"{path}: column {missing[0]!r} is missing",
                remedy=f"a {schema.name} stream needs {', '.join(schema.must_have)}; make or import it again",
            )
        return list(present) if wanted is None else [name for name in present if name in asked]

    def events(self, start: int | None = None, end: int | None = None) -> Iterator[Event]:
        """Yield log records with ``start <= timestamp < end``, in the file's order, which is that of time; lines far
        before `start` and behind `end` are not read.
        """
        path = self.path / "events.jsonl"
        offset = _offset_of(path, start) if start is not None and start > self.manifest.start else 0
        for event in read_lines(path, Event, offset=offset):
            if end is not None and event.timestamp >= end and end <= self.manifest.end:
                return
            if (start is None or event.timestamp >= start) and (end is None or event.timestamp < end):
                yield event

    def jobs(self) -> Iterator[Job]:
        """Yield the jobs: those that are listed, else those that the labels of GPUs' readings name.

        Where ranks report their steps these name job and nodes better: they follow a job that grows and shrinks.
        Whoever replays must not show an end before event time has passed it.
        """
        listed = (self.path / "jobs.jsonl").exists()
        if listed or "dcgm" not in self.manifest.streams or self._ranks_name_nodes():
            yield from self._listed_jobs()
            return
        file = self.path / STREAMS["dcgm"].file
        yield from jobs_by_labels(file, self.topology, self.manifest.start, self.manifest.end)

    def _listed_jobs(self) -> Iterator[Job]:
        yield from read_lines(self.path / "jobs.jsonl", Job)

    def _ranks_name_nodes(self) -> bool:
        """Return whether some step of a rank has its node."""
        if "steps" not in self.manifest.streams:
            return False
        path = self.path / STREAMS["steps"].file
        with open_stream(path) as steps:
            parts = stored(steps, path, ["node"], MAX_ROW_GROUP_ROWS, list(range(steps.num_row_groups)))
            return any(part["node"].null_count < len(part) for part in parts)

    @property
    def labelled(self) -> bool:
        """Whether somebody has written down what was wrong in it, be it nothing: without that nobody knows."""
        return (self.path / "labels.jsonl").exists()

    def truth(self) -> list[Label] | None:
        """Return the labels; None where nobody has labelled it, so that what is true is unknown."""
        return list(self.labels()) if self.labelled else None

    def labels(self) -> Iterator[Label]:
        """Yield the truth: for the scorer only, never for a detector."""
        yield from read_lines(self.path / "labels.jsonl", Label)


class _Clock:
    """Follows a stream's timestamps, so that a wrong one is named instead of misleading everyone downstream."""

    def __init__(self, path: Path, manifest: Manifest) -> None:
        self._path, self._start, self._end = path, manifest.start, manifest.end
        self._latest = manifest.start
        self.row = 0

    def times(self, batch: pa.RecordBatch) -> Times:
        """Return the times of the stream's next rows; UserError if they cannot be."""
        nulls = batch.column("timestamp").is_null().to_numpy(zero_copy_only=False)
        if nulls.any():
            raise self._wrong(int(np.argmax(nulls)), "is null")
        times = times_of(batch)
        if not len(times):
            return times
        back = np.diff(times, prepend=self._latest) < 0
        if back.any() and times[np.argmax(back)] >= self._start:
            raise self._wrong(int(np.argmax(back)), "is before that of the row before")
        outside = (times < self._start) | (times > self._end)
        if outside.any():
            at = int(np.argmax(outside))
            span = f"{format_instant(self._start)} to {format_instant(self._end)}"
            raise self._wrong(at, f"{format_instant(int(times[at]))} lies outside the recording, {span}")
        self._latest = int(times[-1])
        self.row += len(times)
        return times

    def _wrong(self, index: int, problem: str) -> UserError:
        return UserError(
            f"{self._path}: row {self.row + index}: timestamp {problem}",
            remedy="`hindcast repair` writes a copy without such rows, in order; `hindcast validate` lists them all",
        )


def canonical(batch: pa.RecordBatch, schema: StreamSchema, path: Path, *, cut: bool = False) -> pa.RecordBatch:
    """Return rows with timestamp and keys in the types of the format, whoever wrote the file.

    `cut`: times are cut to the millisecond. UserError: a column's type cannot become the format's.
    """
    columns = []
    for field, column in zip(batch.schema, batch.columns, strict=True):
        wanted = schema.key_type(field.name)
        if wanted is None or field.type == wanted:
            columns.append(column)
            continue
        try:
            if pa.types.is_dictionary(wanted) and not pa.types.is_dictionary(field.type):
                columns.append(column.cast(pa.string()).dictionary_encode())
            else:
                columns.append(column.cast(wanted, safe=not (cut and pa.types.is_timestamp(field.type))))
        except (pa.ArrowInvalid, pa.ArrowNotImplementedError) as error:
            raise UserError(
                f"{path}: column {field.name!r} is {field.type}, which is no {wanted}",
                remedy="run `hindcast validate` for every such column, then make or import the recording again",
            ) from error
    return pa.RecordBatch.from_arrays(columns, names=batch.schema.names)


def within(batch: pa.RecordBatch, times: Times, start: int | None, end: int | None) -> pa.RecordBatch:
    """Return the rows of a batch in order of time with ``start <= times < end``."""
    low = 0 if start is None else int(np.searchsorted(times, start, side="left"))
    high = len(times) if end is None else int(np.searchsorted(times, end, side="left"))
    return batch.slice(low, max(0, high - low))


def to_json_line(record: BaseModel) -> str:
    """Return one line of a JSON-lines file: times in RFC 3339, keys that are null by default left out."""
    return json.dumps(record.model_dump(mode="json", exclude_unset=True), ensure_ascii=False, separators=(",", ":"))
