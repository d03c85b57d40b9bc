"""Imports InfiniBand: ibdiagnet, perfquery, ibqueryerrors, ibstat, sysfs of nodes, ibnetdiscover for the wiring.

Ports of nodes become rows of nic under sysfs's names, ports of switches rows of switch under the same names and, where
SONiC counts the same, under SONiC's too. Whose port it is, the LID and GUID say with ibnetdiscover output beside; of
ibdiagnet's output ibdiagnet2.db_csv is read, which has it all, and each run of it is a moment.
"""

import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import tzinfo
from pathlib import Path
from typing import Annotated

from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.fabric.ib_counters import (
    SAI_OF,
    PortCounters,
    read_text,
    sysfs_place,
    sysfs_value,
)
from services.recording.importers.parts.fabric.ib_diagnet import Diagnet, is_diagnet, read_diagnet
from services.recording.importers.parts.fabric.ib_fabric import Fabric, hex_guid, nic_name
from services.recording.importers.parts.moments import DumpClock, dump_clock, plausible, time_in_name
from services.recording.importers.parts.source_files import SourceFiles, clean, node_by_path, where
from services.recording.importers.parts.stream_rows import StreamRows
from services.recording.model import Nic, Node, Switch, Topology

_HEAD_BYTES = 4096
_DISCOVERED = re.compile(r'^(?:Switch|Ca|Rt)\s+\d+\s+"|^(?:CA|SW|RT)\s+\d+\s+\d+\s+0x|^# Topology file', re.MULTILINE)
_GUID = re.compile(r"0x[0-9a-f]{16}")
_NAMED = 40  # sections and counters without a place, at most
_UNKNOWN = "a file in no form that is known here"
_ROLE_UNKNOWN = "a port whose device ibnetdiscover output does not name is taken as a switch's (or, with --node, a NIC)"


def convert(
    source: Annotated[
        Path, "a file of one of these tools, ibdiagnet's folder, a copy of /sys/class/infiniband, or a folder of them"
    ],
    out: Path,
    *,
    node: Annotated[str, "the node, for sysfs trees, ibstat and ports that no wiring names"] = "",
    start: Annotated[str, "time of the first dump (RFC 3339), where its name and date do not give it"] = "",
    every: Annotated[float, "seconds between dumps that have different times in their names, with --start"] = 0.0,
    timezone: Annotated[str, "time zone of times in names: UTC, Europe/Zurich, +02:00"] = "UTC",
    cluster: Annotated[str, "name of the cluster"] = "imported",
    progress: Progress = silent,
) -> Report:
    """Convert InfiniBand counters into a recording at ``out``.

    UserError: the source does not exist, an option is malformed, no port has values, or ``out`` exists.
    """
    report = Report()
    files = SourceFiles(source, report, progress)
    clock = dump_clock(files.root, start, every, timezone)
    fabric = Fabric()
    plain = [path for path in files.paths if not sysfs_place(path.as_posix())]
    runs = {path: read_diagnet(files.lines(path), fabric) for path in plain if is_diagnet(files.head(path))}
    covered = {path for path in plain if _covered(path, runs)}
    discovered = [path for path in plain if path not in runs.keys() | covered and _DISCOVERED.search(_head(path))]
    for path in discovered:
        if not fabric.read(text for _, text in files.lines(path)):
            report.skip("ibnetdiscover output without devices", where(path))
    with Draft(out, report) as draft:
        work = _Import(draft, report, clock, fabric, node)
        for index, (path, run) in enumerate(runs.items()):
            work.run(path, run, index)
        for path in covered:
            report.skip("a file of ibdiagnet beside its ibdiagnet2.db_csv, which has the same", where(path))
        done = {*discovered, *runs, *covered}
        for index, snapshot in enumerate(snapshots(files, done, clock.zone), start=len(runs)):
            work.snapshot(files, snapshot, index)
        work.finish()
        notes = [
            "data counters of NICs count 4-byte words, as sysfs gives them",
            "the rates in topology.json are those that links had, which need not be what they should have",
            *work.notes,
        ]
        draft.imported(
            work.topology(),
            cluster,
            title=f"InfiniBand counters of {len(work.nics)} node(s) and {len(work.switches)} switch(es)",
            summary="Cumulative counters of InfiniBand ports. What was wrong, if anything, is not known.",
            document="ibdiagnet, perfquery, ibqueryerrors, ibstat, sysfs and ibnetdiscover",
            notes=notes,
        )
    return report


def snapshots(files: SourceFiles, leave_out: set[Path], zone: tzinfo) -> list[list[Path]]:
    """Return the files by the time in their names; those without one are of one moment."""
    found: dict[int | None, list[Path]] = {}
    for path in files.paths:
        if path not in leave_out:
            inside = path.relative_to(files.root).parts if path.is_relative_to(files.root) else (path.name,)
            moment = next((ms for part in reversed(inside) if (ms := time_in_name(part, zone)) is not None), None)
            found.setdefault(moment, []).append(path)
    return list(found.values())


def _covered(path: Path, runs: Mapping[Path, Diagnet]) -> bool:
    """Whether a file is of a run of ibdiagnet whose ibdiagnet2.db_csv is there, and says nothing more."""
    beside = any(run.parent == path.parent for run in runs)
    return beside and path not in runs and path.name.startswith("ibdiagnet")


def _head(path: Path) -> str:
    try:
        with path.open("rb") as file:
            return file.read(_HEAD_BYTES).decode("utf-8", "replace")
    except OSError:
        return ""


@dataclass
class _Moment:
    """What one moment's dumps say, by entity."""

    nics: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)
    switches: dict[tuple[str, str], dict[str, float]] = field(default_factory=dict)


class _Import:
    """Takes dumps of counters into a draft."""

    def __init__(self, draft: Draft, report: Report, clock: DumpClock, fabric: Fabric, node: str) -> None:
        self.nics: dict[str, dict[str, float | None]] = {}
        self.switches: dict[str, None] = {}
        self.notes: list[str] = []
        self._nic_rows, self._switch_rows = StreamRows(draft, "nic"), StreamRows(draft, "switch")
        self._report, self._clock, self._fabric, self._node = report, clock, fabric, node
        self._by_lid: dict[tuple[str, int], str] = {}
        self._wired = fabric.topology()
        self._wired_nodes, self._wired_switches = {node.name for node in self._wired.nodes}, fabric.switch_names()

    def run(self, path: Path, run: Diagnet, index: int) -> None:
        """Take what a run of ibdiagnet counted; ports of switches on which no cable ever was are left out."""
        at = run.at
        if at is None:
            at, how = self._clock.of(path, index)
            if how == "mtime":
                self._note("dumps whose names have no time are given that of their last change")
        if run.broken:
            self._report.skip("a row of no port, or with more or fewer cells than its heading", where(path), run.broken)
        if run.left:
            reason = "a row or value of ibdiagnet's that has no place in a recording"
            self._report.skip(reason, where(path), run.left.total())
            self._note(f"ibdiagnet's {', '.join(sorted(run.left)[:_NAMED])} have no place in a recording")
        moment = _Moment()
        for (guid, number), port in run.ports.items():
            device = self._fabric.devices.get(guid)
            if device is None or not device.is_switch or number in device.ports:
                self._port(moment, self._node or "node", port, None, where(path))
        self._write(at, moment)

    def snapshot(self, files: SourceFiles, paths: list[Path], index: int) -> None:
        """Take the dumps of one moment, or of several where a file has lines of the time between its dumps."""
        at, how = max((self._clock.of(path, index) for path in paths), key=lambda timed: timed[0])
        if how == "mtime":
            self._note("dumps whose names have no time are given that of their last change")
        moment = _Moment()
        for path in paths:
            place = sysfs_place(path.as_posix())
            if place is not None:
                self._sysfs(moment, self._node_of(path, files.root, above=place[0]), place, files.text(path) or "")
            elif "/ports/" in path.as_posix():
                continue  # files of a port that are no counters: link_layer, lid, …
            elif _head(path).lstrip().startswith("{"):
                self._inventory(files, path, moment)
            else:
                moment, at = self._text(files, path, moment, at)
        self._write(at, moment)

    def _text(self, files: SourceFiles, path: Path, moment: _Moment, at: int) -> tuple[_Moment, int]:
        """Take one tool's output, and return the moment that is still open."""
        node, named, used = self._node_of(path, files.root), _GUID.search(path.name), False
        for number, found in read_text(files.lines(path)):
            if isinstance(found, PortCounters):
                used = True
                self._port(moment, node, found, int(named[0], 16) if named else None, where(path, number))
                continue
            stamp = time_in_name(found, self._clock.zone)
            if stamp is not None and plausible(stamp):
                self._write(at, moment)
                moment, at = _Moment(), stamp
        if not used:
            self._report.skip(_UNKNOWN, where(path))
        return moment, at

    def _inventory(self, files: SourceFiles, path: Path, moment: _Moment) -> None:
        """Take an inventory of sysfs: a JSON object of paths and what the files hold."""
        document, node, used = files.document(path), self._node_of(path, files.root), False
        for name, text in document.items() if isinstance(document, dict) else ():
            place = sysfs_place(name) if isinstance(text, str) else None
            if place is not None:
                self._sysfs(moment, node, place, text)
                used = True
        if not used and document is not None:
            self._report.skip(_UNKNOWN, where(path))

    def _sysfs(self, moment: _Moment, node: str, place: tuple[str, int, str], text: str) -> None:
        device, port, name = place
        self._add_nic(moment, node, nic_name(device, port), dict(sysfs_value(name, text)))

    def _port(self, moment: _Moment, node: str, port: PortCounters, named: int | None, place: str) -> None:
        """Take one port: a NIC's by its device's name, any other's by LID or GUID."""
        if port.stuck:
            self._report.skip("a 32-bit counter that has stopped at its end (use perfquery -x)", place, port.stuck)
        if port.device is not None:
            nic = nic_name(port.device, port.port)
            if port.lid is not None:
                self._by_lid[node, port.lid] = nic
            self._add_nic(moment, node, nic, port.values)
            return
        device = self._fabric.find(port.lid, port.guid if port.guid is not None else named)
        if device is not None and device.is_switch:
            self._add_switch(moment, self._fabric.switch_name(device), port)
        elif device is not None:
            if self._fabric.is_adapter(device):
                owner, name = self._fabric.adapter_name(device)
                self._add_nic(moment, owner, nic_name(name, port.port), port.values)
            else:
                self._report.skip("a port of a device that is neither switch nor network card", place)
        elif port.name and port.is_switch is False:
            owner, _, name = clean(port.name).strip().partition(" ")
            self._add_nic(moment, owner or node, nic_name(name.strip() or "hca", port.port), port.values)
        elif self._node:
            nic = self._by_lid.get((node, port.lid or -1)) or nic_name(f"lid-{port.lid}", port.port)
            self._add_nic(moment, node, nic, port.values)
        else:
            self._note(_ROLE_UNKNOWN)
            guid = port.guid if port.guid is not None else named
            name = clean(port.name or "").strip().replace(":", "/")
            self._add_switch(moment, name or (f"lid-{port.lid}" if guid is None else hex_guid(guid)), port)

    def _add_nic(self, moment: _Moment, node: str, nic: str, values: dict[str, float]) -> None:
        if values:
            # A name is that of one machine: a switch has it already.
            node = f"{node} (node)" if node in self._wired_switches or node in self.switches else node
            known = self.nics.setdefault(node, {})
            known[nic] = max(values.get("speed_gbps", 0.0), known.get(nic) or 0.0) or None
            _merge(moment.nics.setdefault((node, nic), {}), values)

    def _add_switch(self, moment: _Moment, switch: str, port: PortCounters) -> None:
        values = dict(port.values)
        for name, (other, factor) in SAI_OF.items():
            if name in values:
                values[other] = values[name] * factor
        if values:
            switch = f"{switch} (switch)" if switch in self._wired_nodes or switch in self.nics else switch
            self.switches.setdefault(switch)
            _merge(moment.switches.setdefault((switch, str(port.port)), {}), values)

    def _write(self, at: int, moment: _Moment) -> None:
        for nic, values in moment.nics.items():
            self._nic_rows.add(at, nic, values)
        for port, values in moment.switches.items():
            self._switch_rows.add(at, port, values)

    def finish(self) -> None:
        """Hand on the rows that are left."""
        self._nic_rows.finish()
        self._switch_rows.finish()

    def topology(self) -> Topology:
        """Return the wiring, with the nodes, NICs and switches that only counters name."""
        nodes = {node.name: node for node in self._wired.nodes}
        for name, nics in self.nics.items():
            known = nodes.get(name, Node(name=name))
            there = {nic.nic for nic in known.nics}
            more = [Nic(nic=nic, gbps=gbps) for nic, gbps in sorted(nics.items()) if nic not in there]
            nodes[name] = known.model_copy(update={"nics": [*known.nics, *more]})
        switches = {switch.name: switch for switch in self._wired.switches}
        for name in self.switches:
            switches.setdefault(name, Switch(name=name))
        return Topology(
            nodes=[nodes[name] for name in sorted(nodes)], switches=list(switches.values()), links=self._wired.links
        )

    def _node_of(self, path: Path, root: Path, above: str | None = None) -> str:
        if self._node:
            return self._node
        if above is not None:
            parts = path.parts
            path = Path(*parts[: parts.index(above)], "data")
        return node_by_path(path, root) if path.is_relative_to(root) else "node"

    def _note(self, text: str) -> None:
        if text not in self.notes:
            self.notes.append(text)


def _merge(known: dict[str, float], more: dict[str, float]) -> None:
    """Add values that are not known yet: what was read first stays."""
    for name, value in more.items():
        known.setdefault(name, value)


_PRINTED = re.compile(r"^# Port (?:extended )?counters: |^Errors for |^CA '[^']+'\r?$|^PortXmitData:\.", re.MULTILINE)
_SYSFS = re.compile(r"(?:^|/)ports/\d+/(?:hw_)?counters/\w+$")


def recognise(name: str, head: str) -> str | None:
    """Return why a file is taken for InfiniBand's, None where it is none."""
    if _SYSFS.search(name):
        return "a counter of /sys/class/infiniband"
    if is_diagnet(head):
        return "a fabric as ibdiagnet found it"
    if _DISCOVERED.search(head):
        return "wiring as ibnetdiscover prints it"
    return "counters of perfquery, ibqueryerrors or ibstat" if _PRINTED.search(head) else None
