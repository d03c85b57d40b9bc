"""Takes support bundles apart: an nvidia-bug-report is many files in one, a sosreport a machine's folder of them.

A sosreport says of its machine the name, the time zone and when it booted, by which its logs are read.
"""

import re
import shutil
from collections.abc import Iterator
from pathlib import Path

from services.recording.importers.parts.source_files import clean
from services.recording.importers.parts.zones import is_zone
from services.recording.instants import format_instant

_REPORT = "Start of NVIDIA bug report log file"
_RULE = re.compile(r"_{20,}\s*")
_UNAME = re.compile(r"uname: Linux (?P<host>[A-Za-z0-9][\w.-]{0,252}) ")
_HEAD_LINES = 40
_HOST_FILES = ("sos_commands/host/hostname", "sos_commands/general/hostname", "hostname", "etc/hostname")
_HOST = re.compile(r"[A-Za-z0-9][\w.-]{0,252}")
_UNAME_A = re.compile(r"Linux (?P<host>[A-Za-z0-9][\w.-]{0,252}) ")
_DATE = re.compile(r"\d\d:\d\d:\d\d(?: [AP]M)? (?P<zone>[A-Z]{3,5}|[+-]\d\d(?::?\d\d)?)\b")
_ZONES = (
    # timedatectl names the zone itself, date what it is called at the time
    ("sos_commands/systemd/timedatectl", re.compile(r"Time zone: (?P<zone>[A-Za-z_]+(?:/[\w+-]+)*)")),
    ("sos_commands/date/date", _DATE),
    ("sos_commands/general/date", _DATE),
)
_BOOT = re.compile(r"^btime (?P<at>\d{9,10})$", re.MULTILINE)
_WORTH = re.compile(r"NVSMI LOG|NVRM: |\[ *\d+\.\d{6}\]|^[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d \S+ kernel: ", re.MULTILINE)
"""What a section must have to be of use: readings, or lines of the kernel's log."""


def take_apart(root: Path) -> dict[Path, dict[str, str]]:
    """Put sections of bug reports into files of their own, and call sosreports' folders after their machines.

    Return for each such folder the options by which importers read its logs: ``timezone`` and ``boot``.
    """
    found: dict[Path, dict[str, str]] = {}
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        if "bug-report" in path.name:
            _split(path)
    for folder in sorted({path.parent for path in root.rglob("sos_commands")}):
        options, host = _options_of(folder), _host_of(folder)
        found[_called(folder, host, root) if host else folder] = options
    return found


def _called(folder: Path, host: str, root: Path) -> Path:
    """Call a folder after its machine, and return where it is then; of the root, it becomes a folder in it."""
    named = root / host if folder == root else folder.with_name(host)
    if named.exists():
        return folder
    if folder != root:
        return folder.rename(named)
    members = list(root.iterdir())
    named.mkdir()
    for member in members:
        shutil.move(member, named / member.name)
    return named


def _host_of(folder: Path) -> str:
    """Return the name of the machine whose sosreport a folder is."""
    named = (_begin(folder / part).strip() for part in _HOST_FILES)
    by_file = next((text for text in named if _HOST.fullmatch(text)), "")
    uname = _UNAME_A.match(_begin(folder / "sos_commands/kernel/uname_-a"))
    return by_file or (uname["host"] if uname is not None else "")


def _options_of(folder: Path) -> dict[str, str]:
    """Return the options for the logs of a sosreport."""
    options = {}
    for name, pattern in _ZONES:
        match = pattern.search(_begin(folder / name))
        if match is not None and is_zone(match["zone"]):
            options["timezone"] = match["zone"]
            break
    boot = _BOOT.search(_begin(folder / "proc/stat", 1 << 20))
    if boot is not None:
        options["boot"] = format_instant(int(boot["at"]) * 1000)
    return options


def _begin(path: Path, most: int = 4096) -> str:
    try:
        with path.open(encoding="utf-8", errors="replace") as file:
            return file.read(most)
    except OSError:
        return ""


def _split(path: Path) -> None:
    """Write the sections of a bug report that say something into a folder that is called after its machine."""
    host, number = "", 0
    for section in _sections(path):
        head = "".join(section[:_HEAD_LINES])
        if not host:
            if _REPORT not in head and number == 0 and not _UNAME.search(head):
                return
            named = _UNAME.search(head)
            host = named["host"] if named is not None else ""
            continue
        if _WORTH.search("".join(section[:2000])):
            number += 1
            folder = path.with_name(host)
            folder.mkdir(exist_ok=True)
            kind = "nvidia-smi" if "NVSMI LOG" in head else "kernel-log"
            (folder / f"{kind}-{number}.txt").write_text("".join(section), encoding="utf-8")
    if number:
        path.unlink()


def _sections(path: Path) -> Iterator[list[str]]:
    """Yield the lines of each section; rules of underscores lie between them."""
    section: list[str] = []
    with path.open(encoding="utf-8", errors="replace") as file:
        for line in file:
            if _RULE.fullmatch(line):
                if any(part.strip() for part in section):
                    yield section
                section = []
            else:
                section.append(clean(line))
    if any(part.strip() for part in section):
        yield section
