"""Objects within objects, as JSON of an API has them: what is not as the API has it is refused, never guessed."""

from collections.abc import Mapping
from typing import Any

from services.recording.importers.parts.source_files import clean


class WrongObjectError(ValueError):
    """An object that is not as its API has it: its text says why."""


def part(item: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    """Return an object within an object, empty where there is none; WrongObjectError where it is something else."""
    value = item.get(key)
    if value is not None and not isinstance(value, dict):
        raise WrongObjectError(f"{key} is no object")
    return value or {}


def parts(item: Mapping[str, Any], key: str) -> list[Mapping[str, Any]]:
    """Return a list of objects within an object; WrongObjectError where it is something else."""
    value = item.get(key)
    if value is not None and not (isinstance(value, list) and all(isinstance(one, dict) for one in value)):
        raise WrongObjectError(f"{key} is no list of objects")
    return value or []


def text(item: Mapping[str, Any], key: str) -> str:
    """Return a text of an object, empty where there is none; WrongObjectError where it is something else."""
    value = item.get(key)
    if value is not None and not isinstance(value, str):
        raise WrongObjectError(f"{key} is no text")
    return clean(value or "")[:1000]
