"""Imports what amd-smi printed: `metric --json` and `--csv`, `monitor --json` and `--csv`, once or in a loop.

Readings go under the DCGM field that holds the same (parts/amd_smi_fields.py); what none holds is named and counted.
Times are those that a loop prints (``--watch``); of a single print, that of its name or date, or ``--start``. What
`static --json` and `list --json` say of the GPUs beside it, model, bus address, UUID, limits, goes into the topology.
"""

import json
import re
from collections import Counter
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any

from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.machines.amd_smi_fields import NOT_THERE, is_table, leaves, named, reading
from services.recording.importers.parts.moments import DumpClock, dump_clock, ms_of, plausible
from services.recording.importers.parts.series.amd_series import generation_of
from services.recording.importers.parts.source_files import SourceFiles, cells_of, clean, node_by_path, number_of, where
from services.recording.importers.parts.stream_rows import StreamRows
from services.recording.model import Gpu, Node, Topology

_SPACE = re.compile(r"\s*")
_SIGNS = ("gfx_activity", "socket_power", "power_usage", "market_name", "kfd_id")
_OTHER = "a reading that no field of DCGM holds"
_NAMED = 40
"""Names of readings that are left out, at most; a full print has some 30 kinds of them."""


def convert(
    source: Annotated[Path, "a file of amd-smi's output (metric or monitor, --json or --csv), or a folder of them"],
    out: Path,
    *,
    node: Annotated[str, "the node; else the file's or folder's name"] = "",
    timezone: Annotated[str, "time zone of times in names: UTC, Europe/Zurich, +02:00"] = "UTC",
    start: Annotated[str, "time of the first print (RFC 3339), where neither rows nor names give it"] = "",
    every: Annotated[float, "seconds between prints, with --start"] = 0.0,
    cluster: Annotated[str, "name of the cluster"] = "imported",
    progress: Progress = silent,
) -> Report:
    """Convert what was printed into a recording at ``out``.

    UserError: the source does not exist, an option is malformed, prints whose time nothing gives, nothing could be
    imported, or ``out`` exists.
    """
    report = Report()
    files = SourceFiles(source, report, progress)
    with Draft(out, report) as draft:
        work = _Import(draft, report, dump_clock(files.root, start, every, timezone))
        for path in files.paths:
            name = node or node_by_path(path, files.root)
            if files.head(path).lstrip().startswith(("[", "{")):
                work.json(path, name, files.text(path))
            else:
                work.table(path, name, files)
        work.rows.finish()
        if work.other:
            report.skip(_OTHER, files.root.name, work.other.total())
            names = sorted(work.other)
            more = f" and {len(names) - _NAMED} more" if len(names) > _NAMED else ""
            report.notes.append(f"no field of DCGM holds {', '.join(names[:_NAMED])}{more}")
        topology = work.topology()
        draft.imported(
            topology,
            cluster,
            title=f"amd-smi of {len(topology.nodes)} nodes",
            summary="Readings that amd-smi printed. What was wrong, if anything, is not known.",
            document="amd-smi",
            notes=sorted(work.notes),
        )
    return report


class _Import:
    """Takes files of amd-smi's output into a draft."""

    def __init__(self, draft: Draft, report: Report, clock: DumpClock) -> None:
        self.rows = StreamRows(draft, "dcgm")
        self.other: Counter[str] = Counter()
        self.notes: set[str] = set()
        self._report, self._clock = report, clock
        self._gpus: dict[str, dict[int, dict[str, Any]]] = {}
        self._dumps: Counter[str] = Counter()
        self._moment, self._inside = 0, set[int]()

    def json(self, path: Path, node: str, text: str | None) -> None:
        """Take the documents of a file, one behind the other."""
        self._moment, self._inside = 0, set()
        for document in _documents(text or ""):
            entries = document.get("gpu_data") if isinstance(document, dict) else document
            if not isinstance(entries, list):
                self._report.skip("a document that is none of amd-smi's, or broken off", where(path))
                continue
            for entry in entries:
                gpu = number_of(entry.get("gpu")) if isinstance(entry, dict) else None
                if gpu is None or not 0 <= gpu < 256:
                    self._report.skip("an entry that names no GPU", where(path))
                elif "asic" in entry or "uuid" in entry or "bdf" in entry:
                    self._known(node, int(gpu)).update(_facts(entry))
                elif "process_list" not in entry or len(entry) > 2:
                    found = ((name, value, unit) for name, value, unit in leaves(entry))
                    self._take(path, node, int(gpu), entry.get("timestamp"), found)

    def table(self, path: Path, node: str, files: SourceFiles) -> None:
        """Take the rows of a CSV; a loop prints its header again and again."""
        self._moment, self._inside = 0, set()
        header: list[str] = []
        for number, line in files.lines(path):
            cells = cells_of(line)
            if not cells:
                continue
            if is_table(cells) or not any(map(str.isdigit, line)):
                header = named(cells) if is_table(cells) else []
                continue
            if len(cells) != len(header):
                self._report.skip("a row of no table of metric or monitor", where(path, number))
                continue
            row = dict(zip(header, cells, strict=True))
            gpu = number_of(row.get("gpu"))
            if gpu is None or not 0 <= gpu < 256:
                self._report.skip("a row that names no GPU", where(path, number))
            elif row.get("xcp", "0") not in {"0", *NOT_THERE}:
                self._report.skip("a row of a part of a GPU (xcp)", where(path, number))
            else:
                self._take(path, node, int(gpu), row.get("timestamp"), ((name, row[name], "") for name in row))

    def _take(self, path: Path, node: str, gpu: int, stamp: object, found: Iterator[tuple[str, object, str]]) -> None:
        """Take a GPU's readings, by metric's names, with their units."""
        values: dict[str, float] = {}
        for name, value, unit in found:
            read = reading(name, value, unit)
            if isinstance(read, tuple):
                if name == "temperature.edge":
                    values.setdefault(*read)
                else:
                    values[read[0]] = read[1]
            elif read is not None:
                if read.startswith("a reading"):
                    self._report.skip(read, where(path))
                elif read:
                    self.other[read] += 1
        if gpu in self._inside:
            self._moment, self._inside = self._moment + 1, set()
        at = self._time(path, node, stamp)
        self._inside.add(gpu)
        self._known(node, gpu)
        if not plausible(at):
            self._report.skip("a print whose time cannot be", where(path))
            return
        self._report.read["rows"] += 1
        self.rows.add(at, (node, gpu), values)

    def _time(self, path: Path, node: str, stamp: object) -> int:
        """Return when a print was made: what it says itself, in seconds, else what its file does."""
        seconds = number_of(stamp)
        if seconds is not None:
            return ms_of(seconds)
        if self._moment:
            return self._clock.row(path, self._moment)
        if not self._inside:
            self._dumps[node] += 1
        at, how = self._clock.of(path, self._dumps[node] - 1)
        if how == "mtime":
            self.notes.add("a print whose name has no time is given that of its file's last change")
        return at

    def _known(self, node: str, gpu: int) -> dict[str, Any]:
        return self._gpus.setdefault(node, {}).setdefault(gpu, {})

    def topology(self) -> Topology:
        """Return the machines."""
        nodes = []
        for name, gpus in sorted(self._gpus.items()):
            models = {facts.pop("model", None) for facts in gpus.values()} - {None}
            known = {"gpu_model": models.pop()} if len(models) == 1 else {"gpu_model": "AMD GPU"}
            members = [Gpu.model_validate({"gpu": gpu} | facts) for gpu, facts in sorted(gpus.items())]
            nodes.append(Node(name=name, gpus=members, **known))
        return Topology(nodes=nodes)


def _documents(text: str) -> Iterator[Any]:
    """Yield the JSON documents that follow each other in a text; None for what is broken off, which ends it."""
    decoder, place = json.JSONDecoder(), 0
    while (place := _SPACE.match(text, place).end()) < len(text):  # type: ignore[union-attr]  # it matches nothing, too
        try:
            document, place = decoder.raw_decode(text, place)
        except (ValueError, RecursionError):
            yield None
            return
        yield document


def _facts(entry: Mapping[str, Any]) -> dict[str, Any]:
    """Return what topology.json says of a GPU, from its entry of static or list."""
    known = {name: (value, unit) for name, value, unit in leaves(entry)}

    def number(*names: str) -> float | None:
        return next((found for name in names if (found := number_of(known.get(name, ("",))[0])) is not None), None)

    def text(*names: str) -> str | None:
        values = (known.get(name, ("",))[0] for name in names)
        return next((clean(value) for value in values if isinstance(value, str) and value not in NOT_THERE), None)

    width, speed = number("bus.max_pcie_width"), number("bus.max_pcie_speed")
    facts = {
        "model": text("asic.market_name"),
        "uuid": text("uuid"),
        "pci_bus_id": text("bus.bdf", "bdf"),
        "pcie_width": None if width is None else int(width),
        "pcie_gen": None if speed is None else generation_of(speed),
        "power_limit_w": number("limit.socket_power", "limit.ppt0.socket_power_limit"),
    }
    return {name: value for name, value in facts.items() if value is not None}


def recognise(_name: str, head: str) -> str | None:
    """Return why a file is taken for what amd-smi printed, None where it is none."""
    first = head.lstrip().partition("\n")[0]
    if is_table(cells_of(first.strip())):
        return "a table of amd-smi"
    start = head[:4000]
    if '"gpu"' in start and any(f'"{name}"' in start for name in _SIGNS):
        return "JSON of amd-smi"
    return None
