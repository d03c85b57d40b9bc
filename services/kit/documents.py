"""YAML that people write, read so that nothing in it is more than a wrong file."""

from pathlib import Path
from typing import Any

import yaml

from services.kit.errors import UserError

NOT_YAML = (yaml.YAMLError, ValueError, RecursionError)
"""ValueError comes of an impossible date and of bytes that are no text, RecursionError of what nests."""


def read_yaml(path: Path, *, exit_code: int = 2) -> Any:
    """Return what a YAML file says. UserError where it cannot be read, or is no YAML; FileNotFoundError stays one."""
    try:
        return yaml.safe_load(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise
    except (OSError, *NOT_YAML) as error:
        problem = "cannot be read" if isinstance(error, OSError) else "not YAML"
        reason = " ".join(str(error).split())[:200]
        raise UserError(f"{path}: {problem}: {reason}", remedy="correct the file", exit_code=exit_code) from error
