"""Names that were misspelt: which one of those that there are is meant."""

import difflib
from collections.abc import Iterable


def closest(name: str, known: Iterable[str], alike: float = 0.6) -> str | None:
    """Return the known name that comes closest, None where none does; `alike`: from 0, anything, to 1, the same."""
    names = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), names, n=1, cutoff=alike)
    return names[close[0]] if close else None


def meant(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean NAME?`` for the closest of the known names, nothing where none comes close."""
    found = closest(name, known)
    return f"; did you mean {found}?" if found is not None else ""
