"""Imports saved scrapes of dcgm-exporter: the text of /metrics, one file a moment, or lines with times of their own.

Old and new field names, old and new label names, a sample for every job on a GPU, an XID series for every code: all
become the same rows. Scrapes of node_exporter, ipmi_exporter and sonic-exporter in the same folder are taken too. A
file's time is that of its lines; else ``--start``, the time in its name, or its modification time.
"""

import math
import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from services.kit.errors import UserError
from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.moments import LATEST, DumpClock, dump_clock, plausible
from services.recording.importers.parts.schedulers.derived_jobs import JobSpans
from services.recording.importers.parts.series.census import FALLBACK, Census, Place
from services.recording.importers.parts.series.series_intake import WideRows
from services.recording.importers.parts.source_files import SourceFiles, node_by_path, where

SAMPLES_A_FILE = 8_000_000
"""Of one file, in memory until its rows are whole: some 300 MB."""
_LINE = re.compile(
    r"(?P<head>(?P<name>[a-zA-Z_:][a-zA-Z0-9_:]*)?"  # none as promtool tsdb dump writes it
    r'(?:\{(?P<labels>(?:[^"}]|"(?:[^"\\]|\\.)*")*)\})?)'
    r"\s+(?P<value>[^\s#]\S*)(?:\s+(?P<time>[^\s#]\S*))?"
    r"(?:\s+# .*)?\s*"  # an exemplar of OpenMetrics
)
_LABEL = re.compile(r'\s*([a-zA-Z_][a-zA-Z0-9_]*)\s*=\s*"((?:[^"\\]|\\.)*)"\s*,?')
_ESCAPED = re.compile(r"\\(.)")
_SCRAPE = re.compile(
    r"(?:dcgm|metrics?|scrapes?|exporter|prom(?:etheus)?|k8s|kube(?:rnetes)?|cluster|[-_. \d])+", re.IGNORECASE
)
"""File names that say what kind of file it is and not which node's."""
_BLANK = frozenset(
    {2147483632.0, 2147483633.0, 2147483634.0, 2147483635.0, float(0x7FFFFFFFFFFFFFF0), 140737488355328.0}
)
"""What DCGM fills in for a reading that it does not have (dcgm_structs.h: DCGM_INT32_BLANK and its kin)."""
_LATEST_S = 1e11
"""A time below it is in seconds: in milliseconds it would be before 1973."""


@dataclass
class _Scrape:
    """The samples of one file: columns by stream, and whether its lines have times."""

    entities: dict[tuple[str, str], list[int]] = field(default_factory=dict)
    values: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    times: dict[tuple[str, str], list[float]] = field(default_factory=dict)
    """Milliseconds; NaN where the line has no time."""
    jobs: dict[Place, list[float]] = field(default_factory=dict)
    node: str = ""
    samples: int = 0
    timeless: int = 0


@dataclass
class _Import:
    """One import under way."""

    files: SourceFiles
    clock: DumpClock
    node: str
    report: Report
    rows: WideRows
    census: Census = field(default_factory=Census)
    jobs: JobSpans = field(default_factory=JobSpans)
    places: dict[tuple[str, str], Place | str] = field(default_factory=dict)
    taken: Counter[str] = field(default_factory=Counter)
    timed_by: Counter[str] = field(default_factory=Counter)
    latest: int = 0


def convert(
    source: Annotated[Path, "a file with the text of /metrics (.gz too), or a folder of them"],
    out: Path,
    *,
    node: Annotated[str, "the node; else the label Hostname, else the file's or folder's name"] = "",
    start: Annotated[str, "time of the first file of a node (RFC 3339), where lines have none"] = "",
    every: Annotated[float, "seconds between a node's files, with --start"] = 0.0,
    timezone: Annotated[str, "time zone of times in file names that name none"] = "UTC",
    cluster: Annotated[str, "name of the cluster"] = "imported",
    progress: Progress = silent,
) -> Report:
    """Convert scrapes into a recording at ``out``.

    UserError: the source does not exist, an option is malformed, a file is too large to be one scrape, nothing could
    be imported, or ``out`` exists.
    """
    report = Report()
    files = SourceFiles(source, report, progress)
    clock = dump_clock(files.root, start, every, timezone)
    with Draft(out, report) as draft:
        work = _Import(files, clock, node, report, WideRows(draft))
        for path in files.paths:
            _file(work, path)
            work.rows.make_room()
        work.rows.flush()
        topology = work.census.topology()
        draft.add_jobs(work.jobs.jobs(work.latest, topology, report.skip))
        if work.rows.repeated:
            reason = "another sample had that reading already (dcgm-exporter repeats it for every job on a GPU)"
            report.skip(reason, files.root.name, work.rows.repeated)
        notes = {
            "option": "files' times are counted from --start",
            "name": f"files' times are those in their names ({timezone})",
            "mtime": "files' times are those of their last change: nothing else gives them",
        }
        draft.imported(
            topology,
            cluster,
            title=f"Scrapes of {len(topology.nodes)} nodes",
            summary="Saved scrapes of dcgm-exporter. What was wrong, if anything, is not known.",
            document="dcgm-exporter, text of /metrics",
            notes=[*(words for kind, words in notes.items() if work.timed_by[kind]), *work.census.notes()],
        )
    return report


def _file(work: _Import, path: Path) -> None:
    """Take one file: first its samples, then, when it is known whose they are, their time."""
    scrape = _Scrape()
    fallback = _fallback(path, work.files.root)
    for number, line in work.files.lines(path):
        if not line.strip() or line.startswith("#"):
            continue
        problem = _sample(work, scrape, line, fallback)
        if problem:
            work.report.skip(problem, where(path, number))
        if scrape.samples > SAMPLES_A_FILE:
            raise UserError(
                f"{where(path)}: holds more than {SAMPLES_A_FILE:,} samples", remedy="split it by time", exit_code=1
            )
    if not scrape.samples:
        work.report.skip("a file without a sample that has a place in a recording", where(path))
        return
    work.report.read["samples"] += scrape.samples
    moment = 0
    if scrape.timeless:
        moment, timed_by = work.clock.of(path, work.taken[scrape.node])
        work.taken[scrape.node] += 1
        work.timed_by[timed_by] += 1
    if not plausible(moment):
        work.report.skip("a file whose time cannot be", where(path))
        return
    _settle(work, scrape, moment)


def _sample(work: _Import, scrape: _Scrape, line: str, fallback: str) -> str | None:
    """Take one line; return why it was not."""
    # A series' name and labels are the same in every scrape: most lines are known by them.
    cut = line.rfind("} ") + 1
    place, words = work.places.get((line[:cut], fallback)), line[cut:].split()
    if place is None or not 1 <= len(words) <= 2:
        found = _LINE.fullmatch(line)
        if found is None:
            return "a line that is no sample"
        words = [word for word in (found["value"], found["time"]) if word]
        place = work.places.get((found["head"], fallback))
        if place is None:
            place = work.places[found["head"], fallback] = _place(work, found, fallback)
    if isinstance(place, str):
        return place
    try:
        value = float(words[0].replace("_", "?"))
    except ValueError:
        return "a value that is no number"
    try:
        at = _milliseconds(words[1]) if len(words) > 1 else math.nan
    except ValueError:
        return "a time that is none"
    stream = place.reading.stream
    # A loss may be NaN; any other reading that is NaN, or infinite, is none.
    if math.isinf(value) or (math.isnan(value) and stream != "steps") or (stream == "dcgm" and value in _BLANK):
        return "a reading that is not there (blank or NaN)"
    key = stream, place.reading.column
    scrape.entities.setdefault(key, []).append(work.rows.of(stream).entity(place.key))
    scrape.values.setdefault(key, []).append((value - place.reading.offset) / place.reading.scale)
    scrape.times.setdefault(key, []).append(at)
    scrape.node = scrape.node or str(place.key[0])
    scrape.samples += 1
    scrape.timeless += math.isnan(at)
    if place.job or stream == "steps":
        known = scrape.jobs.setdefault(place, [at, at])
        known[:] = min(known[0], at), max(known[1], at)
    return None


def _milliseconds(text: str) -> float:
    """Return a line's time: OpenMetrics counts seconds, Prometheus' own text milliseconds. ValueError for no time."""
    at = float(text)
    ms = at * 1000 if at < _LATEST_S else at
    if not 0 <= ms < LATEST:
        raise ValueError(text)
    return float(round(ms))


def _place(work: _Import, line: re.Match[str], fallback: str) -> Place | str:
    labels = dict(_labels(line["labels"] or ""))
    if work.node:
        labels["Hostname"] = work.node
    elif fallback != "node" or not (labels.keys() & {"Hostname", "hostname", "instance", "node"}):
        labels[FALLBACK] = fallback
    place = work.census.place(line["name"] or labels.pop("__name__", ""), labels)
    if isinstance(place, str):
        return f"{place} (samples)"
    return place


def _labels(text: str) -> Iterator[tuple[str, str]]:
    for name, value in _LABEL.findall(text):
        yield name, _ESCAPED.sub(lambda found: "\n" if found[1] == "n" else found[1], value)


def _fallback(path: Path, root: Path) -> str:
    """Return the node that a file's path names, ``node`` where it names none."""
    name = node_by_path(path, root)
    if not _SCRAPE.fullmatch(name):
        return name
    folders = path.relative_to(root).parts[:-1] if path.is_relative_to(root) else ()
    return next((part for part in reversed(folders) if not _SCRAPE.fullmatch(part)), "node")


def _settle(work: _Import, scrape: _Scrape, moment: int) -> None:
    """Give the samples of a file their times."""
    for (stream, column), entities in scrape.entities.items():
        times = [moment if math.isnan(at) else int(at) for at in scrape.times[stream, column]]
        work.rows.of(stream).add_few(column, entities, times, scrape.values[stream, column])
        work.latest = max(work.latest, *times)
    for owner, span in scrape.jobs.items():
        first, last = (moment if math.isnan(at) else int(at) for at in span)
        work.jobs.seen(owner.reading.stream, owner, first, last)


_METRICS = re.compile(r"^(?:# (?:HELP|TYPE|UNIT) [a-zA-Z_:]|[a-zA-Z_:][a-zA-Z0-9_:]*\{.*\} +[-+\d.NI])", re.MULTILINE)


def recognise(_name: str, head: str) -> str | None:
    """Return why a file is taken for series of exporters, None where it is none."""
    if head.startswith('{__name__="'):
        return "series as promtool tsdb dump prints them"
    return "text of /metrics or of OpenMetrics" if _METRICS.search(head) else None
