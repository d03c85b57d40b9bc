"""Checks of stream files, column by column, a batch at a time."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from services.kit.errors import UserError
from services.recording.instants import format_instant
from services.recording.model import Manifest, StreamInfo, Topology
from services.recording.repeats import Ints, Repeats
from services.recording.schema import MAX_ROW_GROUP_ROWS, STREAMS, StreamSchema, is_name_type
from services.recording.stream_file import DAMAGED, open_stream, sound
from services.recording.violation import RowProblems, Violation
from services.recording.writer import sha256_of

_WORDS = 500  # of a verdict, which has names in it
_AGAIN = "make, import, capture or copy the recording again"
_HASHED = "write it there, or have hindcast repair write a copy with it"


@dataclass
class Known:
    """The entities a stream may speak of."""

    nodes: frozenset[str]
    gpus: frozenset[tuple[str, int]]
    nics: frozenset[tuple[str, str]]
    switches: frozenset[str]
    mounts: frozenset[str]
    jobs: frozenset[str] | None
    """None without a jobs.jsonl: then no job can be held to be unknown."""

    @classmethod
    def of(cls, topology: Topology, jobs: Sequence[str] | None) -> "Known":
        """Return the entities of a topology and the given job ids, None where there is no list of jobs."""
        return cls(
            nodes=frozenset(node.name for node in topology.nodes),
            gpus=frozenset((node.name, gpu.gpu) for node in topology.nodes for gpu in node.gpus),
            nics=frozenset((node.name, nic.nic) for node in topology.nodes for nic in node.nics),
            switches=frozenset(switch.name for switch in topology.switches),
            mounts=frozenset(mount.mount for mount in topology.mounts),
            jobs=None if jobs is None else frozenset(jobs),
        )

    def has_job(self, name: str | int | None) -> bool:
        """Return whether a job may be spoken of."""
        return self.jobs is None or name in self.jobs


def validate_stream(directory: Path, name: str, manifest: Manifest, known: Known) -> Iterator[Violation]:
    """Yield every violation in one stream that recording.yaml lists."""
    schema, info = STREAMS[name], manifest.streams[name]
    path = directory / schema.file
    try:
        file = open_stream(path)
    except UserError as error:
        yield Violation(schema.file, "", error.message.removeprefix(f"{path}: "), error.remedy)
        return
    with file:
        yield from _whole_file(path, file, info, schema)
        broken = list(_columns(file, schema))
        yield from broken
        if broken:
            return
        checks = _RowChecks(schema, manifest, known)
        try:
            for group in range(file.num_row_groups):
                for batch in sound(file, ["timestamp", *schema.key_names, *schema.required], 65536, [group]):
                    checks.batch(batch)
        except DAMAGED as error:
            yield Violation(schema.file, f"row {checks.row}", f"damaged data: {str(error)[:160]}", _AGAIN)
        yield from checks.problems.violations()


def differs(path: Path, sha256: str | None) -> Iterator[Violation]:
    """Yield what is wrong with the content hash that recording.yaml gives of a file."""
    if sha256 is None:
        yield Violation(path.name, "", "has no sha256 in recording.yaml: a change would not be noticed", _HASHED)
    elif sha256_of(path) != sha256:
        yield Violation(path.name, "", "its sha256 is not the one in recording.yaml: it was changed", _AGAIN)


def _whole_file(path: Path, file: pq.ParquetFile, info: StreamInfo, schema: StreamSchema) -> Iterator[Violation]:
    metadata = file.metadata
    if metadata.num_rows != info.rows:
        yield Violation(schema.file, "", f"has {metadata.num_rows} rows, and recording.yaml says {info.rows}", _AGAIN)
    yield from differs(path, info.sha256)
    groups = [metadata.row_group(index) for index in range(metadata.num_row_groups)]
    if any(group.num_rows > MAX_ROW_GROUP_ROWS for group in groups):
        yield Violation(
            schema.file, "", f"has a row group of more than {MAX_ROW_GROUP_ROWS} rows", "write smaller row groups"
        )
    codecs = {group.column(index).compression for group in groups for index in range(group.num_columns)}
    if codecs - {"ZSTD"}:
        yield Violation(schema.file, "", f"is compressed by {', '.join(sorted(codecs))}", "write it with zstd")


def _columns(file: pq.ParquetFile, schema: StreamSchema) -> Iterator[Violation]:
    present = file.schema_arrow
    for name in schema.must_have:
        if name not in present.names:
            yield Violation(schema.file, f"column {name}", "is missing", _AGAIN)
    for column in present:
        wanted = schema.key_type(column.name)
        if wanted is not None:
            right = is_name_type(column.type) if pa.types.is_dictionary(wanted) else column.type == wanted
            if not right:
                shown = "dictionary-encoded string" if pa.types.is_dictionary(wanted) else wanted
                yield Violation(
                    schema.file, f"column {column.name}", f"is {column.type}, not {shown}", "write it in that type"
                )
        elif column.name in schema.text_values:
            if not (is_name_type(column.type) or pa.types.is_string(column.type)):
                yield Violation(schema.file, f"column {column.name}", f"is {column.type}, not text", "write text")
        elif (column.name in schema.required or column.name.startswith("DCGM_FI_")) and not (
            pa.types.is_floating(column.type) or pa.types.is_integer(column.type)
        ):
            yield Violation(
                schema.file, f"column {column.name}", f"is {column.type}, not a number", "write float32, float64 or int"
            )


class _RowChecks:
    """What must hold for rows; carries what it needs from batch to batch."""

    def __init__(self, schema: StreamSchema, manifest: Manifest, known: Known) -> None:
        self._schema, self._manifest, self._known = schema, manifest, known
        self.problems = RowProblems(schema.file)
        self.row = 0
        self._latest: int | None = None
        self._repeats = Repeats(schema)
        self._verdicts: dict[tuple[int, ...], str | None] = {}

    def batch(self, batch: pa.RecordBatch) -> None:
        rows = self.row + np.arange(batch.num_rows, dtype=np.int64)
        stamps = batch.column("timestamp")
        valid = stamps.is_valid().to_numpy(zero_copy_only=False)
        self.problems.add(rows[~valid], "timestamp is null", _AGAIN)
        times = np.asarray(stamps.cast(pa.int64()).fill_null(0).to_numpy(zero_copy_only=False), dtype=np.int64)
        self._times(times, rows, valid)
        for name in self._schema.key_names:
            if name not in self._schema.nullable_keys:
                null = batch.column(name).is_null().to_numpy(zero_copy_only=False)
                self.problems.add(rows[null], f"{name} is null", "name the entity the row is about")
        keys = self._repeats.keys(batch)
        self.problems.add(
            rows[self._repeats.of(times, keys)],
            f"same timestamp and {', '.join(self._schema.key_names)} as an earlier row",
            "keep one of the two",
        )
        self._entities(keys, rows)
        self.row += batch.num_rows

    def _times(self, times: Ints, rows: Ints, valid: NDArray[np.bool_]) -> None:
        ours, ours_rows = times[valid], rows[valid]
        if not len(ours):
            return
        before = np.r_[ours[0] if self._latest is None else self._latest, ours[:-1]]
        self.problems.add(
            ours_rows[ours < np.maximum.accumulate(before)],
            "timestamp is before that of an earlier row",
            "sort the rows by timestamp",
        )
        self._latest = max(int(ours.max()), self._latest if self._latest is not None else int(ours[0]))
        start, end = self._manifest.start, self._manifest.end
        self.problems.add(
            ours_rows[(ours < start) | (ours > end)],
            f"timestamp lies outside the recording, {format_instant(start)} to {format_instant(end)}",
            "correct start and end in recording.yaml, or leave the rows out",
        )

    def _entities(self, keys: Ints, rows: Ints) -> None:
        if not len(keys):
            return
        count = len(self._schema.key_names) - (1 if self._schema.name == "steps" else 0)
        if self._schema.name == "steps":
            keys = keys[:, [0, 1, 2]]
        entities, back = np.unique(keys[:, :count], axis=0, return_inverse=True)
        verdicts = [self._verdict(tuple(int(part) for part in entity)) for entity in entities]
        for index, verdict in enumerate(verdicts):
            if verdict is not None:
                remedy = "add it to topology.json or jobs.jsonl, or correct the name"
                self.problems.add(rows[back.ravel() == index], verdict, remedy)

    def _verdict(self, entity: tuple[int, ...]) -> str | None:
        if entity not in self._verdicts:
            names = {
                name: self._repeats.codes[name].name(part) if pa.types.is_dictionary(kind) else part
                for (name, kind), part in zip(self._schema.keys, entity, strict=False)
            }
            verdict = self._unknown(names)
            self._verdicts[entity] = verdict if verdict is None else verdict[:_WORDS]
        return self._verdicts[entity]

    def _unknown(self, names: dict[str, str | int | None]) -> str | None:
        """Return what topology and jobs do not know of an entity; None where they know it all."""
        known, node = self._known, names.get("node")
        machines = known.nodes | known.switches if self._schema.name == "bmc" else known.nodes
        job = names.get("job_id")
        if job is not None and not known.has_job(job):
            return f"job_id {job} is not in jobs.jsonl"
        alone = (
            ("node", machines, "topology.json"),
            ("switch", known.switches, "topology.json"),
            ("mount", known.mounts, "topology.json"),
        )
        for key, there, file in alone:
            name = names.get(key)
            if name is not None and name not in there:
                return f"{key} {name} is not in {file}"
        parts: tuple[tuple[str, Collection[tuple[str, str | int]]], ...] = (("gpu", known.gpus), ("nic", known.nics))
        for key, pairs in parts:
            part = names.get(key)
            if part not in {None, -1} and (node, part) not in pairs:
                return f"node {node} has no {key} {part} in topology.json"
        rank = names.get("rank", -1)
        if isinstance(rank, int) and rank < -1:
            return f"rank is {rank}; ranks count from 0, and -1 is the job as a whole"
        return f"node is null for rank {rank}; only rank -1 has none" if rank != -1 and node is None else None
