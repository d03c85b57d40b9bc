"""A backup: folders and files of state in one .tar.gz, with the hash of each, and back again, whole or not at all."""

import fcntl
import hashlib
import io
import sqlite3
import tarfile
import tempfile
import zlib
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from pathlib import Path, PurePosixPath
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, field_validator

from services.kit.durable import sync_folder
from services.kit.errors import UsageError, UserError

_MANIFEST = "backup.json"
_ASIDE = ".before-restore"
_LOCKS = ("lock", "api.lock")
_PASSING = (".draft", ".lock", "-wal", "-shm", "-journal")
"""Ends of the names of files that are of no use to another process."""
_CHUNK = 1 << 20


class _Manifest(BaseModel):
    """Where each part was (a folder or a file), and the SHA-256 of each file by `part/path in it`."""

    model_config = ConfigDict(extra="forbid", frozen=True)
    format: Literal["hindcast.backup/v1"] = "hindcast.backup/v1"
    parts: Mapping[str, Path]
    files: Mapping[str, str]

    @field_validator("files", "parts")
    @classmethod
    def _within(cls, names: Mapping[str, Any]) -> Mapping[str, Any]:
        for name in names:
            if PurePosixPath(name).is_absolute() or ".." in PurePosixPath(name).parts:
                raise ValueError(f"{name} lies outside of the backup")
        return names


def write_backup(out: Path, paths: Sequence[Path], *, leave_out: Sequence[str] = ()) -> int:
    """Write folders and files into the new file `out`, and return how many files; folders `leave_out` are passed over.

    A store of SQLite is copied as of one moment; all else that hindcast keeps is replaced whole, and is read so. Raises
    UserError (exit code 2) for a path that is not there, and where `out` is.
    """
    parts = {f"{number}-{path.name}": path for number, path in enumerate(paths)}
    for path in paths:
        if not path.exists():
            raise UsageError(f"{path}: is not there", remedy="name folders or files of hindcast's state")
    draft = out.with_name(f".{out.name}.draft")
    files: dict[str, str] = {}
    try:
        if out.exists():
            raise FileExistsError
        with tarfile.open(draft, "w:gz") as archive:
            draft.chmod(0o600)  # what was found is nobody else's
            for part, root in parts.items():
                for path in _files(root, leave_out):
                    name = f"{part}/{path.relative_to(root).as_posix()}" if path != root else part
                    with _as_it_is(path) as content:
                        archive.add(content, name, recursive=False)
                        files[name] = _hash(content)
            text = _Manifest(parts=parts, files=files).model_dump_json(indent=1).encode()
            info = tarfile.TarInfo(_MANIFEST)
            info.size = len(text)
            archive.addfile(info, io.BytesIO(text))
        draft.rename(out)
        sync_folder(out.parent)
    except OSError as error:
        raise UsageError(
            f"{out}: cannot be written: {error.strerror or 'it is there already'}", remedy="choose another --out"
        ) from error
    finally:
        draft.unlink(missing_ok=True)
    return len(files)


def read_backup(file: Path, *, into: Path | None = None, replace: bool = False) -> list[Path]:
    """Put the parts of a backup back where they were, or into a folder; return where they are.

    Raises UserError: a file that is no backup or is damaged (exit code 1), or not there (2); a part that is there
    already and not to be replaced, or is in use (2). Then nothing is changed.
    """
    manifest = _checked(file)
    targets = {part: into / part.partition("-")[2] if into else path for part, path in manifest.parts.items()}
    for target in targets.values():
        _check_target(target, replace=replace)
    with tarfile.open(file) as archive:
        for part, target in targets.items():
            target.parent.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=target.parent, prefix=".restoring-") as scratch:
                new = Path(scratch) / target.name
                _unpack(archive, manifest, part, new)
                if target.exists():
                    target.rename(target.with_name(target.name + _ASIDE))
                new.rename(target)
            sync_folder(target.parent)
    return list(targets.values())


def copy_store(path: Path, to: Path) -> None:
    """Copy a store of SQLite as it is at one moment, whoever writes to it."""
    with closing(sqlite3.connect(path)) as source, closing(sqlite3.connect(to)) as copied:
        source.backup(copied)


def _files(root: Path, leave_out: Sequence[str]) -> Iterator[Path]:
    if root.is_file():
        yield root
        return
    for path in sorted(root.iterdir()):
        if path.is_symlink() or path.name.startswith(".") or path.name in (*leave_out, *_LOCKS):
            continue
        if path.is_dir():
            yield from _files(path, leave_out)
        elif path.is_file() and not path.name.endswith(_PASSING):
            yield path


@contextmanager
def _as_it_is(path: Path) -> Iterator[Path]:
    """Give a copy of a file that nobody changes."""
    with tempfile.TemporaryDirectory(prefix="hindcast-backup-") as scratch:
        copied = Path(scratch) / path.name
        if path.suffix == ".sqlite":
            copy_store(path, copied)
        else:
            copied.write_bytes(path.read_bytes())
        copied.chmod(0o600)
        yield copied


def _hash(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def _checked(file: Path) -> _Manifest:
    """Return the manifest of a backup of which every file is there as it was written."""
    if not file.exists():
        raise UsageError(f"{file}: no such file", remedy="name what `hindcast backup` has written")
    try:
        with tarfile.open(file) as archive:
            member = archive.extractfile(_MANIFEST)
            manifest = _Manifest.model_validate_json(member.read() if member else b"")
            for name, known in manifest.files.items():
                _check_member(archive, name, known)
    except (OSError, EOFError, KeyError, ValueError, tarfile.TarError, zlib.error) as error:
        words = error.strerror if isinstance(error, OSError) and error.strerror else str(error)
        raise UserError(
            f"{file}: not a whole backup: {words}", remedy="take another backup; nothing was changed"
        ) from error
    return manifest


def _check_member(archive: tarfile.TarFile, name: str, known: str) -> None:
    content = archive.extractfile(name)
    digest = hashlib.sha256()
    while content is not None and (piece := content.read(_CHUNK)):
        digest.update(piece)
    if digest.hexdigest() != known:
        raise ValueError(f"{name} is not what was written")


def _check_target(target: Path, *, replace: bool) -> None:
    if not target.exists():
        return
    if not replace:
        raise UsageError(f"{target}: is there already", remedy="use --replace, or --into another folder")
    aside = target.with_name(target.name + _ASIDE)
    if aside.exists():
        raise UsageError(f"{aside}: is there already", remedy="move it away: it is what was replaced before")
    for lock in (target / "api.lock", target.parent / "lock"):
        if lock.is_file() and _is_held(lock):
            raise UsageError(f"{target}: is in use", remedy="end what uses it (hindcast api, hindcast stack)")


def _is_held(lock: Path) -> bool:
    with lock.open("rb") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return True
    return False


def _unpack(archive: tarfile.TarFile, manifest: _Manifest, part: str, new: Path) -> None:
    if part not in manifest.files:
        new.mkdir()
    for name in manifest.files:
        path = PurePosixPath(name)
        if path.parts[0] != part:
            continue
        to = new.joinpath(*path.parts[1:])
        to.parent.mkdir(parents=True, exist_ok=True)
        content = archive.extractfile(name)
        with to.open("wb") as file:
            while content is not None and (piece := content.read(_CHUNK)):
                file.write(piece)
