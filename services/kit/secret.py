"""Settings that are secrets: given in the environment as NAME, or in a file as NAME_FILE, and shown nowhere.

A file that changes is read again at the next use, so what asks for the value each time needs no restart.
"""

import os
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any
from urllib.parse import urlsplit

from pydantic import AfterValidator, BeforeValidator, HttpUrl, SecretStr
from pydantic.fields import FieldInfo


class FileSecret(SecretStr):
    """A secret that lies in a file: its text without the blanks around it."""

    def __init__(self, path: Path) -> None:
        """Read the file. Raises ValueError, which names it, where that cannot be done or there is nothing in it."""
        self._path = path
        self._stamp = path.stat().st_mtime_ns if path.exists() else 0
        super().__init__(_text(path))

    def get_secret_value(self) -> str:
        """Return what is in the file now; what was in it last where it cannot be read."""
        try:
            stamp = self._path.stat().st_mtime_ns
            if stamp != self._stamp:
                self._secret_value, self._stamp = _text(self._path), stamp
        except (OSError, ValueError):
            return self._secret_value
        return self._secret_value


def _text(path: Path) -> str:
    try:
        text = path.read_text(encoding="utf-8").strip()
    except (OSError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} cannot be read: {type(error).__name__}") from None
    if not text:
        raise ValueError(f"{path} is empty")
    if "\n" in text or "\r" in text:  # it would end the header that it is sent in
        raise ValueError(f"{path} has more than one line")
    return text


def _opened(given: Any) -> Any:
    """Return a secret that a path stands for. Raises ValueError where both forms are given, or as FileSecret does."""
    if isinstance(given, Both):
        raise ValueError("is given by itself and as a file: choose one")  # noqa: TRY004 - so pydantic lists it
    return FileSecret(given) if isinstance(given, Path) else given


class Both:
    """Stands for a secret that is given twice."""


_OPENED = BeforeValidator(_opened)
Secret = Annotated[SecretStr | None, _OPENED]


def no_credentials(address: Any) -> Any:
    """Return an address as it is; raise ValueError where it has a user or a password, which every log would have."""
    if "@" in urlsplit(str(address)).netloc:
        raise ValueError("has a user or a password in it: give those by the settings for them, or by a file")
    return address


ServerUrl = Annotated[HttpUrl, AfterValidator(no_credentials)]
Address = Annotated[str, AfterValidator(no_credentials)]


def secrets_among(fields: Mapping[str, FieldInfo]) -> list[str]:
    """Return the names of the fields that are a Secret."""
    return [name for name, field in fields.items() if _OPENED in field.metadata]


def with_files(prefix: str, secrets: list[str], given: dict[str, Any]) -> dict[str, Any]:
    """Return settings with the Path of each of `secrets` whose file the environment names; a Both where it is twice."""
    found = dict(given)
    for name in secrets:
        if path := os.environ.get(f"{prefix}{name}_file".upper()):
            found[name] = Both() if name in given else Path(path)
    return found
