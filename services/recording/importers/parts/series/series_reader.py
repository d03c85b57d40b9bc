"""Reads the series of a Prometheus, a stretch of time after the other, as the rows they make."""

import json
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field, replace

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from services.kit.errors import ServerError, UsageError
from services.recording.importers.contract import Report
from services.recording.importers.parts.schedulers.derived_jobs import JobSpans
from services.recording.importers.parts.series.census import Census, instance_host
from services.recording.importers.parts.series.known_series import KNOWN_METRICS, stream_of
from services.recording.importers.parts.series.matrix import Matrix
from services.recording.importers.parts.series.pivot import Wide
from services.recording.importers.parts.series.query_api import QueryApi, TooMuchError
from services.recording.model import Topology
from services.recording.schema import STREAMS

Matchers = tuple[str, str]
"""A metric's name ("" for all) and label matchers as they stand between braces."""
SAMPLES_AT_ONCE = 2_000_000
"""Of one stream, kept until they are rows: some 100 MB with what it takes to sort them."""
_SHOULD_HAVE = {"DCGM_FI_DEV_PCIE_MAX_LINK_GEN": "pcie_gen", "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": "pcie_width"}
"""What a GPU's link should be: fields that do not change with what it is."""
_STATIC_MS = 300_000
_FIRST_MS, _SHORTEST_MS, _GROWTH = 60_000, 1000, 4


class Pace:
    """How long a stretch to ask for next (ms, at most `longest_ms`): by how many samples the one before had."""

    def __init__(self, url: str, longest_ms: int) -> None:
        self._url = url
        self._longest_ms = longest_ms
        self.length_ms = min(_FIRST_MS, longest_ms)

    def adapt(self, samples: int, of_ms: int) -> None:
        """Note that a stretch of so many ms had so many samples."""
        right = of_ms * SAMPLES_AT_ONCE // max(samples, 1)
        self.length_ms = int(min(max(right, _SHORTEST_MS), self.length_ms * _GROWTH, self._longest_ms))

    def shorten(self, error: TooMuchError) -> None:
        """Note that the server gave no answer for `length_ms`; UserError (exit code 3) where it is short enough."""
        if self.length_ms <= _SHORTEST_MS:
            raise ServerError(
                f"{self._url} does not even answer for one second: {error.words}", remedy=error.remedy
            ) from error
        self.halve()

    def halve(self) -> None:
        """Ask for less next time: the server may not answer in time for so much."""
        self.length_ms = max(_SHORTEST_MS, self.length_ms // 2)


@dataclass
class SeriesReader:
    """The series of one server that have a place in a recording; the machines and jobs that they name.

    `selectors` choose the series; `everything`: of any metric, so that those without a place are counted. `shift` (ms)
    is taken off all times. With `step_s`, values as a graph shows them, on a grid through `origin` (epoch ms).
    """

    api: QueryApi
    selectors: Sequence[Matchers]
    report: Report
    everything: bool = False
    shift: int = 0
    step_s: float | None = None
    origin: int = 0
    census: Census = field(default_factory=Census)
    jobs: JobSpans = field(default_factory=JobSpans)
    _links: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)

    def clusters(self, start: int, end: int) -> list[str]:
        """Return the clusters that the series name: none or one. UserError where there are more: nodes would mix."""
        found: dict[str, set[str]] = {"cluster": set(), "replay": set()}
        for name, matchers in self.selectors:
            for label, values in found.items():
                match = _selector(matchers, name, KNOWN_METRICS)
                values.update(value for value in self.api.label_values(label, match, start, end) if value)
        for label, values in found.items():
            if len(values) > 1:
                some = ", ".join(sorted(values)[:8])
                raise UsageError(
                    f"{self.api.access.url} holds series of {len(values)} {label}s there: {some}",
                    remedy=f"say which with --{label}; a recording is of one",
                )
        return sorted(found["cluster"])

    def metrics(self, start: int, end: int) -> dict[str, list[Matchers]]:
        """Return by stream what to ask for: metric names with their matchers."""
        wanted: dict[str, list[Matchers]] = {}
        for chosen, matchers in self.selectors:
            match = _selector(matchers, chosen, ".+" if self.everything else KNOWN_METRICS)
            for metric in sorted(self.api.label_values("__name__", match, start, end)):
                stream = stream_of(metric)
                if stream is None:
                    self.report.skip("the metric has no place in a recording", metric)
                elif (metric, matchers) not in wanted.setdefault(stream, []):
                    wanted[stream].append((metric, matchers))
        return {stream: wanted[stream] for stream in STREAMS if stream in wanted}

    def meet_hosts(self, start: int, end: int) -> None:
        """Learn node names by host, where node_exporter names them, and by exporters' pods and their addresses."""
        reach = f"[{min(end - start + 1, 3_600_000)}ms]"
        names: dict[str, str] = {}
        for one in self.api.instant(f'last_over_time(kube_pod_info{{pod=~".*(dcgm|exporter).*"}}{reach})', end):
            names |= {one.get(label, ""): one.get("node", "") for label in ("pod", "exported_pod", "pod_ip", "host_ip")}
        for one in self.api.instant(f"last_over_time(node_uname_info{reach})", end):
            names[instance_host(one)] = one.get("nodename", "")
        self.census.meet({host: name for host, name in names.items() if host and name})

    def survey(self, start: int, end: int) -> Topology:
        """Return the machines that series between two instants name, with nothing read of what they did.

        What the links of GPUs should be is read from the last five minutes.
        """
        self.meet_hosts(start, end)
        aside = replace(self, report=Report(), jobs=JobSpans())
        for stream, metrics in self.metrics(start, end).items():
            for metric, matchers in metrics:
                for labels in self.api.series(_selector(matchers, metric), start, end):
                    self.census.place(metric, {k: v for k, v in labels.items() if k != "__name__"})
                if metric in _SHOULD_HAVE:
                    wide = Wide(stream)
                    aside.take(wide, [(metric, matchers)], max(start, end - _STATIC_MS), end)
                    aside.rows(wide)
        return self.topology()

    def take(self, wide: Wide, metrics: Sequence[Matchers], after: int, until: int) -> NDArray[np.int64]:
        """Add the samples with ``after < time <= until`` (epoch ms) to a stream; return their times, as the server's.

        Raises TooMuchError where a shorter stretch is to be asked for; what was added until then is to be dropped.
        """
        read: list[Matrix] = []
        for metric, matchers in metrics:
            for found in self._ask(_selector(matchers, metric), after, until):
                read.append(found)
                self._place(wide, metric, found)
        # Counted at the end: a stretch that is asked for again counts once.
        self.report.read["samples"] += sum(len(found.times) for found in read)
        return np.concatenate([found.times for found in read]) if read else np.empty(0, np.int64)

    def rows(self, wide: Wide) -> pa.RecordBatch | None:
        """Return the rows of the samples that a stream was given since the last call; None where there are none."""
        batch = wide.rows()
        if batch is not None and wide.stream == "dcgm":
            self._note_links(batch)
        return batch

    def topology(self) -> Topology:
        """Return the machines seen so far, with what the links of their GPUs should be."""
        topology = self.census.topology()
        if not self._links:
            return topology
        nodes = [
            node.model_copy(
                update={"gpus": [gpu.model_copy(update=self._links.get((node.name, gpu.gpu), {})) for gpu in node.gpus]}
            )
            if node.gpus
            else node
            for node in topology.nodes
        ]
        return topology.model_copy(update={"nodes": nodes})

    def forget(self, gone: AbstractSet[str]) -> None:
        """Forget machines and mounts that are gone, by name."""
        self.census.forget(gone)
        self.jobs.forget_machines(gone)
        self._links = {gpu: facts for gpu, facts in self._links.items() if gpu[0] not in gone}

    def _ask(self, selector: str, after: int, until: int) -> Iterator[Matrix]:
        if self.step_s is None:
            yield self.api.raw(selector, after, until)
            return
        # The steps of all stretches lie on one grid.
        step = round(self.step_s * 1000)
        first = self.origin + -(-(after + 1 - self.origin) // step) * step
        if first <= until:
            yield self.api.stepped(selector, first, until, self.step_s)

    def _place(self, wide: Wide, metric: str, found: Matrix) -> None:
        """Give every series of an answer its entity and column, and add its samples."""
        columns: dict[tuple[str, float, float], list[int]] = {}
        entities = np.zeros(len(found.counts), np.int64)
        starts = np.concatenate([[0], np.cumsum(found.counts)]).astype(np.int64)
        times = found.times - self.shift
        for number, labels in enumerate(found.labels):
            place = self.census.place(metric, {k: v for k, v in labels.items() if k != "__name__"})
            if isinstance(place, str):
                shown = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
                self.report.skip(f"{place} (samples)", f"{metric}{{{shown}}}"[:300], int(found.counts[number]))
                continue
            entities[number] = wide.entity(place.key)
            reading = place.reading
            columns.setdefault((reading.column, reading.scale, reading.offset), []).append(number)
            if len(part := times[starts[number] : starts[number + 1]]):
                self.jobs.seen(wide.stream, place, int(part.min()), int(part.max()))
        owner = np.repeat(np.arange(len(found.counts)), found.counts)
        for (column, scale, offset), members in columns.items():
            here = np.isin(owner, members) if len(members) < len(found.counts) else np.ones(len(owner), np.bool_)
            values = found.values[here]
            if scale != 1.0 or offset:
                values = (values - offset) / scale
            wide.add(column, entities[owner[here]], times[here], values)

    def _note_links(self, batch: pa.RecordBatch) -> None:
        for column in set(_SHOULD_HAVE) & set(batch.schema.names):
            table = pa.Table.from_batches([batch.select(["node", "gpu", column])])
            for row in table.group_by(["node", "gpu"]).aggregate([(column, "max")]).to_pylist():
                if row[f"{column}_max"] is not None and row[f"{column}_max"] >= 1:
                    facts = self._links.setdefault((row["node"], row["gpu"]), {})
                    facts[_SHOULD_HAVE[column]] = max(facts.get(_SHOULD_HAVE[column], 0), int(row[f"{column}_max"]))


def _selector(matchers: str, metric: str = "", pattern: str = "") -> str:
    named = f"__name__={json.dumps(metric)}" if metric else f"__name__=~{json.dumps(pattern)}"
    return f"{{{named},{matchers}}}" if matchers else f"{{{named}}}"
