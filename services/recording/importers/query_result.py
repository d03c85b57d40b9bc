"""Imports saved answers of query APIs: Prometheus' matrices and vectors, Loki's streams (also of logcli and Grafana).

Series come in by their names and labels, as from the server itself. Lines become events; the machine is that of a label
(host, hostname, node, node_name, nodename, instance), else what the line itself says.
"""

import json
import re
from collections.abc import Iterator, Mapping
from datetime import UTC
from pathlib import Path
from typing import Annotated, Any

from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.logs.log_judgement import severity_of
from services.recording.importers.parts.logs.log_lines import LogLine, LogLines
from services.recording.importers.parts.moments import ms_of, parse_stamp, plausible
from services.recording.importers.parts.series.series_intake import SeriesIntake
from services.recording.importers.parts.source_files import (
    SourceFiles,
    clean,
    node_by_path,
    number_of,
    parse_json,
    where,
)
from services.recording.model import Event, Node

_HOSTS = ("host", "hostname", "node", "node_name", "nodename", "kubernetes_node", "instance")
_WRITERS = ("unit", "systemd_unit", "syslog_identifier", "app", "job", "service_name", "container")
_SCHEDULERS = re.compile(r"slurm(?:ctld|d)|pbs_(?:server|mom)|mbatchd|sbatchd|kube-scheduler", re.IGNORECASE)
_PORT = re.compile(r":\d+$")
_PRIORITIES = {
    "emerg": 0, "alert": 1, "critical": 2, "crit": 2, "error": 3, "err": 3, "warning": 4, "warn": 4, "notice": 5,
    "info": 6, "debug": 7,
}  # fmt: skip
_ANSWER = re.compile(r'"resultType"\s*:\s*"(?P<kind>matrix|vector|streams)"')
_LOG_LINE = re.compile(r'^\s*\[?\s*\{(?=[^\n]*"line"\s*:)(?=[^\n]*"timestamp"\s*:)', re.MULTILINE)
_BEFORE = re.compile(r"\s*(?:HTTP/[^\n]*\n(?:[^\r\n]+\r?\n)*)*\s*")
_NO_SAMPLE = "a sample whose time or value is none"


def convert(
    source: Annotated[Path, "a file with an answer (JSON, or a JSON object a line), or a folder of them"],
    out: Path,
    *,
    node: Annotated[str, "the node, for what names none (else the file's or folder's name)"] = "",
    cluster: Annotated[str, "name of the cluster"] = "imported",
    progress: Progress = silent,
) -> Report:
    """Convert answers into a recording at ``out``.

    UserError: the source does not exist, nothing in it has a place in a recording, or ``out`` exists.
    """
    report = Report()
    files = SourceFiles(source, report, progress)
    nodes: dict[str, None] = {}
    with Draft(out, report) as draft:
        intake = SeriesIntake(draft, report, node)
        for path in files.paths:
            fallback = node or node_by_path(path, files.root)
            for place, item in _items(files, path, report):
                if "metric" in item:
                    _series(intake, item, report, place)
                    continue
                events = list(_events(item, fallback, report, place))
                nodes.update(dict.fromkeys(event.node for event in events if event.node))
                draft.add_events(events)
        topology = intake.finish()
        known = {one.name for one in topology.nodes}
        extra = [Node(name=name) for name in sorted(nodes) if name not in known]
        draft.imported(
            topology.model_copy(update={"nodes": [*topology.nodes, *extra]}),
            cluster,
            title="Saved answers of queries",
            summary="What a Prometheus or a Loki answered. What was wrong, if anything, is not known.",
            document="answers of query APIs (JSON)",
        )
    return report


def recognise(_name: str, head: str) -> str | None:
    """Return why a file is taken for a query's answer, None where it is none."""
    answer = _ANSWER.search(head)
    if answer is not None and '"result"' in head:
        return (
            "log streams that a Loki answered" if answer["kind"] == "streams" else "series that a Prometheus answered"
        )
    return "lines of a Loki, as logcli or Grafana save them" if _LOG_LINE.match(head) else None


def _items(files: SourceFiles, path: Path, report: Report) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield series, streams or single lines of a file, each with its place."""
    if _LOG_LINE.match(files.head(path)) and not files.head(path).lstrip().startswith("["):
        for number, line in files.lines(path):
            item = parse_json(line)
            if isinstance(item, dict):
                yield where(path, number), item
        return
    results = (item for document in _documents(files, path, report) for item in _results(document, path, report))
    for number, item in enumerate(results, 1):
        if isinstance(item, dict):
            yield f"{where(path)}: result {number}", item


def _documents(files: SourceFiles, path: Path, report: Report) -> Iterator[Any]:
    """Yield the answers of a file: one, or those that were appended to it, with what curl -i writes before each."""
    text, place, decoder = files.text(path) or "", 0, json.JSONDecoder()
    while (begin := _BEFORE.match(text, place)) is not None and begin.end() < len(text):
        try:
            document, place = decoder.raw_decode(text, begin.end())
        except (ValueError, RecursionError):
            report.skip("what is no JSON, and all behind it" if place else "a file that is no JSON", where(path))
            return
        yield document


def _results(document: Any, path: Path, report: Report) -> Iterator[Any]:
    """Yield what an answer has, or each of a list of answers; a list of anything else is that itself."""
    if isinstance(document, list):
        for item in document:
            answer = isinstance(item, dict) and ("data" in item or item.get("status") == "error")
            yield from _results(item, path, report) if answer else (item,)
        return
    data = document.get("data") if isinstance(document, dict) else None
    found = data.get("result") if isinstance(data, dict) else None
    if isinstance(found, list):
        yield from found
    else:
        report.skip("an answer without a result: the server refused the query", where(path))


def _texts(labels: Any) -> dict[str, str]:
    if isinstance(labels, str):  # logcli writes them as a selector
        labels = dict(re.findall(r'([a-zA-Z_]\w*)="((?:[^"\\]|\\.)*)"', labels))
    known = labels if isinstance(labels, dict) else {}
    return {clean(str(name)): clean(str(value))[:256] for name, value in known.items()}


def _series(intake: SeriesIntake, item: Mapping[str, Any], report: Report, place: str) -> None:
    labels = _texts(item["metric"])
    metric = labels.pop("__name__", "")
    samples = item.get("values", [item.get("value")])
    times, values = [], []
    for sample in samples if isinstance(samples, list) else ():
        at = number_of(sample[0]) if isinstance(sample, list) and len(sample) == 2 else None
        try:
            value = float(sample[1])
        except (TypeError, ValueError, IndexError):
            at = None
        if at is None or not plausible(at_ms := ms_of(at)):
            report.skip(_NO_SAMPLE, place)
            continue
        times.append(at_ms)
        values.append(value)
    if not metric:
        report.skip("a series without a name: a result of an expression (samples)", place, len(times))
        return
    intake.take(metric, labels, times, values, place)


def _events(item: Mapping[str, Any], fallback: str, report: Report, place: str) -> Iterator[Event]:
    """Yield the events of a stream's lines, or of one line."""
    labels = _texts(item.get("stream") or item.get("labels") or item.get("fields"))
    values = item.get("values", [[item.get("timestamp"), item.get("line")]])
    host = next((_PORT.sub("", labels[name]) for name in _HOSTS if labels.get(name)), "")
    writer = " ".join(labels[name] for name in _WRITERS if name in labels)
    level = next((labels[name].lower() for name in ("level", "detected_level", "severity") if name in labels), "")
    for entry in values if isinstance(values, list) else ():
        at = _instant(entry[0]) if isinstance(entry, list) and len(entry) >= 2 else None
        if at is None or not isinstance(entry[1], str):
            report.skip("a line whose time cannot be read", place)
            continue
        report.read["lines"] += 1
        text = clean(entry[1])
        read = LogLines(UTC, 2000, 0).read(text)
        written = read if isinstance(read, LogLine) else LogLine(at, None, None, text)
        if "fabricmanager" in writer or written.source == "fabricmanager":
            source = "fabricmanager"
        else:
            source = "scheduler" if _SCHEDULERS.search(writer) else "kernel"
        priority = written.priority if written.priority is not None else _PRIORITIES.get(level)
        yield Event.model_validate(
            {
                "timestamp": at,
                "source": source,
                "node": host or written.host or fallback,
                "severity": severity_of(written.message, priority),
                "message": written.message,
            }
        )


def _instant(value: Any) -> int | None:
    """Return the time of a line in ms: nanoseconds since 1970, or RFC 3339."""
    text = str(value)
    if text.isascii() and text.isdecimal() and 18 <= len(text) <= 19:
        at = int(text) // 1_000_000
        return at if plausible(at) else None
    return parse_stamp(text, UTC)
