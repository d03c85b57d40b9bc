"""Opens a recording that has flaws: rows that cannot be right are left out, the others put in order, all of it counted.

Left out are rows without a time, outside of start and end, of no entity, and repeats of an earlier row; lines that
cannot be read; jobs that end before they start or are there twice. Rows and lines out of order are sorted. Times and
numbers in another type are read in the format's, where that loses nothing but parts of a millisecond.
"""

import tempfile
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from services.kit.errors import UserError
from services.recording.cut import clipped
from services.recording.instants import format_instant
from services.recording.model import Event, Job, Label
from services.recording.reader import Recording, canonical, read_lines, times_of, within
from services.recording.repeats import Repeats
from services.recording.schema import STREAMS, TIMESTAMP, StreamSchema
from services.recording.spool import Spool
from services.recording.stream_file import open_stream, overlaps, stored

_ROWS = 65_536
_REPEATED = "that repeat an earlier one"
_NO_LINE = "that cannot be read"


@dataclass
class _Flaws:
    """What is wrong, by file."""

    total: Counter[str] = field(default_factory=Counter)
    left_out: dict[str, Counter[str]] = field(default_factory=dict)
    moved: Counter[str] = field(default_factory=Counter)
    """Rows and lines that stood behind a later one."""
    notes: list[str] = field(default_factory=list)

    def leave(self, file: str, why: str, count: int) -> None:
        if count:
            self.left_out.setdefault(file, Counter())[why] += count

    def __str__(self) -> str:
        parts = [
            f"{sum(why.values()):,} of {self.total[file]:,} {_unit(file, 2)} of {file} left out"
            f" ({', '.join(f'{count:,} {words}' for words, count in why.items())})"
            for file, why in self.left_out.items()
        ]
        moved = ((file, count) for file, count in self.moved.items() if count)
        parts += [f"{count:,} {_unit(file, count)} of {file} put in order" for file, count in moved]
        return "; ".join([*parts, *self.notes])


def _unit(file: str, count: int) -> str:
    return ("row" if file.endswith(".parquet") else "line") + ("" if count == 1 else "s")


def open_tidy(path: Path | str, *, strict: bool = False) -> Recording:
    """Return a recording to read; where it has flaws, as a `TidyRecording`, whose `left_out` says which.

    `strict`: as it is, so that reading it ends at its first flaw.

    UserError: as for `Recording.open`, a column is missing or cannot be read, or nothing lies within start and end.
    """
    recording = Recording.open(path)
    return recording if strict else tidied(recording, flaws_of(recording))


class Known(NamedTuple):
    """What there is to know of a recording's flaws to read it without them."""

    words: str
    """As `Recording.left_out` has it."""
    unsorted: Sequence[str]
    """Files whose rows or lines are out of order."""


def flaws_of(recording: Recording) -> Known:
    """Read a recording through for its flaws. UserError as for `open_tidy`."""
    flaws = _Flaws()
    for name in recording.streams():
        _look_at_rows(recording, STREAMS[name], flaws)
    _look_at_lines(recording, flaws)
    words = str(flaws)
    if words and sum(flaws.total.values()) == sum(sum(why.values()) for why in flaws.left_out.values()):
        first, last = format_instant(recording.manifest.start), format_instant(recording.manifest.end)
        remedy = "correct start and end in recording.yaml: `hindcast validate` lists what lies where"
        raise UserError(f"{recording.path}: nothing in it can be used from {first} to {last}: {words}", remedy=remedy)
    return Known(words, sorted(file for file, count in flaws.moved.items() if count))


def tidied(recording: Recording, known: Known) -> Recording:
    """Return a recording to read without the flaws that it has."""
    if not known.words:
        return recording
    return TidyRecording(recording.path, recording.manifest, recording.topology, known.words, frozenset(known.unsorted))


@dataclass(frozen=True)
class TidyRecording(Recording):
    """A recording with flaws, read as if it had none. Rows of files in `unsorted` are sorted on disk, at each call."""

    unsorted: frozenset[str] = frozenset()

    def batches(
        self,
        stream: str,
        start: int | None = None,
        end: int | None = None,
        *,
        max_rows: int = _ROWS,
        columns: Sequence[str] | None = None,
    ) -> Iterator[pa.RecordBatch]:
        """Yield rows as `Recording.batches` does, without those that are left out, in order of time."""
        schema = self._schema(stream)
        path = self.path / schema.file
        with open_stream(path) as file, tempfile.TemporaryDirectory(prefix="hindcast-sort-") as folder:
            names, sort = self._columns(path, file, schema, columns), schema.file in self.unsorted
            # Where usable rows are in order, a group of rows that lies outside has none of this time, nor its repeats.
            every = sort or file.schema_arrow.field("timestamp").type != TIMESTAMP
            groups = [one for one in range(file.num_row_groups) if every or overlaps(file, one, start, end)]
            rows = _usable(self, schema, file, names, groups, None)
            if sort:
                with Spool(stream, Path(folder)) as spool:
                    for batch in rows:
                        spool.add(batch)
                    yield from _cut(spool.drain(), start, end, max_rows)
            else:
                yield from _cut(_once(rows, Repeats(schema)), start, end, max_rows)

    def events(self, start: int | None = None, end: int | None = None) -> Iterator[Event]:
        """Yield log records in order of time, from those lines that can be read."""
        first, last = self.manifest.start, self.manifest.end
        lines = read_lines(self.path / "events.jsonl", Event, [])
        found = (event for event in lines if first <= event.timestamp <= last)
        for event in sorted(found, key=lambda event: event.timestamp) if "events.jsonl" in self.unsorted else found:
            if (start is None or event.timestamp >= start) and (end is None or event.timestamp < end):
                yield event

    def _listed_jobs(self) -> Iterator[Job]:
        """Yield the jobs that can have been, each once."""
        yield from _possible(read_lines(self.path / "jobs.jsonl", Job, []), Counter())

    def labels(self) -> Iterator[Label]:
        """Yield the truth about the recording's time. UserError: a line cannot be read, for half a truth is none."""
        first, last = self.manifest.start, self.manifest.end
        for label in super().labels():
            if first <= label.onset and label.end <= last:
                yield label
            elif label.onset <= last and label.end >= first:
                yield clipped(label, first, last)


def _look_at_rows(recording: Recording, schema: StreamSchema, flaws: _Flaws) -> None:
    path = recording.path / schema.file
    with open_stream(path) as file, tempfile.TemporaryDirectory(prefix="hindcast-sort-") as folder:
        names = recording._columns(path, file, schema, ())  # noqa: SLF001 - of the same format
        groups = list(range(file.num_row_groups))
        kind = file.schema_arrow.field("timestamp").type
        if kind != TIMESTAMP:
            flaws.notes.append(f"times of {schema.file} are {kind}, read as milliseconds in UTC")
        flaws.notes += [
            f"{column.name} of {schema.file} is text, read as numbers as far as it is one"
            for column in file.schema_arrow
            if _is_text_for_number(schema, column)
        ]
        latest, repeats, repeated = recording.manifest.start, Repeats(schema), 0
        with Spool(schema.name, Path(folder)) as spool:
            for batch in _usable(recording, schema, file, names, groups, flaws):
                times = times_of(batch)
                flaws.moved[schema.file] += int((times < np.maximum.accumulate(np.r_[latest, times[:-1]])).sum())
                latest = max(latest, int(times.max(initial=latest)))
                repeated += int(repeats.of(times, repeats.keys(batch)).sum())
            if flaws.moved[schema.file]:  # repeats of rows that do not lie together are found only in order
                for batch in _usable(recording, schema, file, names, groups, None):
                    spool.add(batch)
                for _ in spool.drain():
                    pass
                repeated = spool.repeated
        flaws.leave(schema.file, _REPEATED, repeated)


def _usable(
    recording: Recording,
    schema: StreamSchema,
    file: pq.ParquetFile,
    names: list[str],
    groups: list[int],
    flaws: _Flaws | None,
) -> Iterator[pa.RecordBatch]:
    """Yield of groups of rows those that have a time of the recording's and an entity, in the types of the format, in
    the file's order.
    """
    path = recording.path / schema.file
    keys = [name for name in schema.key_names if name not in schema.nullable_keys]
    for raw in stored(file, path, names, _ROWS, groups):
        batch = _numbers(canonical(raw, schema, path, cut=True), schema)
        times: Any = batch.column("timestamp")
        timed = times.is_valid().to_numpy(zero_copy_only=False)
        at = times.cast(pa.int64()).fill_null(recording.manifest.start).to_numpy(zero_copy_only=False)
        inside = (at >= recording.manifest.start) & (at <= recording.manifest.end)
        named = np.ones(batch.num_rows, np.bool_)
        for name in keys:
            named &= batch.column(name).is_valid().to_numpy(zero_copy_only=False)
        if flaws is not None:
            flaws.total[schema.file] += batch.num_rows
            flaws.leave(schema.file, "without a time", int((~timed).sum()))
            flaws.leave(schema.file, "outside of start and end", int((timed & ~inside).sum()))
            flaws.leave(schema.file, "that name no entity", int((timed & inside & ~named).sum()))
        good = timed & inside & named
        yield batch if good.all() else batch.filter(pa.array(good))


def _is_text_for_number(schema: StreamSchema, column: "pa.Field[Any]") -> bool:
    counted = column.name in schema.required or column.name.startswith("DCGM_FI_")
    return counted and column.name not in schema.text_values and pa.types.is_string(column.type)


def _numbers(batch: pa.RecordBatch, schema: StreamSchema) -> pa.RecordBatch:
    """Return rows with numbers that were written as text as numbers; null where a text is none."""
    for place, column in enumerate(batch.schema):
        if _is_text_for_number(schema, column):
            texts: Any = batch.column(place).dictionary_encode()
            known = pa.array([_number(text) for text in texts.dictionary.to_pylist()], pa.float64())
            batch = batch.set_column(place, column.name, known.take(texts.indices))
    return batch


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def _once(rows: Iterator[pa.RecordBatch], repeats: Repeats) -> Iterator[pa.RecordBatch]:
    for batch in rows:
        again = repeats.of(times_of(batch), repeats.keys(batch))
        yield batch.filter(pa.array(~again)) if again.any() else batch


def _cut(
    batches: Iterator[pa.RecordBatch], start: int | None, end: int | None, max_rows: int
) -> Iterator[pa.RecordBatch]:
    for batch in batches:
        part = within(batch, times_of(batch), start, end)
        yield from (part.slice(first, max_rows) for first in range(0, part.num_rows, max_rows))


def _look_at_lines(recording: Recording, flaws: _Flaws) -> None:
    first, last, latest = recording.manifest.start, recording.manifest.end, recording.manifest.start
    broken: list[int] = []
    for event in read_lines(recording.path / "events.jsonl", Event, broken):
        flaws.total["events.jsonl"] += 1
        if not first <= event.timestamp <= last:
            flaws.leave("events.jsonl", "outside of start and end", 1)
            continue
        flaws.moved["events.jsonl"] += event.timestamp < latest
        latest = max(latest, event.timestamp)
    flaws.total["events.jsonl"] += len(broken)
    flaws.leave("events.jsonl", _NO_LINE, len(broken))
    broken, left = [], Counter[str]()
    jobs = sum(1 for _ in _possible(read_lines(recording.path / "jobs.jsonl", Job, broken), left))
    flaws.total["jobs.jsonl"] += jobs + left.total() + len(broken)
    for why, count in [*left.items(), (_NO_LINE, len(broken))]:
        flaws.leave("jobs.jsonl", why, count)
    for label in recording.labels():
        flaws.total["labels.jsonl"] += 1
        flaws.leave("labels.jsonl", "outside of start and end", int(label.onset > last or label.end < first))
        if label.onset < first <= label.end or label.onset <= last < label.end:
            flaws.notes.append(f"label {label.id} cut to start and end")


def _possible(jobs: Iterator[Job], left: Counter[str]) -> Iterator[Job]:
    """Yield the jobs that do not end before they start, each once; in `left`, why others are left out."""
    seen = set[str]()
    for job in jobs:
        if job.end is not None and job.end < job.start:
            left["that end before they start"] += 1
        elif job.job_id in seen:
            left["of a job that is there already"] += 1
        else:
            seen.add(job.job_id)
            yield job
