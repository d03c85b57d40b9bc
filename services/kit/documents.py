"""YAML that people write, read so that nothing in it is more than a wrong file."""

from pathlib import Path
from typing import Any

import yaml

from detectors import yaml_text
from services.kit.errors import UserError

NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
"""ValueError comes of an impossible date and of bytes that are no text, RecursionError of what nests."""
_DEEPEST = 250
"""PyYAML nests a third as deep as Python's stack, 1000 by default; libyaml until the process ends (beyond 20,000)."""
_BEGINS_BLOCKS = " \t-?:\ufeff"
"""What stands in a line before its first word."""


def parse_yaml(text: str) -> Any:
    """Return what the text of a user's file says. Raises what `NOT_YAML` has.

    By libyaml in a tenth of the time, where it cannot nest so deep that the process ends by it; what libyaml does not
    take PyYAML reads again: its errors show the line.
    """
    if _deepest(text) <= _DEEPEST:
        try:
            return yaml_text.load(text)
        except NOT_YAML:
            pass
    return yaml.safe_load(text)


def _deepest(text: str) -> int:
    """Return how deep a text nests at most: each level has a bracket, or begins further right than the one around it.

    Only a list may begin in the column of the mapping that it is in.
    """
    widest = max((len(line) - len(line.lstrip(_BEGINS_BLOCKS)) for line in text.splitlines()), default=0)
    return text.count("[") + text.count("{") + 2 * (widest + 1)


def read_yaml(path: Path, *, exit_code: int = 2) -> Any:
    """Return what a YAML file says. UserError where it cannot be read, or is no YAML; FileNotFoundError stays one."""
    try:
        return parse_yaml(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, *NOT_YAML) as error:
        problem = "cannot be read" if isinstance(error, OSError) else "not YAML"
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: {problem}: {reason}", remedy="correct the file", exit_code=exit_code) from error
