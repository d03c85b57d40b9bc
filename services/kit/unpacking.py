"""What an importer is to read, from an upload: one file (gzip or not), or an archive of a folder (.zip, .tar.gz).

As with recordings, names with a path out, links, devices, doubles and encryption are refused, and what comes out is
counted. Archives in archives are: an importer would unpack them uncounted.
"""

import gzip
import os
import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path, PurePosixPath

from services.kit.archive_members import Member, Refused, copy, damage, is_tar, opened, too_much
from services.kit.errors import UserError

_PART = re.compile(r"[^./\\\x00-\x1f\x7f][^/\\\x00-\x1f\x7f]{0,199}")
MOST_FILES = 20_000
_DEEPEST = 24
_LATEST = 1 << 32
"""A time after it (2106) is damage."""
_PACKED = (b"\x1f\x8b", b"PK\x03\x04", b"BZh", b"\xfd7zXZ\x00", b"\x28\xb5\x2f\xfd")
_REMEDY = "send the file, or a .zip or .tar.gz of the folder, as the importer's help says (hindcast import --help)"


@dataclass
class Room:
    """How much may still be unpacked, over all archives of one source."""

    size: int
    files: int = MOST_FILES
    lenient: bool = False
    """Pass over hidden files and odd names instead of refusing the archive: a name that leads out is always refused."""

    def write(self, members: Iterator[Member], folder: Path, refused: Refused) -> None:
        """Write the members below `folder`, which has none of them yet.

        UserError: a name that leads out of it or is hidden, or more than there is room for (TooMuchError).
        """
        most = self.size
        for member in members:
            parts = [part for part in PurePosixPath(member.name).parts if part != "."]
            plain = not member.name.startswith("/") and "\\" not in member.name and "\0" not in member.name
            odd = len(parts) > _DEEPEST or any(not _PART.fullmatch(part) for part in parts)
            if not plain or ".." in parts or (odd and not self.lenient):
                raise refused(f"holds {member.name[:100]!r}, a name that is not taken")
            if odd or member.name.endswith("/") or not parts:
                continue
            self.files -= 1
            if self.files < 0:
                raise refused(f"holds more than {MOST_FILES:,} files")
            if member.size > self.size:
                raise too_much(most)
            target = folder.joinpath(*parts)
            target.parent.mkdir(parents=True, exist_ok=True)
            with member.open() as source, target.open("xb") as file:
                self.size -= copy(source, file, self.size)
            if member.modified is not None and 0 <= member.modified < _LATEST:
                os.utime(target, (member.modified, member.modified))


def unpacked(upload: Path, scratch: Path, filename: str, most: int) -> Path:
    """Return the file or folder that an upload holds, below `scratch`; a file is named `filename`.

    UserError: it is more than `most` bytes, damaged, or holds what it must not.
    """
    folder = scratch / "source"
    folder.mkdir()
    _unpack(upload, folder, scratch / "archive.tar", filename, most)
    for path in folder.rglob("*"):
        if path.is_file() and is_packed(path):
            raise _refused(f"holds {path.name[:100]!r}, which is packed itself")
    there = list(folder.iterdir())
    if not there:
        raise _refused("is empty")
    return there[0] if len(there) == 1 else folder


def named_upload(upload: Path, scratch: Path, filename: str) -> Path:
    """Return an upload under the name that it had, below `scratch`, as it is. UserError: the name is none."""
    if not _PART.fullmatch(filename):
        raise _refused("needs a plain file name")
    (scratch / "source").mkdir()
    named = scratch / "source" / filename
    named.hardlink_to(upload)
    return named


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
            Room(most).write(members, folder, _refused)
        tar.unlink(missing_ok=True)
        return
    if not _PART.fullmatch(filename):
        raise _refused("needs a plain file name")
    if whole.stat().st_size > most:
        raise too_much(most)
    whole.rename(folder / filename) if whole is tar else (folder / filename).hardlink_to(whole)


def is_packed(path: Path) -> bool:
    """Whether a file begins as one that is compressed, or an archive."""
    with path.open("rb") as file:
        return file.read(6).startswith(_PACKED)


def _refused(problem: str) -> UserError:
    return UserError(f"the upload {problem}", remedy=_REMEDY)
