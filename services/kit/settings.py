"""Settings from the environment: all errors at once, and exit code 2 before anything is connected."""

import logging
import os
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Self, TypeVar

from pydantic import TypeAdapter, ValidationError, model_validator
from pydantic_settings import BaseSettings, SettingsConfigDict

from detectors.nearest import closest
from services.kit.errors import UsageError, UserError
from services.kit.secret import secrets_among, with_files

_log = logging.getLogger(__name__)
_ALIKE = 0.8
"""Other programs have variables of the same prefix: what is only somewhat like a setting is theirs."""


class Settings(BaseSettings):
    """Base of every settings class: frozen, unknown names refused, a secret from the file that NAME_FILE names."""

    # What stands below a setting is its description in docs/reference/settings.md.
    model_config = SettingsConfigDict(extra="forbid", frozen=True, use_attribute_docstrings=True)

    @model_validator(mode="before")
    @classmethod
    def _secrets_from_files(cls, given: dict[str, Any]) -> dict[str, Any]:
        return with_files(cls.model_config.get("env_prefix", ""), secrets_among(cls.model_fields), given)

    def model_copy(self, *, update: Mapping[str, Any] | None = None, deep: bool = False) -> Self:
        """Copy with other values, each validated as in the environment: pydantic's own takes anything for a field.

        Raises pydantic's ValidationError, and KeyError for what is no setting.
        """
        kinds = {name: TypeAdapter(type(self).model_fields[name].rebuild_annotation()) for name in update or ()}
        valid = {name: kinds[name].validate_python(value) for name, value in (update or {}).items()}
        return super().model_copy(update=valid, deep=deep)


S = TypeVar("S", bound=Settings)


def load(kind: type[S], **given: Any) -> S:
    """Return settings of `kind` from the environment, with `given` on top.

    Raises UserError (exit code 2) that lists every wrong setting by its environment name; values are not
    shown, as they may be secrets. A name that comes close to a setting's and is none is warned of.
    """
    for line in misspelt(kind.model_config.get("env_prefix", ""), os.environ):
        _log.warning("%s", line)
    try:
        return kind(**given)
    except ValidationError as error:
        raise _refusal(_lines(kind, error)) from None


def misspelt(prefix: str, names: Iterable[str]) -> list[str]:
    """Return what may be meant by those names of environment variables that are nearly a setting's with this prefix."""
    known = {
        name.upper() + end
        for kind in _kinds(Settings)
        if kind.model_config.get("env_prefix", "") == prefix
        for name in kind.model_fields
        for end in ("", "_FILE")
    }
    lines = []
    for name in names:
        tail = name.upper().removeprefix(prefix)
        if prefix and name.upper().startswith(prefix) and tail.partition("__")[0] not in known:
            near = closest(tail, known, _ALIKE)
            lines += [f"{name} is no setting; did you mean {prefix}{near}?"] if near else []
    return lines


def _kinds(base: type[Settings]) -> Iterator[type[Settings]]:
    for kind in base.__subclasses__():
        yield kind
        yield from _kinds(kind)


def check(*kinds: type[Settings]) -> None:
    """Raise UserError (exit code 2) that lists what is wrong in the environment for all of `kinds` together."""
    wrong: list[str] = []
    for kind in kinds:
        try:
            kind()
        except ValidationError as error:
            wrong += _lines(kind, error)
    if wrong:
        raise _refusal(wrong)


def _lines(kind: type[Settings], error: ValidationError) -> list[str]:
    prefix = kind.model_config.get("env_prefix", "")
    return [
        f"{prefix}{'__'.join(str(part) for part in item['loc']).upper()}: {item['msg']}"
        for item in error.errors(include_input=False, include_url=False)
    ]


def _refusal(lines: list[str]) -> UserError:
    return UsageError(
        f"{len(lines)} wrong setting(s):\n  " + "\n  ".join(lines), remedy="mend the environment variables named above"
    )
