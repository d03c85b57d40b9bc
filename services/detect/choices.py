"""detectors.yaml: which detectors run, what differs from their defaults, and from those of incidents."""

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from pydantic import ValidationError

from detectors.engine.engine import Choice
from detectors.incidents.knowledge import TABLE, IncidentConfig
from detectors.registry import RegistryError, choose, texts_of
from services.detect.calibration import load_calibration
from services.kit.documents import read_yaml
from services.kit.errors import UsageError, UserError

INCIDENTS = "incidents"
"""A name in the file that is no detector's: settings of detectors/incidents/causes.yaml."""
CALIBRATION = "calibration"
"""Another: the file that `hindcast calibrate` wrote, relative to detectors.yaml."""


def load_choices(path: Path | None, calibration: Path | None = None) -> list[Choice]:
    """Return the detectors to run, configured by `path` or by their defaults; a `calibration` goes before the file's.

    Raises UserError (exit code 2) that lists everything wrong with a file.
    """
    overrides = overrides_in(path)
    if calibration is not None:
        overrides[CALIBRATION] = str(calibration.resolve())
    return choices_of(overrides, path)


def choices_of(
    overrides: Mapping[str, Any], path: Path | None = None, calibration: Mapping[str, Any] | None = None
) -> list[Choice]:
    """Return the detectors to run, as `overrides` (which came from `path`) has them; raise UserError as above.

    `calibration`, by detector, is taken in place of one that `overrides` name.
    """
    known = calibration_of(overrides, path) if calibration is None else calibration
    try:
        choices = choose({name: given for name, given in overrides.items() if name not in _NO_DETECTORS}, known)
    except RegistryError as error:
        raise _wrong(path, [*error.problems, *_wrong_of_incidents(overrides)], "detectors/*/detector.yaml") from None
    if not choices:
        raise UsageError(f"{_where(path)}leaves no detector enabled", remedy="enable one")
    return choices


_NO_DETECTORS = frozenset({INCIDENTS, CALIBRATION})


def calibration_of(overrides: Mapping[str, Any], path: Path | None = None) -> dict[str, Any]:
    """Return the calibration that `overrides` name, by detector; nothing where they name none; UserError as above."""
    named = overrides.get(CALIBRATION)
    if named is None:
        return {}
    if not isinstance(named, str):
        raise _wrong(path, [f"{CALIBRATION}: {named!r} is not the name of a file"], "`hindcast calibrate --help`")
    return dict(load_calibration(path.parent / named if path is not None else Path(named)))


def load_incident_config(path: Path | None) -> IncidentConfig:
    """Return the settings of incidents in `path`, or their defaults; raise UserError (exit code 2) as above."""
    return incident_config_of(overrides_in(path), path)


def incident_config_of(overrides: Mapping[str, Any], path: Path | None = None) -> IncidentConfig:
    """Return the settings of incidents in `overrides`, or their defaults; raise UserError (exit code 2) as above."""
    if problems := _wrong_of_incidents(overrides):
        raise _wrong(path, problems, "detectors/incidents/causes.yaml")
    return TABLE.configure(overrides.get(INCIDENTS) or {})


def _wrong_of_incidents(overrides: Mapping[str, Any]) -> list[str]:
    given = overrides.get(INCIDENTS) or {}
    if not isinstance(given, dict):
        return [f"{INCIDENTS}: {given!r} is not a mapping of settings"]
    try:
        TABLE.configure({str(name): value for name, value in given.items()})
    except ValidationError as error:
        return texts_of(error, IncidentConfig.model_fields, f"{INCIDENTS}.")
    return []


def over(base: Mapping[str, Any], own: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """Return overrides with others on top, setting by setting."""
    return {**base, **{name: {**(base.get(name) or {}), **given} for name, given in own.items()}}


def overrides_in(path: Path | None) -> dict[str, Any]:
    """Return what a detectors.yaml says, nothing without one; raise UserError (exit code 2) where it cannot be read."""
    overrides: object = {}
    if path is not None:
        try:
            overrides = read_yaml(path) or {}
        except FileNotFoundError:
            raise UsageError(f"{path}: cannot be read: there is no such file", remedy="give a readable file") from None
    if not isinstance(overrides, dict):
        raise UsageError(
            f"{path}: not a mapping of detectors to their settings",
            remedy="write for instance: power_throttle: {confirm_readings: 3}",
        )
    return {str(name): given for name, given in overrides.items()}


def _wrong(path: Path | None, problems: list[str], table: str) -> UserError:
    return UsageError(
        f"{_where(path)}{len(problems)} thing(s) wrong:\n  " + "\n  ".join(problems),
        remedy=f"the settings, their units and defaults are in {table}",
    )


def _where(path: Path | None) -> str:
    return f"{path}: " if path is not None else ""
