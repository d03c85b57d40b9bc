"""Compares two recordings, sample by sample and record by record, in bounded memory.

Rows are the same where time and entity are; their order within one time does not matter. Two values are the same
where the narrower of the two columns' types holds the same number: what was written as float32 and came back as
float64 is not changed. Null is a value that is not there; NaN is one that is, and equals NaN.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray
from pydantic import BaseModel

from services.recording.instants import format_instant
from services.recording.reader import Recording
from services.recording.schema import STREAMS
from services.recording.spool import plain
from services.recording.windows import Ints, codes_of, windows

Mask = NDArray[np.bool_]
Part = Literal["streams", "topology", "jobs", "events", "labels"]

PARTS: tuple[Part, ...] = ("streams", "topology", "jobs", "events", "labels")
EXAMPLES = 5
_WINDOW_ROWS = 65_536


@dataclass
class ColumnDiff:
    """One column of rows that both have: values compared, those that differ, and those that only one reports."""

    compared: int = 0
    differ: int = 0
    only_a: int = 0
    only_b: int = 0
    largest: float = 0.0
    """Largest absolute difference between two numbers."""
    first: str = ""
    """Where it differs first, with both values."""

    @property
    def same(self) -> bool:
        """Return whether no value differs."""
        return not (self.differ or self.only_a or self.only_b)


@dataclass
class StreamDiff:
    """One stream: rows of both, rows that only one has, and by column what differs in those that both have."""

    rows_a: int = 0
    rows_b: int = 0
    only_a: int = 0
    only_b: int = 0
    empty_a: int = 0
    """Of `only_a`: rows without any value, which no sample could show; `empty_b` likewise."""
    empty_b: int = 0
    examples: list[str] = field(default_factory=list)
    columns: dict[str, ColumnDiff] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        """Return whether both have the same rows with the same values."""
        return not (self.only_a or self.only_b) and all(column.same for column in self.columns.values())


@dataclass
class DocumentDiff:
    """Topology, jobs, events or labels: how many entries differ or only one has, with examples."""

    only_a: int = 0
    only_b: int = 0
    differ: int = 0
    examples: list[str] = field(default_factory=list)

    @property
    def same(self) -> bool:
        """Return whether both have the same entries."""
        return not (self.only_a or self.only_b or self.differ)


@dataclass
class RecordingDiff:
    """All that was compared."""

    streams: dict[str, StreamDiff] = field(default_factory=dict)
    documents: dict[str, DocumentDiff] = field(default_factory=dict)

    @property
    def same(self) -> bool:
        """Return whether nothing that was compared differs."""
        return all(one.same for one in self.streams.values()) and all(one.same for one in self.documents.values())


def diff_recordings(
    a: Recording,
    b: Recording,
    *,
    parts: Sequence[Part] = PARTS,
    tolerance: float = 0.0,
    progress: Callable[[float], None] = lambda _share: None,
) -> RecordingDiff:
    """Compare the parts of two recordings; `tolerance` is how far values may be apart, relative to the larger."""
    found = RecordingDiff()
    streams = [name for name in STREAMS if name in a.streams() or name in b.streams()] if "streams" in parts else []
    for done, name in enumerate(streams):
        found.streams[name] = _stream(a, b, name, tolerance)
        progress((done + 1) / len(streams))
    if "topology" in parts:
        found.documents["topology"] = _by_key(_machines(a), _machines(b))
    if "jobs" in parts:
        found.documents["jobs"] = _by_key(*({f"job {job.job_id}": _plain(job) for job in one.jobs()} for one in (a, b)))
    if "events" in parts:
        found.documents["events"] = _counted(*(Counter(map(_line, one.events())) for one in (a, b)))
    if "labels" in parts:
        found.documents["labels"] = _by_key(
            *({f"label {label.id}": _plain(label) for label in one.labels()} for one in (a, b))
        )
    return found


def _stream(a: Recording, b: Recording, name: str, tolerance: float) -> StreamDiff:
    found = StreamDiff()
    for parts in windows([_batches(a, name), _batches(b, name)]):
        left, right = (_table(part) for part in parts)
        found.rows_a += left.num_rows
        found.rows_b += right.num_rows
        _window(found, name, left, right, tolerance)
    return found


def _batches(recording: Recording, name: str) -> Iterator[pa.RecordBatch]:
    return recording.batches(name, max_rows=_WINDOW_ROWS) if name in recording.streams() else iter(())


def _table(batches: Sequence[pa.RecordBatch]) -> pa.Table:
    tables = [plain(pa.Table.from_batches([batch])) for batch in batches]
    return pa.concat_tables(tables).combine_chunks() if tables else pa.table({})


def _window(found: StreamDiff, name: str, a: pa.Table, b: pa.Table, tolerance: float) -> None:
    keys = ["timestamp", *STREAMS[name].key_names]
    codes = np.stack([_codes(a, b, key) for key in keys])
    side = np.repeat([0, 1], [a.num_rows, b.num_rows])
    order = np.lexsort((side, *codes[::-1]))
    ordered = codes[:, order]
    pair = np.all(ordered[:, 1:] == ordered[:, :-1], axis=0) & (side[order][1:] > side[order][:-1])
    left, right = order[:-1][pair], order[1:][pair] - a.num_rows
    values = [column for column in dict.fromkeys([*a.column_names, *b.column_names]) if column not in keys]
    for table, taken, word in ((a, left, "a"), (b, right, "b")):
        alone = np.ones(table.num_rows, np.bool_)
        alone[taken] = False
        if alone.any():
            _alone(found, table, np.flatnonzero(alone), values, keys, word)
    if len(left):
        for column in values:
            entry = found.columns.setdefault(column, ColumnDiff())
            _values(
                entry,
                _column(a, column, left),
                _column(b, column, right),
                tolerance,
                lambda row: _where(a, keys, int(left[row])),
            )


def _codes(a: pa.Table, b: pa.Table, key: str) -> Ints:
    """Return a key of all rows as numbers, the same for the same key in both."""
    return codes_of(pa.chunked_array([chunk for table in (a, b) if table.num_rows for chunk in table[key].chunks]))


def _column(table: pa.Table, name: str, rows: Ints) -> Any:
    """Return a column's values in these rows, all null where there is no such column."""
    if name not in table.column_names:
        return pa.nulls(len(rows))
    return table.column(name).combine_chunks().take(rows)


def _alone(
    found: StreamDiff, table: pa.Table, rows: Ints, values: Sequence[str], keys: Sequence[str], word: str
) -> None:
    valued = np.zeros(len(rows), np.bool_)
    for column in values:
        valued |= np.asarray(_column(table, column, rows).is_valid().to_numpy(zero_copy_only=False))
    empty = int((~valued).sum())
    if word == "a":
        found.only_a, found.empty_a = found.only_a + len(rows), found.empty_a + empty
    else:
        found.only_b, found.empty_b = found.only_b + len(rows), found.empty_b + empty
    for row in rows[: max(0, EXAMPLES - len(found.examples))]:
        found.examples.append(f"only in {word.upper()}: {_where(table, keys, int(row))}")


def _where(table: pa.Table, keys: Sequence[str], row: int) -> str:
    at = format_instant(int(table.column("timestamp").cast(pa.int64())[row].as_py()))
    names = " ".join(f"{key}={table.column(key)[row].as_py()}" for key in keys[1:])
    return f"{at} {names}"


def _values(entry: ColumnDiff, a: Any, b: Any, tolerance: float, where: Callable[[int], str]) -> None:
    valid_a, valid_b = (np.asarray(side.is_valid().to_numpy(zero_copy_only=False)) for side in (a, b))
    both = valid_a & valid_b
    wrong = valid_a != valid_b
    entry.compared += int(both.sum())
    entry.only_a += int((valid_a & ~valid_b).sum())
    entry.only_b += int((valid_b & ~valid_a).sum())
    if both.any():
        rows = np.flatnonzero(both)
        unlike = rows[_unlike(entry, a.take(rows), b.take(rows), tolerance)]
        entry.differ += len(unlike)
        wrong[unlike] = True
    if wrong.any() and not entry.first:
        row = int(np.argmax(wrong))
        entry.first = f"{where(row)}: {a[row].as_py()} and {b[row].as_py()}"


def _unlike(entry: ColumnDiff, a: Any, b: Any, tolerance: float) -> Mask:
    """Return which of the values, none of them null, differ."""
    if not all(pa.types.is_integer(side.type) or pa.types.is_floating(side.type) for side in (a, b)):
        texts = pc.not_equal(a.cast(pa.string()), b.cast(pa.string()))
        return np.asarray(texts.to_numpy(zero_copy_only=False), np.bool_)
    if all(pa.types.is_integer(side.type) for side in (a, b)) and not tolerance:
        left, right = (side.to_numpy(zero_copy_only=False) for side in (a, b))
        unlike = np.asarray(left != right)
    else:
        single = any(side.type == pa.float32() for side in (a, b))
        kind = np.float32 if single else np.float64
        with np.errstate(over="ignore"):
            left, right = (np.asarray(side.to_numpy(zero_copy_only=False)).astype(kind) for side in (a, b))
        unlike = (left != right) & ~(np.isnan(left) & np.isnan(right))
    with np.errstate(invalid="ignore", over="ignore"):
        apart = np.abs(left[unlike].astype(np.float64) - right[unlike].astype(np.float64))
        if tolerance:
            largest = np.maximum(np.abs(left[unlike].astype(np.float64)), np.abs(right[unlike].astype(np.float64)))
            far = ~(apart <= tolerance * largest)
            unlike[unlike] = far
            apart = apart[far]
    finite = apart[np.isfinite(apart)]
    if len(finite):
        entry.largest = max(entry.largest, float(finite.max()))
    return np.asarray(unlike)


def _plain(record: BaseModel) -> dict[str, Any]:
    """Return a record's fields; one that is null or empty is as one that is not there."""
    return {name: value for name, value in record.model_dump(mode="json").items() if value not in (None, [], {})}


def _line(record: BaseModel) -> str:
    return json.dumps(_plain(record), ensure_ascii=False, sort_keys=True)


def _machines(recording: Recording) -> dict[str, Any]:
    """Return every part of the topology by what it is called."""
    found: dict[str, Any] = {}
    for node in recording.topology.nodes:
        facts = _plain(node)
        for part in ("gpus", "nics"):
            for entry in facts.pop(part, []):
                name = part.removesuffix("s")
                found[f"node {node.name} {name} {entry[name]}"] = {k: v for k, v in entry.items() if v is not None}
        found[f"node {node.name}"] = facts
    found |= {f"switch {switch.name}": _plain(switch) for switch in recording.topology.switches}
    found |= {f"link {link.a} - {link.b}": _plain(link) for link in recording.topology.links}
    return found | {f"mount {mount.mount}": _plain(mount) for mount in recording.topology.mounts}


def _by_key(a: Mapping[str, Any], b: Mapping[str, Any]) -> DocumentDiff:
    found = DocumentDiff()
    for key in dict.fromkeys([*a, *b]):
        if key not in b:
            found.only_a += 1
            example = f"only in A: {key}"
        elif key not in a:
            found.only_b += 1
            example = f"only in B: {key}"
        elif a[key] != b[key]:
            found.differ += 1
            names = [name for name in dict.fromkeys([*a[key], *b[key]]) if a[key].get(name) != b[key].get(name)]
            example = f"{key}: " + ", ".join(f"{n} {a[key].get(n)} and {b[key].get(n)}" for n in names)[:300]
        else:
            continue
        if len(found.examples) < EXAMPLES:
            found.examples.append(example)
    return found


def _counted(a: Counter[str], b: Counter[str]) -> DocumentDiff:
    left, right = a - b, b - a
    found = DocumentDiff(only_a=left.total(), only_b=right.total())
    for word, lines in (("A", left), ("B", right)):
        found.examples += [f"only in {word}: {line[:300]}" for line in list(lines)[:EXAMPLES]]
    return found
