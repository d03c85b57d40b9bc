"""Finds the importers: every module in this folder that has a function `convert`; and which of them knows a file."""

import importlib
import pkgutil
from collections.abc import Callable
from functools import cache

from services.recording import importers
from services.recording.importers.contract import Report


@cache
def discover() -> dict[str, tuple[str, Callable[..., Report]]]:
    """Return help text and `convert` of every importer, by name (the module's, with hyphens)."""
    found: dict[str, tuple[str, Callable[..., Report]]] = {}
    for module in pkgutil.iter_modules(importers.__path__):
        if module.name.startswith("test_"):
            continue
        loaded = importlib.import_module(f"{importers.__name__}.{module.name}")
        convert = getattr(loaded, "convert", None)
        if convert is not None:
            text = (loaded.__doc__ or "").strip().partition("\n")[0]
            found[module.name.replace("_", "-")] = text, convert
    return found


Recognise = Callable[[str, str], str | None]
"""Given a file's name (with folders) and how it begins, says why it is one of the importer's; None where it is not."""


@cache
def recognisers() -> dict[str, Recognise]:
    """Return the `recognise` of every importer that has one, by the importer's name."""
    found = {}
    for name in discover():
        module = importlib.import_module(f"{importers.__name__}.{name.replace('-', '_')}")
        if hasattr(module, "recognise"):
            found[name] = module.recognise
    return found
