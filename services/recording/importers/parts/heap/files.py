"""Lays out a heap of files for importers: archives unpacked, within bounds; all else linked to where it lies."""

import bz2
import gzip
import lzma
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pyarrow as pa

from services.kit.archive_members import copy, damage, is_tar, opened
from services.kit.errors import TooMuchError, UsageError, UserError
from services.kit.unpacking import Room, is_packed

_DEEPEST = 3
"""Archives inside archives: a support bundle holds compressed logs, and is itself sent in an archive."""
_OPENERS: dict[bytes, Callable[[Path], Any]] = {
    b"\x1f\x8b": gzip.open,
    b"BZh": bz2.open,
    b"\xfd7zXZ\x00": lzma.open,
    b"\x28\xb5\x2f\xfd": lambda path: pa.input_stream(path, compression="zstd"),
}
_PACKERS = (".gz", ".xz", ".bz2", ".zst")
_SUFFIXES = (*(f".tar{suffix}" for suffix in _PACKERS), ".tgz", ".txz", ".tzst", ".tar", ".zip", *_PACKERS)


def lay_out(source: Path, root: Path, most: int) -> dict[str, str]:
    """Lay out a folder, an archive or a file below `root`; return by name what could not be unpacked, and why.

    UserError: the source is not there, is no folder and cannot be unpacked, or its archives come to more than `most`
    bytes (TooMuchError). No link is followed, and nothing is written outside of `root`.
    """
    if not source.exists():
        raise UsageError(f"{source}: no such file or folder", remedy="correct the path")
    room, refused = Room(most, lenient=True), dict[str, str]()
    root.mkdir(parents=True)
    if source.is_file():
        if not _unpacked(source, root, source.name, room, 0, refused) and not refused:
            _link(source, root / source.name)
        _lift(root)
        if refused:
            name, why = next(iter(refused.items()))
            raise UserError(f"{name}: {why}", remedy="unpack it yourself and give the folder")
        return refused
    for path in sorted(source.rglob("*")):
        inside = path.relative_to(source)
        if path.is_symlink() or not path.is_file() or any(part.startswith(".") for part in inside.parts):
            continue
        target = root / inside
        target.parent.mkdir(parents=True, exist_ok=True)
        if not _unpacked(path, target.parent, str(inside), room, 0, refused) and str(inside) not in refused:
            _link(path, target)
    return refused


def _lift(root: Path) -> None:
    """Take what an archive held out of the folder of its own name: it says nothing of what is in it."""
    there = list(root.iterdir())
    if len(there) == 1 and there[0].is_dir():
        inner = there[0] / there[0].name
        top = there[0].rename(root.with_name(f"{root.name}.lifted"))
        shutil.rmtree(root)
        (top / inner.name if (top / inner.name).is_dir() and len(list(top.iterdir())) == 1 else top).rename(root)


def _link(path: Path, target: Path) -> None:
    if target.exists():
        target = target.with_name(f"{target.name}.plain")
    target.symlink_to(path.resolve())


def _unpacked(path: Path, folder: Path, name: str, room: Room, depth: int, refused: dict[str, str]) -> bool:
    """Unpack a file into a folder, archives in it too; return whether it was packed at all."""

    def problem(words: str) -> UserError:
        return UserError(f"the archive {words}")

    try:
        if not (is_packed(path) or (path.suffix == ".tar" and is_tar(path))):
            return False
        if depth == _DEEPEST:
            raise problem(f"lies inside of {_DEEPEST} others")
        _open(path, folder, room, problem, lambda inner, into: _unpacked(inner, into, name, room, depth + 1, refused))
    except TooMuchError:
        raise
    except (UserError, OSError) as error:
        refused[name] = error.message if isinstance(error, UserError) else "it cannot be read"
    return True


def _open(
    path: Path, folder: Path, room: Room, problem: Callable[[str], UserError], again: Callable[[Path, Path], bool]
) -> None:
    stem = path.name
    for suffix in _SUFFIXES:
        if stem.lower().endswith(suffix):
            stem = stem[: -len(suffix)] or "unpacked"
            break
    scratch = folder / f".{stem}.whole"
    with path.open("rb") as file:
        head = file.read(6)
    opener = next((one for magic, one in _OPENERS.items() if head.startswith(magic)), None)
    whole = path
    if opener is not None:
        whole = scratch
        with damage(problem), opener(path) as packed, scratch.open("wb") as target:
            room.size -= copy(packed, target, room.size)
    try:
        if head.startswith(b"PK\x03\x04") or is_tar(whole):
            into = folder / stem
            into.mkdir(parents=True)
            with opened(whole, problem, links=True) as members:
                room.write(members, into, problem)
            for inner in sorted(into.rglob("*")):
                if inner.is_file() and again(inner, inner.parent):
                    inner.unlink()
        else:
            single = folder / stem
            shutil.copystat(path, scratch)
            scratch.rename(single if not single.exists() else folder / f"{stem}.unpacked")
    finally:
        scratch.unlink(missing_ok=True)
