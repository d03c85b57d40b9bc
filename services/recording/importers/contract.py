"""What every importer is made of: how it is found, what it reports, and the recording it fills.

An importer is one module in this folder with a function `convert`. The module's first line is its help text. The
parameters of `convert` become the command line of `hindcast import NAME`: positional ones arguments, keyword-only
ones options, each `Annotated` with its help text; `out` and `progress` are there in all of them:

    def convert(
        source: Annotated[Path, "a file, or a folder of them"],
        out: Path,
        *,
        cluster: Annotated[str, "name of the cluster"] = "imported",
        progress: Progress = silent,
    ) -> Report: ...

With a function `recognise(name, head)` beside it `hindcast import heap` knows its files, too: given a file's name and
how it begins, it returns in a few words what the file is, None where it is none of the importer's.

A module without `convert` (this one, parts that several importers share) is no importer.
"""

import os
import shutil
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Self

import pyarrow as pa

from services.kit.errors import UserError
from services.recording.instants import format_instant
from services.recording.model import Event, Job, Label, Manifest, Topology
from services.recording.spool import Spool
from services.recording.writer import RecordingWriter

Progress = Callable[[float], None]
"""Called with how far the work is, 0 to 1."""


def silent(_share: float) -> None:
    """Take progress, and say nothing."""


@dataclass(frozen=True)
class FileRow:
    """What became of a file of a heap, or of several that are one series: its line in the table."""

    name: str
    kind: str = ""
    nodes: str = ""
    rows: int = 0
    start: int | None = None
    end: int | None = None
    clock: str = ""
    skipped: str = ""


@dataclass
class Report:
    """What an import read, made and left out: every reason with how often, and where it was first."""

    read: Counter[str] = field(default_factory=Counter)
    """What was read, by what it is: ``files``, ``lines``, ``scrapes``."""
    made: Counter[str] = field(default_factory=Counter)
    """Rows made by stream; ``events``, ``jobs``."""
    skipped: Counter[str] = field(default_factory=Counter)
    first: dict[str, str] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    left: list[str] = field(default_factory=list)
    """Of a merge: names of the recordings of which nothing was kept."""
    files: list[FileRow] = field(default_factory=list)
    """Of a heap of files: what became of each."""

    def skip(self, reason: str, where: str, count: int = 1) -> None:
        """Note that something was left out, why, and where (file and line)."""
        self.skipped[reason] += count
        self.first.setdefault(reason, where)

    def __str__(self) -> str:
        """Return it in words, one line a reason."""
        lines = [
            f"read {_counted(self.read)}; made {_counted(self.made)}",
            *(f"skipped {count:,}: {why} (first at {self.first[why]})" for why, count in self.skipped.most_common()),
            *self.notes,
        ]
        return "\n".join(["\n  ".join(lines), *_table(self.files)])


def _table(files: Iterable[FileRow]) -> list[str]:
    """Return a line for each file, in columns."""
    cells = [
        (
            row.name,
            row.kind,
            row.nodes,
            f"{row.rows:,}" if row.rows else "",
            "" if row.start is None else f"{format_instant(row.start)[:19]}Z",
            "" if row.end is None else f"{format_instant(row.end)[:19]}Z",
            row.clock,
            row.skipped,
        )
        for row in files
    ]
    if not cells:
        return []
    cells.insert(0, ("file", "kind", "of", "rows", "from", "to", "clock", "skipped, and why"))
    widths = [max(len(row[place]) for row in cells) for place in range(len(cells[0]))]
    return [
        "",
        *("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip() for row in cells),
    ]


def _counted(counts: Counter[str]) -> str:
    return ", ".join(f"{count:,} {what}" for what, count in counts.items() if count) or "nothing"


class Draft:
    """A recording being put together from rows in any order, in bounded memory.

    Use as a context manager. UserError where ``out`` exists already or can't be written, and at `finish` where
    nothing was added at all.
    """

    def __init__(self, out: Path, report: Report) -> None:
        self._writer = RecordingWriter(out)
        self._out, self._report = out, report
        self._folder = out.with_name(f".{out.name}.{os.getpid()}.spool")
        self._spools: dict[str, Spool] = {}
        self._intervals: dict[str, float | None] = {}
        self._events: list[Event] = []
        self._jobs: list[Job] = []
        self._labels: list[Label] = []

    def __enter__(self) -> Self:
        self._writer.__enter__()
        return self

    def __exit__(self, *error: object) -> None:
        self._writer.__exit__(*error)
        shutil.rmtree(self._folder, ignore_errors=True)

    def add(self, stream: str, batch: pa.RecordBatch, *, interval_s: float | None = None) -> None:
        """Take rows of a stream, in any order; `interval_s` is how often it was sampled, where that is known."""
        if stream not in self._spools:
            self._folder.mkdir(parents=True, exist_ok=True)
            self._spools[stream] = Spool(stream, self._folder)
        self._intervals[stream] = interval_s or self._intervals.get(stream)
        self._spools[stream].add(batch)

    def add_events(self, events: Iterable[Event]) -> None:
        """Take log records, in any order."""
        self._events.extend(events)

    def add_jobs(self, jobs: Iterable[Job]) -> None:
        """Take jobs."""
        self._jobs.extend(jobs)

    def add_labels(self, labels: Iterable[Label]) -> None:
        """Take labels: only where the source itself gives the truth."""
        self._labels.extend(labels)

    def finish(self, header: Mapping[str, Any], topology: Topology) -> Manifest:
        """Write the recording; `header` as for `RecordingWriter.finish`.

        ``start`` and ``end`` may be left out: they are then the first and last time of what was added. What the
        report says is put into ``source``, and what the header notes into the report.
        """
        first: list[int] = []
        last: list[int] = []
        for stream, spool in self._spools.items():
            for batch in spool.drain():
                times = batch.column("timestamp").cast(pa.int64())
                first.append(times[0].as_py())
                last.append(times[-1].as_py())
                self._writer.write(stream, batch, interval_s=self._intervals[stream])
                self._report.made[stream] += batch.num_rows
            if spool.repeated:
                self._report.skip("a row of this time and entity was there already", stream, spool.repeated)
        first += [event.timestamp for event in self._events] + [job.start for job in self._jobs]
        last += [event.timestamp for event in self._events] + [job.end or job.start for job in self._jobs]
        if not first:
            raise UserError(
                f"{self._out}: nothing in the source could be imported\n  {self._report}",
                remedy="check that this is the right importer for the source (`hindcast import --help` lists them)",
            )
        self._report.made["events"] += len(self._events)
        self._report.made["jobs"] += len(self._jobs)
        if self._events:
            self._writer.write_events(self._events)
        if self._jobs:
            self._writer.write_jobs(self._jobs)
        if self._labels:
            self._writer.write_labels(self._labels)
        source = dict(header.get("source", {}))
        if self._report.skipped:
            source["skipped"] = dict(self._report.skipped)
        self._report.notes[:0] = source.get("notes", [])
        if self._report.notes:
            source["notes"] = list(self._report.notes)
        span = {"start": min(first), "end": max(last)}
        return self._writer.finish({**span, **header, "source": source}, topology)

    def imported(
        self,
        topology: Topology,
        cluster: str,
        *,
        title: str,
        summary: str,
        document: str,
        notes: Iterable[str] = (),
        **more: Any,
    ) -> None:
        """Write the recording of what a user had: `document` names the kind of source, `notes` what was assumed.

        `more` are further keys of recording.yaml, such as ``clock_skew_s``.
        """
        header = {
            "name": self._out.resolve().name,
            "title": title,
            "summary": summary,
            "origin": "imported",
            "source": {"document": document, "licence": "unknown: the source is the user's own", "notes": list(notes)},
            "cluster": {"name": cluster},
            **more,
        }
        self.finish(header, topology)
