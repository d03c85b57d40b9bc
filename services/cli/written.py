"""Texts that commands write where the user says."""

from collections.abc import Mapping
from pathlib import Path

from services.kit.errors import UsageError, UserError


def write_file(path: Path, text: str) -> None:
    """Write a file, over one that is there. UserError (exit code 2) where that cannot be."""
    try:
        path.write_text(text, encoding="utf-8")
    except OSError as error:
        raise unwritable(path, f"cannot be written: {error.strerror}") from None


def write_files(folder: Path, texts: Mapping[str, str]) -> None:
    """Write files by their names into a folder, which is made where it is not there. UserError as for `write_file`."""
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        remedy = "name a folder that you may write to"
        raise UsageError(f"{folder}: cannot be made: {error.strerror}", remedy=remedy) from None
    for name, text in texts.items():
        write_file(folder / name, text)


def unwritable(path: Path, problem: str) -> UserError:
    """Return the error of a file that cannot be written."""
    return UsageError(f"{path}: {problem}", remedy="name a file in a folder that you may write to")
