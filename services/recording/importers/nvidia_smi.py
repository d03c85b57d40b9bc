"""Imports what `nvidia-smi -q -x` (XML) or `nvidia-smi -q` (text) printed, one moment after the other.

A moment is one printed log; a file may hold several, one behind the other. Its time is the log's own timestamp. The
readings go under the DCGM field that holds the same, in that field's unit; what a GPU does not report is null.
"""

from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.imported_header import imported
from services.recording.importers.parts.moments import interval_s, plausible, to_ms
from services.recording.importers.parts.pivot import Wide
from services.recording.importers.parts.smi_fields import facts_of, is_whole, moment_of, readings_of
from services.recording.importers.parts.smi_log import SmiLog, SmiProblem, logs_of_text, logs_of_xml
from services.recording.importers.parts.source_files import SourceFiles, node_by_path, where
from services.recording.importers.parts.zones import zone_of
from services.recording.model import Gpu, Node, Topology

_SAMPLES_AT_ONCE = 300_000


def convert(
    source: Annotated[Path, "a file of `nvidia-smi -q -x` or `nvidia-smi -q` output, or a folder of them"],
    out: Path,
    *,
    node: Annotated[str, "the node; else the file's or folder's name"] = "",
    timezone: Annotated[str, "time zone of the logs' timestamps: UTC, Europe/Zurich, +02:00"] = "UTC",
    cluster: Annotated[str, "name of the cluster"] = "imported",
    progress: Progress = silent,
) -> Report:
    """Convert printed logs into a recording at ``out``.

    UserError: the source does not exist, ``--timezone`` is none, no log could be imported, or ``out`` exists.
    """
    times = zone_of(timezone)
    report = Report()
    files = SourceFiles(source, report, progress)
    fleet = _Fleet()
    wide = Wide("dcgm")
    left: Counter[str] = Counter()
    moments: dict[str, set[int]] = {}
    with Draft(out, report) as draft:
        for path in files.paths:
            name = node or node_by_path(path, files.root)
            for log in _logs(files, path, report):
                moment = moment_of(log, times)
                at = to_ms(moment) if moment is not None else -1
                if not plausible(at):
                    report.skip("a log without a timestamp that can be read", where(path))
                    continue
                if at in moments.setdefault(name, set()):
                    report.skip("a log of this node and time was there already", where(path))
                    continue
                moments[name].add(at)
                report.read["logs"] += 1
                for number, values in enumerate(log.gpus):
                    gpu = fleet.number(name, values, number, whole=is_whole(log))
                    if gpu is None:
                        report.skip("a GPU beyond the 256 that a node may have", where(path))
                        continue
                    entity = wide.entity((name, gpu))
                    for column, value in readings_of(values, left).items():
                        wide.add_few(column, (entity,), (at,), (value,))
                if wide.samples >= _SAMPLES_AT_ONCE:
                    _flush(wide, draft, None)
        _flush(wide, draft, interval_s(moments.values()))
        for reason, count in sorted(left.items()):
            report.skip(reason, files.root.name, count)
        notes = [f"the logs' timestamps are taken as {timezone}"]
        if not node:
            notes.append("a log is given to a node by the name of its file or folder")
        header = imported(
            out,
            cluster,
            title=f"nvidia-smi of {len(moments)} nodes",
            summary="Readings that nvidia-smi printed. What was wrong, if anything, is not known.",
            document="nvidia-smi -q",
            notes=notes,
        )
        draft.finish(header, fleet.topology())
    return report


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
        report.skip("a file that holds no nvidia-smi log", where(path))


def _flush(wide: Wide, draft: Draft, every: float | None) -> None:
    batch = wide.rows()
    if batch is not None:
        draft.add("dcgm", batch, interval_s=every)


class _Fleet:
    """The nodes and GPUs that logs speak of."""

    def __init__(self) -> None:
        self._nodes: dict[str, dict[int, dict[str, Any]]] = {}
        self._numbers: dict[tuple[str, str], int] = {}

    def number(self, node: str, values: dict[str, str], index: int, *, whole: bool) -> int | None:
        """Return the number of a GPU, the same in all logs: its place in a whole log, else its device's number."""
        facts = facts_of(values)
        gpus = self._nodes.setdefault(node, {})
        identity = str(facts.get("uuid") or facts.get("pci_bus_id") or index)
        number = self._numbers.get((node, identity))
        minor = facts.pop("minor", index)
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
