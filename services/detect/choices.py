"""detectors.yaml: which detectors run, and what differs from their defaults."""

from pathlib import Path

import yaml

from detectors.engine import Choice
from detectors.registry import RegistryError, choose
from services.kit.errors import UserError


def load_choices(path: Path | None) -> list[Choice]:
    """Return the detectors to run, configured by `path` or by their defaults.

    Raises UserError (exit code 2) that lists everything wrong with the file.
    """
    overrides: object = {}
    if path is not None:
        try:
            overrides = yaml.safe_load(path.read_text(encoding="utf-8")) or {}
        except (OSError, UnicodeDecodeError) as error:
            raise UserError(f"{path}: cannot be read: {error}", remedy="give a readable file", exit_code=2) from None
        except yaml.YAMLError as error:
            text = " ".join(str(error).split())
            raise UserError(f"{path}: not YAML: {text}", remedy="correct the file", exit_code=2) from None
    if not isinstance(overrides, dict):
        raise UserError(
            f"{path}: not a mapping of detectors to their settings",
            remedy="write for instance: power_throttle: {confirm_readings: 3}",
            exit_code=2,
        )
    try:
        choices = choose({str(name): given for name, given in overrides.items()})
    except RegistryError as error:
        where = f"{path}: " if path is not None else ""
        raise UserError(
            f"{where}{len(error.problems)} thing(s) wrong:\n  " + "\n  ".join(error.problems),
            remedy="the settings, their units and defaults are in detectors/*/detector.yaml",
            exit_code=2,
        ) from None
    if not choices:
        raise UserError(f"{path}: leaves no detector enabled", remedy="enable one", exit_code=2)
    return choices
