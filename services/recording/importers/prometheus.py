"""Captures a stretch of time from a running Prometheus or Thanos, sample by sample as it was scraped.

Stream by stream and stretch by stretch, every metric that has a place in a recording is asked for with a range
selector, which gives the samples with their own times (with ``--step``: what a graph would show instead). Samples of
one scrape of one entity become one row. The answers held at once are bounded: a stretch's length follows from how
many samples the one before had.
"""

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from services.kit.errors import UsageError
from services.kit.times import parse_instant, wall_ms
from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.series.held import nothing_captured
from services.recording.importers.parts.series.pivot import Wide, interval_s
from services.recording.importers.parts.series.query_api import (
    PASSWORD_VARIABLE,
    TOKEN_VARIABLE,
    Access,
    QueryApi,
    TooMuchError,
)
from services.recording.importers.parts.series.series_reader import Matchers, Pace, SeriesReader
from services.recording.instants import format_instant, resolve_past
from services.recording.schema import STREAMS

_LONGEST_S = 1e7
_SELECTOR = re.compile(r"\s*(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)?\s*(?:\{(?P<inner>.*)\})?\s*", re.DOTALL)


@dataclass(frozen=True)
class _Span:
    """The stretch to capture, epoch ms, both ends included, as the server's times; and what to take off them."""

    start: int
    end: int
    shift: int


def convert(
    out: Path,
    *,
    url: Annotated[str, "of the server: http://prometheus:9090, or a Thanos Query"],
    from_: Annotated[str, "first instant: 2024-04-01T08:00:00Z, or how long ago, -2h"],
    to: Annotated[str, "last instant: RFC 3339, -90m, or now"],
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
    access = Access(url, bearer_file, user, password_file, ca_file, tenant, retries=retries)
    return capture(out, access, from_, to, match, cluster, replay, step, chunk, shift, rebase, progress)


def capture(
    out: Path,
    access: Access,
    from_: str,
    to: str,
    match: list[str] | None = None,
    cluster: str | None = None,
    replay: str | None = None,
    step: float | None = None,
    chunk: float = 3600.0,
    shift: float = 0.0,
    rebase: str | None = None,
    progress: Progress = silent,
) -> Report:
    """Do what `convert` does, of a server that is described already; the parameters and errors are the same."""
    span = _span(from_, to, shift, rebase)
    if not 1 <= chunk <= _LONGEST_S or not 0.001 <= (step or 1) <= _LONGEST_S or step == 0 or access.retries < 0:
        remedy = f"--chunk is 1 to {_LONGEST_S:g} s, --step 0.001 to {_LONGEST_S:g} s, --retries 0 or more"
        raise UsageError("--chunk, --step or --retries is out of range", remedy=remedy)
    report = Report()
    selectors = [_filters(text, cluster, replay) for text in match or ["{}"]]
    with QueryApi(access) as api, Draft(out, report) as draft:
        reader = SeriesReader(api, selectors, report, match is not None, span.shift, step, span.start)
        clusters = reader.clusters(span.start, span.end)
        metrics = reader.metrics(span.start, span.end)
        report.read["metrics"] = sum(map(len, metrics.values()))
        reader.meet_hosts(span.start, span.end)
        for done, (stream, names) in enumerate(metrics.items()):

            def part(share: float, done: int = done) -> None:
                progress((done + share) / len(metrics))

            _stream(reader, draft, stream, names, span, Pace(access.url, round(chunk * 1000)), part)
        for warning, count in api.warnings.items():
            report.notes.append(f"the server warned {count} times: {warning}")
        if not report.read["samples"]:
            given = ("--match", match), ("--cluster", cluster), ("--replay", replay)
            filters = ", ".join(name for name, value in given if value)
            raise nothing_captured(api, (span.start, span.end), filters)
        report.notes += reader.census.notes()
        topology = reader.topology()
        draft.add_jobs(reader.jobs.jobs(span.end - span.shift, topology, report.skip))
        name = cluster or next(iter(clusters), "captured")
        draft.finish(_header(out, access.url, span, step, name, replay, match), topology)
    report.read["requests"] = api.requests
    return report


def _span(start: str, end: str, shift_s: float, rebase: str | None) -> _Span:
    try:
        now = wall_ms()
        first, last = resolve_past(start, now), resolve_past(end, now)
        off = round(shift_s * 1000) if rebase is None else first - parse_instant(rebase)
    except (ValueError, OverflowError) as error:
        remedy = "write --from and --to such as 2024-04-01T08:00:00Z, -2h or now; --rebase is a time, --shift seconds"
        raise UsageError(str(error), remedy=remedy) from error
    if last <= first:
        raise UsageError(f"--to {end} is not after --from {start}", remedy="correct the two")
    if rebase is not None and shift_s:
        raise UsageError("--shift and --rebase say the same", remedy="give one of them")
    return _Span(first, last, off)


def _filters(text: str, cluster: str | None, replay: str | None) -> tuple[str, str]:
    """Return metric name ("" for all) and label matchers of a selector, with the filters added."""
    found = _SELECTOR.fullmatch(text)
    if found is None:
        raise UsageError(
            f"--match {text!r} is no selector", remedy="write NAME, {label='value'} or NAME{label='value'}"
        )
    inner = [found["inner"].strip().rstrip(",")] if found["inner"] and found["inner"].strip() else []
    inner += [
        f"{name}={json.dumps(value, ensure_ascii=False)}"
        for name, value in (("cluster", cluster), ("replay", replay))
        if value is not None
    ]
    return found["name"] or "", ",".join(inner)


def _stream(
    reader: SeriesReader,
    draft: Draft,
    stream: str,
    metrics: list[Matchers],
    span: _Span,
    pace: Pace,
    progress: Progress,
) -> None:
    """Take one stream, stretch by stretch."""
    wide, every, at = Wide(stream), None, span.start - 1
    while at < span.end:
        until = min(at + pace.length_ms, span.end)
        try:
            reader.take(wide, metrics, at, until)
        except TooMuchError as error:
            wide.rows()
            pace.shorten(error)
            continue
        samples = wide.samples
        batch = reader.rows(wide)
        if batch is not None and batch.num_rows:
            every = every or interval_s(batch, [name for name in STREAMS[stream].key_names if name != "iteration"])
            draft.add(stream, batch, interval_s=every if stream != "steps" else None)
        pace.adapt(samples, until - at)
        at = until
        progress((at - span.start) / (span.end - span.start))
    if wide.repeated:
        reason = "another series had that reading already (a GPU's jobs or pods each have their own copy)"
        reader.report.skip(reason, stream, wide.repeated)


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
