"""Imports a heap of files of any kinds: looks at each, imports it as what it is, and merges them into one recording.

A folder, an archive (.zip, .tar, .tar.gz, .tar.xz, .tar.zst; archives in it too) or a file. The table says of each file
what it was taken for and why, what came of it, and whose clock its times are by. Names of one machine are brought
together (services/recording/identity.py); a file `aliases.yaml` in the heap, or `--aliases`, has the last word.
"""

import inspect
import os
import re
import shutil
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Any

from services.kit.errors import TooMuchError, UsageError, UserError
from services.recording.clocks import Skew, clock_skews
from services.recording.identity import Identity, identify, read_aliases, renamed
from services.recording.importers.contract import FileRow, Progress, Report, silent
from services.recording.importers.parts.heap.blocks import dump_blocks
from services.recording.importers.parts.heap.bundles import take_apart
from services.recording.importers.parts.heap.files import lay_out
from services.recording.importers.parts.heap.groups import Group, Sorted, sort_heap
from services.recording.importers.registry import discover, recognisers
from services.recording.instants import format_instant
from services.recording.merge import merge_recordings
from services.recording.reader import Recording

_MOST_BYTES = 20_000_000_000
_FEW = 4  # nodes that are named in the table
_ORDER = ("dcgm-text", "nvidia-smi", "slurm", "lsf", "pbs", "kubernetes")
"""Whose word counts where two say something else of one moment: the exporter's and the scheduler's first."""
_NO_ZONE = "no zone in it"
_CLOCKS = (
    # what an importer notes of times, and the few words of the table for it
    (re.compile(r"carry no time"), "step times added up, the log's start taken as {}"),
    (re.compile(r"name no zone"), f"{_NO_ZONE}: taken as {{}}"),
    (re.compile(r"printed times are"), "its own, printed times taken as {}"),
    (re.compile(r"in their names"), "names of files, as {}"),
    (re.compile(r"last modified|last change"), "dates of files"),
)


@dataclass
class _Part:
    group: Group
    recording: Recording
    report: Report


def convert(
    source: Annotated[Path, "a folder or an archive of files of any kinds"],
    out: Path,
    *,
    timezone: Annotated[str, "time zone of times that name none: UTC, Europe/Zurich, +02:00"] = "UTC",
    aliases: Annotated[Path | None, "YAML file: a machine's name, and a list of its other names"] = None,
    most_bytes: Annotated[int, "refuse archives that unpack to more"] = _MOST_BYTES,
    align_clocks: Annotated[bool, "correct logs' times by events that the telemetry saw too"] = True,
    keep_all: Annotated[bool, "keep what lies outside of the telemetry's stretch, too"] = False,
    cluster: Annotated[str, "name of the cluster"] = "imported",
    title: Annotated[str, "headline of the recording, where its name is not enough"] = "",
    progress: Progress = silent,
) -> Report:
    """Convert a heap of files into a recording at ``out``.

    UserError: the source does not exist, an archive holds what it must not or too much, nothing in the heap could be
    imported, or ``out`` exists.
    """
    if out.exists():
        raise UsageError(f"{out} exists", remedy="name another directory")
    known = {} if aliases is None else read_aliases(aliases)
    scratch = out.with_name(f".{out.name}.{os.getpid()}.heap")
    try:
        refused = lay_out(source, scratch / "files", most_bytes)
        own = take_apart(scratch / "files")
        if not any(path.is_file() for path in (scratch / "files").rglob("*")):
            lines = "".join(f"\n  {name}: {why}" for name, why in refused.items())
            raise UsageError(f"{source}: holds no files{lines}", remedy="give the folder that has them")
        unread = dump_blocks(scratch / "files", most_bytes)
        heap = sort_heap(scratch / "files", recognisers(), unread, lambda share: progress(0.1 * share))
        if heap.aliases is not None and aliases is None:
            known = read_aliases(heap.aliases)
        report = Report()
        options = Options({"timezone": timezone, "cluster": cluster}, own)
        parts = _imported(heap, scratch, options, report, progress)
        for name, why in (refused | heap.left).items():
            report.files.append(FileRow(name, skipped=why))
        if not parts:
            raise UserError(
                f"{source}: nothing in it could be imported\n{report}",
                remedy="see the table for what each file lacks; `hindcast import --help` lists what is read",
            )
        how = {"cluster": cluster, "title": title, "align_clocks": align_clocks, "keep_all": keep_all, "log_gaps": True}
        _merged(parts, identify([part.recording for part in parts], known, heap.hosts), out, how, report)
        return report
    finally:
        shutil.rmtree(scratch, ignore_errors=True)


@dataclass(frozen=True)
class Options:
    """What importers are given: for all files, and for those in a folder that says itself whose it is."""

    all: dict[str, Any]
    own: dict[Path, dict[str, str]]

    def of(self, group: Group) -> dict[str, Any]:
        """Return the options for a group."""
        found = (own for folder, own in self.own.items() if all(path.is_relative_to(folder) for path in group.paths))
        return self.all | next(found, {})


def _imported(heap: Sorted, scratch: Path, options: Options, report: Report, progress: Progress) -> list[_Part]:
    """Import each group on its own; those that need a year, once others have given it."""
    parts: list[_Part] = []
    late: list[tuple[Group, str]] = []
    for number, group in enumerate(heap.groups):
        found = _part(group, scratch, number, options.of(group))
        if isinstance(found, str):
            late.append((group, found))
        else:
            parts.append(found)
        progress(0.1 + 0.7 * (number + 1) / len(heap.groups))
    near = _middle(parts)
    for number, (group, problem) in enumerate(late, len(heap.groups)):
        again = options.of(group) | {"near": near}
        found = _part(group, scratch, number, again) if near and "--year" in problem else problem
        if isinstance(found, str):
            report.files.append(FileRow(group.name, _kind(group), skipped=found))
        else:
            parts.append(found)
    place = {name: number for number, name in enumerate(_ORDER)}
    return sorted(parts, key=lambda part: (place.get(part.group.importer, len(place)), part.group.name))


def _part(group: Group, scratch: Path, number: int, options: dict[str, Any]) -> _Part | str:
    """Return what a group came to, or why it came to nothing."""
    _, convert_group = discover()[group.importer]
    stage = scratch / f"stage-{number}"
    for path in group.paths:
        target = stage / path.relative_to(scratch / "files")
        target.parent.mkdir(parents=True, exist_ok=True)
        target.symlink_to(path.resolve())
    out = scratch / f"part-{number}" / f"part-{number}"
    out.parent.mkdir()
    taken = inspect.signature(convert_group).parameters
    try:
        report = convert_group(stage, out, **{name: value for name, value in options.items() if name in taken})
    except TooMuchError:
        raise
    except UserError as error:
        text = f"{error.message}. {error.remedy or ''}".replace(f"{stage}/", "").replace(str(out), group.name)
        return " ".join(text.split())
    return _Part(group, Recording.open(out), report)


def _middle(parts: list[_Part]) -> str:
    """Return the time that most of the other files are of; empty where there are none."""
    middles = sorted((part.recording.manifest.start + part.recording.manifest.end) // 2 for part in parts)
    return format_instant(middles[len(middles) // 2]) if middles else ""


def _merged(parts: list[_Part], identity: Identity, out: Path, how: dict[str, Any], report: Report) -> None:
    """Bring the parts together under one name for each machine, and say in the table what came of each."""
    scratch = parts[0].recording.path.parent.parent
    same = [
        renamed(part.recording, scratch / f"part-{number}-renamed", identity, number)
        for number, part in enumerate(parts)
    ]
    skews: dict[int, list[Skew]] = {}
    for skew in clock_skews(same):
        skews.setdefault(skew.recording, []).append(replace(skew, name=parts[skew.recording].group.name))
    try:
        merged = merge_recordings(same, out, **how)
    except UserError as error:
        words = (_by_files(text, parts, same) for text in (error.message, error.remedy))
        raise UserError(next(words), remedy=next(words), exit_code=error.exit_code) from error
    for name in ("read", "made", "skipped"):
        getattr(report, name).update(getattr(merged, name))
    report.first.update({why: _by_files(text, parts, same) for why, text in merged.first.items()})
    # That no machine is in all of them is as it should be in a heap.
    kept = [note for note in merged.notes if not note.startswith(("no node is in all", "clock of "))]
    clocks = [skew.words(corrected=how["align_clocks"]) for found in skews.values() for skew in found]
    report.notes += [*identity.notes(), *clocks, *(_by_files(note, parts, same) for note in kept)]
    for number, (part, recording) in enumerate(zip(parts, same, strict=True)):
        row = _row(part, recording, skews.get(number, []))
        if recording.manifest.name in merged.left:
            row = replace(row, rows=0, skipped="outside of the stretch that is kept: --keep-all keeps it")
        report.files.append(row)
    same_clock = [row for row in report.files if row.clock.startswith(_NO_ZONE) and "," not in row.clock]
    if same_clock and any(skew.zone is not None for found in skews.values() for skew in found):
        others = f"{len(same_clock)} more file(s) name no zone and keep their times"
        report.notes.append(f"{others}: --timezone moves them, if it is that one")
    report.files.sort(key=lambda row: row.name)
    report.read["files"] = sum(len(part.group.paths) for part in parts)


def _by_files(text: str, parts: list[_Part], same: list[Recording]) -> str:
    """Return words of a merge with each part by its files: of its own name and folder nobody has heard."""
    names = {str(one.path): part.group.name for part, one in zip(parts, same, strict=True)}
    names |= {one.manifest.name: part.group.name for part, one in zip(parts, same, strict=True)}
    known = "|".join(re.escape(name) for name in sorted(names, key=len, reverse=True))
    return re.sub(rf"(?<![\w/-])(?:{known})(?![\w/-])", lambda found: names[found[0]], text)


def _row(part: _Part, recording: Recording, skews: list[Skew]) -> FileRow:
    manifest, nodes = recording.manifest, [node.name for node in recording.topology.nodes]
    switches = [switch.name for switch in recording.topology.switches]
    named = nodes or switches
    rows = sum(info.rows for info in manifest.streams.values())
    rows += part.report.made["events"] + part.report.made["jobs"]
    left = [f"{count:,}: {why}" for why, count in part.report.skipped.most_common()]
    return FileRow(
        part.group.name,
        _kind(part.group),
        ", ".join(named) if len(named) <= _FEW else f"{len(named)} machines",
        rows,
        manifest.start,
        manifest.end,
        ", ".join([_clock(part.report), *(f"{skew.node} {skew.seconds:+.0f} s" for skew in skews)]),
        "; ".join(left),
    )


def _kind(group: Group) -> str:
    return f"{group.importer}: {group.why}"


def _clock(report: Report) -> str:
    for pattern, words in _CLOCKS:
        for note in report.notes:
            if pattern.search(note):
                zone = re.search(r"taken as ([^\s;),]+)|\((\S+)\)$", note)
                return words.format(next((name for name in zone.groups() if name), "UTC") if zone else "UTC")
    return "its own"
