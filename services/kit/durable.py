"""Files that survive a crash at any moment: either the old content is there or the new."""

import os
from collections.abc import Sequence
from pathlib import Path

from services.kit.errors import UserError


def replace_file(path: Path, parts: Sequence[bytes]) -> None:
    """Replace a file's content by `parts`, one after the other."""
    draft = path.with_suffix(".draft")
    with draft.open("wb") as file:
        for part in parts:
            file.write(part)
        file.flush()
        os.fsync(file.fileno())
    draft.replace(path)
    directory = os.open(path.parent, os.O_RDONLY)
    try:
        os.fsync(directory)
    finally:
        os.close(directory)


def state_folder(directory: Path, setting: str) -> Path:
    """Return a folder that can be written to, made if need be; UserError (exit code 2) naming `setting` if it can't."""
    try:
        directory.mkdir(parents=True, exist_ok=True)
        probe = directory / ".writable"
        probe.touch()
        probe.unlink()
    except OSError as error:
        raise UserError(
            f"{directory}: state cannot be kept there: {error.strerror}",
            remedy=f"set {setting} to a directory that can be written to",
            exit_code=2,
        ) from None
    return directory
