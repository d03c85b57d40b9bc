"""Imports kernel and system logs: dmesg, journalctl, syslog files, /dev/kmsg, and fabricmanager.log.

Every line becomes an event; its message is the line without the collector's time, host and ``kernel:`` tag. A line's
node is its host column; where the form has none, ``--node``, or else the file's or folder's name.
"""

import re
from collections.abc import Iterator
from dataclasses import replace
from datetime import UTC
from pathlib import Path
from typing import Annotated

from services.kit.errors import UsageError, UserError
from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.logs.log_judgement import interesting, severity_of
from services.recording.importers.parts.logs.log_lines import NO_TIME, LogLine, LogLines
from services.recording.importers.parts.moments import instant_option
from services.recording.importers.parts.source_files import SourceFiles, node_by_path, where
from services.recording.importers.parts.zones import assumed_zone, zone_of
from services.recording.model import Event, Gpu, Node, Topology

_BATCH = 10_000
_MOST_EVENTS = 1_000_000  # some 1.4 GB: a recording's log records are sorted in memory
_MAX_CONTINUATION = 16_384  # characters of one record of several lines
_GPU_UUID = re.compile(r"NVRM: GPU at (?:PCI:)?([0-9a-fA-F:]+): (GPU-[0-9a-fA-F-]{36})")
_GPU_NUMBER = re.compile(r"NVRM: Xid \((?:PCI:)?([0-9a-fA-F:]+)\).* from GPU(\d{1,2}) GSP")
_QUIET = "a line that is not about the cluster's hardware (--only-interesting)"


def convert(
    source: Annotated[Path, "a log file (.gz too), or a folder of them"],
    out: Path,
    *,
    node: Annotated[str, "the node, for lines that carry no host"] = "",
    year: Annotated[int, "year of the first line, for times without one"] = 0,
    near: Annotated[str, "a time near those of the lines (RFC 3339): gives each without a year its year"] = "",
    boot: Annotated[str, "time of boot (RFC 3339), for lines in seconds since boot"] = "",
    timezone: Annotated[str, "time zone of times that name none: UTC, Europe/Zurich, +02:00"] = "UTC",
    only_interesting: Annotated[bool, "keep only lines about GPUs, links, memory, PCIe and storage"] = False,
    cluster: Annotated[str, "name of the cluster"] = "imported",
    progress: Progress = silent,
) -> Report:
    """Convert logs into a recording of events at ``out``.

    UserError: the source does not exist, an option is malformed, no line could be imported, or ``out`` exists.
    """
    if year and not 1970 <= year < 2100:
        raise UsageError(f"--year {year}: is not from 1970 to 2099", remedy="correct the year")
    booted, about, times = instant_option(boot, "--boot"), instant_option(near, "--near"), zone_of(timezone)
    report = Report()
    files = SourceFiles(source, report, progress)
    fleet, taken, zoneless = _Fleet(), 0, 0
    with Draft(out, report) as draft:
        for path in files.paths:
            lines = LogLines(times, year or None, booted, about)
            name = node or node_by_path(path, files.root)
            events: list[Event] = []
            for line in _records(files, path, lines, report):
                if only_interesting and not interesting(line.message):
                    report.skip(_QUIET, where(path))
                    continue
                host = line.host or name
                fleet.take(host, line.message)
                events.append(
                    Event(
                        timestamp=line.at,
                        source=line.source,
                        node=host,
                        severity=severity_of(line.message, line.priority),
                        message=line.message,
                    )
                )
                if len(events) == _BATCH:
                    _check_number(taken := taken + _BATCH, path)
                    draft.add_events(events)
                    events = []
            draft.add_events(events)
            zoneless += lines.zoneless
        notes = assumed_zone(zoneless, timezone)
        if not node:
            notes.append("lines that carry no host are given to a node by the name of their file or folder")
        if year:
            notes.append(f"the first line without a year is taken to be of {year}; the year goes up at New Year")
        if about is not None:
            notes.append(f"times without a year are of the year that puts them nearest to {near}")
        if booted is not None:
            notes.append(f"seconds since boot are counted from {boot}")
        draft.imported(
            fleet.topology(),
            cluster,
            title=f"Logs of {fleet.names()}",
            summary="Lines of kernel and system logs as events. What was wrong, if anything, is not known.",
            document="kernel, system and fabric-manager logs",
            notes=notes,
        )
    return report


def _check_number(taken: int, path: Path) -> None:
    if taken > _MOST_EVENTS:
        remedy = "keep those about the hardware (--only-interesting), or import fewer files at a time"
        raise UserError(f"{where(path)}: the log records so far are more than {_MOST_EVENTS:,}", remedy=remedy)


def _records(files: SourceFiles, path: Path, lines: LogLines, report: Report) -> Iterator[LogLine]:
    """Yield a file's records; a fabric manager's record of several lines as one."""
    open_record: LogLine | None = None
    for number, text in files.lines(path):
        found = lines.read(text) if text.strip() else ""
        if isinstance(found, LogLine):
            if open_record is not None:
                yield open_record
            open_record = found
        elif open_record is not None and found == NO_TIME and open_record.continues:
            longer = f"{open_record.message}\n{text}"[:_MAX_CONTINUATION]
            open_record = replace(open_record, message=longer)
        elif found:
            report.skip(found, where(path, number))
    if open_record is not None:
        yield open_record


class _Fleet:
    """The nodes that logs speak of, and those of their GPUs whose number a line gives."""

    def __init__(self) -> None:
        self._nodes: dict[str, None] = {}
        self._uuids: dict[tuple[str, str], str] = {}
        self._numbers: dict[tuple[str, str], int] = {}

    def take(self, node: str, message: str) -> None:
        """Note what a line says. An address alone gives no number: numbers are left out rather than guessed."""
        self._nodes.setdefault(node)
        if not message.startswith("NVRM: "):
            return
        match = _GPU_UUID.match(message)
        if match is not None:
            self._uuids[node, bus_id(match[1])] = match[2]
        match = _GPU_NUMBER.match(message)
        if match is not None:
            self._numbers.setdefault((node, bus_id(match[1])), int(match[2]))

    def names(self) -> str:
        """Return the nodes in words."""
        return next(iter(self._nodes)) if len(self._nodes) == 1 else f"{len(self._nodes)} nodes"

    def topology(self) -> Topology:
        """Return the nodes, with the GPUs that are known by number."""
        gpus: dict[str, dict[int, Gpu]] = {}
        for (node, bus), number in sorted(self._numbers.items()):
            known = Gpu(gpu=number, uuid=self._uuids.get((node, bus)), pci_bus_id=bus)
            gpus.setdefault(node, {}).setdefault(number, known)
        nodes = [
            Node(name=name, gpus=[gpu for _, gpu in sorted(gpus.get(name, {}).items())]) for name in sorted(self._nodes)
        ]
        return Topology(nodes=nodes)


def bus_id(address: str) -> str:
    """Return a PCI address as DCGM writes it: ``0000:9b:00`` becomes ``00000000:9b:00.0``."""
    domain, _, rest = address.lower().rpartition(":")[0].rpartition(":")
    device = address.lower().rpartition(":")[2]
    return f"{domain.rjust(8, '0')}:{rest}:{device}" + ("" if "." in device else ".0")


_LOOKED_AT = 40  # lines
_ANY_YEAR = 2000


def recognise(_name: str, head: str) -> str | None:
    """Return why a file is taken for a kernel or system log, None where it is none."""
    if '"__REALTIME_TIMESTAMP"' in head and head.lstrip().startswith("{"):
        return "a journald export (JSON)"
    lines = [line for line in head.splitlines() if line.strip()][:_LOOKED_AT]
    reader = LogLines(UTC, _ANY_YEAR, 0)
    known = sum(isinstance(reader.read(line), LogLine) for line in lines)
    return f"{known} of its first {len(lines)} lines are of a kernel or system log" if 2 * known > len(lines) else None
