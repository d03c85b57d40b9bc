"""Takes support bundles apart: an nvidia-bug-report is many files in one, a sosreport a machine's folder of them."""

import re
from collections.abc import Iterator
from pathlib import Path

from services.recording.importers.parts.source_files import clean

_REPORT = "Start of NVIDIA bug report log file"
_RULE = re.compile(r"_{20,}\s*")
_UNAME = re.compile(r"uname: Linux (?P<host>[A-Za-z0-9][\w.-]{0,252}) ")
_HEAD_LINES = 40
_HOST_FILES = ("sos_commands/host/hostname", "sos_commands/general/hostname", "hostname", "etc/hostname")
_HOST = re.compile(r"[A-Za-z0-9][\w.-]{0,252}")
_WORTH = re.compile(r"NVSMI LOG|NVRM: |\[ *\d+\.\d{6}\]|^[A-Z][a-z]{2} +\d+ \d\d:\d\d:\d\d \S+ kernel: ", re.MULTILINE)
"""What a section must have to be of use: readings, or lines of the kernel's log."""


def take_apart(root: Path) -> None:
    """Put sections of bug reports into files of their own, and call sosreports' folders after their machines."""
    for path in sorted(path for path in root.rglob("*") if path.is_file()):
        if "bug-report" in path.name:
            _split(path)
    for folder in sorted({path.parent for path in root.rglob("sos_commands")}):
        host = next((name for part in _HOST_FILES if (name := _host_in(folder / part))), "")
        if host and folder != root and not folder.with_name(host).exists():
            folder.rename(folder.with_name(host))


def _host_in(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8", errors="replace")[:300].strip()
    except OSError:
        return ""
    return text if _HOST.fullmatch(text) else ""


def _split(path: Path) -> None:
    """Write the sections of a bug report that tell something into a folder that is called after its machine."""
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
