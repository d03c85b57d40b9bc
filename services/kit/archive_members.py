"""What an archive of unknown origin holds, read so that nothing in it decides how much memory or time that takes.

Of a .tar the headers are read here, one by one: tarfile's own reader recurses from header to header, and fills lists of
any length from the maps of sparse files. Of a .zip only members are taken that can be unpacked piece by piece.
"""

import io
import lzma
import stat
import struct
import tarfile
import zipfile
import zlib
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path
from typing import IO, NamedTuple, Protocol

from services.kit.durable import NO_ROOM
from services.kit.errors import TooMuchError, UserError

_CHUNK = 1 << 18
_LARGEST_HEADER = 1 << 20
"""Bytes of a header or a table of contents: a larger one is an attack."""
_SPARSE = "GNU.sparse."

_DAMAGED = (
    zipfile.BadZipFile, tarfile.TarError, zlib.error, lzma.LZMAError, struct.error, EOFError, ValueError,
    NotImplementedError,
)  # fmt: skip

Refused = Callable[[str], UserError]
"""Makes the error of what is wrong with an archive."""


class Readable(Protocol):
    """What can be read piece by piece."""

    def read(self, size: int, /) -> bytes | None:
        """Return up to `size` bytes, none at the end."""


class Member(NamedTuple):
    """A file of an archive, or, by a name that ends in a slash, a folder."""

    name: str
    size: int
    open: Callable[[], AbstractContextManager[Readable]]
    modified: float | None = None
    """Seconds since 1970; a .zip has local times, which are nobody's: None."""


@contextmanager
def opened(archive: Path, refused: Refused, *, links: bool = False) -> Iterator[Iterator[Member]]:
    """Give the members of a .zip or a .tar; what `refused` makes of it where it is neither, or damaged.

    What is no regular file is refused too, or with `links` passed over: none is ever followed.
    """
    with damage(refused):
        if _begin(archive)[:4] == b"PK\x03\x04":
            with _Guarded(io.FileIO(archive), refused) as guarded, zipfile.ZipFile(guarded) as opened_zip:
                yield _zip_members(opened_zip, refused, links=links)
        else:
            with archive.open("rb") as file:
                yield _tar_members(file, refused, links=links)


@contextmanager
def damage(refused: Refused) -> Iterator[None]:
    """Raise what `refused` makes of what turns out to be damaged; a full disk stays an OSError."""
    try:
        yield
    except OSError as error:
        if error.errno in NO_ROOM:
            raise
        raise refused("is damaged") from None
    except _DAMAGED:
        raise refused("is damaged, or packed in a way that is not taken") from None


def is_tar(path: Path) -> bool:
    """Return whether a file begins as a .tar does."""
    block = _begin(path)
    if block and not block.strip(b"\0"):  # of nothing
        return True
    try:
        tarfile.TarInfo.frombuf(block, "utf-8", "strict")
    except (tarfile.TarError, ValueError):
        return False
    return True


def copy(source: Readable, target: IO[bytes], most: int) -> int:
    """Copy all there is and return how much; TooMuchError beyond `most` bytes."""
    written = 0
    while chunk := source.read(_CHUNK):
        written += len(chunk)
        if written > most:
            raise too_much(most)
        target.write(chunk)
    return written


def too_much(most: int) -> TooMuchError:
    """Return the error that says that what is unpacked is more than may be."""
    return TooMuchError(
        f"unpacked, it is more than {most:,} bytes",
        remedy="send less, or unpack it yourself (over HTTP: raise HINDCAST_API_UNPACKED_BYTES)",
    )


def _begin(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(tarfile.BLOCKSIZE)


class _Guarded(io.BufferedReader):
    """A file that refuses to be read in lumps that no honest archive has."""

    def __init__(self, file: io.FileIO, refused: Refused) -> None:
        super().__init__(file)
        self._refused = refused

    def read(self, size: int | None = -1, /) -> bytes:
        """Return up to `size` bytes."""
        data = super().read(_LARGEST_HEADER + 1 if size is None or size < 0 else min(size, _LARGEST_HEADER + 1))
        if len(data) > _LARGEST_HEADER:
            raise self._refused("has a table of contents of more than a MiB")
        return data


def _zip_members(archive: zipfile.ZipFile, refused: Refused, *, links: bool) -> Iterator[Member]:
    for info in archive.infolist():
        shown = repr(info.filename[:100])
        if info.flag_bits & 0x1:
            raise refused(f"holds {shown}, which is encrypted")
        if stat.S_IFMT(info.external_attr >> 16) not in (0, stat.S_IFREG, stat.S_IFDIR):
            if links:
                continue
            raise refused(f"holds {shown}, which is no regular file")
        # Of others zipfile unpacks as much at once as comes out of a piece: gigabytes.
        if info.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise refused(f"holds {shown}, which is neither stored nor deflated")
        yield Member(info.filename, info.file_size, lambda info=info: archive.open(info))  # type: ignore[misc]  # of this turn


class _Stretch(io.RawIOBase):
    """So many bytes of a file from where it stands."""

    def __init__(self, file: IO[bytes], size: int) -> None:
        self._file, self._left = file, size

    def readable(self) -> bool:
        """Return True."""
        return True

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]  # io gives one
        """Read into `buffer`; EOFError where the file ends before."""
        data = self._file.read(min(len(buffer), self._left))
        if not data and self._left:
            raise EOFError
        buffer[: len(data)] = data
        self._left -= len(data)
        return len(data)


def _tar_members(file: IO[bytes], refused: Refused, *, links: bool) -> Iterator[Member]:
    longer: str | None = None
    while (block := file.read(tarfile.BLOCKSIZE)).strip(b"\0"):
        info = tarfile.TarInfo.frombuf(block, "utf-8", "strict")
        if info.size < 0:
            raise refused("is damaged")
        behind = file.tell() + -(-info.size // tarfile.BLOCKSIZE) * tarfile.BLOCKSIZE
        if info.type in (tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME, tarfile.XGLTYPE):
            if info.size > _LARGEST_HEADER:
                raise refused("has a header of more than a MiB")
            longer = _longer_name(info.type, file.read(info.size), refused) or longer
        else:
            name, longer = longer or info.name, None
            if info.isdir():
                yield Member(f"{name.rstrip('/')}/", 0, io.BytesIO)
            elif info.type in (tarfile.REGTYPE, tarfile.AREGTYPE):
                yield Member(name, info.size, lambda size=info.size: _Stretch(file, size), info.mtime)  # type: ignore[misc]  # of this turn
            elif not links:
                raise refused(f"holds {name[:100]!r}, which is no regular file")
        file.seek(behind)


def _longer_name(kind: bytes, header: bytes, refused: Refused) -> str | None:
    """Return the name that a header gives to the next member; None without any."""
    if kind == tarfile.GNUTYPE_LONGNAME:
        return header.rstrip(b"\0").decode()
    if kind == tarfile.XGLTYPE:
        return None
    name, at = None, 0
    while at < len(header):  # records: length, blank, key=value, newline
        length = header[at : at + 20].partition(b" ")[0]
        end = at + int(length)
        key, _, value = header[at + len(length) + 1 : end - 1].decode().partition("=")
        if end <= at + len(length) + 1 or key == "size" or key.startswith(_SPARSE):
            raise refused("has a header that says of a file more than its name")
        name, at = value if key == "path" else name, end
    return name
