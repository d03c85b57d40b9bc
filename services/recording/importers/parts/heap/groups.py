"""Sorts the files of a heap: which importer knows each and why, and which of them are one series of dumps."""

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from services.recording.importers.contract import Progress, Report, silent
from services.recording.importers.parts.heap.blocks import BLOCK_NAME
from services.recording.importers.parts.source_files import SourceFiles

_STAMP = re.compile(
    r"(?<!\d)20\d\d-?[01]\d-?[0-3]\d"
    r"(?:[T_ .-]?[012]\d[-:._]?[0-5]\d(?:[-:._]?[0-6]\d)?(?:\.\d+)?(?:Z|[+-]\d\d:?\d\d)?)?(?!\d)"
    r"|(?<![\dA-Fa-fx])1\d{9}(?:\d{3})?(?!\d)"
)
_COUNTER = re.compile(r"(?<=[-_.])\d{1,6}(?=\.[A-Za-z.]+$|$)")
_GENERAL = ("kernel-log",)
"""Importers that know the form of a line and not what is in it: they take what no other does."""
_WHOLE_FOLDER = re.compile(r"(?P<tree>.*?/(?:infiniband|redfish|amd-?smi))/", re.IGNORECASE)
"""Trees whose files belong together, whatever they are called."""
_HOSTS = re.compile(
    r"^(?:\d{1,3}(?:\.\d{1,3}){3}|[0-9A-Fa-f:]*::[0-9A-Fa-f:]*)\s+(?P<names>[A-Za-z][\w. \t-]*?)\s*(?:#.*)?$"
)


_BLOCK = re.compile(rf"(?P<block>(?:.*/)?{BLOCK_NAME})/.*")
_TSDB = "a block of Prometheus' TSDB: with promtool on the PATH it is read (or promtool tsdb dump-openmetrics, by hand)"
_FEW = 8


@dataclass(frozen=True)
class Group:
    """Files that are imported together: `name` is shown, `why` says what they were taken for."""

    name: str
    importer: str
    why: str
    paths: tuple[Path, ...]


@dataclass(frozen=True)
class Sorted:
    """A heap sorted: what is imported, what is not and why, and the names of one machine that hosts files give."""

    groups: list[Group]
    left: dict[str, str]
    hosts: list[tuple[str, ...]]
    aliases: Path | None


Knows = Mapping[str, Callable[[str, str], str | None]]


def sort_heap(root: Path, knows: Knows, unread: Mapping[Path, str], progress: Progress = silent) -> Sorted:
    """Look at every file below `root`, and say what it is. UserError: there is none.

    `unread`: why blocks of Prometheus' could not be read.
    """
    files = SourceFiles(root, Report(), silent)
    found: dict[tuple[str, str], list[tuple[Path, str]]] = {}
    left: dict[str, str] = {}
    hosts: list[tuple[str, ...]] = []
    aliases = None
    for number, path in enumerate(files.paths):
        progress(number / len(files.paths))
        name = path.relative_to(root).as_posix()
        if path.name in {"aliases.yaml", "aliases.yml"}:
            aliases = path
            continue
        block = _BLOCK.fullmatch(name)
        if block is not None:
            left[block["block"]] = unread.get(root / block["block"], _TSDB)
            continue
        head = files.head(path)
        if path.name == "hosts":
            hosts += hosts_of(head)
            continue
        kind = _kind(knows, name, head)
        if kind is None:
            left[name] = "empty" if not head.strip() else "in no form that is known here"
            continue
        importer, why = kind
        found.setdefault((importer, _series(name)), []).append((path, why))
    groups = [
        Group(_shown(root, series, members), importer, members[0][1], tuple(path for path, _ in members))
        for (importer, series), members in found.items()
    ]
    return Sorted(sorted(groups, key=lambda group: group.name), _summed(left), hosts, aliases)


def _summed(left: Mapping[str, str]) -> dict[str, str]:
    """Return what was left out by name; of many files of one folder that are left for one reason, the folder."""
    alike: dict[tuple[str, str], list[str]] = {}
    for name, why in left.items():
        alike.setdefault((name.partition("/")[0] if "/" in name else "", why), []).append(name)
    return {
        name: why
        for (folder, why), names in alike.items()
        for name in (names if len(names) <= _FEW else [f"{folder or '.'}/ ({len(names)} files)"])
    }


def _kind(knows: Knows, name: str, head: str) -> tuple[str, str] | None:
    """Return the importer that knows a file, and why; one that knows what is in it before one that knows its lines."""
    reasons = {importer: why for importer, knows_it in knows.items() if (why := knows_it(name, head))}
    special = {importer: why for importer, why in reasons.items() if importer not in _GENERAL}
    return next(iter((special or reasons).items()), None)


def _series(name: str) -> str:
    """Return a file's name without the time or number that distinguishes it from the others of its series."""
    tree = _WHOLE_FOLDER.match(name)
    if tree is not None:
        return tree["tree"]
    return _COUNTER.sub("*", _STAMP.sub("*", name))


def _shown(root: Path, series: str, members: Sequence[tuple[Path, str]]) -> str:
    if len(members) == 1:
        return members[0][0].relative_to(root).as_posix()
    return f"{series} ({len(members)} files)"


def hosts_of(text: str) -> list[tuple[str, ...]]:
    """Return the names that lines of a hosts file give to one machine, its address first; loopback is nobody's."""
    found = []
    for line in text.splitlines():
        match = _HOSTS.match(line.strip())
        address = line.split()[0] if match is not None else ""
        if match is not None and not address.startswith("127.") and address not in {"::1", "fe80::1"}:
            names = [name for name in match["names"].split() if name not in {"localhost", "ip6-localhost"}]
            found.append((address, *names))
    return found
