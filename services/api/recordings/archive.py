"""An uploaded archive becomes a recording: looked at before it is unpacked, counted while it is, and validated after.

A recording is a flat folder of a few files, so little has to be allowed: regular files with plain names, all at the top
or all in one folder. Links, devices, folders in folders, names with a path in them, doubles and encryption are refused;
sizes are counted by what comes out, not by what headers say.
"""

import gzip
import re
import shutil
import tempfile
from collections.abc import Container, Iterator
from pathlib import Path, PurePosixPath

import pyarrow.parquet as pq
import yaml

from services.api.settings import ApiSettings
from services.kit.archive_members import Member, copy, damage, opened, too_much
from services.kit.documents import NOT_YAML
from services.kit.errors import UserError
from services.kit.problems import RefusedError
from services.recording.model import Topology
from services.recording.reader import read_manifest, read_topology
from services.recording.schema import STREAMS
from services.recording.stream_file import open_stream
from services.recording.validate import validate_recording

_NAME = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,99}")
LEFT = ".import-"
"""How the names begin of what is not whole yet, beside the recordings; a new start deletes what is left of it."""
_MOST_FILES = 64
_LARGEST_MANIFEST = 1 << 20
_LARGEST_DOCUMENT = 512 << 20
"""Bytes of any file that is not a stream."""
_LARGEST_TOPOLOGY = 16 << 20
"""It is read whole: 100,000 GPUs take as much."""
_LONGEST_LINE = 1 << 20
_LONGEST_NAME = 1024
"""A host's name has up to 253 characters; a name is held once for each table that has it."""
_LARGEST_NAMES = 16 << 20
"""Bytes of a column of names in a row group, which has up to a million rows and names each entity once."""
_DEEPEST = 20
_SHOWN = 20
_REMEDY = "send one recording as hindcast wrote it: zip -r or tar -czf over its folder"


def _refused(problem: str, status: int = 422) -> RefusedError:
    return RefusedError(status, f"the archive {problem}", remedy=_REMEDY)


def import_archive(archive: Path, recordings: Path, settings: ApiSettings, taken: Container[str] = frozenset()) -> Path:
    """Unpack an archive (.zip or .tar.gz, by its first bytes) as a recording below `recordings`; return its folder.

    `taken` are names of recordings elsewhere: what was run on one of them is not to be shown over this one.
    Raises RefusedError: 413 where it is too much, 409 where there is one of that name, 422 where it is not what it
    should be, which includes every recording that does not validate. Nothing is left behind then.
    """
    recordings.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix=LEFT, dir=recordings) as place:
        folder = Path(place) / "unpacked" / "recording"
        folder.mkdir(parents=True)
        _unpack(archive, folder, Path(place) / "archive.tar", settings.unpacked_bytes)
        with damage(_refused):
            folder = _checked(folder, settings)
        target = recordings / folder.name
        if folder.name in taken and not target.exists():
            raise RefusedError(
                409,
                f"there is a recording {folder.name}, in a library that is only read",
                remedy="give this one another name: that of its folder, and in recording.yaml",
            )
        try:
            folder.rename(target)  # which takes no folder's place that has files in it
        except OSError:
            raise RefusedError(
                409, f"there is a recording {folder.name}", remedy="delete it first, or give this one another name"
            ) from None
        return target


def _unpack(archive: Path, folder: Path, tar: Path, most: int) -> None:
    with archive.open("rb") as file:
        magic = file.read(4)
    if magic[:2] == b"\x1f\x8b":
        with damage(_refused), gzip.open(archive) as packed, tar.open("wb") as whole:
            copy(packed, whole, most)
        archive = tar
    elif magic != b"PK\x03\x04":
        raise _refused("is neither a .zip nor a .tar.gz", 415)
    with opened(archive, _refused) as members:
        _write(members, folder, most)
    tar.unlink(missing_ok=True)


def _write(members: Iterator[Member], folder: Path, most: int) -> None:
    """Write regular files flat into `folder`; refuse all that a recording's archive has no need of."""
    roots: set[str] = set()
    names: set[str] = set()
    left = most
    for count, member in enumerate(members, start=1):
        if count > _MOST_FILES:
            raise _refused(f"holds more than {_MOST_FILES} files")
        root, name = _where(member.name)
        roots.add(root)
        if len(roots) > 1:
            raise _refused("holds files in several folders: one recording is one flat folder")
        if not name:
            continue
        if name.lower() in names:
            raise _refused(f"holds {name} twice")
        names.add(name.lower())
        if member.size > left:
            raise too_much(most)
        with member.open() as source, (folder / name).open("xb") as target:
            left -= copy(source, target, left)


def _where(member: str) -> tuple[str, str]:
    """Return the folder (empty for the top) and the name (empty for the folder itself) of a member."""
    is_folder = member.endswith("/")
    parts = [part for part in PurePosixPath(member).parts if part != "."]
    plain = not member.startswith("/") and "\\" not in member and "\0" not in member
    if not plain or any(not _NAME.fullmatch(part) for part in parts) or len(parts) > (1 if is_folder else 2):
        raise _refused(f"holds {member[:100]!r}, a name that no file of a recording has")
    if is_folder:
        return (parts[0] if parts else ""), ""
    if not parts:
        raise _refused("holds a file without a name")
    return (parts[0] if len(parts) == 2 else ""), parts[-1]


def _checked(folder: Path, settings: ApiSettings) -> Path:
    """Give the recording's folder its name and return it; RefusedError (422) where the recording is not valid."""
    _check_manifest(folder / "recording.yaml")
    for path in folder.iterdir():
        if path.suffix != ".parquet":
            _check_document(path)
    try:
        manifest = read_manifest(folder)
        _check_names(read_topology(folder))
        rows = 0
        for kind in STREAMS:
            path = folder / STREAMS[kind].file
            if path.exists():
                with open_stream(path) as file:
                    rows += file.metadata.num_rows
                    _check_chunks(path.name, file.metadata)
    except UserError as error:
        raise RefusedError(422, _without(error.message, folder), remedy=error.remedy) from None
    if rows > settings.rows:
        raise RefusedError(
            413, f"it has {rows:,} rows", remedy=f"cut it to {settings.rows:,}, or raise HINDCAST_API_ROWS"
        )
    folder = folder.rename(folder.with_name(manifest.name))
    violations = validate_recording(folder)
    if violations:
        shown = "; ".join(_without(str(violation), folder) for violation in violations[:_SHOWN])
        more = f"; and {len(violations) - _SHOWN} more" if len(violations) > _SHOWN else ""
        raise RefusedError(
            422, f"the recording is not valid: {shown}{more}", remedy="mend what hindcast validate lists"
        )
    return folder


def _check_document(path: Path) -> None:
    most = _LARGEST_TOPOLOGY if path.name == "topology.json" else _LARGEST_DOCUMENT
    if path.stat().st_size > most:
        raise RefusedError(413, f"{path.name} is more than {most:,} bytes", remedy="cut the recording")
    if path.suffix == ".jsonl":
        with path.open("rb") as lines:
            number = 0
            while line := lines.readline(_LONGEST_LINE + 1):
                number += 1
                if len(line) > _LONGEST_LINE:
                    raise RefusedError(
                        413, f"{path.name}: line {number} is more than {_LONGEST_LINE:,} bytes", remedy="cut its text"
                    )


def _check_names(topology: Topology) -> None:
    names = [node.name for node in topology.nodes] + [nic.nic for node in topology.nodes for nic in node.nics]
    names += [switch.name for switch in topology.switches] + [mount.mount for mount in topology.mounts]
    longest = max(names, key=len, default="")
    if len(longest) > _LONGEST_NAME:
        problem = f"topology.json: the name {longest[:40]}... has {len(longest):,} characters"
        raise UserError(problem, remedy=f"names have up to {_LONGEST_NAME:,}")


def _check_chunks(name: str, metadata: pq.FileMetaData) -> None:
    for group in map(metadata.row_group, range(metadata.num_row_groups)):
        for column in map(group.column, range(group.num_columns)):
            if column.physical_type == "BYTE_ARRAY" and column.total_uncompressed_size > _LARGEST_NAMES:
                problem = (
                    f"{name}: column {column.path_in_schema} has more than {_LARGEST_NAMES:,} bytes in a row group"
                )
                raise UserError(problem, remedy="write smaller row groups")


def _check_manifest(path: Path) -> None:
    """Refuse a manifest that grows when it is read: aliases multiply, and depth takes the stack."""
    try:
        if path.stat().st_size > _LARGEST_MANIFEST:
            raise _refused("has a recording.yaml of more than a MiB")
        depth = 0
        for token in yaml.scan(path.read_text(encoding="utf-8")):
            if isinstance(token, yaml.AliasToken):
                raise _refused("has a recording.yaml with aliases")
            opens = isinstance(
                token,
                yaml.BlockMappingStartToken
                | yaml.BlockSequenceStartToken
                | yaml.FlowMappingStartToken
                | yaml.FlowSequenceStartToken,
            )
            closes = isinstance(token, yaml.BlockEndToken | yaml.FlowMappingEndToken | yaml.FlowSequenceEndToken)
            depth += opens - closes
            if depth > _DEEPEST:
                raise _refused("has a recording.yaml that nests too deep")
    except FileNotFoundError:
        raise _refused("has no recording.yaml") from None
    except NOT_YAML:
        raise _refused("has a recording.yaml that is not YAML") from None


def _without(text: str, folder: Path) -> str:
    """Return a message without where it was unpacked, which is nobody's business."""
    return text.replace(f"{folder}/", "").replace(str(folder), "the recording")


def discard_leftovers(recordings: Path) -> None:
    """Delete what an import or a deletion that was broken off has left."""
    for pattern in (f"{LEFT}*", ".*.deleted"):
        for path in recordings.glob(pattern):
            if path.is_dir():
                shutil.rmtree(path, ignore_errors=True)
            else:
                path.unlink(missing_ok=True)
