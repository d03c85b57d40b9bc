"""Imports LSF accounting: lsb.acct, `bhist -l`, `bjobs -l` (or -UF), or `bjobs -o "..." -json`.

Jobs become jobs.jsonl, their hosts the topology, and what ended a job other than its own success a scheduler event, as
with Slurm. The GPUs of a host are those of the requirement in force (ngpus_physical). lsb.acct has its times in UTC and
its jobs all over; the others print local times, some of them without a year.
"""

from collections.abc import Iterator
from datetime import tzinfo
from pathlib import Path
from typing import Annotated

from services.recording.importers.contract import Draft, Progress, Report, silent
from services.recording.importers.parts.schedulers.allocations import Allocation, fill
from services.recording.importers.parts.schedulers.lsf_accounting import FINISHED, finished, records_of
from services.recording.importers.parts.schedulers.lsf_text import listed, reported
from services.recording.importers.parts.source_files import SourceFiles, where
from services.recording.importers.parts.zones import zone_of

Found = tuple[str, Allocation | str]


def convert(
    source: Annotated[Path, "lsb.acct, or what bhist -l, bjobs -l or bjobs -json printed, or a folder of them"],
    out: Path,
    *,
    timezone: Annotated[str, "time zone of printed times: UTC, Europe/Zurich, +02:00"] = "UTC",
    year: Annotated[int, "year of printed times that have none"] = 0,
    cluster: Annotated[str, "name of the cluster"] = "imported",
    progress: Progress = silent,
) -> Report:
    """Convert accounting into a recording of jobs, hosts and scheduler events at ``out``.

    UserError: the source does not exist, no job that ever started, or ``out`` exists.
    """
    clock, report = zone_of(timezone), Report()
    files = SourceFiles(source, report, progress)
    jobs: list[Allocation] = []
    with Draft(out, report) as draft:
        for path in files.paths:
            for place, found in _found(files, path, clock, year or None):
                if isinstance(found, str):
                    report.skip(found, place)
                else:
                    jobs.append(found)
        topology, count = fill(draft, jobs, report)
        draft.imported(
            topology,
            cluster,
            title=f"LSF accounting of {cluster}",
            summary=f"{count} jobs on {len(topology.nodes)} hosts, as LSF's accounting has them.",
            document="LSF accounting (lsb.acct, bhist, bjobs)",
            notes=[f"printed times are taken as {timezone}; lsb.acct counts seconds since 1970"],
        )
    return report


def recognise(name: str, head: str) -> str | None:
    """Return why a file is taken for LSF's accounting, None where it is none."""
    if head.lstrip().startswith((f'"{FINISHED}" "', '"EVENT_ADRSV_FINISH" "')):
        return "records of lsb.acct"
    if "Job <" in head and (" Host(s) <" in head or "Submitted from host <" in head):
        return "a report of bhist -l or bjobs -l"
    if '"COMMAND":"bjobs"' in head.replace(" ", ""):
        return "bjobs -json"
    return "a name of LSF's accounting" if name.startswith("lsb.acct") else None


def _found(files: SourceFiles, path: Path, zone: tzinfo, year: int | None) -> Iterator[Found]:
    """Yield each job of a file with its place, or why it is none, whichever form the file has."""
    head = files.head(path).lstrip()
    if head.startswith("{"):
        document = files.document(path)
        records = document.get("RECORDS") if isinstance(document, dict) else None
        for number, record in enumerate(records if isinstance(records, list) else [], 1):
            yield f"{where(path)}: record {number}", listed(record, zone, year)
    elif head.startswith('"'):
        for number, line in files.lines(path):
            found = finished(records_of(line))
            if found is not None:
                yield where(path, number), found
    else:
        for number, found in reported(files.lines(path), zone, year):
            yield where(path, number), found
