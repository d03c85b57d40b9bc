"""Imports Redfish: trees of resources as collectors and mockups keep them, or single bodies (JSON).

A tree, or a folder of single bodies with one time in their names, is one moment of one management controller: sensors
and supplies become rows of bmc, log entries events, and what an HGX baseboard says of its GPUs rows of dcgm, where it
means the same as a DCGM field. GPU numbers are the baseboard's own.
"""

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from email.utils import parsedate_to_datetime
from itertools import count
from pathlib import Path
from typing import Annotated, Any

from services.kit.errors import UsageError
from services.kit.times import epoch_ms
from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.machines.redfish_bodies import (
    Body,
    GpuFields,
    LogEntry,
    Reading,
    kind_of,
    read_body,
)
from services.recording.importers.parts.machines.sel_lines import Severity, severity_of
from services.recording.importers.parts.moments import (
    DumpClock,
    clock_skew,
    dump_clock,
    iso_instant,
    plausible,
    time_in_name,
)
from services.recording.importers.parts.source_files import SourceFiles, clean, node_by_path, where
from services.recording.importers.parts.stream_rows import StreamRows, Value
from services.recording.model import Event, Gpu, Node, Topology

_MAX_DEPTH = 6  # of members within collections within collections
_CLOCK_UNSET = 946_684_800_000  # 2000-01-01: a BMC that shows less has not been given the time yet
_TOP = {"Chassis", "Systems", "Managers", "redfish", "SessionService", "UpdateService", "TelemetryService"}
_CHASSIS = re.compile(r"/(?:Chassis|Systems)/([^/]+)/")
_OF_HOST = re.compile(r"/Systems/(?!HGX)")
_SEVERITY: dict[str, Severity] = {"ok": "info", "informational": "info", "warning": "warning", "critical": "critical"}


def convert(
    source: Annotated[Path, "a tree of Redfish resources, a folder of trees or bodies, or one body (JSON)"],
    out: Path,
    *,
    node: Annotated[str, "the node, where all is of one (else the name of the tree's folder)"] = "",
    start: Annotated[str, "time of the first tree (RFC 3339), where names and Date headers do not give it"] = "",
    every: Annotated[float, "seconds between trees of a node, with --start"] = 0.0,
    timezone: Annotated[str, "time zone of times that name none: UTC, Europe/Zurich, +02:00"] = "UTC",
    clock_skew_s: Annotated[float, "seconds by which the BMC's clock is ahead of the collector's"] = 0.0,
    cluster: Annotated[str, "name of the cluster"] = "imported",
    progress: Progress = silent,
) -> Report:
    """Convert Redfish resources into a recording at ``out``.

    UserError: the source does not exist, an option is malformed, nothing could be imported, or ``out`` exists.
    """
    if not abs(clock_skew_s) < 1e9:
        raise UsageError(f"--clock-skew-s {clock_skew_s:g}: no clock is so far off", remedy="give seconds")
    report = Report()
    files = SourceFiles(source, report, progress)
    clock = dump_clock(files.root, start, every, timezone)
    with Draft(out, report) as draft:
        work = _Import(draft, report, clock)
        for snapshot in snapshots(files, node, clock.zone):
            work.snapshot(files, snapshot)
        work.finish()
        notes = ["GPU numbers are the baseboard's own; the driver may count in another order", *work.notes()]
        draft.imported(
            work.topology(),
            cluster,
            title=f"Redfish readings of {len(work.taken)} machine(s)",
            summary="What management controllers measured and logged. What was wrong, if anything, is not known.",
            document="Redfish resources",
            **clock_skew(work.with_log, clock_skew_s, notes),
            notes=notes,
        )
    return report


@dataclass
class Snapshot:
    """Files of one moment of one management controller."""

    node: str
    paths: list[Path] = field(default_factory=list)


def snapshots(files: SourceFiles, node: str, zone: tzinfo) -> list[Snapshot]:
    """Return the files by tree: those below one ``redfish`` or ``Chassis`` folder, or with one time in their names."""
    found: dict[tuple[Path, int | None], Snapshot] = {}
    for path in files.paths:
        inside = path.relative_to(files.root).parts if path.is_relative_to(files.root) else (path.name,)
        top = next((place for place, part in enumerate(inside) if part in _TOP), len(inside) - 1)
        root = files.root.joinpath(*inside[:top])
        moment = next((ms for part in reversed(inside) if (ms := time_in_name(part, zone)) is not None), None)
        alone = len(files.paths) == 1 and len(inside) == 1  # a folder's bodies are called by what they are
        name = node or node_by_path(path if alone else root / "data.json", files.root)
        if name == "node":
            name = clean(files.root.resolve().name) or "node"
        found.setdefault((root, moment), Snapshot(name)).paths.append(path)
    return list(found.values())


@dataclass
class _Machine:
    """What is known of a node's GPUs, and which sensor resource has which name."""

    gpus: dict[int, dict[str, Any]] = field(default_factory=dict)
    names: dict[str, str | None] = field(default_factory=dict)


class _Import:
    """Takes snapshots into a draft."""

    def __init__(self, draft: Draft, report: Report, clock: DumpClock) -> None:
        self.nodes: dict[str, _Machine] = {}
        self.with_log: set[str] = set()
        self.taken: dict[str, int] = {}
        self._draft, self._report, self._clock = draft, report, clock
        self._bmc, self._dcgm = StreamRows(draft, "bmc"), StreamRows(draft, "dcgm")
        self._timed_by: set[str] = set()
        self._entries: set[int] = set()
        self._unset = 0

    def snapshot(self, files: SourceFiles, snapshot: Snapshot) -> None:
        """Take one tree: its sensors first, then the copies of readings whose sensor it does not have."""
        dated: int | None = None
        readings: dict[str, Reading] = {}
        copies: list[Reading] = []
        entries: list[tuple[LogEntry, Path]] = []
        gpus: dict[int, dict[str, float]] = {}
        machine = self.nodes.setdefault(snapshot.node, _Machine())
        own: set[str] = set()
        for path in snapshot.paths:
            document = files.document(path)
            dated = dated or date_of(document)
            for body in bodies(document):
                useful = False
                for found in read_body(body):
                    useful = True
                    if isinstance(found, str):
                        self._report.skip(found, where(path))
                    elif isinstance(found, LogEntry):
                        entries.append((found, path))
                    elif isinstance(found, GpuFields):
                        main = found.of_baseboard and not _OF_HOST.search(path.as_posix())
                        _fill(gpus.setdefault(found.gpu, {}), found.fields, main)
                        _fill(machine.gpus.setdefault(found.gpu, {}), _known(found.facts), main)
                    elif kind_of(body) == "Sensor":
                        own.add(found.uri or "")
                        readings.setdefault(_sensor_name(machine, found), found)
                    else:
                        copies.append(found)
                self._report.read["resources"] += 1
                if not useful:
                    self._report.skip("a resource that holds nothing for a recording", where(path))
        for found in copies:
            if found.uri is None or found.uri not in own:
                readings.setdefault(_sensor_name(machine, found), found)
        if readings or gpus or entries:
            self._rows(snapshot, dated, readings, gpus, entries)

    def _rows(
        self,
        snapshot: Snapshot,
        dated: int | None,
        readings: dict[str, Reading],
        gpus: dict[int, dict[str, float]],
        entries: list[tuple[LogEntry, Path]],
    ) -> None:
        node = snapshot.node
        index = self.taken.get(node, 0)
        self.taken[node] = index + 1
        times = [found for path in snapshot.paths if (found := self._clock.stated(path, index)) is not None]
        if not times:
            times = [(dated, "date")] if dated is not None else [self._clock.of(path, index) for path in snapshot.paths]
        at, how = max(times)
        self._timed_by.add(how)
        for sensor, reading in readings.items():
            values: dict[str, Value] = {"reading": reading.reading, "unit": reading.unit, "state": reading.state}
            self._bmc.add(at, (node, sensor), values)
        for gpu, fields in gpus.items():
            if fields:
                self._dcgm.add(at, (node, gpu), fields)
        self._events(node, at, entries)

    def _events(self, node: str, at: int, entries: list[tuple[LogEntry, Path]]) -> None:
        events = []
        for entry, path in entries:
            line = hash((node, entry.message))
            if line in self._entries:
                self._report.skip("a log entry that an earlier tree had", where(path))
                continue
            self._entries.add(line)
            created = iso_instant(entry.created, self._clock.zone)
            if created is None:
                self._report.skip("a time that cannot be", where(path))
                continue
            if created < _CLOCK_UNSET:
                self._unset += 1
                created = at
            severity = _SEVERITY.get(entry.severity) or severity_of(entry.message)
            events.append(Event(timestamp=created, source="sel", node=node, severity=severity, message=entry.message))
            self.with_log.add(node)
        self._draft.add_events(events)

    def finish(self) -> None:
        """Hand on the rows that are left."""
        self._bmc.finish()
        self._dcgm.finish()

    def notes(self) -> list[str]:
        """Return what was assumed about times."""
        notes = []
        if self._unset:
            notes.append(f"{self._unset} log entries from before the BMC's clock was set have their tree's time")
        if "mtime" in self._timed_by:
            notes.append("a tree whose names have no time is given that of its files' last change")
        return notes

    def topology(self) -> Topology:
        """Return the machines that gave anything, with their GPUs."""
        nodes = []
        for name in sorted(self.taken):
            known = self.nodes[name].gpus
            models = sorted({facts["model"] for facts in known.values() if "model" in facts})
            gpus = [
                Gpu(gpu=number, **{key: value for key, value in facts.items() if key != "model"})
                for number, facts in sorted(known.items())
            ]
            node = Node(name=name, gpus=gpus, gpu_model=", ".join(models)) if models else Node(name=name, gpus=gpus)
            nodes.append(node)
        return Topology(nodes=nodes)


def bodies(document: Any, depth: int = 0) -> Iterator[Body]:
    """Yield the resources in a document: itself, or the members that a collection holds in full."""
    if isinstance(document, list):
        for item in document if depth < _MAX_DEPTH else ():
            yield from bodies(item, depth + 1)
    elif isinstance(document, dict):
        inner = document.get("body")
        members = next((document[name] for name in ("Members", "Events", "value") if name in document), None)
        if isinstance(inner, dict) and not kind_of(document):
            yield from bodies(inner, depth + 1)
        elif isinstance(members, list) and depth < _MAX_DEPTH:
            for member in members:
                if isinstance(member, dict) and len(member) > 1:
                    yield from bodies(member, depth + 1)
        elif kind_of(document):
            yield document


def date_of(document: Any) -> int | None:
    """Return the time of an HTTP ``Date`` header that was kept with a body, in ms."""
    if not isinstance(document, dict):
        return None
    for holder in (document, document.get("headers"), document.get("GET")):
        text = holder.get("Date") if isinstance(holder, dict) else None
        if isinstance(text, str):
            try:
                ms = epoch_ms(parsedate_to_datetime(text))
            except (ValueError, TypeError, OverflowError):
                continue
            if plausible(ms):
                return ms
    return None


def _sensor_name(machine: _Machine, reading: Reading) -> str:
    """Return a name that only this sensor has: where two have one, the second's has its chassis before it."""
    if machine.names.setdefault(reading.sensor, reading.uri) == reading.uri:
        return reading.sensor
    chassis = _CHASSIS.search(reading.uri or "")
    name = reading.sensor if chassis is None else f"{chassis[1]}/{reading.sensor}"
    for number in count(1):
        numbered = name if number == 1 else f"{name} #{number}"
        if machine.names.setdefault(numbered, reading.uri) == reading.uri or reading.uri is None:
            break
    return numbered


def _fill(known: dict[str, Any], more: Mapping[str, Any], before: bool) -> None:
    """Add what is reported of a GPU. A host shows its baseboard's GPUs too, and may know less of them."""
    for name, value in more.items():
        if before or name not in known:
            known[name] = value


def _known(facts: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in facts.items() if value is not None}


def recognise(_name: str, head: str) -> str | None:
    """Return why a file is taken for a Redfish body, None where it is none."""
    return "JSON of Redfish (@odata)" if head.lstrip().startswith("{") and '"@odata.' in head else None
