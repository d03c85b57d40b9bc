"""Imports CSV files of Grafana: a panel's data with series joined by time, each column named by its series.

A column is read where its name gives metric and labels (`DCGM_FI_DEV_GPU_TEMP{Hostname="n1", gpu="0"}`, the default
legend); one with a legend of its own is counted and left out: what it is would be a guess. Where semicolons are between
cells, a comma stands before decimals.
"""

import csv
import re
from collections.abc import Iterator, Sequence
from datetime import datetime, tzinfo
from pathlib import Path
from typing import Annotated

from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.moments import instant_of, plausible
from services.recording.importers.parts.series.series_intake import SeriesIntake
from services.recording.importers.parts.source_files import SourceFiles, node_by_path, number_of, where
from services.recording.importers.parts.zones import assumed_zone, zone_of

_SERIES = re.compile(r"(?P<metric>[a-zA-Z_:][\w:]*)?\s*\{(?P<labels>.*)\}", re.DOTALL)
_LABEL = re.compile(r'\s*([a-zA-Z_]\w*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_METRIC = re.compile(r"[a-zA-Z_:][\w:]*")
_HEADER = re.compile(r'^(?:sep=[,;]\r?\n)?"?Time"?[,;]')
_VALUE = re.compile(r"(?P<number>[-+]?\d[\d,]*(?:\.\d+)?(?:[eE][-+]?\d+)?)\s*(?:°C|W|%|MHz|V|A|RPM|rpm|s)?")
_FORMS = (
    "%Y-%m-%d %H:%M:%S",
    "%Y-%m-%d %H:%M:%S.%f",
    "%Y-%m-%dT%H:%M:%S",
    "%m/%d/%Y, %I:%M:%S %p",
    "%d.%m.%Y %H:%M:%S",
)
_HOSTS = {"Hostname", "hostname", "node", "instance", "kubernetes_node", "nodename"}
_SCALED = "a value with a unit of its own, such as 1.2 K (export it unformatted)"
_OWN_LEGEND = 'a column whose name is no series: metric{label="value"} (leave the panel\'s legend at its default)'


def convert(
    source: Annotated[Path, "a CSV file that Grafana made of a panel's data, or a folder of them"],
    out: Path,
    *,
    node: Annotated[str, "the node, for series whose labels name none (else the file's or folder's name)"] = "",
    timezone: Annotated[str, "time zone of the dashboard: UTC, Europe/Zurich, +02:00"] = "UTC",
    cluster: Annotated[str, "name of the cluster"] = "imported",
    progress: Progress = silent,
) -> Report:
    """Convert CSV files into a recording at ``out``.

    UserError: the source does not exist, no column is a known series, or ``out`` exists.
    """
    clock, report = zone_of(timezone), Report()
    files = SourceFiles(source, report, progress)
    zoneless = 0
    with Draft(out, report) as draft:
        intake = SeriesIntake(draft, report)
        for path in files.paths:
            zoneless += _file(intake, files, path, (node or node_by_path(path, files.root), clock), report)
        topology = intake.finish()
        report.notes += assumed_zone(zoneless, timezone)
        draft.imported(
            topology,
            cluster,
            title="Panels of Grafana",
            summary="What a dashboard showed, as it was exported. What was wrong, if anything, is not known.",
            document="CSV of Grafana's panels",
        )
    return report


def recognise(_name: str, head: str) -> str | None:
    """Return why a file is taken for Grafana's, None where it is none."""
    return "a CSV of a Grafana panel (a column Time)" if _HEADER.match(head) else None


def _file(intake: SeriesIntake, files: SourceFiles, path: Path, otherwise: tuple[str, tzinfo], report: Report) -> int:
    """Take a file; return how many of its times named no zone."""
    node, zone = otherwise
    numbered = ((number, line) for number, line in files.lines(path) if not line.startswith("sep="))
    columns: list[tuple[str, dict[str, str]] | None] = []
    gathered: list[tuple[list[int], list[float]]] = []
    zoneless, before = 0, None
    for number, cells in _rows(numbered):
        if not columns:
            columns = [_series(cell, node) for cell in cells[1:]]
            gathered = [([], []) for _ in columns]
            for cell, column in zip(cells[1:], columns, strict=True):
                if column is None:
                    report.skip(_OWN_LEGEND, f"{where(path, number)}, {cell[:80]!r}")
            continue
        at, named = _moment(cells[0], zone, before)
        if at is None:
            report.skip("a row whose time cannot be read", where(path, number))
            continue
        before = at
        zoneless += not named
        for cell, (times, values) in zip(cells[1:], gathered, strict=False):
            found = _VALUE.fullmatch(cell.strip())
            value = number_of(found["number"]) if found is not None else None
            if value is not None:
                times.append(at)
                values.append(value)
            elif cell.strip() not in {"", "null", "NaN"}:
                report.skip(_SCALED, where(path, number))
    for column, (times, values) in zip(columns, gathered, strict=True):
        if column is not None and times:
            intake.take(*column, times, values, where(path))
    return zoneless


def _rows(lines: Iterator[tuple[int, str]]) -> Iterator[tuple[int, Sequence[str]]]:
    """Yield the cells of each line; the separator is that behind the first column's name."""
    separator = ","
    for place, (number, line) in enumerate(lines):
        if place == 0:
            separator = ";" if re.match(r'"?Time"?;', line) else ","
        try:
            cells = next(csv.reader([line], delimiter=separator), [])
        except csv.Error:
            continue
        if cells and separator == ";" and place:
            cells = [
                cells[0],
                *(cell.replace(".", "").replace(",", ".") if "," in cell else cell for cell in cells[1:]),
            ]
        if cells:
            yield number, cells


def _series(name: str, node: str) -> tuple[str, dict[str, str]] | None:
    """Return metric and labels that a column's name gives; None where it gives neither."""
    match = _SERIES.fullmatch(name.strip())
    if match is None:
        return None
    labels = dict(_LABEL.findall(match["labels"]))
    metric = match["metric"] or labels.pop("__name__", "")
    if not _METRIC.fullmatch(metric):
        return None
    if not labels.keys() & _HOSTS:
        labels["node"] = node
    return metric, labels


def _moment(text: str, zone: tzinfo, before: int | None) -> tuple[int | None, bool]:
    """Return a time in ms, None where it is none, and whether it says in which zone it is."""
    text = text.strip()
    if text.isascii() and text.isdecimal() and len(text) in {10, 13}:
        return int(text) * (1000 if len(text) == 10 else 1), True
    for form in _FORMS:
        try:
            at = instant_of(datetime.strptime(text, form), zone, before)  # noqa: DTZ007 - its zone is given
        except (ValueError, OverflowError):
            continue
        return (at if plausible(at) else None), False
    try:
        moment = datetime.fromisoformat(text)
        at = instant_of(moment, zone, before)
    except (ValueError, OverflowError):
        return None, False
    return (at if plausible(at) else None), moment.tzinfo is not None
