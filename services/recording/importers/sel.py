"""Imports event logs and sensors of management controllers: ipmitool's `sel` and `sdr`, racadm's and iLO's logs.

A SEL has only the BMC's own times, which drift: they are kept as the events' times, and ``--clock-skew-s`` says in
recording.yaml by how much. A record from before the BMC's clock was set is put at the next record that has a time.
"""

import re
from collections import Counter
from datetime import UTC
from pathlib import Path
from typing import Annotated

from services.kit.errors import UsageError
from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.machines.sel_blocks import RULE, Block, blocks_of
from services.recording.importers.parts.machines.sel_lines import SelRecord, SensorReading, days_come_first, read_line
from services.recording.importers.parts.moments import DumpClock, clock_skew, dump_clock, iso_instant, ms_of
from services.recording.importers.parts.source_files import SourceFiles, node_by_path, number_of, where
from services.recording.importers.parts.stream_rows import StreamRows
from services.recording.model import Event, Node, Topology

_STAMP = re.compile(r"[#=\s]*(?P<time>20\d\d-\d\d-\d\d[T ]\d\d:\d\d:\d\d\S*|1\d{9}(?:\.\d+)?)[=\s]*")
_LONGEST_STAMP = 100  # characters
_UNDATED = "put at the record after it: the BMC's clock was not set yet"
_REPEATED = "a log record that an earlier dump of the log had"
_NO_NEIGHBOUR = "a record without a time, with none in its log that has one"


def convert(
    source: Annotated[Path, "a file of ipmitool, racadm or iLO output, or a folder of them"],
    out: Path,
    *,
    node: Annotated[str, "the node, for lines without a host before them (else the file's name)"] = "",
    clock_skew_s: Annotated[float, "seconds by which the BMC's clock is ahead of the collector's"] = 0.0,
    timezone: Annotated[str, "time zone of the BMC's clock and of file names: UTC, Europe/Zurich, +02:00"] = "UTC",
    start: Annotated[str, "time of the first sensor dump (RFC 3339), where its name and date do not give it"] = "",
    every: Annotated[float, "seconds between sensor dumps, with --start"] = 0.0,
    cluster: Annotated[str, "name of the cluster"] = "imported",
    progress: Progress = silent,
) -> Report:
    """Convert ipmitool output into a recording at ``out``: SEL records become events, sensors rows of bmc.

    UserError: the source does not exist, an option is malformed, nothing could be imported, or ``out`` exists.
    """
    if not abs(clock_skew_s) < 1e9:
        raise UsageError(f"--clock-skew-s {clock_skew_s:g}: no clock is so far off", remedy="give seconds")
    report = Report()
    files = SourceFiles(source, report, progress)
    clock = dump_clock(files.root, start, every, timezone)
    with Draft(out, report) as draft:
        work = _Import(draft, report, clock)
        for path in files.paths:
            work.file(files, path, node or node_by_path(path, files.root))
        work.rows.finish()
        notes = [
            f"times of the BMC that name no zone are taken as {timezone} (--timezone says otherwise)",
            *work.notes(),
        ]
        names = sorted(work.nodes)
        draft.imported(
            Topology(nodes=[Node(name=name) for name in names]),
            cluster,
            title=f"Event log and sensors of {names[0] if len(names) == 1 else f'{len(names)} BMCs'}",
            summary="What management controllers logged and measured. What was wrong, if anything, is not known.",
            document="output of ipmitool sel and sdr",
            **clock_skew(work.with_log, clock_skew_s, notes),
            notes=notes,
        )
    return report


class _Import:
    """Takes files of ipmitool output into a draft."""

    def __init__(self, draft: Draft, report: Report, clock: DumpClock) -> None:
        self.rows = StreamRows(draft, "bmc")
        self.nodes: dict[str, None] = {}
        self.with_log: set[str] = set()
        self._draft, self._report, self._clock = draft, report, clock
        self._undated = 0
        self._dumps: dict[str, int] = {}
        self._timed_by: set[str] = set()
        self._known: set[int] = set()

    def file(self, files: SourceFiles, path: Path, name: str) -> None:
        """Take one file: a SEL, or one dump of sensors or several with a line of the time before each."""
        moment: int | None = None
        seen: Counter[tuple[str, str]] = Counter()
        logs: dict[str, list[SelRecord]] = {}
        day_first = days_come_first(files.head(path))
        for number, text in blocks_of(files.lines(path)):
            if isinstance(text, Block):
                found: SelRecord | SensorReading | str = text.record(self._clock.zone, day_first=day_first)
            else:
                stamp = _STAMP.fullmatch(text) if len(text) < _LONGEST_STAMP else None
                if stamp is not None:
                    moment, seen = self._stamped(stamp["time"]), Counter()
                if stamp is not None or not text.strip() or RULE.fullmatch(text):
                    continue
                found = read_line(text, self._clock.zone, day_first=day_first)
            if isinstance(found, str):
                self._report.skip(found, where(path, number))
                continue
            host = found.host or name
            if isinstance(found, SelRecord):
                logs.setdefault(host, []).append(found)
                continue
            if moment is None:
                moment, how = self._clock.of(path, self._dumps.get(host, 0))
                self._dumps[host] = self._dumps.get(host, 0) + 1
                self._timed_by.add(how)
            # Some BMCs give several sensors one name: their order distinguishes them.
            seen[host, found.sensor] += 1
            times = seen[host, found.sensor]
            sensor = found.sensor if times == 1 else f"{found.sensor} #{times}"
            self.nodes.setdefault(host)
            self.rows.add(moment, (host, sensor), {"reading": found.reading, "unit": found.unit, "state": found.state})
        for host, records in logs.items():
            self._log(host, records, path)

    def _stamped(self, text: str) -> int | None:
        """Return the time on a line before a dump; None where it is none, so that the file's own time holds."""
        seconds = number_of(text)
        if seconds is not None:
            return ms_of(seconds)
        return iso_instant(text, self._clock.zone)

    def _log(self, host: str, records: list[SelRecord], path: Path) -> None:
        """Add one BMC's records; those without a time at the next that has one, or else at the last before."""
        dated = [record.at for record in records if record.at is not None]
        if not dated:
            self._report.skip(_NO_NEIGHBOUR, where(path), len(records))
            return
        at, events = dated[-1], []
        for record in reversed(records):
            at = at if record.at is None else record.at
            line = hash((host, record.message))
            if line in self._known:
                self._report.skip(_REPEATED, where(path))
                continue
            self._known.add(line)
            self._undated += record.at is None
            events.append(
                Event(timestamp=at, source="sel", node=host, severity=record.severity, message=record.message)
            )
        self.nodes.setdefault(host)
        self.with_log.add(host)
        self._draft.add_events(reversed(events))

    def notes(self) -> list[str]:
        """Return what was assumed about times."""
        notes = [f"{self._undated} log records were {_UNDATED}"] if self._undated else []
        if "mtime" in self._timed_by:
            notes.append("sensor dumps whose name has no time are given that of their file's last change")
        return notes


_LOOKED_AT = 40  # lines


def recognise(_name: str, head: str) -> str | None:
    """Return why a file is taken for a management controller's log or sensors, None where it is none."""
    lines = [line for line in head.splitlines() if line.strip()][:_LOOKED_AT]
    found = [read_line(line, UTC) for line in lines]
    logged = sum(isinstance(one, SelRecord) for one in found)
    measured = sum(isinstance(one, SensorReading) for one in found)
    if 2 * (logged + measured) > len(lines):
        return f"lines of ipmitool: {'an event log' if logged > measured else 'sensors'}"
    blocks = sum(isinstance(part, Block) for _, part in blocks_of(enumerate(lines)))
    return "blocks of ipmitool sel list -v, racadm or iLO" if blocks > 1 else None
