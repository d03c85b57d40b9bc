"""Imports what nvidia-smi printed: `-q` (text or XML), `--query-gpu=... --format=csv`, `dmon`, once or in a loop.

A file may hold many moments, one behind the other. Their times are those that are printed, in the zone of the machine
(``--timezone``); where none are (``dmon`` without ``-o``), ``--start`` and ``--every`` say them. Readings go under the
DCGM field that holds the same, in that field's unit; what a GPU does not report is null.
"""

from collections import Counter
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.machines.smi_fields import facts_of, is_whole, moment_of, readings_of
from services.recording.importers.parts.machines.smi_log import SmiLog, SmiProblem, logs_of_text, logs_of_xml
from services.recording.importers.parts.machines.smi_table import (
    Found,
    SmiRow,
    dmon_rows,
    is_dmon,
    is_query,
    query_rows,
)
from services.recording.importers.parts.moments import DumpClock, dump_clock, instant_of, plausible
from services.recording.importers.parts.source_files import SourceFiles, node_by_path, where
from services.recording.importers.parts.stream_rows import StreamRows
from services.recording.model import Gpu, Node, Topology

_NO_GPU = "a row that names no GPU (ask for index or uuid in --query-gpu)"
_TOO_MANY = "a GPU beyond the 256 that a node may have"
_DAY_MS = 86_400_000


def convert(
    source: Annotated[Path, "a file of nvidia-smi's output (-q, -q -x, --query-gpu as csv, dmon), or a folder of them"],
    out: Path,
    *,
    node: Annotated[str, "the node; else the file's or folder's name"] = "",
    timezone: Annotated[str, "time zone of the machine, whose times name none: UTC, Europe/Zurich, +02:00"] = "UTC",
    start: Annotated[str, "time of the first row (RFC 3339), where rows have none; its day, where they have none"] = "",
    every: Annotated[float, "seconds between rows of a GPU, with --start"] = 0.0,
    fields: Annotated[str, "the list given to --query-gpu, for a csv without a header"] = "",
    cluster: Annotated[str, "name of the cluster"] = "imported",
    progress: Progress = silent,
) -> Report:
    """Convert what was printed into a recording at ``out``.

    UserError: the source does not exist, an option is malformed, rows whose time nothing gives, nothing could be
    imported, or ``out`` exists.
    """
    report = Report()
    files = SourceFiles(source, report, progress)
    clock = dump_clock(files.root, start, every, timezone)
    names = [name for name in fields.split(",") if name.strip()]
    with Draft(out, report) as draft:
        work = _Import(draft, report, clock)
        for path in files.paths:
            name, head = node or node_by_path(path, files.root), files.head(path)
            if is_dmon(head):
                work.table(path, name, dmon_rows(files.lines(path)))
            elif names or is_query(head):
                work.table(path, name, query_rows(files.lines(path), names))
            else:
                work.logs(path, name, files)
        work.rows.finish()
        for reason, count in sorted(work.left.items()):
            report.skip(reason, files.root.name, count)
        notes = [f"printed times name no zone and were taken as {timezone} (--timezone says otherwise)"]
        if not node:
            notes.append("what was printed is given to a node by the name of its file or folder")
        if work.unnumbered:
            notes.append("rows without an index: a node's GPUs are numbered in the order in which they come first")
        draft.imported(
            work.fleet.topology(),
            cluster,
            title=f"nvidia-smi of {len(work.fleet.topology().nodes)} nodes",
            summary="Readings that nvidia-smi printed. What was wrong, if anything, is not known.",
            document="nvidia-smi",
            notes=notes,
        )
    return report


class _Import:
    """Takes files of nvidia-smi's output into a draft."""

    def __init__(self, draft: Draft, report: Report, clock: DumpClock) -> None:
        self.rows = StreamRows(draft, "dcgm")
        self.fleet = _Fleet()
        self.left: Counter[str] = Counter()
        self.unnumbered = False
        self._report, self._clock = report, clock
        self._seen: set[tuple[str, int]] = set()

    def logs(self, path: Path, node: str, files: SourceFiles) -> None:
        """Take the logs of a file that ``-q`` printed."""
        before: int | None = None
        for log in _logs(files, path, self._report):
            moment = moment_of(log)
            at = instant_of(moment, self._clock.zone, before) if moment is not None else -1
            if not plausible(at):
                self._report.skip("a log without a timestamp that can be read", where(path))
                continue
            before = at
            if (node, at) in self._seen:
                self._report.skip("a log of this node and time was there already", where(path))
                continue
            self._seen.add((node, at))
            self._report.read["logs"] += 1
            for place, values in enumerate(log.gpus):
                gpu = self.fleet.number(node, facts_of(values), place, whole=is_whole(log))
                if gpu is None:
                    self._report.skip(_TOO_MANY, where(path))
                else:
                    self.rows.add(at, (node, gpu), readings_of(values, self.left))

    def table(self, path: Path, node: str, found: Iterator[Found]) -> None:
        """Take the rows of a table. Rows without times are moments: the next begins where a GPU comes again."""
        moment, inside, midnights, latest, before = 0, set[int](), 0, -1, None
        for line, row in found:
            if isinstance(row, str):
                self._report.skip(row, where(path, line))
                continue
            gpu = self._gpu(node, row)
            if isinstance(gpu, str):
                self._report.skip(gpu, where(path, line))
                continue
            if gpu in inside:
                moment, inside = moment + 1, set()
            inside.add(gpu)
            if row.at is not None:
                at = before = instant_of(row.at, self._clock.zone, before)
            elif row.clock is not None:
                midnights += row.clock < latest
                latest = row.clock
                at = self._of_day(path, row.clock) + midnights * _DAY_MS
            else:
                at = self._clock.row(path, moment)
            if not plausible(at):
                self._report.skip("a row whose time cannot be", where(path, line))
                continue
            self._report.read["rows"] += 1
            self.rows.add(at, (node, gpu), row.values)

    def _gpu(self, node: str, row: SmiRow) -> int | str:
        facts: dict[str, Any] = dict(row.facts)
        index = facts.pop("index", "")
        if not index and not facts.keys() & {"uuid", "pci_bus_id"}:
            return _NO_GPU
        if index and not (index.isascii() and index.isdecimal() and int(index) < 256):
            return "a row whose GPU is no number"
        place = int(index) if index else self.fleet.count(node)
        self.unnumbered |= not index
        number = self.fleet.number(node, facts, place, whole=True, fixed=bool(index))
        return _TOO_MANY if number is None else number

    def _of_day(self, path: Path, seconds: int) -> int:
        """Return the instant of a clock on the day on which the table begins."""
        begin = datetime.fromtimestamp(self._clock.row(path, 0) / 1000, UTC).astimezone(self._clock.zone)
        midnight = begin.replace(tzinfo=None, hour=0, minute=0, second=0, microsecond=0)
        return instant_of(midnight + timedelta(seconds=seconds), self._clock.zone)


def _logs(files: SourceFiles, path: Path, report: Report) -> Iterator[SmiLog]:
    """Yield the logs of a file; what is broken is reported."""
    text = files.text(path)
    if text is None:
        return
    found = logs_of_xml(text) if "<nvidia_smi_log" in text else logs_of_text(text)
    empty = True
    for log in found:
        empty = False
        if isinstance(log, SmiProblem):
            report.skip(log.reason, where(path, log.line))
        else:
            yield log
    if empty:
        report.skip(
            "a file that holds nothing that nvidia-smi prints (-q, --query-gpu with a header, dmon)", where(path)
        )


class _Fleet:
    """The nodes and GPUs that were printed."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[int, dict[str, Any]]] = {}
        self._numbers: dict[tuple[str, str], int] = {}

    def count(self, node: str) -> int:
        """Return how many GPUs of a node are known."""
        return len(self._nodes.get(node, ()))

    def number(self, node: str, facts: dict[str, Any], index: int, *, whole: bool, fixed: bool = False) -> int | None:
        """Return the number of a GPU, the same in all logs: its place in a whole log, else its device's number.

        `fixed`: the place is what the driver itself calls the GPU.
        """
        gpus = self._nodes.setdefault(node, {})
        identity = str(facts.get("uuid") or facts.get("pci_bus_id") or index)
        minor = facts.pop("minor", index)
        number = index if fixed else self._numbers.get((node, identity))
        if number is None:
            number = index if whole else minor
            while number in gpus:
                number += 1
        if number > 255:
            return None
        self._numbers[node, identity] = number
        gpus.setdefault(number, {}).update(facts)
        return number

    def topology(self) -> Topology:
        """Return the machines."""
        nodes = []
        for name, gpus in sorted(self._nodes.items()):
            model = next((facts["model"] for facts in gpus.values() if facts.get("model")), None)
            plain = [
                Gpu.model_validate({"gpu": number} | {key: value for key, value in facts.items() if key != "model"})
                for number, facts in sorted(gpus.items())
            ]
            known = {"gpu_model": model} if model else {}
            nodes.append(Node(name=name, gpus=plain, **known))
        return Topology(nodes=nodes)


def recognise(_name: str, head: str) -> str | None:
    """Return why a file is taken for what nvidia-smi printed, None where it is none."""
    if "<nvidia_smi_log>" in head:
        return "a log of nvidia-smi -q -x"
    if "NVSMI LOG" in head:
        return "a log of nvidia-smi -q"
    if is_dmon(head):
        return "a table of dmon"
    return "a table of nvidia-smi --query-gpu" if is_query(head) else None
