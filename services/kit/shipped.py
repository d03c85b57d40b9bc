"""Where the folders that come with hindcast and hold no code lie: in the checkout, or in the installed package."""

from pathlib import Path
from typing import Literal

_PACKAGES = Path(__file__).resolve().parents[1]


def shipped(folder: Literal["alert-rules", "dashboards", "replay-data"]) -> Path:
    """Return one of the folders that pyproject.toml puts into the wheel."""
    installed = _PACKAGES / "shipped" / folder
    return installed if installed.is_dir() else _PACKAGES.parent / folder
