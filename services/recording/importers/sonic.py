"""Imports counters of SONiC switches: dumps of COUNTERS_DB as JSON, and gNMI answers.

One dump is one moment of one switch: a file, or the files of a folder that have different parts of it. The switch is
``--switch``, or the hostname in the dump, or the folder's or file's name.
"""

import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated

from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.fabric.sonic_dump import SwitchDump, port_in
from services.recording.importers.parts.moments import DumpClock, dump_clock, plausible
from services.recording.importers.parts.source_files import SourceFiles, clean, node_by_path, where
from services.recording.importers.parts.stream_rows import StreamRows
from services.recording.model import Link, Switch, Topology

_PART = re.compile(
    r"(?:counters?|ports?|rates|periodic|queues?|interfaces|db|gnmi|pfc|sonic)(?:\b|_)|.*_(?:map|table|db)\b",
    re.IGNORECASE,
)
_MAPS_FIRST = re.compile(r"_MAP\b|_MAP\.|PORT_TABLE", re.IGNORECASE)


def convert(
    source: Annotated[Path, "a dump (JSON), or a folder of them; a folder below it for each switch"],
    out: Path,
    *,
    switch: Annotated[str, "name of the switch, where all dumps are of one"] = "",
    start: Annotated[str, "time of the first dump (RFC 3339), where its name and date do not give it"] = "",
    every: Annotated[float, "seconds between dumps of a switch, with --start"] = 0.0,
    timezone: Annotated[str, "time zone of times in file names: UTC, Europe/Zurich, +02:00"] = "UTC",
    cluster: Annotated[str, "name of the cluster"] = "imported",
    progress: Progress = silent,
) -> Report:
    """Convert switch dumps into a recording at ``out``: a row for each port and moment.

    UserError: the source does not exist, an option is malformed, no port has counters, or ``out`` exists.
    """
    report = Report()
    files = SourceFiles(source, report, progress)
    clock = dump_clock(files.root, start, every, timezone)
    with Draft(out, report) as draft:
        work = _Import(StreamRows(draft, "switch"), report, clock)
        for path in sorted(files.paths, key=lambda path: (path.parent, not _MAPS_FIRST.search(path.name), path.name)):
            document = files.document(path)
            if document is not None:
                dump = SwitchDump()
                dump.take(document, port_in(clean(path.name)))
                work.take(path, dump, switch or dump.host or switch_by_path(path, files.root))
        work.finish()
        notes = ["explicit congestion marks are summed over a port's queues where only queues count them"]
        if "mtime" in work.timed_by:
            notes.append("a dump whose name has no time is given that of its file's last change")
        draft.imported(
            work.topology(),
            cluster,
            title=f"Port counters of {len(work.switches)} SONiC switch(es)",
            summary="Cumulative counters of switch ports. What was wrong, if anything, is not known.",
            document="SONiC COUNTERS_DB dumps or gNMI answers",
            notes=notes,
        )
    return report


def switch_by_path(path: Path, root: Path) -> str:
    """Return the switch whose dump a file is: by its name where that is no part of a dump's, else by its folder's."""
    if _PART.match(path.name) or port_in(path.name) is not None:
        path = path.with_name("data")
    name = node_by_path(path, root)
    return root.resolve().name or "switch" if name == "node" else name


@dataclass
class _SwitchState:
    """One switch: the dump that is being put together, and what holds for all its dumps."""

    names: SwitchDump = field(default_factory=SwitchDump)
    open_dump: SwitchDump | None = None
    at: int = 0
    path: Path = Path()
    dumps: int = 0


class _Import:
    """Puts documents together into dumps, and dumps into rows."""

    def __init__(self, rows: StreamRows, report: Report, clock: DumpClock) -> None:
        self.switches: dict[str, _SwitchState] = {}
        self.timed_by: set[str] = set()
        self._rows, self._report, self._clock = rows, report, clock

    def take(self, path: Path, dump: SwitchDump, name: str) -> None:
        """Take a document: part of the open dump, unless it repeats a port of that or has another time of its own."""
        state = self.switches.setdefault(name.replace(":", "_"), _SwitchState())
        state.names.merge_names(dump)
        state.names.role = dump.role or state.names.role
        if not dump.has_counters():
            if state.open_dump is not None:
                state.open_dump.merge(dump)
            elif not dump.ports and not dump.oper_up and not dump.queues and not dump.queue_objects:
                self._report.skip("a document without counters of ports", where(path))
            return
        repeats = state.open_dump is not None and state.open_dump.repeats(dump)
        at, how = self._time(path, dump, state.dumps + repeats)
        other_time = how in {"document", "name"} and at != state.at
        if state.open_dump is None or repeats or other_time:
            self._close(name.replace(":", "_"), state)
            state.open_dump, state.at, state.path = dump, at, path
            self.timed_by.add(how)
        else:
            state.open_dump.merge(dump)

    def _time(self, path: Path, dump: SwitchDump, index: int) -> tuple[int, str]:
        """Return when dump number `index` of a switch was taken; what the document says goes before its file's name."""
        if self._clock.at is None and dump.at is not None and plausible(dump.at):
            return dump.at, "document"
        return self._clock.of(path, index)

    def _close(self, name: str, state: _SwitchState) -> None:
        """Write the rows of a switch's open dump."""
        dump, state.open_dump = state.open_dump, None
        if dump is None:
            return
        state.dumps += 1
        dump.ports = state.names.ports | dump.ports
        dump.queue_objects = state.names.queue_objects | dump.queue_objects
        found, unnamed = dump.rows()
        if unnamed:
            self._report.skip("counters of a port that no name map names", where(state.path), unnamed)
        for port, values in found.items():
            self._rows.add(state.at, (name, port), values)
        self._report.read["dumps"] += 1

    def finish(self) -> None:
        """Write what is still open."""
        for name, state in self.switches.items():
            self._close(name, state)
        self._rows.finish()

    def topology(self) -> Topology:
        """Return the switches, and the cables between two of them."""
        switches = [
            Switch(name=name, role=state.names.role) if state.names.role else Switch(name=name)
            for name, state in sorted(self.switches.items())
            if state.dumps
        ]
        known = {switch.name for switch in switches}
        links: dict[frozenset[str], Link] = {}
        for name in sorted(known):
            names = self.switches[name].names
            for port, (far, far_port) in sorted(names.neighbours.items()):
                ends = f"{name}:{port}", f"{far}:{far_port}"
                if far in known and far_port:
                    links.setdefault(frozenset(ends), Link(a=ends[0], b=ends[1], gbps=names.speed_gbps.get(port)))
        return Topology(switches=switches, links=list(links.values()))


_DUMPED = re.compile(r'"(?:COUNTERS(?::oid|_PORT_NAME_MAP|:Ethernet)|SAI_PORT_STAT_)')


def recognise(_name: str, head: str) -> str | None:
    """Return why a file is taken for a SONiC switch's counters, None where it is none."""
    return "JSON of SONiC's COUNTERS_DB" if head.lstrip().startswith(("{", "[")) and _DUMPED.search(head) else None
