"""The importers of foreign formats, and their options, checked by the types that its function declares."""

import inspect
import re
from pathlib import Path
from typing import Any, get_args, get_type_hints

from pydantic import TypeAdapter, ValidationError

from services.api.tasks.models import Importer, ImporterOption
from services.kit.errors import UsageError
from services.kit.problems import missing
from services.recording.importers.registry import discover

_NO_FILE = frozenset({"prometheus"})
"""Importers that ask a server: captures are for that."""
_ESCAPES = re.compile(r"\.\.|^/|[\x00-\x1f]")


def importers() -> list[Importer]:
    """Return the importers there are, by name."""
    return [_importer_of(name) for name in sorted(discover().keys() - _NO_FILE)]


def options_of(importer: str, given: list[str]) -> dict[str, Any]:
    """Return the options of an importer, from texts NAME=VALUE.

    Raises RefusedError (404) where there is no such importer, UserError (exit code 2) where it has no such option.
    """
    if importer not in discover() or importer in _NO_FILE:
        raise missing("importer", importer, "GET /api/v1/importers lists those there are")
    hints = _hints(importer)
    found: dict[str, Any] = {}
    for text in given:
        name, sign, value = text.partition("=")
        if not sign or name not in hints or name in found or _ESCAPES.search(value):
            raise UsageError(
                f"option {text[:100]!r} cannot be given to {importer}",
                remedy=f"give NAME=VALUE once each, of {', '.join(hints)}",
            )
        try:
            found[name] = TypeAdapter(get_args(hints[name])[0]).validate_python(value)
        except ValidationError as error:
            wrong = error.errors(include_url=False)[0]["msg"]
            raise UsageError(f"option {name}: {wrong}", remedy=get_args(hints[name])[1]) from None
    return found


def _hints(importer: str) -> dict[str, Any]:
    """Return the declared type of each option, annotated with its help."""
    _, convert = discover()[importer]
    hints = get_type_hints(convert, include_extras=True)
    own = inspect.signature(convert).parameters.values()
    given = [one.name for one in own if one.kind is one.KEYWORD_ONLY and one.name != "progress"]
    # A file of this machine is nobody's to name over HTTP.
    return {
        name: hints[name]
        for name in given
        if Path not in (get_args(hints[name])[0], *get_args(get_args(hints[name])[0]))
    }


def _importer_of(importer: str) -> Importer:
    text, convert = discover()[importer]
    parameters = inspect.signature(convert).parameters
    takes = next(get_args(hint)[1] for hint in get_type_hints(convert, include_extras=True).values() if _is_path(hint))
    return Importer(
        name=importer,
        help=text,
        takes=takes,
        options=[
            ImporterOption(
                name=name,
                help=get_args(hint)[1],
                type=getattr(get_args(hint)[0], "__name__", str(get_args(hint)[0])),
                default=parameters[name].default,
            )
            for name, hint in _hints(importer).items()
        ],
    )


def _is_path(hint: Any) -> bool:
    return bool(get_args(hint)) and get_args(hint)[0] is Path
