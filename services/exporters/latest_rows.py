"""What the exporters of a recorded cluster show at an instant: of each entity its last row, as long as it is fresh."""

import math
from collections.abc import Collection, Iterator, Sequence

import numpy as np
import pyarrow as pa
from prometheus_client.core import Metric

from detectors.fleet.fleet import KEYS
from services.kit.series import table
from services.recording.embedded import fleet_job
from services.recording.reader import Recording, times_of
from services.recording.schema import STREAMS
from services.recording.stream_file import open_stream
from services.sink.naming import Naming
from services.sink.rows import Entities

EXPORTERS = {"dcgm": "dcgm", "nic": "node", "bmc": "ipmi", "switch": "sonic"}
"""Which exporter gives a stream. Steps and storage are none's."""
_FRESH = 1.5
"""In intervals: a target whose last row is older was not scraped when the recording was made."""
_UNKNOWN_INTERVAL_MS = 300_000
_OF_TARGET = ("job", "instance", "cluster", "replay", "rack")
"""Labels that an exporter does not know: Prometheus adds them."""
_ROWS = 32_768


class Jobs:
    """Which job a GPU works for, as dcgm-exporter's ``hpc_job`` has it."""

    def __init__(self, recording: Recording) -> None:
        self._jobs = [(fleet_job(job), 2**62 if job.end is None else job.end) for job in recording.jobs()]

    def of(self, node: str, gpu: int, at: int) -> str | None:
        """Return the job that has a GPU at an instant (epoch ms); the last to start, where several have."""
        having = [
            job
            for job, end in self._jobs
            if job.start <= at < end and node in job.nodes and gpu in job.gpus.get(node, (gpu,))
        ]
        return max(having, key=lambda job: (job.start, job.job_id)).job_id if having else None


class Shown:
    """One stream's exporters, from `start` (epoch ms) forward in time. `fields`: only these columns, None for all."""

    def __init__(
        self, recording: Recording, stream: str, jobs: Jobs, start: int, fields: Collection[str] | None = None
    ) -> None:
        manifest = recording.manifest
        topology = recording.topology.model_dump(mode="json", exclude_unset=True)
        self._naming = Naming(table().streams[stream], "", "", topology)
        self._stream, self._jobs = stream, jobs
        self._entities = Entities(self._naming.stream.entity)
        every = manifest.streams[stream].interval_s
        self._fresh_ms = round(_FRESH * every * 1000) if every else _UNKNOWN_INTERVAL_MS
        self._columns = _columns(recording, stream, fields)
        self._batches: Iterator[pa.RecordBatch] = recording.batches(
            stream,
            start - self._fresh_ms,
            max_rows=_ROWS,
            columns=[*self._columns, *(["unit"] if stream == "bmc" else [])],
        )
        self._waiting: pa.RecordBatch | None = next(self._batches, None)
        self._values = np.empty((0, len(self._columns)))
        self._at = np.empty(0, np.int64)
        self._of_target: dict[str, list[int]] = {target: [] for target in self._naming.expected}

    def targets(self, at: int) -> Sequence[str]:
        """Return the targets: those that the topology names, and those seen by an instant (epoch ms)."""
        self._advance(at)
        return sorted(self._of_target)

    def instance(self, target: str) -> str:
        """Return what Prometheus calls a target."""
        return self._naming.of_target(target)["instance"]

    def metrics(self, target: str, at: int) -> list[Metric] | None:
        """Return what a target shows at an instant (epoch ms); None where it does not answer."""
        self._advance(at)
        fresh = [one for one in self._of_target.get(target, ()) if at - self._at[one] < self._fresh_ms]
        if not fresh:
            return None
        found: dict[str, Metric] = {}
        for entity in fresh:
            key = self._entities.keys[entity]
            job = self._jobs.of(key[0], int(key[1]), at) if self._stream == "dcgm" else None
            for column, value in zip(self._columns, self._values[entity].tolist(), strict=True):
                if not math.isnan(value):
                    self._sample(found, key, column, value, {"hpc_job": job} if job else {})
        return [*found.values()]

    def _sample(
        self, found: dict[str, Metric], key: tuple[str, ...], column: str, value: float, more: dict[str, str]
    ) -> None:
        rule, _ = self._naming.column(column)
        code = rule.code and value == int(value)
        labels = self._naming.of_code(key, column, int(value)) if code else self._naming.of_series(key, column)
        own = {name: text for name, text in labels.items() if name not in _OF_TARGET}
        name = own.pop("__name__")
        family = name.removesuffix("_total")
        metric = found.setdefault(name, Metric(family, f"{column}, recorded", "gauge" if family == name else "counter"))
        metric.add_sample(name, own | more, value * rule.scale + rule.offset)

    def _advance(self, at: int) -> None:
        while (batch := self._waiting) is not None:
            due = int(np.searchsorted(times_of(batch), at, side="right"))
            if due:
                self._take(batch.slice(0, due))
            if due < batch.num_rows:
                self._waiting = batch.slice(due)
                return
            self._waiting = next(self._batches, None)

    def _take(self, batch: pa.RecordBatch) -> None:
        entities, before = self._entities.of(batch), len(self._at)
        new = self._entities.keys[before:]
        self._at = np.concatenate([self._at, np.zeros(len(new), np.int64)])
        self._values = np.concatenate([self._values, np.full((len(new), len(self._columns)), np.nan)])
        for number, key in enumerate(new, start=before):
            self._of_target.setdefault(self._naming.target(key), []).append(number)
        # Of several rows of an entity the last: rows are in order of time.
        last = np.unique(entities[::-1], return_index=True)
        rows = batch.num_rows - 1 - last[1]
        self._at[last[0]] = times_of(batch)[rows]
        for place, name in enumerate(self._columns):
            self._values[last[0], place] = batch.column(name).cast(pa.float64()).to_numpy(zero_copy_only=False)[rows]


def _columns(recording: Recording, stream: str, fields: Collection[str] | None) -> list[str]:
    keys = {"timestamp", "unit", *KEYS[stream]}
    with open_stream(recording.path / STREAMS[stream].file) as file:
        numbers = [one.name for one in file.schema_arrow if _is_number(one.type) and one.name not in keys]
    return numbers if fields is None else [name for name in numbers if name in fields]


def _is_number(kind: pa.DataType) -> bool:
    """Return whether a column's values can be shown as a number."""
    return pa.types.is_integer(kind) or pa.types.is_floating(kind) or pa.types.is_boolean(kind)
