"""Finds the kinds of happenings: every module in this folder with one subclass of `Happening` that names its kind."""

import importlib
import inspect
import pkgutil
from collections.abc import Mapping
from functools import cache
from typing import get_args

from pydantic import ValidationError

from services.recording.reader import describe
from services.synth import faults
from services.synth.story.happening import Happening


@cache
def kinds() -> dict[str, type[Happening]]:
    """Return the class of every kind: the module's name is the kind's."""
    found: dict[str, type[Happening]] = {}
    for module in pkgutil.iter_modules(faults.__path__):
        if module.name == "registry" or module.name.startswith("test_"):
            continue
        loaded = importlib.import_module(f"{faults.__name__}.{module.name}")
        own = [
            kind
            for _, kind in inspect.getmembers(loaded, inspect.isclass)
            if issubclass(kind, Happening) and kind.__module__ == loaded.__name__
        ]
        if [get_args(kind.model_fields["kind"].annotation) for kind in own] != [(module.name,)]:
            wanted = f'one subclass of Happening, with `kind: Literal["{module.name}"]`'
            raise TypeError(f"{loaded.__name__}: a module of this folder has {wanted}")
        found[module.name] = own[0]
    return found


def happening_of(given: object) -> Happening:
    """Return the happening that a scenario's entry describes; ValueError saying what is wrong with it."""
    if isinstance(given, Happening):
        return given
    if not isinstance(given, Mapping) or given.get("kind") not in kinds():
        raise ValueError(f"kind: there are {', '.join(sorted(kinds()))}")
    try:
        return kinds()[given["kind"]].model_validate(given)
    except ValidationError as error:
        raise ValueError(describe(error)) from error
