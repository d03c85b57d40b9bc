"""Takes telemetry away from a recording: the same stretch of the same cluster, as a poorer monitoring would have it."""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final
from zlib import crc32

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from detectors.core.residuals import group_medians
from detectors.exporters import exporters
from services.recording.importers.parts.schedulers.pod_labels import JOB_LABELS
from services.recording.reader import Recording, times_of
from services.recording.schema import NAME, STREAMS, TIMESTAMP
from services.recording.writer import RecordingWriter, sha256_of

_SOURCES: Final = {
    "kernel-logs": "kernel",
    "sel": "sel",
    "scheduler-logs": "scheduler",
    "job-logs": "job",
    "fabric-manager-logs": "fabricmanager",
}
_EVERY_MS: Final = 7_200_000
"""A mean of two hours between losses: telemetry of others lost a run of scrapes once or twice a node and day, and
collectors paused as often; a recording of an hour must show some."""
_LONGEST_MS: Final = 240_000
"""A loss ends before five minutes without a reading, from which on an alert would be right."""


def degrade_recording(
    recording: Recording, out: Path, without: Sequence[str], *, name: str | None = None, seed: int = 0
) -> Path:
    """Write the recording without what the words of `WORDS` in ``without`` say to ``out``, and return ``out``.

    Labels stay as they are: what was really wrong does not depend on who was looking. Which scrapes are lost follows
    from ``seed``. Steps are held in memory where the job's have to be made of the ranks'. UserError: ``out`` exists.
    """
    manifest = recording.manifest
    with RecordingWriter(out) as writer:
        for stream in recording.streams():
            if stream in without:
                continue
            changes = _changes(recording, stream, without, seed)
            interval_s = manifest.streams[stream].interval_s
            if not changes:
                writer.copy(stream, recording.path / STREAMS[stream].file, interval_s=interval_s)
                continue
            batches: Iterator[pa.RecordBatch] = recording.batches(stream)
            for change in changes:
                batches = change(batches)
            for batch in batches:
                if batch.num_rows:
                    writer.write(stream, batch, interval_s=interval_s)
        gone = {_SOURCES[word] for word in without if word in _SOURCES}
        if "logs" not in without and (recording.path / "events.jsonl").exists():
            writer.write_events(event for event in recording.events() if event.source not in gone)
        if "jobs" not in without and (recording.path / "jobs.jsonl").exists():
            writer.write_jobs(recording.jobs())
        if (recording.path / "labels.jsonl").exists():
            writer.write_labels(recording.labels())
        header = manifest.model_dump(exclude={"format", "streams", "files"}, exclude_unset=True)
        original = sha256_of(recording.path / "recording.yaml")
        header |= {
            "name": name or out.resolve().name,
            "degraded": {"of": manifest.name, "manifest_sha256": original, "without": list(without), "seed": seed},
        }
        writer.finish(header, recording.topology)
    return out


Change = Callable[[Iterator[pa.RecordBatch]], Iterator[pa.RecordBatch]]


def _changes(recording: Recording, stream: str, without: Sequence[str], seed: int) -> list[Change]:
    """Return what is done to the batches of a stream."""
    changes: list[Change] = []
    if stream == "dcgm" and "default-fields" in without:
        changes.append(_default_fields)
    if stream == "dcgm" and "jobs" in without:
        changes.append(_unlabelled)
    if stream == "steps" and "rank-steps" in without:
        changes.append(_jobs_steps)
    lost = _losses(recording, stream, without, seed) if stream != "steps" else None
    if lost is not None and len(lost.begin):
        changes.append(lost.taken_from)
    return changes


def _default_fields(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    kept = {"timestamp", *STREAMS["dcgm"].key_names, *exporters().dcgm_default, *JOB_LABELS}
    return (batch.select([name for name in batch.schema.names if name in kept]) for batch in batches)


def _unlabelled(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    return (batch.select([name for name in batch.schema.names if name not in JOB_LABELS]) for batch in batches)


@dataclass(frozen=True)
class _Losses:
    """Stretches ``begin <= t < end`` (n,) in ms in which the exporter named `whose` answered nothing; "" is all."""

    begin: NDArray[np.int64]
    end: NDArray[np.int64]
    whose: list[str]

    def taken_from(self, batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            times = times_of(batch)
            near = np.flatnonzero((self.begin <= times[-1]) & (self.end > times[0]))
            if not len(near):
                yield batch
                continue
            column: Any = batch.column(1)  # node or switch: the exporter's; the reader makes it a dictionary of names
            codes = column.indices.to_numpy(zero_copy_only=False)
            place = {name: code for code, name in enumerate(column.dictionary.to_pylist())}
            lost = np.zeros(len(times), np.bool_)
            for one in near.tolist():
                there = (times >= self.begin[one]) & (times < self.end[one])
                if self.whose[one]:
                    there &= codes == place.get(self.whose[one], -1)
                lost |= there
            yield batch.filter(pa.array(~lost))


def _losses(recording: Recording, stream: str, without: Sequence[str], seed: int) -> _Losses | None:
    """Return the losses of a stream; None where none are asked for, or it is not known how often it is scraped."""
    interval_s = recording.manifest.streams[stream].interval_s
    start, end = recording.manifest.start, recording.manifest.end
    drawn: list[tuple[int, int, str]] = []
    if "pauses" in without:
        chance = np.random.default_rng([seed, crc32(b"pauses")])  # the same for every stream: it is one collector
        drawn += [(at, at + int(chance.uniform(20_000, 90_000)), "") for at in _moments(chance, start, end)]
    most = 0 if interval_s is None else min(8, int(_LONGEST_MS // (interval_s * 1000)) - 1)
    if "scrapes" in without and interval_s is not None and most >= 3:
        topology = recording.topology
        for name in [*(node.name for node in topology.nodes), *(switch.name for switch in topology.switches)]:
            chance = np.random.default_rng([seed, crc32(f"{stream} {name}".encode())])
            for begin in _moments(chance, start, end):
                length = int(chance.integers(3, most + 1))
                drawn.append((begin, begin + round(length * interval_s * 1000), name))
    if not drawn:
        return None
    return _Losses(
        np.array([one[0] for one in drawn], np.int64), np.array([one[1] for one in drawn], np.int64),
        [one[2] for one in drawn],
    )  # fmt: skip


def _moments(chance: np.random.Generator, start: int, end: int) -> list[int]:
    return sorted(int(at) for at in chance.uniform(start, end, chance.poisson((end - start) / _EVERY_MS)))


def _jobs_steps(batches: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """Yield the rows of jobs as a whole; where a job has none, those that its ranks' make."""
    table = pa.Table.from_batches(list(batches)).unify_dictionaries().combine_chunks()
    whole = np.asarray(table.column("rank"), np.int64) == -1
    jobs: Any = table.column("job_id").combine_chunks()  # a dictionary of names: the reader sees to that
    job = np.asarray(jobs.indices)
    of_ranks = table.filter(pa.array(~np.isin(job, np.unique(job[whole]))))
    rows = pa.concat_tables([table.filter(pa.array(whole)), _medians(of_ranks)], promote_options="permissive")
    ordered = rows.take(pc.sort_indices(rows, [("timestamp", "ascending")]))
    yield from ordered.unify_dictionaries().to_batches()


def _medians(table: pa.Table) -> pa.Table:
    """Return one row for each iteration of each job: the median over its ranks, at the time of the last of them.

    Tokens a second are summed. NaN is a value: what one rank calls NaN is NaN for the job, as it is in a reduction.
    An iteration that a job makes again, after a restart, is another.
    """
    if not table.num_rows:
        return table
    names = table.column("job_id").combine_chunks().dictionary_encode()
    job = np.asarray(names.indices, np.int64)
    numbers = [np.asarray(table.column(name), np.int64) for name in ("rank", "iteration")]
    times = np.asarray(table.column("timestamp").cast(pa.int64()))
    order = np.lexsort((times, numbers[1], numbers[0], job))
    keys = np.stack([job, *numbers])[:, order]
    same = np.concatenate([[False], (keys[:, 1:] == keys[:, :-1]).all(axis=0)])
    run = np.arange(len(same)) - np.maximum.accumulate(np.where(same, 0, np.arange(len(same))))
    again = np.empty(len(same), np.int64)
    again[order] = run
    groups, group = np.unique(np.stack([job, numbers[1], again]), axis=1, return_inverse=True)
    group, count = group.ravel(), groups.shape[1]
    latest = np.zeros(count, np.int64)
    np.maximum.at(latest, group, times)
    columns: dict[str, Any] = {}
    for field in table.schema:
        if pa.types.is_floating(field.type) or (pa.types.is_integer(field.type) and field.name not in STEPS_KEYS):
            columns[field.name] = _over_ranks(field.name, table.column(field.name), group, count).cast(field.type)
    columns |= {
        "timestamp": pa.array(latest).cast(TIMESTAMP),
        "job_id": pa.DictionaryArray.from_arrays(pa.array(groups[0].astype(np.int32)), names.dictionary).cast(NAME),
        "rank": pa.array(np.full(count, -1, np.int32)),
        "node": pa.nulls(count, NAME),
        "iteration": pa.array(groups[1]),
    }
    present = [name for name in table.schema.names if name in columns]
    return pa.table({name: columns[name] for name in present})


STEPS_KEYS: Final = STREAMS["steps"].key_names


def _over_ranks(name: str, column: Any, group: NDArray[np.int64], count: int) -> Any:
    values = np.asarray(column.cast(pa.float64()).combine_chunks().to_numpy(zero_copy_only=False), np.float64)
    there = np.asarray(column.is_valid())
    if name == "tokens_per_s":
        made = np.bincount(group, weights=np.where(there, values, 0.0), minlength=count).astype(np.float64)
    else:
        made, _ = group_medians(values, group, count)
        made[np.unique(group[there & np.isnan(values)])] = np.nan
    return pa.array(made, mask=np.bincount(group[there], minlength=count) == 0)
