"""Reads what an importer is given, a file or a folder of them, plain or gzipped: in pieces, never a long line whole.

Text is UTF-8, or UTF-16 with its mark, as PowerShell writes what a command prints into a file.
"""

import codecs
import csv
import gzip
import io
import json
import math
import os
import re
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

from services.kit.errors import UsageError
from services.recording.importers.contract import Progress, Report

MAX_LINE_BYTES = 65_536
"""What is longer is cut: no log writer writes longer records."""
HEAD_BYTES = 65_536
"""Enough to see what kind of file it is."""
MAX_DOCUMENT_BYTES = 64 << 20
"""A whole dump that is read at once: a COUNTERS_DB of a 512-port switch has some 30 MB."""
BROKEN = (OSError, EOFError, zlib.error)  # gzip raises all three for a damaged file
_KIND = (
    r"(?:dmesg(?:[-_ ]T)?|kmsg|kern|kernel|messages|syslog|journald?|journalctl|system|fabricmanager|boot|logs?"
    r"|testdata|ipmitool|sel|e?list|sdr|sensors?|bmc|ipmi|racadm|getsel|lclog|idrac|ilo|iml|redfish|nvidia|amd"
    r"|smi(?:[-_ ]q)?|metrics?|scrapes?|monitor|static|dcgmi?|dmon|query|gpus?(?![-_]?\d)|csv"
    r"|sos(?:report)?|commands|hardware|var|log"
    r"|infiniband|sys|class|perfquery|ibstat|dumps?|data|output|out|txt|exporter|node(?=[-_]exporter))"
)
_GENERIC = re.compile(rf"(?:{_KIND}[-_ \d]*)+", re.IGNORECASE)
_KIND_BEFORE = re.compile(
    r"(?:(?:dmesg(?:[-_ ]T)?|kmsg|syslog|journal(?:ctl)?|fabricmanager|ipmitool|sel|e?list|sdr|sensors?|racadm|getsel"
    r"|lclog|idrac|ilo|iml|redfish|perfquery|ibstat|(?:nvidia-|amd-)?smi(?:[-_ ]q)?|query[-_ ]gpu|metrics?|scrapes?"
    r"|monitor|static|dcgm-exporter|dcgmi?|dmon)[-_ ]+)+(?=[A-Za-z])",
    re.IGNORECASE,
)
_KIND_AFTER = re.compile(rf"(?:[-_ ]+{_KIND})+$", re.IGNORECASE)
_STAMP = re.compile(
    r"(?<!\d)(?:20\d\d-?[01]\d-?[0-3]\d(?:[T_ .-]?\d\d[-:._]?\d\d(?:[-:._]?\d\d)?Z?)?|1\d{9}(?:\d{3})?)(?!\d)"
)
_GROUPED = re.compile(r"[-+]?[1-9]\d{0,2}(?:,\d{3})+(?:\.\d*)?(?:[eE][-+]?\d+)?")
_REPORT_EVERY = 4096  # lines


class SourceFiles:
    """The files of a source, in order of their names, hidden ones left out; reports how far reading them is.

    UserError where the source does not exist or is a folder without files.
    """

    def __init__(self, source: Path, report: Report, progress: Progress) -> None:
        self.root = source if source.is_dir() else source.parent
        self.paths = _found(source)
        self._report, self._progress = report, progress
        self._total = sum(_size(path) for path in self.paths) or 1
        self._done = 0

    def head(self, path: Path) -> str:
        """Return how a file begins, in no more than `HEAD_BYTES`; nothing of one that cannot be read."""
        try:
            with path.open("rb") as raw, opened(raw, path) as file:
                return file.read(HEAD_BYTES).decode("utf-8", "replace")
        except BROKEN:
            return ""

    def lines(self, path: Path) -> Iterator[tuple[int, str]]:
        """Yield the lines of a file with their numbers, from 1; what is no UTF-8 in them is replaced.

        A file that cannot be read, or not to its end, is reported as skipped.
        """
        try:
            with path.open("rb") as raw, opened(raw, path) as file:
                yield from self._pieces(path, raw, file)
        except BROKEN:
            self._report.skip("a file that cannot be read to its end", where(path))
        self._done += _size(path)
        self._progress(min(self._done / self._total, 1.0))
        self._report.read["files"] += 1

    def _pieces(self, path: Path, raw: IO[bytes], file: IO[bytes]) -> Iterator[tuple[int, str]]:
        number, inside = 0, False
        while piece := file.readline(MAX_LINE_BYTES):
            whole = piece.endswith(b"\n")
            if inside:
                inside = not whole
                continue
            number += 1
            inside = not whole and len(piece) == MAX_LINE_BYTES
            if inside:
                self._report.skip(f"the rest of a line after {MAX_LINE_BYTES:,} bytes", where(path, number))
            if number % _REPORT_EVERY == 0:
                self._progress(min((self._done + raw.tell()) / self._total, 1.0))
            yield number, piece.decode("utf-8", "replace").rstrip("\r\n")
        self._report.read["lines"] += number

    def text(self, path: Path) -> str | None:
        """Return a whole file; None, and reported as skipped, where it is too large or cannot be read."""
        content = b""
        try:
            with path.open("rb") as raw, opened(raw, path) as file:
                content = file.read(MAX_DOCUMENT_BYTES + 1)
        except BROKEN:
            self._report.skip("a file that cannot be read to its end", where(path))
            return None
        finally:
            self._done += _size(path)
            self._progress(min(self._done / self._total, 1.0))
        if len(content) > MAX_DOCUMENT_BYTES:
            self._report.skip(f"a document of more than {MAX_DOCUMENT_BYTES >> 20} MiB", where(path))
            return None
        self._report.read["files"] += 1
        return content.decode("utf-8", "replace")

    def document(self, path: Path) -> Any:
        """Return a JSON file's content; None, and reported as skipped, where it is none."""
        text = self.text(path)
        if text is None:
            return None
        found = parse_json(text)
        if found is None:
            self._report.skip("a file that is no JSON", where(path))
        return found


def parse_json(text: str) -> Any:
    """Return what JSON holds; None where it is broken, nested too deep, or null."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def number_of(value: object) -> float | None:
    """Return a finite number from a number or its text (digit groups by comma allowed); None for all else.

    A comma that does not part thousands stands before decimals in half of the world: such a text is no number here.
    """
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    if isinstance(value, str) and "," in value and not _GROUPED.fullmatch(value.strip()):
        return None
    try:
        number = float(value.replace(",", "") if isinstance(value, str) else value)
    except (ValueError, OverflowError):
        return None
    return number if math.isfinite(number) else None


def cells_of(line: str) -> list[str]:
    """Return the cells of a line of CSV, cleaned; the line as one, where its quotes are broken."""
    try:
        return [clean(cell) for cell in next(csv.reader([line]), [])]
    except csv.Error:
        return [line]


def clean(text: str) -> str:
    """Return text that can be written as UTF-8: JSON escapes and file names may hold halves of characters."""
    return text.encode("utf-8", "replace").decode("utf-8")


def where(path: Path, line: int | None = None) -> str:
    """Return how a place in a source is named to the user."""
    return clean(str(path)) + ("" if line is None else f": line {line}")


def node_by_path(path: Path, root: Path) -> str:
    """Return the node whose dump or log a file is, by its name or that of a folder above it below `root`.

    Names that only say what kind of file it is (``dmesg.txt``, ``sel``, a time) are no node's; ``node`` where all are.
    """
    inside = path.relative_to(root).parts[:-1] if path.is_relative_to(root) else ()
    stem = clean(path.name).split(".")[0]
    for name in (stem, *(clean(part) for part in reversed(inside))):
        plain = _STAMP.sub("", name).strip("-_. ")
        if plain and not _GENERIC.fullmatch(plain):
            return _KIND_BEFORE.sub("", _KIND_AFTER.sub("", plain))
    return "node"


def _found(source: Path) -> list[Path]:
    if source.is_file():
        return [source]
    if not source.is_dir():
        raise UsageError(f"{where(source)}: no such file or folder", remedy="correct the path")
    paths: list[Path] = []
    for folder, folders, names in os.walk(source):
        folders[:] = sorted((name for name in folders if not name.startswith(".")), key=_counted)
        paths.extend(Path(folder) / name for name in sorted(names, key=_counted) if not name.startswith("."))
    if not paths:
        raise UsageError(f"{where(source)}: holds no files", remedy="give the folder that has them")
    return paths


def _counted(name: str) -> list[tuple[int, str]]:
    """Return what orders names as people number files: ``scrape-2`` before ``scrape-10``."""
    return [(int(part) if place % 2 else 0, part) for place, part in enumerate(re.split(r"([0-9]{1,300})", name))]


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0


def opened(raw: IO[bytes], path: Path) -> IO[bytes]:
    """Return what reads a file that was opened as bytes: unpacked, in UTF-8, without the mark of an encoding."""
    file: IO[bytes] = gzip.GzipFile(fileobj=raw) if path.suffix == ".gz" else raw  # type: ignore[assignment]  # reads so
    mark = file.peek(len(codecs.BOM_UTF8))  # type: ignore[attr-defined]  # both have it
    if mark.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        return io.BufferedReader(_InUtf8(file))
    if mark.startswith(codecs.BOM_UTF8):
        file.read(len(codecs.BOM_UTF8))
    return file


class _InUtf8(io.RawIOBase):
    """A file of UTF-16 as the bytes of UTF-8."""

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._decoder, self._left = file, codecs.getincrementaldecoder("utf-16")("replace"), b""

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        while not self._left:
            piece = self._file.read(HEAD_BYTES)
            self._left = self._decoder.decode(piece, final=not piece).encode("utf-8", "replace")
            if not piece:
                break
        taken = min(len(buffer), len(self._left))
        buffer[:taken], self._left = self._left[:taken], self._left[taken:]
        return taken
