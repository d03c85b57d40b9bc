"""Where hindcast keeps things when nobody says otherwise: the folders of the XDG base directory specification."""

import os
from pathlib import Path


def cache_dir(name: str) -> Path:
    """Return the folder for what can be made again: `$XDG_CACHE_HOME/hindcast/NAME`."""
    return _base("XDG_CACHE_HOME", ".cache") / "hindcast" / name


def state_dir(name: str) -> Path:
    """Return the folder for what must outlive a restart: `$XDG_STATE_HOME/hindcast/NAME`."""
    return _base("XDG_STATE_HOME", ".local/state") / "hindcast" / name


def _base(variable: str, fallback: str) -> Path:
    """Return the base folder that `variable` names; relative values are to be ignored."""
    value = os.environ.get(variable, "")
    return Path(value) if Path(value).is_absolute() else Path.home() / fallback
