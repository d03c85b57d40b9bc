"""What an importer is to read, from an upload: one file (gzip or not), or an archive of a folder (.zip, .tar.gz).

As with recordings, names with a path out, links, devices, doubles and encryption are refused, and what comes out is
counted. Archives in archives are: an importer would unpack them uncounted.
"""

import gzip
import re
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

from services.api.members import Member, copy, damage, is_tar, opened, too_much
from services.kit.errors import UserError

_PART = re.compile(r"[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]{0,199}")
_MOST_FILES = 20_000
_DEEPEST = 24
_PACKED = (b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")
_REMEDY = "send the file, or a .zip or .tar.gz of the folder, as the importer's help says (hindcast import --help)"


def unpacked(upload: Path, scratch: Path, filename: str, most: int) -> Path:
    """Return the file or folder that an upload holds, below `scratch`; a file is named `filename`.

    UserError: it is more than `most` bytes, damaged, or holds what it must not.
    """
    folder = scratch / "source"
    folder.mkdir()
    _unpack(upload, folder, scratch / "archive.tar", filename, most)
    for path in folder.rglob("*"):
        if path.is_file() and _is_packed(path):
            raise _refused(f"holds {path.name[:100]!r}, which is packed itself")
    there = list(folder.iterdir())
    if not there:
        raise _refused("is empty")
    return there[0] if len(there) == 1 else folder


def _unpack(upload: Path, folder: Path, tar: Path, filename: str, most: int) -> None:
    with upload.open("rb") as file:
        magic = file.read(4)
    whole = upload
    if magic[:2] == b"\x1f\x8b":
        whole, filename = tar, filename.removesuffix(".gz")
        with damage(_refused), gzip.open(upload) as packed, tar.open("wb") as target:
            copy(packed, target, most)
    if magic == b"PK\x03\x04" or (whole is tar and is_tar(tar)):
        with opened(whole, _refused) as members:
            _write(members, folder, most)
        tar.unlink(missing_ok=True)
        return
    if not _PART.fullmatch(filename):
        raise _refused("needs a plain file name")
    if whole.stat().st_size > most:
        raise too_much(most)
    whole.rename(folder / filename) if whole is tar else (folder / filename).hardlink_to(whole)


def _write(members: Iterator[Member], folder: Path, most: int) -> None:
    left = most
    for count, member in enumerate(members, start=1):
        if count > _MOST_FILES:
            raise _refused(f"holds more than {_MOST_FILES:,} files")
        parts = [part for part in PurePosixPath(member.name).parts if part != "."]
        plain = not member.name.startswith("/") and "\\" not in member.name and "\0" not in member.name
        if not plain or len(parts) > _DEEPEST or any(not _PART.fullmatch(part) for part in parts):
            raise _refused(f"holds {member.name[:100]!r}, a name that is not taken")
        if member.name.endswith("/") or not parts:
            continue
        if member.size > left:
            raise too_much(most)
        target = folder.joinpath(*parts)
        target.parent.mkdir(parents=True, exist_ok=True)
        with member.open() as source, target.open("xb") as file:
            left -= copy(source, file, left)


def _is_packed(path: Path) -> bool:
    with path.open("rb") as file:
        return file.read(6).startswith(_PACKED)


def _refused(problem: str) -> UserError:
    return UserError(f"the upload {problem}", remedy=_REMEDY)
