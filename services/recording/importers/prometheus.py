"""Captures a stretch of time from a running Prometheus or Thanos, sample by sample as it was scraped.

Stream by stream and stretch by stretch, every metric that has a place in a recording is asked for with a range
selector, which gives the samples with their own times (with ``--step``: what a graph would show instead). Samples of
one scrape of one entity become one row. The answers held at once are bounded: a stretch's length follows from how
many samples the one before had.
"""

import json
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any

import numpy as np
import pyarrow as pa

from services.kit.errors import UserError
from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.census import Census
from services.recording.importers.parts.derived_jobs import JobSpans
from services.recording.importers.parts.held import nothing_captured
from services.recording.importers.parts.known_series import KNOWN_METRICS, stream_of
from services.recording.importers.parts.matrix import Matrix
from services.recording.importers.parts.pivot import Wide, interval_s
from services.recording.importers.parts.query_api import (
    PASSWORD_VARIABLE,
    TOKEN_VARIABLE,
    Access,
    QueryApi,
    TooMuchError,
)
from services.recording.instants import format_instant, parse_instant
from services.recording.model import Topology
from services.recording.schema import STREAMS

SAMPLES_AT_ONCE = 2_000_000
"""Of one stream, kept until they are rows: some 100 MB with what it takes to sort them."""
_FIRST_MS = 60_000
_SHORTEST_MS = 1000
_LONGEST_S = 1e7
_GROWTH = 4
_SELECTOR = re.compile(r"\s*(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)?\s*(?:\{(?P<inner>.*)\})?\s*", re.DOTALL)
_SHOULD_HAVE = {"DCGM_FI_DEV_PCIE_MAX_LINK_GEN": "pcie_gen", "DCGM_FI_DEV_PCIE_MAX_LINK_WIDTH": "pcie_width"}
"""What a GPU's link should be: fields that do not change with what it is."""


@dataclass(frozen=True)
class _Span:
    """The stretch to capture, epoch ms, both ends included, as the server's times; and what to take off them."""

    start: int
    end: int
    shift: int


@dataclass
class _Capture:
    """One capture under way."""

    api: QueryApi
    span: _Span
    step_s: float | None
    longest_ms: int
    census: Census
    draft: Draft
    report: Report
    progress: Progress
    jobs: JobSpans = field(default_factory=JobSpans)
    links: dict[tuple[str, int], dict[str, int]] = field(default_factory=dict)


def convert(
    out: Path,
    *,
    url: Annotated[str, "of the server: http://prometheus:9090, or a Thanos Query"],
    from_: Annotated[str, "first instant, RFC 3339: 2024-04-01T08:00:00Z"],
    to: Annotated[str, "last instant, RFC 3339"],
    match: Annotated[
        list[str] | None, "take only series like this, {rack='r1'}; again for more (default: all known)"
    ] = None,
    cluster: Annotated[str | None, "only series with this label cluster"] = None,
    replay: Annotated[str | None, "only series with this label replay: those of one hindcast replay"] = None,
    step: Annotated[float | None, "seconds: resample as a graph does, instead of taking each sample as it is"] = None,
    chunk: Annotated[float, "longest stretch asked for at once, seconds"] = 3600.0,
    shift: Annotated[float, "seconds taken off all times: what a replay had added to them"] = 0.0,
    rebase: Annotated[str | None, "RFC 3339: the instant that --from becomes (instead of --shift)"] = None,
    bearer_file: Annotated[Path | None, f"file with the bearer token (or ${TOKEN_VARIABLE})"] = None,
    user: Annotated[str | None, "user name for basic authentication"] = None,
    password_file: Annotated[Path | None, f"file with that user's password (or ${PASSWORD_VARIABLE})"] = None,
    ca_file: Annotated[Path | None, "certificates (PEM) to check the server's by"] = None,
    tenant: Annotated[str | None, "sent as THANOS-TENANT and X-Scope-OrgID"] = None,
    retries: Annotated[int, "tries after a failed request (429, 5xx, no connection)"] = 6,
    progress: Progress = silent,
) -> Report:
    """Capture what the server holds between two instants into a recording at ``out``.

    UserError: the server cannot be reached (exit code 3), does not let us in or refuses the query (2), holds series
    of several clusters or replays at once, or holds nothing that has a place in a recording.
    """
    span = _span(from_, to, shift, rebase)
    if not 1 <= chunk <= _LONGEST_S or not 0.001 <= (step or 1) <= _LONGEST_S or step == 0 or retries < 0:
        remedy = f"--chunk is 1 to {_LONGEST_S:g} s, --step 0.001 to {_LONGEST_S:g} s, --retries 0 or more"
        raise UserError("--chunk, --step or --retries is out of range", remedy=remedy, exit_code=2)
    access = Access(url, bearer_file, user, password_file, ca_file, tenant, retries=retries)
    report = Report()
    selectors = [_filters(text, cluster, replay) for text in match or ["{}"]]
    with QueryApi(access) as api, Draft(out, report) as draft:
        clusters = _one_origin(api, span, selectors)
        metrics = _metrics(api, span, selectors, report, everything=match is not None)
        census = Census(_hosts(api, span))
        capture = _Capture(api, span, step, round(chunk * 1000), census, draft, report, progress)
        for done, (stream, names) in enumerate(metrics.items()):
            _stream(capture, stream, names, (done / len(metrics), 1 / len(metrics)))
        for warning, count in api.warnings.items():
            report.notes.append(f"the server warned {count} times: {warning}")
        if not report.read["samples"]:
            given = ("--match", match), ("--cluster", cluster), ("--replay", replay)
            filters = ", ".join(name for name, value in given if value)
            raise nothing_captured(api, (span.start, span.end), filters)
        report.notes += census.notes()
        topology = _with_links(census.topology(), capture.links)
        draft.add_jobs(capture.jobs.jobs(span.end - span.shift, topology, report))
        name = cluster or next(iter(clusters), "captured")
        draft.finish(_header(out, access.url, span, step, name, replay, match), topology)
    report.read["requests"] = api.requests
    return report


def _span(start: str, end: str, shift_s: float, rebase: str | None) -> _Span:
    try:
        first, last = parse_instant(start), parse_instant(end)
        off = round(shift_s * 1000) if rebase is None else first - parse_instant(rebase)
    except (ValueError, OverflowError) as error:
        remedy = "write --from, --to and --rebase such as 2024-04-01T08:00:00Z, --shift in seconds"
        raise UserError(str(error), remedy=remedy, exit_code=2) from error
    if last <= first:
        raise UserError(f"--to {end} is not after --from {start}", remedy="correct the two", exit_code=2)
    if rebase is not None and shift_s:
        raise UserError("--shift and --rebase say the same", remedy="give one of them", exit_code=2)
    return _Span(first, last, off)


def _filters(text: str, cluster: str | None, replay: str | None) -> tuple[str, str]:
    """Return metric name ("" for all) and label matchers of a selector, with the filters added."""
    found = _SELECTOR.fullmatch(text)
    if found is None:
        raise UserError(
            f"--match {text!r} is no selector", remedy="write NAME, {label='value'} or NAME{label='value'}", exit_code=2
        )
    inner = [found["inner"].strip().rstrip(",")] if found["inner"] and found["inner"].strip() else []
    inner += [
        f"{name}={json.dumps(value, ensure_ascii=False)}"
        for name, value in (("cluster", cluster), ("replay", replay))
        if value is not None
    ]
    return found["name"] or "", ",".join(inner)


def _selector(matchers: str, metric: str = "", pattern: str = "") -> str:
    named = f"__name__={json.dumps(metric)}" if metric else f"__name__=~{json.dumps(pattern)}"
    return f"{{{named},{matchers}}}" if matchers else f"{{{named}}}"


def _one_origin(api: QueryApi, span: _Span, selectors: Sequence[tuple[str, str]]) -> list[str]:
    """Return the clusters that the series name: none or one. UserError where there are more: their nodes would mix."""
    found: dict[str, set[str]] = {"cluster": set(), "replay": set()}
    for name, matchers in selectors:
        for label, values in found.items():
            match = _selector(matchers, name, KNOWN_METRICS)
            values.update(value for value in api.label_values(label, match, span.start, span.end) if value)
    for label, values in found.items():
        if len(values) > 1:
            some = ", ".join(sorted(values)[:8])
            raise UserError(
                f"{api.access.url} holds series of {len(values)} {label}s there: {some}",
                remedy=f"say which with --{label}; a recording is of one",
                exit_code=2,
            )
    return sorted(found["cluster"])


def _metrics(
    api: QueryApi, span: _Span, selectors: Sequence[tuple[str, str]], report: Report, *, everything: bool
) -> dict[str, list[tuple[str, str]]]:
    """Return by stream what to ask for: metric names with their matchers."""
    wanted: dict[str, list[tuple[str, str]]] = {}
    for chosen, matchers in selectors:
        match = _selector(matchers, chosen, ".+" if everything else KNOWN_METRICS)
        for metric in sorted(api.label_values("__name__", match, span.start, span.end)):
            stream = stream_of(metric)
            if stream is None:
                report.skip("the metric has no place in a recording", metric)
            elif (metric, matchers) not in wanted.setdefault(stream, []):
                wanted[stream].append((metric, matchers))
    report.read["metrics"] = sum(map(len, wanted.values()))
    return {stream: wanted[stream] for stream in STREAMS if stream in wanted}


def _hosts(api: QueryApi, span: _Span) -> dict[str, str]:
    """Return node names by host, where node_exporter tells them, and by exporters' pods and their addresses."""
    reach = f"[{min(span.end - span.start + 1, 3_600_000)}ms]"
    names: dict[str, str] = {}
    for one in api.instant(f'last_over_time(kube_pod_info{{pod=~".*(dcgm|exporter).*"}}{reach})', span.end):
        names |= {one.get(label, ""): one.get("node", "") for label in ("pod", "exported_pod", "pod_ip", "host_ip")}
    for one in api.instant(f"last_over_time(node_uname_info{reach})", span.end):
        names[re.sub(r":\d+$", "", one.get("instance", "")).strip("[]")] = one.get("nodename", "")
    return {host: name for host, name in names.items() if host and name}


def _stream(capture: _Capture, stream: str, metrics: list[tuple[str, str]], share: tuple[float, float]) -> None:
    """Take one stream, stretch by stretch."""
    wide, span = Wide(stream), capture.span
    every: float | None = None
    at, length = span.start - 1, min(_FIRST_MS, capture.longest_ms)
    while at < span.end:
        until = min(at + length, span.end)
        try:
            _take(capture, wide, metrics, at, until)
        except TooMuchError as error:
            wide.rows()
            if length <= _SHORTEST_MS:
                raise UserError(
                    f"{capture.api.access.url} does not even answer for one second: {error.words}",
                    remedy=error.remedy,
                    exit_code=3,
                ) from error
            length = max(_SHORTEST_MS, length // 2)
            continue
        samples = wide.samples
        batch = wide.rows()
        if batch is not None and batch.num_rows:
            _links(capture, stream, batch)
            every = every or interval_s(batch, [name for name in STREAMS[stream].key_names if name != "iteration"])
            capture.draft.add(stream, batch, interval_s=every if stream != "steps" else None)
        at = until
        right = length * SAMPLES_AT_ONCE // max(samples, 1)
        length = int(min(max(right, _SHORTEST_MS), length * _GROWTH, capture.longest_ms))
        capture.progress(share[0] + share[1] * (at - span.start) / (span.end - span.start))
    if wide.repeated:
        reason = "another series had that reading already (a GPU's jobs or pods each have their own copy)"
        capture.report.skip(reason, stream, wide.repeated)


def _take(capture: _Capture, wide: Wide, metrics: list[tuple[str, str]], after: int, until: int) -> None:
    """Add the samples of one stretch to the stream."""
    read: list[Matrix] = []
    for metric, matchers in metrics:
        selector = _selector(matchers, metric)
        for found in _ask(capture, selector, after, until):
            read.append(found)
            _place(capture, wide, metric, found)
    # Counted at the end: a stretch that is asked for again counts once.
    capture.report.read["samples"] += sum(len(found.times) for found in read)


def _ask(capture: _Capture, selector: str, after: int, until: int) -> Iterator[Matrix]:
    if capture.step_s is None:
        yield capture.api.raw(selector, after, until)
        return
    # The steps of all stretches lie on one grid, which begins at the first instant.
    step, origin = round(capture.step_s * 1000), capture.span.start
    first = origin + -(-(after + 1 - origin) // step) * step
    if first <= until:
        yield capture.api.stepped(selector, first, until, capture.step_s)


def _place(capture: _Capture, wide: Wide, metric: str, found: Matrix) -> None:
    """Give every series of an answer its entity and column, and add its samples."""
    columns: dict[tuple[str, float, float], list[int]] = {}
    entities = np.zeros(len(found.counts), np.int64)
    starts = np.concatenate([[0], np.cumsum(found.counts)]).astype(np.int64)
    times = found.times - capture.span.shift
    for number, labels in enumerate(found.labels):
        place = capture.census.place(metric, {k: v for k, v in labels.items() if k != "__name__"})
        if isinstance(place, str):
            shown = ",".join(f"{name}={value}" for name, value in sorted(labels.items()))
            capture.report.skip(f"{place} (samples)", f"{metric}{{{shown}}}"[:300], int(found.counts[number]))
            continue
        entities[number] = wide.entity(place.key)
        reading = place.reading
        columns.setdefault((reading.column, reading.scale, reading.offset), []).append(number)
        if len(part := times[starts[number] : starts[number + 1]]):
            capture.jobs.seen(wide.stream, place, int(part.min()), int(part.max()))
    owner = np.repeat(np.arange(len(found.counts)), found.counts)
    for (column, scale, offset), members in columns.items():
        here = np.isin(owner, members) if len(members) < len(found.counts) else np.ones(len(owner), np.bool_)
        values = found.values[here]
        if scale != 1.0 or offset:
            values = (values - offset) / scale
        wide.add(column, entities[owner[here]], times[here], values)


def _links(capture: _Capture, stream: str, batch: pa.RecordBatch) -> None:
    """Note what the links of GPUs should be."""
    for column in set(_SHOULD_HAVE) & set(batch.schema.names) if stream == "dcgm" else ():
        table = pa.Table.from_batches([batch.select(["node", "gpu", column])])
        for row in table.group_by(["node", "gpu"]).aggregate([(column, "max")]).to_pylist():
            if row[f"{column}_max"] is not None and row[f"{column}_max"] >= 1:
                facts = capture.links.setdefault((row["node"], row["gpu"]), {})
                facts[_SHOULD_HAVE[column]] = max(facts.get(_SHOULD_HAVE[column], 0), int(row[f"{column}_max"]))


def _with_links(topology: Topology, links: dict[tuple[str, int], dict[str, int]]) -> Topology:
    if not links:
        return topology
    nodes = [
        node.model_copy(
            update={"gpus": [gpu.model_copy(update=links.get((node.name, gpu.gpu), {})) for gpu in node.gpus]}
        )
        if node.gpus
        else node
        for node in topology.nodes
    ]
    return topology.model_copy(update={"nodes": nodes})


def _header(
    out: Path, url: str, span: _Span, step: float | None, cluster: str, replay: str | None, match: list[str] | None
) -> dict[str, Any]:
    stretch = f"{format_instant(span.start)} to {format_instant(span.end)}"
    how = "every sample as it was scraped" if step is None else f"resampled every {step:g} s"
    notes = [
        "log lines, labels and wiring are not in a Prometheus; the machines are those that its series name",
        "a job's start and end are those of its series",
    ]
    if span.shift:
        notes.append(f"{span.shift / 1000:g} s were taken off all times")
    asked = {"match": match, "replay": replay}
    return {
        "name": out.resolve().name,
        "title": f"{cluster}, captured from Prometheus",
        "summary": f"What {url} held from {stretch}, {how}.",
        "origin": "captured",
        "source": {
            "document": url,
            "section": stretch,
            **{name: value for name, value in asked.items() if value},
            "notes": notes,
        },
        "cluster": {"name": cluster},
    }
