"""Joins recordings of one cluster and one time into one: what each of several collectors saw of the same hours.

Rows of the same time and entity become one row with the columns of both; where both have a value and they differ, that
of the recording named first stays, and the difference is counted. Streams are merged window by window: memory holds a
batch of each input and no more.
"""

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from services.kit.errors import UsageError, UserError
from services.recording.clocks import Skew, clock_skews, shifts_of
from services.recording.importers.contract import Progress, Report, silent
from services.recording.instants import format_instant
from services.recording.merge_documents import merged_events, merged_jobs, merged_labels, merged_topology
from services.recording.merge_parts import MARGIN_MS, Part, Stretch, say_left_out, shared_stretch
from services.recording.reader import Recording
from services.recording.schema import NAME, STREAMS, StreamSchema
from services.recording.stream_file import open_stream
from services.recording.windows import Ints, codes_of, windows
from services.recording.writer import RecordingWriter, sha256_of

_BATCH_ROWS = 65_536
_NOT_NAMED = frozenset({"imported", "local"})
"""What importers and `hindcast record` call a cluster that nobody named."""


def merge_recordings(
    recordings: Sequence[Recording],
    out: Path,
    *,
    cluster: str | None = None,
    title: str = "",
    keep_all: bool = False,
    align_clocks: bool = False,
    log_gaps: bool = False,
    progress: Progress = silent,
) -> Report:
    """Write the union of ``recordings`` to ``out``; the first named wins where two differ.

    Its headline is ``title``; where none is given, the one that all have, else its name.

    What lies outside of the stretch that they share is left out (`shared_stretch`), unless ``keep_all``. Clocks of logs
    that disagree with the telemetry's are reported; ``align_clocks`` corrects the times of their records. ``log_gaps``:
    recordings of logs and jobs alone need not overlap the others. The report's ``skipped`` counts what is left out,
    differences and repeats. UserError: clusters of different names (and no
    ``cluster`` given), times that do not overlap, columns whose types do not go together, or ``out`` exists.
    """
    report = Report()
    report.read["recordings"] = len(recordings)
    skews = clock_skews(recordings)
    report.notes += [skew.words(corrected=align_clocks) for skew in skews]
    kept = None if keep_all else shared_stretch(recordings)
    every = [Part(one, kept, shifts_of(skews, number) if align_clocks else {}) for number, one in enumerate(recordings)]
    parts = [part for part in every if part.inside]
    for part in (part for part in every if not part.inside):
        report.skip("a recording outside of the stretch that is kept", part.words)
        report.left.append(part.manifest.name)
    _check(parts if len(parts) > 1 else every, cluster, report, log_gaps=log_gaps)
    present = [name for name in STREAMS if any(name in part.streams() for part in parts)]
    rows = sum(info.rows for part in parts for info in part.manifest.streams.values()) or 1
    done = 0
    with RecordingWriter(out) as writer:
        for stream in present:
            having = [part for part in parts if stream in part.streams()]
            known = [part.manifest.streams[stream].interval_s for part in having]
            interval = min((one for one in known if one is not None), default=None)
            for batch in _merged(stream, having, report):
                writer.write(stream, batch, interval_s=interval)
                report.made[stream] += batch.num_rows
                progress(min((done + report.made[stream]) / rows, 1.0))
            done += sum(part.manifest.streams[stream].rows for part in having)
        events = list(merged_events(parts, report))
        if events:
            writer.write_events(events)
        topology = merged_topology(parts, report)
        jobs = merged_jobs(parts, topology, report)
        if jobs:
            writer.write_jobs(jobs)
        labels = merged_labels(parts, report)
        if labels:
            writer.write_labels(labels)
        report.made.update({"events": len(events), "jobs": len(jobs), "labels": len(labels)})
        if kept is not None:
            say_left_out(parts, kept, report)
        uncorrected = [] if align_clocks else skews
        names = {"name": out.resolve().name, "title": title, "cluster": cluster}
        writer.finish(_header(parts, names, report, uncorrected), topology)
    return report


def _check(parts: Sequence[Part], cluster: str | None, report: Report, *, log_gaps: bool) -> None:
    names = sorted(_chosen(parts))
    if len(names) > 1 and cluster is None:
        raise UsageError(
            f"recordings of different clusters: {', '.join(names)}",
            remedy="merge recordings of one cluster; if it is one under several names, give --cluster NAME",
        )
    unnamed = [part.manifest.name for part in parts if part.manifest.cluster.name not in names]
    if unnamed and cluster is None:
        report.notes.append(f"{', '.join(unnamed)}: of a cluster that nobody named, taken as {names[0]}")
    # Each must overlap what the earlier ones, in order of time, reach to: a gap would be a stretch without telemetry.
    # A dump of one moment, as of `nvidia-smi -q`, is of the minutes around it.
    reach: Stretch | None = None
    for part in sorted((part for part in parts if part.streams() or not log_gaps), key=lambda one: one.span):
        start, end = part.span
        margin = MARGIN_MS if start == end else 0
        if reach is not None and start - margin > reach[0]:
            hint = "merge recordings whose times overlap; check the clocks and time zones of what was imported"
            raise UsageError(
                f"{part.path}: begins at {format_instant(start)}, after the others have ended "
                f"at {format_instant(reach[1])}",
                remedy="; ".join([hint, *report.notes]),
            )
        reach = max((end + margin, end), reach or (end, end))


def _chosen(parts: Sequence[Part]) -> set[str]:
    """Return the names of clusters that somebody gave, without those that stand where nobody did."""
    names = {part.manifest.cluster.name for part in parts}
    return names - _NOT_NAMED or {parts[0].manifest.cluster.name}


def _header(
    parts: Sequence[Part], names: Mapping[str, str | None], report: Report, uncorrected: Sequence[Skew]
) -> dict[str, Any]:
    manifests = [part.manifest for part in parts]
    origins = {manifest.origin for manifest in manifests}
    seeds = {manifest.seed for manifest in manifests}
    # A seed makes the same bytes again only if all parts come from one run of the generator.
    same = len(origins) == 1 and (origins != {"synthetic"} or len(seeds) == 1)
    merged = []
    for part in parts:
        digest = sha256_of(part.path / "recording.yaml")
        named = {"name": part.manifest.name, "title": part.manifest.title, "manifest_sha256": digest}
        merged.append({**named, "source": part.manifest.source, "origin": part.manifest.origin})
    source: dict[str, Any] = {"document": "merged by hindcast", "merged": merged}
    if report.skipped:
        source["differences"] = dict(report.skipped)
    if report.notes:
        source["notes"] = list(report.notes)
    # The format has a node's BMC's clock; what other clocks are off by, the notes say.
    skews: dict[str, Any] = {one.node: round(one.seconds, 1) for one in uncorrected if one.source == "sel" and one.node}
    for manifest in reversed(manifests):
        extra = (manifest.model_extra or {}).get("clock_skew_s")
        skews |= extra if isinstance(extra, dict) else {}
    titles = {manifest.title for manifest in manifests}
    header = {
        "name": names["name"],
        "title": names["title"] or (titles.pop() if len(titles) == 1 else names["name"]),
        "summary": " ".join(dict.fromkeys(manifest.summary.strip() for manifest in manifests)),
        "origin": manifests[0].origin if same else "imported",
        "source": source,
        "start": min(part.start for part in parts),
        "end": max(part.end for part in parts),
        "cluster": {"name": names["cluster"] or min(_chosen(parts))},
    }
    if same and manifests[0].seed is not None:
        header["seed"] = manifests[0].seed
    return {**header, "clock_skew_s": skews} if skews else header


# -- one stream ----------------------------------------------------------------------------------------------------


def _merged(stream: str, recordings: Sequence[Part], report: Report) -> Iterator[pa.RecordBatch]:
    """Yield the joined rows of a stream in order of time."""
    join = _Join(STREAMS[stream], recordings, report)
    for parts in windows([recording.batches(stream, max_rows=_BATCH_ROWS) for recording in recordings]):
        yield join.window(parts)


class _Join:
    """Joins the rows of one stretch of time; every batch it gives has the same columns."""

    def __init__(self, schema: StreamSchema, recordings: Sequence[Part], report: Report) -> None:
        self._schema, self._report = schema, report
        self._names = [recording.manifest.name for recording in recordings]
        self._types, self._coarse = _columns(schema, recordings)

    def window(self, parts: Sequence[list[pa.RecordBatch]]) -> pa.RecordBatch:
        """Return the rows of all inputs, sorted by time and key, those of one time and key joined."""
        tables = [self._plain(batch) for batches in parts for batch in batches]
        table = pa.concat_tables(tables).combine_chunks()
        source = np.repeat(np.arange(len(parts)), [sum(batch.num_rows for batch in batches) for batches in parts])
        keys = [codes_of(table.column(name)) for name in ("timestamp", *self._schema.key_names)]
        order = np.lexsort((source, *reversed(keys)))
        new = np.zeros(len(order), dtype=np.bool_)
        new[:1] = True
        for key in keys:
            new[1:] |= np.diff(key[order]) != 0
        table = table.take(order)
        if not new.all():
            table = self._joined(table, np.flatnonzero(new), np.cumsum(new) - 1)
        return self._finished(table)

    def _plain(self, batch: pa.RecordBatch) -> pa.Table:
        """Return a batch with all columns there are, names as plain strings."""
        arrays = {}
        for name, kind in self._types.items():
            plain = pa.string() if kind == NAME else kind
            held: Any = batch.column(name) if name in batch.schema.names else pa.nulls(batch.num_rows)
            arrays[name] = held.cast(plain)
        return pa.table(arrays)

    def _joined(self, table: pa.Table, first: Ints, group: Ints) -> pa.Table:
        """Return one row for each group: of each column the first value that is not null."""
        positions = np.arange(table.num_rows)
        columns = {}
        for name in table.column_names:
            column: Any = table.column(name).combine_chunks()
            if name == "timestamp" or name in self._schema.key_names:
                columns[name] = column.take(pa.array(first))
                continue
            valid = column.is_valid().to_numpy(zero_copy_only=False)
            found = np.minimum.reduceat(np.where(valid, positions, table.num_rows), first)
            chosen = np.where(found < table.num_rows, found, first)
            columns[name] = column.take(pa.array(chosen))
            values = _comparable(column, coarse=name in self._coarse)
            kept = values[chosen[group]]
            differs = valid & (values != kept) & ~((values != values) & (kept != kept))  # noqa: PLR0124 - NaN is NaN
            if differs.any():
                at = int(np.argmax(differs))
                self._report.skip(
                    f"{self._schema.name}: {name} has another value at the same time and entity; the first stays",
                    self._where(table, at),
                    int(differs.sum()),
                )
        self._report.made[f"joined {self._schema.name} rows"] += table.num_rows - len(first)
        return pa.table(columns)

    def _where(self, table: pa.Table, row: int) -> str:
        key = [str(table.column(name)[row].as_py()) for name in self._schema.key_names]
        at = int(table.column("timestamp").cast(pa.int64())[row].as_py())
        return f"{format_instant(at)} {' '.join(key)}"

    def _finished(self, table: pa.Table) -> pa.RecordBatch:
        arrays = {}
        for name, kind in self._types.items():
            column: Any = table.column(name).combine_chunks()
            arrays[name] = column.dictionary_encode().cast(NAME) if kind == NAME else column
        return pa.RecordBatch.from_pydict(arrays)


def _columns(schema: StreamSchema, recordings: Sequence[Part]) -> tuple[dict[str, pa.DataType], set[str]]:
    """Return the columns of all recordings with types that hold them, and those that are float32 in one of them."""
    types: dict[str, pa.DataType] = {}
    coarse: set[str] = set()
    for recording in recordings:
        path = recording.path / schema.file
        with open_stream(path) as file:
            for column in file.schema_arrow:
                wanted = schema.key_type(column.name) or column.type
                if pa.types.is_dictionary(wanted) or pa.types.is_string(wanted) or pa.types.is_large_string(wanted):
                    wanted = NAME
                held = types.get(column.name, wanted)
                both = _common(held, wanted)
                if both is None:
                    raise UserError(
                        f"{path}: column {column.name!r} is {wanted}, and {held} in another of the recordings",
                        remedy="make or import one of them again, so that the types go together",
                    )
                types[column.name] = both
                if wanted == pa.float32():
                    coarse.add(column.name)
    return types, coarse


def _common(one: pa.DataType, other: pa.DataType) -> pa.DataType | None:
    """Return a type that holds the values of both; None where there is none."""
    if one == other:
        return one
    if pa.types.is_null(one) or pa.types.is_null(other):
        return other if pa.types.is_null(one) else one
    number = [pa.types.is_integer(kind) or pa.types.is_floating(kind) for kind in (one, other)]
    if not all(number):
        return None
    if pa.types.is_integer(one) and pa.types.is_integer(other):
        return pa.int64() if pa.uint64() not in {one, other} else pa.float64()
    return pa.float64()


def _comparable(column: Any, *, coarse: bool) -> NDArray[Any]:
    """Return values that can be compared; a float32 of one recording equals the float64 it was rounded from."""
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        numbers = np.asarray(column.fill_null(0).to_numpy(zero_copy_only=False))
        with np.errstate(over="ignore"):
            return numbers.astype(np.float32) if coarse else numbers
    if pa.types.is_string(column.type):
        return codes_of(pa.chunked_array([column]))
    return np.array([str(value) for value in column.to_pylist()])
