"""Names that were misspelt: which one of those that there are is meant."""

import difflib
from collections.abc import Iterable


def meant(name: str, known: Iterable[str]) -> str:
    """Return ``; did you mean NAME?`` for the closest of the known names, nothing where none comes close."""
    names = {one.lower(): one for one in known}
    close = difflib.get_close_matches(name.lower(), names, n=1)
    return f"; did you mean {names[close[0]]}?" if close else ""
